"""`scores = "pads"`: the sides of the three parties, opened in one turn.

    server       tells each client the digest of the query's weights, in the call
    clients      masked words, with a fresh key
    server       one signed request for each query, with the weights
    key holder   the sum of each pad with them

`pads` has the protocol and what each party sees. If two clients sent the same fresh key, it is listed for
neither: one of them copied it, and the server cannot tell which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

import numpy as np

from securefl.core.agreement import Directory, u32
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.formats import prefix
from securefl.core.hiding import Concealed, ConcealVector
from securefl.core.keys import PublicKey
from securefl.core.linear import Floats, LinearBounds
from securefl.core.messages import OVERHEAD, REFUSED
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.signing import AgreementKey
from securefl.core.wire import Header, Limit
from securefl.he.parameters import STRONG
from securefl.linear.opener import KeyHolder
from securefl.linear.pad_terms import PadTerms
from securefl.linear.pads import Masked, PadKeyHolder, PadServer, admit, mask
from securefl.linear.scheme import (
    Asked,
    Found,
    Identities,
    Place,
    Queries,
    Questions,
    Report,
    Scoring,
    Sent,
    blaming,
)
from securefl.storage.own_record import Own

NOTHING_CLEAR: Floats = np.zeros(0)
_PURPOSE = b"pads"
_WORDS: Final[Mapping[str, int]] = {STRONG.name: 64, "words-64": 64, "words-128": 128}
"""The length of words by the plan's `parameters`, whose default is a homomorphic key's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PadScoring:
    """The server's part of one exchange under pads."""

    terms: PadTerms
    servers: Mapping[str, PadServer]
    cohort: int
    report: Report

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.servers)

    @property
    def sealed_bytes(self) -> int:
        return self.terms.message_bytes

    @property
    def replies(self) -> Limit:
        own = self.terms.word_bytes * self.cohort + 8
        return Limit(own * len(self.servers) + OVERHEAD, len(self.servers))

    def admit(self, sender: str, sealed: bytes) -> None:
        """The gate: raises RemoteProtocolError(sender) for bytes that no client of this exchange makes."""
        admit(sealed, NOTHING_CLEAR, self.terms, sender=sender)

    def score(self, sent: tuple[Sent, ...]) -> RequestSums:
        return RequestSums(self, sent)


@dataclass(frozen=True, eq=False)
class Requested:
    """The messages of one query, in the order of a request."""

    server: PadServer
    sent: tuple[Sent, ...]
    masked: tuple[Masked, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class RequestSums:
    """A work order of the server: one request for each query, with the fresh keys that came."""

    part: PadScoring
    sent: tuple[Sent, ...]

    def run(self) -> Asked | Found:
        # Before requests are made, since the key holder refuses a whole request that names a key twice.
        terms = self.part.terms
        masked = {one.place: admit(one.sealed, one.clear, terms, sender=one.sender) for one in self.sent}
        uses = Counter(own.fresh.raw for own in masked.values())
        for own in masked.values():
            if uses[own.fresh.raw] > 1:
                self.part.report(
                    own.sender, "Expected a fresh key of its own, got one that another message has too."
                )
        once = [one for one in self.sent if uses[masked[one.place].fresh.raw] == 1]
        requested = []
        for name, server in self.part.servers.items():
            own_sent = tuple(one for one in once if one.name == name)
            if own_sent:
                messages = tuple(masked[one.place] for one in own_sent)
                requested.append(Requested(server, own_sent, messages))
        if not requested:
            return {}
        items = tuple(own.server.request(own.masked) for own in requested)
        return Asked(items, partial(Unpad, self.part, tuple(requested)))


@dataclass(frozen=True, eq=False)
class Unpad:
    """A work order of the server: subtract the pads from the products."""

    part: PadScoring
    requested: tuple[Requested, ...]
    replies: tuple[bytes, ...]

    def run(self) -> Found:
        found: dict[Place, float] = {}
        size = self.part.terms.word_bytes
        for own, reply in zip(self.requested, self.replies, strict=True):
            # A refused request costs only its own query the scores.
            if reply == REFUSED:
                continue
            with blaming(self.part.report):
                if len(reply) != size * len(own.sent):
                    raise RemoteProtocolError(
                        f"Expected one sum for each of {len(own.sent)} clients, got {len(reply)} bytes.",
                        sender=KEY_HOLDER,
                        phase="pads",
                    )
                for at, (one, masked) in enumerate(zip(own.sent, own.masked, strict=True)):
                    with blaming(self.part.report):
                        score = own.server.score(masked, reply[at * size : (at + 1) * size])
                        found[one.place] = score.value
        return found


class Pads:
    """The scheme with words masked by pads that the key holder knows. Arguments as for `CheckedCkks`."""

    key_holder_learns: ClassVar[str] = (
        "how many are asked and answer, not which; the weights of each query, such as the server's baseline"
    )
    limit: ClassVar[str] = ""

    def __init__(self, parameters: str, asks: int, clients: int) -> None:
        if parameters not in _WORDS:
            raise ConfigError(
                f'Expected `parameters` of "words-64" or "words-128" with scores = "pads", got '
                f"{parameters!r}: pads have no homomorphic key. Leave the line out for words of 64 bits."
            )
        self._word_bits = _WORDS[parameters]

    def clients(self, directory: Directory, identities: Identities) -> PadClients:
        return PadClients(self, directory)

    def server(self, own: Own) -> PadServerSide:
        return PadServerSide(self, own)

    def key_holder(self, own: Own, report: Report) -> PadKeyHolderSide:
        return PadKeyHolderSide(self, own, report)

    def terms(self, bounds: LinearBounds, header: Header) -> PadTerms:
        """The terms of one exchange. Every party computes them for itself.

        Another session, round, stage or attempt has other pads.
        """
        context = header.session + u32(*header.place())
        return PadTerms(bounds=bounds, context=context, word_bits=self._word_bits)


@dataclass(frozen=True)
class PadClients:
    """The clients' side: they agree on pads with the key that the key holder signed."""

    scheme: Pads
    directory: Directory

    def conceal(
        self, asked: Questions, header: Header, key: bytes, clients: Sequence[str]
    ) -> Mapping[str, Mapping[str, ConcealVector]]:
        digests, terms = asked.digests(), self.scheme.terms(asked.bounds, header)
        to = _public(self.directory, key)
        own = {
            name: ConcealVector(asked.bounds, partial(_masked, terms, name, told, to))
            for name, told in digests.items()
        }
        return dict.fromkeys(clients, own)

    def prepare(self) -> bool:
        return False  # a pad binds its query's place: nothing of it is known before the call


class PadServerSide:
    """The server's side: it declares weights before it asks, and requests one sum per client."""

    def __init__(self, scheme: Pads, own: Own) -> None:
        self._scheme = scheme
        self._own = own
        self._terms: dict[LinearBounds, PadTerms] = {}
        self._servers: dict[str, PadServer] = {}

    def questions(self, queries: Queries, cohort: int, header: Header) -> Questions:
        asked = Questions.of(queries, cohort)
        self._terms[asked.bounds] = terms = self._scheme.terms(asked.bounds, header)
        signing = self._own.identity.signing
        self._servers = {
            name: PadServer(terms, index, name, signing, queries[name])
            for index, name in enumerate(asked.names)
        }
        return asked.bound_to(server.told for server in self._servers.values())

    def begin(self, queries: Queries, cohort: int, header: Header, key: bytes, report: Report) -> Scoring:
        _public(self._own.directory, key)
        terms = self._terms[Questions.of(queries, cohort).bounds]
        return PadScoring(terms=terms, servers=self._servers, cohort=cohort, report=report)

    def sealed_bytes(self, bounds: LinearBounds) -> int | None:
        terms = self._terms.get(bounds)
        return None if terms is None else terms.message_bytes

    def error_bound(self) -> float | None:
        return max((server.error_bound for server in self._servers.values()), default=None)


class PadKeyHolderSide:
    """The key holder's side. Its key lives as long as the process, and so do the pads."""

    def __init__(self, scheme: Pads, own: Own, report: Report) -> None:
        self._scheme = scheme
        self._own = own
        self._report = report
        # In memory alone: a key holder that is restored from a backup answers under another key.
        self._agreement = AgreementKey.generate()
        self._key = own.identity.vouch(_PURPOSE, own.directory.session, self._agreement.public.raw)

    def machine(self, asked: Questions, header: Header) -> tuple[KeyHolder, bytes]:
        terms, names = self._scheme.terms(asked.bounds, header), asked.names
        if not asked.distinct:
            raise ConfigError("Expected each query once, got one twice.")
        server = self._own.directory.server.identity
        holder = PadKeyHolder(self._agreement, terms, names, asked.cohort, server)
        largest = terms.request_bytes(asked.cohort) + 8
        most = Limit(largest * len(names) + OVERHEAD, len(names))
        open_ = partial(holder.open, sender=SERVER)
        return KeyHolder(header=header, most=most, open_=open_, report=self._report), self._key


def _public(directory: Directory, key: bytes) -> PublicKey:
    """The key holder's key for agreeing on pads. Raises CryptoError if it is another's, or weak."""
    agreement = PublicKey(directory.vouched(_PURPOSE, key))
    AgreementKey.generate().agree(agreement, prefix("pads/pinned"))  # refuses a weak one
    return agreement


def _masked(terms: PadTerms, name: str, told: bytes, to: PublicKey, hidden: Floats) -> Concealed:
    message = mask(hidden, NOTHING_CLEAR, terms, name, told, to)
    return Concealed("encrypted", sealed=message.packed)
