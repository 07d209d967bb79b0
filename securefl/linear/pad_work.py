"""The server's slow work in one exchange under pads: list fresh keys, ask for sums, take the pads off.

A fresh key that two clients sent is listed for neither: one of them copied it, and nobody can say which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import ceil

import numpy as np

from securefl.core.errors import RemoteProtocolError
from securefl.core.linear import Floats
from securefl.core.messages import OVERHEAD, REFUSED
from securefl.core.release import KEY_HOLDER
from securefl.core.signing import SigningKey
from securefl.core.wire import Limit
from securefl.he import gate
from securefl.he.keys import EncryptionKey
from securefl.he.ring import Ring
from securefl.linear.opener import Score
from securefl.linear.pad_evaluator import PadEvaluator, PadOpening
from securefl.linear.pad_terms import PARAMETERS, PadTerms
from securefl.linear.pads import Masked, admit
from securefl.linear.way import Asked, Found, Place, Queries, Questions, Sent, Tell, blaming


def lists_of(asked: Questions, terms: PadTerms) -> int:
    """How many lists of fresh keys there are at most: a block of clients in each."""
    return len(asked.names) * ceil(asked.cohort / terms.block)


@dataclass(frozen=True, kw_only=True, eq=False)
class PadScoring:
    """One exchange under pads, as the server has it."""

    public: EncryptionKey
    signing: SigningKey
    ring: Ring
    terms: PadTerms
    queries: Queries
    cohort: int
    tell: Tell

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.queries)

    @property
    def sealed_bytes(self) -> int:
        return self.terms.message_bytes

    @property
    def replies(self) -> Limit:
        ciphertext = gate.residues_size(2, PARAMETERS.primes, PARAMETERS.poly_modulus_degree)
        lists = lists_of(Questions.of(self.queries, self.cohort), self.terms)
        return Limit((ciphertext + 8) * lists + OVERHEAD, lists)

    def admit(self, sender: str, sealed: bytes) -> None:
        admit(sealed, NOTHING_CLEAR, self.terms, sender=sender)

    def score(self, sent: tuple[Sent, ...]) -> ListPads:
        return ListPads(self, sent)


NOTHING_CLEAR: Floats = np.zeros(0)


@dataclass(frozen=True, eq=False)
class Listed:
    """Clients whose pads stand in one ciphertext, in this order, and what they are matched with."""

    evaluator: PadEvaluator
    sent: tuple[Sent, ...]
    masked: tuple[Masked, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class ListPads:
    """Slow work of the server: list the fresh keys that came, for each question in as many as fit."""

    part: PadScoring
    sent: tuple[Sent, ...]

    def run(self) -> Asked | Found:
        # Before lists are made: the key holder refuses a whole list that names a key twice.
        masked = {one.place: self._read(one) for one in self.sent}
        uses = Counter(own.fresh.raw for own in masked.values())
        for own in masked.values():
            if uses[own.fresh.raw] > 1:
                self.part.tell(
                    own.sender, "Expected a fresh key of its own, got one that came in another message too."
                )
        once = [one for one in self.sent if uses[masked[one.place].fresh.raw] == 1]
        lists = [own for name in self.part.queries for own in self.lists_of(name, once, masked)]
        if not lists:
            return Found({})
        items = tuple(own.evaluator.list(own.masked) for own in lists)
        return Asked(items, partial(AskSums, self.part, tuple(lists)))

    def _read(self, one: Sent) -> Masked:
        return admit(one.sealed, one.clear, self.part.terms, sender=one.sender)

    def lists_of(self, name: str, sent: Sequence[Sent], masked: Mapping[Place, Masked]) -> list[Listed]:
        own = [one for one in sent if one.name == name]
        if not own:
            return []
        part, terms = self.part, self.part.terms
        evaluator = PadEvaluator(part.public, terms, part.signing, part.queries[name], ring=part.ring)
        blocks = (tuple(own[i : i + terms.block]) for i in range(0, len(own), terms.block))
        return [Listed(evaluator, some, tuple(masked[one.place] for one in some)) for some in blocks]


@dataclass(frozen=True, eq=False)
class AskSums:
    """Slow work of the server: multiply the pads by the weights, and ask for the sums, masked."""

    part: PadScoring
    lists: tuple[Listed, ...]
    replies: tuple[bytes, ...]

    def run(self) -> Asked | Found:
        openings = []
        for listed, reply in zip(self.lists, self.replies, strict=True):
            # A list that was refused costs its own clients their scores, and no other list.
            if reply != REFUSED:
                with blaming(self.part.tell):
                    # A list fills one ciphertext at most, so its block begins with its first client.
                    opening = listed.evaluator.request(reply, 0, listed.masked, sender=KEY_HOLDER)
                    openings.append((listed, opening))
        if not openings:
            return Found({})
        items = tuple(opening.request for _, opening in openings)
        return Asked(items, partial(Unpad, self.part, tuple(openings)))


@dataclass(frozen=True, eq=False)
class Unpad:
    """Slow work of the server: take the pads off the products."""

    part: PadScoring
    openings: tuple[tuple[Listed, PadOpening], ...]
    replies: tuple[bytes, ...]

    def run(self) -> Found:
        found: dict[Place, float] = {}
        for (listed, opening), reply in zip(self.openings, self.replies, strict=True):
            if reply != REFUSED:
                with blaming(self.part.tell):
                    own = listed.evaluator.scores(opening, reply, listed.masked, sender=KEY_HOLDER)
                    found |= self._right(listed, own)
        return Found(found)

    def _right(self, listed: Listed, scores: Mapping[int, Score | RemoteProtocolError]) -> dict[Place, float]:
        """The numbers of those who have one. For the others the reason is told."""
        found = {}
        for client, score in scores.items():
            if isinstance(score, RemoteProtocolError):
                self.part.tell(score.sender, str(score))
            else:
                found[listed.sent[client].place] = score.value
        return found
