"""One encrypted match, step by step: what each party holds, and what it sees of the others.

`played` plays all parties in one process with fresh keys, by the files of a matching, and notes everything
that a party gets. In a real matching nobody has such a record: it has the secrets of all parties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from securefl.core.errors import ConfigError, DataError
from securefl.core.linear import Floats, LinearQuery
from securefl.core.signing import SIGNATURE_BYTES, unseal
from securefl.linear import words
from securefl.linear.addressed import TAG, PadFiles, pad_and_last
from securefl.linear.pad_terms import KEY
from securefl.linear.pads import admit, rounded
from securefl.matching.clients import ClientKey
from securefl.matching.evaluator import Evaluator
from securefl.matching.key_holder import KeyHolder, Revealed
from securefl.matching.keys import pads_key
from securefl.matching.matchers import requests_context
from securefl.matching.options import Files, Options
from securefl.matching.profiles import divergence
from securefl.matching.sealed import Profile, Scores, Sealed

_OPENINGS = 100
"""The openings that the keys of a story allow."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Words:
    """What pads make of one client's values. All are integers below 2^bits, in one order.

    plain: the client's values as integers. masked: what the evaluator sees of them. share: what the key
    holder sees of the baseline's weights. word: the one integer of the score's side. regained: the largest
    difference between `plain` and what evaluator and key holder together compute from `masked`.
    """

    bits: int
    plain: Sequence[int]
    masked: Sequence[int]
    weights: Sequence[int]
    share: Sequence[int]
    word: int
    regained: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Client:
    """One client's part. Bytes are as they are on disk and on the way.

    features: the client's vector before encryption, (2q + 1,). file: what it sends, as anybody on the way
    sees it. sealed: its part that is not readable. message: the same part, as the evaluator opens it. again:
    the message of a second encryption of the same profile, which is not sent. request: what the evaluator
    sends on for this client, as the key holder opens it. score: what the key holder reads. truth: the
    divergence of the plain profiles, which no party of the protocol can compute. words: of pads; None for
    ciphertexts.
    """

    label: str
    profile: Profile
    features: Floats
    file: bytes
    sealed: bytes
    message: bytes
    again: bytes
    request: bytes
    score: float
    truth: float
    words: Words | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Story:
    """A match of several clients with one baseline. weights: of the baseline, (2q + 1,). public_key: of the
    key holder, in bytes. declaration: the evaluator's file with the digest of its weights, which clients wait
    for; None under pads. scores_file: what the evaluator sends to the key holder, as on the way. bound:
    |score - truth| is at most this."""

    options: Options
    baseline: Profile
    weights: Floats
    clients: Sequence[Client]
    public_key: int
    declaration: bytes | None
    scores_file: bytes
    bound: float


def played(profiles: Mapping[str, Profile], baseline: Profile, options: Options) -> Story:
    """Play a match of these profiles, by label, with a baseline, under fresh keys.

    Under ciphertexts the evaluator declares its baseline first, and the key holder checks every opening.
    Raises ConfigError or DataError for profiles, labels or a baseline that the matching refuses under these
    options, and for options with a declared or an encrypted baseline, or a plaintext part: the story has
    none of them.
    """
    if options.declared is not None or options.encrypted_baseline or options.variant != "full":
        raise ConfigError(
            "Expected options without a declared or an encrypted baseline, and with the variant full, got "
            "others: the story has no step for them. Leave --declared, --variant and strong-encrypted out."
        )
    if not profiles:
        raise DataError("Expected at least one profile to match, got none.")
    parameters = options.parameters if options.padded else None
    holder, evaluator = KeyHolder.generate(openings=_OPENINGS, parameters=parameters), Evaluator.generate()
    declaration = None
    if not options.padded:
        declaration = evaluator.declare(holder.public, baseline, options=options)
        options = declaration.checked(holder.public, evaluator.public, spread=options.bounds.spread)
    keys = {label: ClientKey.generate() for label in profiles}

    def encrypted(label: str) -> Sealed:
        signing = None if options.padded else keys[label]
        own = profiles[label]
        return own.encrypt(holder.public, evaluator.public, label=label, options=options, own=signing)

    sealed = {label: encrypted(label) for label in profiles}
    scores = evaluator.match(holder.public, baseline, list(sealed.values()), options=options)
    if scores.refused:
        raise DataError(f"{scores.refused[0].label}: {scores.refused[0].why}")
    known, spread = [own.public for own in keys.values()], options.bounds.spread
    revealed = holder.reveal(scores, evaluator.public, clients=known, spread=spread)
    files = options.files(len(baseline.plain), holder.public, evaluator.public.fingerprint)
    requests = _requests(holder, scores, files)
    linear = options.query(baseline.plain).linear(options.variant, options.bounds)
    clients = []
    for (label, own), request in zip(profiles.items(), requests, strict=True):
        sent = sealed[label]
        again = encrypted(label)
        message = unseal(evaluator.agreement, sent.body, sent.context())
        features = options.features(own.plain).split(options.variant).hidden
        clients.append(
            Client(
                label=label,
                profile=own,
                features=features,
                file=sent.to_document().to_bytes(),
                sealed=sent.body,
                message=message,
                again=unseal(evaluator.agreement, again.body, again.context()),
                request=request,
                score=_score(revealed, label),
                truth=divergence(own.plain, baseline.plain),
                words=_words(holder, files, linear, label, message, request, features)
                if isinstance(files, PadFiles)
                else None,
            )
        )
    return Story(
        options=options,
        baseline=baseline,
        weights=linear.hidden,
        clients=clients,
        public_key=len(holder.public.to_document().to_bytes()),
        declaration=None if declaration is None else declaration.to_document().to_bytes(),
        scores_file=scores.to_document().to_bytes(),
        bound=revealed.error_bound,
    )


def _score(revealed: Revealed, label: str) -> float:
    if label in revealed.refused:
        raise DataError(f"{label}: {revealed.refused[label]}")
    return revealed.scores[label]


def _requests(holder: KeyHolder, scores: Scores, files: Files) -> list[bytes]:
    """The part of each client in what the key holder opens. Weights that are told stand before them."""
    body = unseal(pads_key(holder.signing), scores.body[:-SIGNATURE_BYTES], requests_context(scores.header))
    return [body[at : at + files.item_bytes] for at in range(files.head_bytes, len(body), files.item_bytes)]


def _words(
    holder: KeyHolder,
    files: PadFiles,
    linear: LinearQuery,
    label: str,
    message: bytes,
    request: bytes,
    features: Floats,
) -> Words:
    terms = files.terms
    masked = admit(message[: terms.message_bytes], terms, sender=label)
    arrived, end = masked.words, files.item_bytes - terms.word_bytes
    # What evaluator and key holder could do together: take off the pad, which follows from both their parts.
    pad, _ = pad_and_last(pads_key(holder.signing), masked.fresh, masked.fresh, terms, label)
    plain, bits = rounded(features, terms), terms.word_bits
    regained = words.minus(arrived, pad)
    return Words(
        bits=bits,
        plain=[words.centred(one, bits) for one in _integers(plain)],
        masked=_integers(arrived),
        weights=[words.centred(one, bits) for one in _integers(terms.encoded(linear))],
        share=_integers(words.unpacked(request[KEY + TAG : end], bits)),
        word=int.from_bytes(request[end:], "little"),
        regained=max(abs(words.centred(one, bits)) for one in _integers(words.minus(regained, plain))),
    )


def _integers(row: words.Words) -> list[int]:
    """Words as integers from 0 to 2^bits - 1."""
    raw = words.packed(row)
    size = len(raw) // len(row)
    return [int.from_bytes(raw[at : at + size], "little") for at in range(0, len(raw), size)]
