"""The page of a match, step by step (`story`): who holds and sees what, with the numbers of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from securefl.core.linear import Floats
from securefl.linear.pad_terms import PLACE
from securefl.matching.story import Client, Story
from securefl.report.pages import Picture, environment, number_text
from securefl.report.style import ARM_COLOURS, blank, light_frame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TEMPLATE: Final = "story.html.j2"
_SHOWN: Final = 3
"""The most numbers of a vector that a step shows."""
_HEX: Final = 24
"""The most bytes that a step shows."""
_DRAWN: Final = 96
"""The most bytes that the picture shows."""
PARTIES: Final = ("Client", "Evaluator", "Key holder", "Eavesdropper")
Kind = Literal["plain", "masked", "bytes", "score", "note"]


@dataclass(frozen=True)
class Exhibit:
    """One thing that a party has after a step. kind: plain numbers, masked integers, bytes in hex, a score,
    or a note on what was measured. what: in words, with its size. values: as text."""

    party: str
    kind: Kind
    what: str
    values: Sequence[str] = ()


@dataclass(frozen=True)
class Step:
    """A step of the match. says: what happens, in a sentence or two. new: what parties get by it. took: who
    needed how much time for it."""

    title: str
    says: str
    new: Sequence[Exhibit]
    took: str = ""

    def of(self, party: str) -> list[Exhibit]:
        return [own for own in self.new if own.party == party]


@dataclass(frozen=True, kw_only=True, eq=False)
class Told:
    """One match as the page tells it."""

    heading: str
    answer: str
    picture: Picture
    steps: Sequence[Step]


def render(stories: Sequence[Story], *, about: str, reproduce: str) -> str:
    """The page of these matches as one HTML text.

    about: a sentence on whose profiles they are. reproduce: the command that makes such a page again, with
    fresh keys.
    """
    told = [
        Told(
            heading=_heading(own),
            answer=_answer(own),
            picture=_picture(own, f"seen-{place}"),
            steps=_steps(own),
        )
        for place, own in enumerate(stories)
    ]
    page = environment().get_template(_TEMPLATE)
    return page.render(told=told, about=about, reproduce=reproduce, parties=PARTIES)


def _heading(story: Story) -> str:
    """What hides the numbers, and its words on the command line."""
    flags = f"--params {story.options.parameters} --variant {story.options.variant}"
    if story.options.padded:
        return f"Under pads ({flags}): no key to steal"
    return f"Under CKKS ciphertexts, with checked openings ({flags})"


def _took(story: Story, what: str, whose: str) -> str:
    return f"{whose} took {1000 * story.seconds[what]:.1f} ms on this machine."


def _answer(story: Story) -> str:
    scores = ", ".join(f"{own.score:.3g} for {own.label}" for own in story.clients)
    most = (
        "the evaluator read their variances alone"
        if len(_shown(story).clear)
        else "nobody read a client's numbers"
    )
    return f"The key holder read {scores}. No other party read a score, and {most}."


def _shown(client_of: Story) -> Client:
    """The client whose numbers the steps show: the one farthest from the baseline."""
    return max(client_of.clients, key=lambda own: own.score)


def _steps(story: Story) -> list[Step]:
    own = _shown(story)
    masked = _masked_steps(story, own) if own.words is not None else _encrypted_steps(story, own)
    return [_profiles(story, own), *masked, _read(story), _checked(story)]


def _profiles(story: Story, own: Client) -> Step:
    size = len(own.profile.mean)
    return Step(
        "Everybody starts with plain numbers of their own",
        f"Each client sums up its records as {size} means and {size} variances, those of a layer's "
        "outputs. The evaluator has such a profile of its own, the baseline. The key holder makes keys.",
        [
            Exhibit(
                "Client",
                "plain",
                f"{own.label}: {size} means, over {own.profile.count:,} records",
                _numbers(own.profile.mean),
            ),
            Exhibit("Client", "plain", f"{size} variances", _numbers(own.profile.variance)),
            Exhibit(
                "Evaluator",
                "plain",
                f"baseline: {size} means",
                _numbers(story.baseline.mean),
            ),
            Exhibit(
                "Evaluator",
                "plain",
                f"{size} variances",
                _numbers(story.baseline.variance),
            ),
            Exhibit("Key holder", "note", "its secret key, which never leaves it"),
            Exhibit(
                "Eavesdropper",
                "note",
                f"the public key, {_bytes(story.public_key)}, as all have it",
            ),
        ],
        _took(story, "keys", "The key holder's keys"),
    )


def _sends(own: Client, *concealed: Exhibit) -> Step:
    bits = np.unpackbits(np.frombuffer(own.sealed, np.uint8))
    spread = 1.96 * 0.5 / np.sqrt(len(bits))
    readable = Exhibit(
        "Evaluator",
        "plain",
        "the variances and the sum of their logarithms, left readable",
        _numbers(own.clear),
    )
    new = [
        *concealed,
        *([readable] if len(own.clear) else []),
        _again(own),
        Exhibit(
            "Eavesdropper",
            "bytes",
            f"the file, {_bytes(len(own.file))}: a readable header with the label and the options, "
            f"then {_bytes(len(own.sealed))} under a seal",
            [_hex(own.sealed)],
        ),
        Exhibit(
            "Eavesdropper",
            "note",
            f"share of ones among the {number_text(len(bits), 0)} sealed bits: {bits.mean():.4f} "
            f"(a fair coin: 0.5 ± {spread:.4f} in 95 of 100 matches)",
        ),
    ]
    says = "The file is sealed to the evaluator, so the key holder cannot read it on the way."
    return Step("It sends a file to the evaluator", says, new)


def _again(own: Client) -> Exhibit:
    # The tag of the terms of pads is public, and the same in all messages of a match.
    start, end = 0 if own.words is None else PLACE, len(own.message) - own.clear.nbytes
    one, other = (np.frombuffer(raw, np.uint8)[start:end] for raw in (own.message, own.again))
    return Exhibit(
        "Evaluator",
        "note",
        f"a second encryption of the same numbers differs in {100 * np.mean(one != other):.1f} % of its "
        f"bytes (unrelated bytes differ in {100 * 255 / 256:.1f} %)",
    )


def _masked_steps(story: Story, own: Client) -> list[Step]:
    words = own.words
    assert words is not None
    from scipy.stats import spearmanr

    count = len(words.plain)
    # Of ranks, since a few of the plain integers are much larger than the others.
    relation = float(spearmanr(np.array(words.plain, float), np.array(words.masked, float)).statistic)
    return [
        Step(
            "The client hides its numbers under a pad",
            f"It makes {count} integers of them, and adds to each a fresh random integer, modulo "
            f"2^{words.bits}. Only the key holder can make the same random integers.",
            [
                Exhibit("Client", "plain", f"{count} integers", _integers(words.plain)),
                Exhibit(
                    "Client",
                    "masked",
                    "the same with the pad",
                    _integers(words.masked),
                ),
            ],
            _took(story, "encrypted", "A client"),
        ),
        _sends(
            own,
            Exhibit(
                "Evaluator",
                "masked",
                f"{count} masked integers, in {_bytes(len(own.message))} with a fresh public key",
                _integers(words.masked),
            ),
            Exhibit(
                "Evaluator",
                "note",
                f"their rank correlation with the client's integers: {relation:.2f} (unrelated "
                f"numbers: within ± {1.96 / np.sqrt(count):.2f} in 95 of 100 matches)",
            ),
        ),
        Step(
            "The evaluator multiplies them with its baseline",
            "It sums the products of the masked integers and its weights to one integer. The weights go "
            "to the key holder under a mask of their own, which client and evaluator share.",
            [
                Exhibit(
                    "Evaluator",
                    "plain",
                    f"{count} weights of the baseline",
                    _integers(words.weights),
                ),
                Exhibit(
                    "Evaluator",
                    "masked",
                    "its integer, still masked",
                    [str(words.word)],
                ),
                Exhibit(
                    "Key holder",
                    "masked",
                    f"{count} masked weights",
                    _integers(words.share),
                ),
                Exhibit("Key holder", "masked", "the integer", [str(words.word)]),
                _scores_file(story),
            ],
            _took(story, "matched", "For all clients it"),
        ),
    ]


def _encrypted_steps(story: Story, own: Client) -> list[Step]:
    count, digest = len(own.features), story.options.declared or ""
    squares = (
        "their squares" if len(own.clear) else "their squares with the variances, the sum of the logarithms"
    )
    declared = Exhibit(
        "Client", "bytes", f"the digest, {_bytes(len(digest) // 2)}", [_hex(bytes.fromhex(digest))]
    )
    return [
        Step(
            "The evaluator commits to its baseline",
            "It tells everybody the digest of its weights, before any client encrypts. Later it can be "
            "scored with these weights and no others.",
            [
                declared,
                replace(declared, party="Key holder"),
                Exhibit(
                    "Eavesdropper",
                    "note",
                    f"the declaration, {_bytes(len(story.declaration or b''))}, with the same digest",
                ),
            ],
            _took(story, "declared", "The evaluator"),
        ),
        Step(
            "The client encrypts and signs its numbers",
            f"It puts {count} numbers (the means, {squares}) into one ciphertext under the key holder's "
            "public key. It signs the ciphertext together with the digest.",
            [
                Exhibit("Client", "plain", f"{count} numbers", _numbers(own.features)),
                Exhibit(
                    "Client",
                    "bytes",
                    f"one ciphertext with its signature, {_bytes(len(own.message))}",
                    [_hex(own.message)],
                ),
            ],
            _took(story, "encrypted", "A client"),
        ),
        _sends(
            own,
            Exhibit(
                "Evaluator",
                "bytes",
                f"the ciphertext, {_bytes(len(own.message))}; it has no key to open it",
                [_hex(own.message)],
            ),
        ),
        Step(
            "The evaluator multiplies half of the ciphertext with its baseline",
            "It sends the key holder one integer of this product, the other half of the "
            "ciphertext, the client's signature, and its weights. The key holder checks that the client "
            "signed this ciphertext for weights of this digest. So it learns the weights, and nothing that "
            "the client did not sign is opened.",
            [
                Exhibit(
                    "Evaluator",
                    "plain",
                    f"{count} weights of the baseline",
                    _numbers(story.weights),
                ),
                Exhibit(
                    "Key holder",
                    "plain",
                    f"the same {count} weights",
                    _numbers(story.weights),
                ),
                Exhibit(
                    "Key holder",
                    "bytes",
                    f"the request for this client, {_bytes(len(own.request))}",
                    [_hex(own.request)],
                ),
                _scores_file(story),
            ],
            _took(story, "matched", "For all clients it"),
        ),
    ]


def _scores_file(story: Story) -> Exhibit:
    return Exhibit(
        "Eavesdropper",
        "bytes",
        f"the file of {len(story.clients)} requests, {_bytes(len(story.scores_file))}; its last bytes",
        [_hex(story.scores_file[-_HEX:])],
    )


def _read(story: Story) -> Step:
    return Step(
        "The key holder reads one score for each client",
        "A score is the divergence of the client's profile from the baseline: 0 for the same profile, "
        "larger for others. Nothing goes back to the evaluator or to the clients.",
        [
            Exhibit(
                "Key holder",
                "score",
                f"{own.label}, within {_small(story.bound)}",
                [f"{own.score:.6g}"],
            )
            for own in story.clients
        ],
        _took(story, "revealed", "For all clients it"),
    )


def _checked(story: Story) -> Step:
    worst = max(abs(own.score - own.truth) for own in story.clients)
    says = (
        "This page knows the plain profiles, as no party of a match does. Computed from them, the largest "
        f"difference from a score is {_small(worst)}; the stated bound is {_small(story.bound)}."
    )
    regained = [own.words.regained for own in story.clients if own.words is not None]
    if regained:
        says += (
            " Evaluator and key holder must not join: together they take the pads off, and the largest "
            f"difference from a client's integers is then {max(regained)}."
        )
    title = "Is it right, and what breaks it?" if regained else "Is it right?"
    return Step(title, says, [])


def _picture(story: Story, name: str) -> Picture:
    own = _shown(story)
    return Picture(
        name=name,
        title="What three parties have of the same client",
        caption=f"Above: the numbers of {own.label}, which it alone has. Middle: the first bytes of what the "
        f"evaluator gets, of {_bytes(len(own.message))}. Below: the scores, which the key holder alone "
        "reads.",
        draw=lambda: _drawn(story, own),
    )


def _drawn(story: Story, own: Client) -> Figure:
    figure = blank(height=7.6)
    client, evaluator, holder = figure.subplots(3, 1)
    for axes, title in (
        (client, "client: plain means"),
        (evaluator, "evaluator: bytes"),
        (holder, "key holder: scores"),
    ):
        light_frame(axes)
        axes.set_title(title, fontsize=10, loc="left")
    mean = np.asarray(own.profile.mean)
    client.bar(np.arange(len(mean)), mean, color=ARM_COLOURS[0])
    client.set_xlabel("element of the profile")
    first = np.frombuffer(own.message, np.uint8)[:_DRAWN]
    evaluator.plot(np.arange(len(first)), first, ".", color=ARM_COLOURS[1], markersize=5)
    evaluator.set_ylim(-5, 260)
    evaluator.set_xlabel("byte of the message")
    places = np.arange(len(story.clients))
    scores = [one.score for one in story.clients]
    holder.barh(places, scores, color=ARM_COLOURS[2], height=0.6)
    holder.set_yticks(
        places, [one.label if len(one.label) <= 16 else one.label[:15] + "…" for one in story.clients]
    )
    holder.invert_yaxis()
    holder.grid(visible=False)
    for place, score in zip(places, scores, strict=True):
        holder.annotate(
            f"{score:.3g}", (score, place), (4, 0), textcoords="offset points", va="center", fontsize=10
        )
    holder.set_xlim(0, 1.25 * max(*scores, 1e-9))
    holder.set_xlabel("divergence from the baseline")
    return figure


def _numbers(values: Floats) -> list[str]:
    shown = [f"{value:.3f}" for value in np.asarray(values)[:_SHOWN]]
    return [", ".join([*shown, "…"] if len(np.asarray(values)) > _SHOWN else shown)]


def _integers(values: Sequence[int]) -> list[str]:
    shown = [f"{value}" for value in values[:_SHOWN]]
    return [*shown, "…"] if len(values) > _SHOWN else shown


def _small(value: float) -> str:
    """One digit of a small number, without an exponent."""
    return np.format_float_positional(float(f"{value:.1g}"), trim="-")


def _hex(raw: bytes) -> str:
    return raw[:_HEX].hex(" ", 4) + (" …" if len(raw) > _HEX else "")


def _bytes(count: int) -> str:
    return f"{number_text(count, 0)} bytes"
