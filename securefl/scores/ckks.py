"""`scores = "ckks"`: one ciphertext a client, each opened alone, in one turn.

What batches share with it is here too: client, gate and key holder are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

from securefl.core.hiding import Conceal, Concealed
from securefl.core.machine import Work
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header, Limit
from securefl.he.parameters import Parameters, by_name
from securefl.messages import OVERHEAD, REFUSED
from securefl.profiles import Floats
from securefl.rounds import Each
from securefl.scores.evaluator import Baseline, Blinded
from securefl.scores.keys import ScoreKeys
from securefl.scores.opener import KeyHolder, Opener, opened_by
from securefl.scores.terms import ScoreTerms
from securefl.scores.way import NOTHING, Asked, Found, Kind, Place, Scoring, Sent, Tell, blaming


class Ckks:
    """Scores under the key holder's key, of which the server learns each alone.

    Args:
        parameters: of the key, by name.
        asks: how many questions there are at most in the session. clients: whom each goes to, at most.
    """

    key_holder_learns: ClassVar[str] = "blinded integers, uniform to it"

    def __init__(self, parameters: str, asks: int, clients: int) -> None:
        self._parameters, self._asks, self._clients = by_name(parameters), asks, clients
        self._keys: dict[Kind, ScoreKeys] = {}

    def begin(self, each: Sequence[Each], cohort: int, header: Header, tell: Tell) -> Scoring:
        kind = Kind.of_all(each)
        if kind not in self._keys:
            self._keys[kind] = ScoreKeys.fresh(self._terms(kind))
        return self._scoring(self._keys[kind], tuple(each), cohort, header, tell)

    def sealed_bytes(self, each: Each) -> int | None:
        keys = self._keys.get(Kind.of(each))
        return None if keys is None else keys.evaluator.ciphertext_bytes

    def error_bound(self) -> float | None:
        return max((self._error_bound(keys.terms) for keys in self._keys.values()), default=None)

    def _terms(self, kind: Kind) -> ScoreTerms:
        return terms_of(kind, self._parameters, scores=self._asks * self._clients)

    def _scoring(
        self, keys: ScoreKeys, each: tuple[Each, ...], cohort: int, header: Header, tell: Tell
    ) -> Scoring:
        return CiphertextScoring(
            keys=keys, each=each, cohort=cohort, header=header, tell=tell, turns=1, first=Match
        )

    def _error_bound(self, terms: ScoreTerms) -> float:
        return terms.error_bound()


def terms_of(kind: Kind, parameters: Parameters, *, scores: int, classes: int = 1) -> ScoreTerms:
    """The terms of a key for profiles of this kind."""
    return ScoreTerms(
        parameters=parameters,
        bounds=kind.bounds,
        length=kind.length,
        variant=kind.variant,
        scores=scores,
        classes=classes,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class CiphertextScoring:
    """One exchange under `ScoreKeys`. first: what makes the server's first work. turns: of the key holder."""

    keys: ScoreKeys
    each: tuple[Each, ...]
    cohort: int
    header: Header
    tell: Tell
    turns: int
    first: Callable[[CiphertextScoring, tuple[Sent, ...]], Work]

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(one.sends.name for one in self.each)

    @property
    def conceal(self) -> Mapping[str, Conceal]:
        return dict.fromkeys(self.names, partial(_encrypted, self.keys))

    @property
    def sealed_bytes(self) -> int:
        return self.keys.evaluator.ciphertext_bytes

    @property
    def _most(self) -> int:
        return self.cohort * len(self.each)

    @property
    def replies(self) -> Limit:
        return Limit((self.keys.evaluator.reply_bytes + 8) * self._most + OVERHEAD, self._most)

    def admit(self, sender: str, sealed: bytes) -> None:
        self.keys.evaluator.admit(sealed, sender=sender)

    def score(self, sent: tuple[Sent, ...]) -> Work:
        return self.first(self, sent)

    def key_holder(self) -> KeyHolder:
        most = Limit((self.keys.evaluator.request_bytes + 8) * self._most + OVERHEAD, self._most)
        part = OpensCiphertexts(self.keys.opener, self.tell)
        return KeyHolder(header=self.header, most=most, turns=self.turns, part=part)


def _encrypted(keys: ScoreKeys, hidden: Floats) -> Concealed:
    return Concealed("encrypted", sealed=keys.encryptor.encrypt(hidden))


@dataclass(frozen=True, eq=False)
class Match:
    """Slow work of the server: multiply each ciphertext by its baseline, and blind the product.

    baselines: by name, those that are prepared already. found: what is known before.
    """

    part: CiphertextScoring
    sent: tuple[Sent, ...]
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    found: Found = NOTHING

    def run(self) -> Asked | Found:
        prepared = self.baselines or baselines(self.part)
        evaluator, blinded = self.part.keys.evaluator, dict[Place, Blinded]()
        for one in self.sent:
            baseline = prepared[one.each.sends.name]
            with blaming(self.part.tell):
                blinded[one.place] = evaluator.match(one.sealed, baseline, one.clear, sender=one.sender)
        if not blinded:
            return self.found
        items = tuple(one.request for one in blinded.values())
        return Asked(items, partial(Unblind, self.part, blinded, self.found), self.found)


@dataclass(frozen=True, eq=False)
class Unblind:
    """Slow work of the server: take the masks off the key holder's replies."""

    part: CiphertextScoring
    blinded: Mapping[Place, Blinded]
    found: Found
    replies: tuple[bytes, ...]

    def run(self) -> Found:
        scores: dict[Place, float] = {}
        for (place, own), reply in zip(self.blinded.items(), self.replies, strict=True):
            if reply != REFUSED:
                with blaming(self.part.tell):
                    scores[place] = self.part.keys.evaluator.unblind(own, reply, sender=KEY_HOLDER).value
        return self.found.beside(scores)


def baselines(part: CiphertextScoring) -> dict[str, Baseline]:
    """What clients are matched with, by the name of the question."""
    asked = {one.sends.name: one.query for one in part.each}
    return {name: part.keys.baseline(query) for name, query in asked.items() if query is not None}


@dataclass(frozen=True, eq=False)
class OpensCiphertexts:
    """What the key holder does: open each item by itself, at any turn, while its count allows."""

    opener: Opener
    tell: Tell

    def open(self, turn: int, items: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return opened_by(partial(self.opener.open, sender=SERVER), items, self.tell)
