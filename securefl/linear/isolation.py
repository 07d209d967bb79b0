"""`scores = "batches"`: K clients in one opening. A client's junk does not cost the others their scores.

Turn 0 opens batches. If a batch has a score that no honest client gives, it is discarded, and turn 1 opens
its members one by one. That detects junk that shifts a batch out of range, and its sender. Junk that leaves
every score of its batch in range is not detected: clients of a batch trust each other to stay inside the
bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.linear import LinearBounds
from securefl.core.machine import Work
from securefl.core.messages import REFUSED
from securefl.core.release import KEY_HOLDER
from securefl.he.parameters import Parameters
from securefl.linear.ckks import CiphertextScoring, Ckks, Match, terms_of
from securefl.linear.evaluator import Arrived, Baseline, Blinded
from securefl.linear.scheme import Asked, Found, Place, Sent, blaming
from securefl.linear.terms import LinearTerms

LARGEST_BATCH = 32
"""The server encodes a baseline once per place of a batch. Beyond this size that costs more than it saves."""


class Batches(Ckks):
    """The scheme with K clients per opening. All else is as for `Ckks`.

    K follows from public inputs. It is the largest power of two, up to the number of clients, at which a
    client sends as many ciphertexts as alone and no score can wrap.
    """

    turns = 2

    def __init__(self, parameters: str, asks: int, clients: int) -> None:
        super().__init__(parameters, asks, clients)
        if self._parameters.encrypted_baseline:
            raise ConfigError(
                'Expected scores = "ckks" with parameters = "strong-encrypted", got "batches": a batch '
                "needs a baseline in plaintext. Open each client alone, or take other parameters."
            )

    def terms(self, bounds: LinearBounds) -> LinearTerms:
        return batch_terms(bounds, self._parameters, self._asks, self._clients)

    def first(self, part: CiphertextScoring, sent: tuple[Sent, ...]) -> Work:
        return MatchBatches(part, sent)

    def error_bound(self, terms: LinearTerms) -> float:
        return max(terms.error_bound(), terms.error_bound(terms.classes, batch=terms.classes > 1))


def batch_terms(bounds: LinearBounds, parameters: Parameters, asks: int, clients: int) -> LinearTerms:
    """The terms with the most clients in a batch. Raises ConfigError if not even one fits."""

    def of(size: int) -> LinearTerms:
        # a batch counts as K openings, and each member may have to be opened once more
        most = size * ceil(clients / size) + (clients if size > 1 else 0)
        return terms_of(bounds, parameters, scores=asks * most, classes=size)

    found = of(1)
    alone, size = found.ciphertexts, 2
    while size <= min(LARGEST_BATCH, clients):
        try:
            larger = of(size)
        except ConfigError:
            break
        if larger.ciphertexts > alone:
            break
        found, size = larger, 2 * size
    return found


@dataclass(frozen=True, eq=False)
class MatchBatches:
    """A work order of the server: multiply, add up and blind the ciphertexts of each batch."""

    part: CiphertextScoring
    sent: tuple[Sent, ...]

    def run(self) -> Asked | Found:
        prepared = self.part.baselines()
        # Before batches are made: one message that does not fit would spoil its whole batch.
        fitting = [one for one in self.sent if self._fits(one)]
        size = self.part.terms.classes
        batches = []
        for name, baseline in prepared.items():
            own = [one for one in fitting if one.name == name]
            members = (tuple(own[i : i + size]) for i in range(0, len(own), size))
            batches += [Batch(some, self._blinded(some, baseline)) for some in members]
        if not batches:
            return Found({})
        items = tuple(batch.blinded.request for batch in batches)
        return Asked(items, partial(UnblindBatches, self.part, tuple(batches), prepared))

    def _fits(self, one: Sent) -> bool:
        fits = False
        with blaming(self.part.report):
            self.part.evaluator.checked(one.clear, one.sender)
            fits = True
        return fits

    def _blinded(self, members: tuple[Sent, ...], baseline: Baseline) -> Blinded:
        evaluator = self.part.evaluator
        arrived = [Arrived(one.sealed, one.clear, one.sender) for one in members]
        if len(arrived) > 1:
            return evaluator.match_batch(arrived, baseline)
        # A single client is opened as one integer, not as K.
        (one,) = arrived
        return evaluator.match(one.ciphertext, baseline, one.clear, sender=one.sender)


@dataclass(frozen=True, eq=False)
class Batch:
    """The members of one opening, and the part that stays with the server."""

    members: tuple[Sent, ...]
    blinded: Blinded


@dataclass(frozen=True, eq=False)
class UnblindBatches:
    """A work order of the server: subtract the masks, and request spoilt batches one by one."""

    part: CiphertextScoring
    batches: tuple[Batch, ...]
    baselines: Mapping[str, Baseline]
    replies: tuple[bytes, ...]

    def run(self) -> Asked | Found:
        numbers: dict[Place, float] = {}
        spoilt: list[Sent] = []
        for batch, reply in zip(self.batches, self.replies, strict=True):
            with blaming(self.part.report):
                try:
                    numbers |= self._scores(batch, reply)
                except RemoteProtocolError as error:
                    if error.sender == KEY_HOLDER or len(batch.members) == 1:
                        raise
                    spoilt += batch.members  # single openings identify the client that caused it
        found = Found(numbers)
        if not spoilt:
            return found
        return Match(self.part, tuple(spoilt), self.baselines, found).run()

    def _scores(self, batch: Batch, reply: bytes) -> dict[Place, float]:
        if reply == REFUSED:
            return {}
        evaluator = self.part.evaluator
        if len(batch.members) == 1:
            return {batch.members[0].place: evaluator.unblind(batch.blinded, reply, sender=KEY_HOLDER).value}
        scores = evaluator.unblind_batch(batch.blinded, reply, sender=KEY_HOLDER)
        return {one.place: score.value for one, score in zip(batch.members, scores, strict=True)}
