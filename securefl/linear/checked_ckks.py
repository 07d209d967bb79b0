"""`scores = "ckks"`: one ciphertext per client, each opened alone, in one turn, by checked openings.

    server       tells each client the digest of the query's weights, in the call
    clients      a ciphertext, and a signature of it, of its place and of that digest
    server       one signed request for each query: the weights, and half of each ciphertext
    key holder   the share of each client whose signature holds

`checked` has the protocol and what each party sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

from securefl.core.agreement import Directory, Identity, u32
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.hiding import Concealed, ConcealVector
from securefl.core.keys import PublicKey
from securefl.core.linear import Floats, LinearBounds
from securefl.core.messages import OVERHEAD, REFUSED, client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.signing import SIGNATURE_BYTES
from securefl.core.wire import Header, Limit
from securefl.he import gate
from securefl.he.keys import EncryptionKey, KeyPair, checked
from securefl.he.openings import Openings
from securefl.he.parameters import Parameters, by_name
from securefl.he.ring import Ring
from securefl.linear.checked import Arrived, CheckedKeyHolder, CheckedServer, Declared, Question
from securefl.linear.checks import Checks
from securefl.linear.encryptor import Encryptor, admitted
from securefl.linear.opener import KeyHolder, score_of
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
from securefl.linear.terms import LinearTerms, clear_part
from securefl.storage.own_record import Own

MOST_KINDS: Final = 16
"""The most sets of bounds in a session.

Each set takes a key of its own. The server chooses the bounds, so without a limit it could have the key
holder make keys without end.
"""


class CheckedCkks:
    """The scheme with one signed ciphertext per client.

    Args:
        parameters: the name of the key's parameters.
        asks: the most queries of the session.
        clients: the most clients of one query.
    """

    key_holder_learns: ClassVar[str] = (
        "who takes part, and the weights of each query, such as the server's baseline"
    )
    limit: ClassVar[str] = (
        "a server that breaks the protocol, with one client as its accomplice, reads any entry of it, and "
        "the key holder's key"
    )

    def __init__(self, parameters: str, asks: int, clients: int) -> None:
        self.parameters: Parameters = by_name(parameters)
        self._asks, self._clients = asks, clients

    def clients(self, directory: Directory, identities: Identities) -> CheckedClients:
        return CheckedClients(self, directory, identities)

    def server(self, own: Own) -> CheckedServerSide:
        return CheckedServerSide(self, own)

    def key_holder(self, own: Own, report: Report) -> CheckedKeyHolderSide:
        return CheckedKeyHolderSide(self, own, report)

    def terms(self, bounds: LinearBounds) -> LinearTerms:
        """The terms of a key for vectors within these bounds. Every party computes them for itself."""
        return LinearTerms(parameters=self.parameters, bounds=bounds, scores=self._asks * self._clients)

    def checks(self, bounds: LinearBounds, header: Header) -> Checks:
        """What digests of one exchange bind. Every party computes it for itself."""
        context = header.session + u32(*header.place())
        return Checks(terms=self.terms(bounds), context=context)


class CheckedClients:
    """The clients' side: they encrypt under the key that the key holder signed, and sign what they send."""

    def __init__(self, scheme: CheckedCkks, directory: Directory, identities: Identities) -> None:
        self._scheme, self._directory, self._identities = scheme, directory, identities
        self._known: dict[LinearBounds, tuple[bytes, EncryptionKey, Encryptor]] = {}
        self._latest: Encryptor | None = None

    def conceal(
        self, asked: Questions, header: Header, key: bytes, clients: Sequence[str]
    ) -> Mapping[str, Mapping[str, ConcealVector]]:
        digests = asked.digests()
        public, encryptor = self._encryptor(asked.bounds, key)
        self._latest = encryptor
        checks = self._scheme.checks(asked.bounds, header)
        questions = [
            Question(checks=checks, key=public.session, name=name, told=told)
            for name, told in digests.items()
        ]

        def of(own: Identity) -> Mapping[str, ConcealVector]:
            conceal = {one.name: partial(_signed, encryptor, one, own) for one in questions}
            return {name: ConcealVector(asked.bounds, each) for name, each in conceal.items()}

        return {own.name: of(own) for own in self._identities(clients)}

    def prepare(self) -> bool:
        return self._latest is not None and self._latest.prepare()

    def _encryptor(self, bounds: LinearBounds, key: bytes) -> tuple[EncryptionKey, Encryptor]:
        # A key holder that restarted has another key: clients must not encrypt under the old one.
        known = self._known.get(bounds)
        if known is None or known[0] != key:
            terms = self._scheme.terms(bounds)
            public = public_of(self._directory, terms, key)
            known = self._known[bounds] = key, public, Encryptor(public, terms)
        return known[1:]


def _signed(encryptor: Encryptor, question: Question, own: Identity, hidden: Floats) -> Concealed:
    message = question.signed(encryptor.encrypt(hidden), own.name, own.signing)
    return Concealed("encrypted", sealed=message)


class CheckedServerSide:
    """The server's side: it declares weights before it asks, and requests one share per client."""

    def __init__(self, scheme: CheckedCkks, own: Own) -> None:
        self._scheme, self._own = scheme, own
        self._ring = Ring.of(scheme.parameters)
        self._declared: dict[str, Declared] = {}
        self._terms: dict[LinearBounds, LinearTerms] = {}

    def questions(self, queries: Queries, cohort: int, header: Header) -> Questions:
        asked = Questions.of(queries, cohort)
        checks = self._scheme.checks(asked.bounds, header)
        self._terms[asked.bounds] = checks.terms
        self._declared = {name: Declared.of(queries[name], checks, name, self._ring) for name in asked.names}
        return asked.bound_to(one.told for one in self._declared.values())

    def begin(self, queries: Queries, cohort: int, header: Header, key: bytes, report: Report) -> Scoring:
        checks = self._scheme.checks(Questions.of(queries, cohort).bounds, header)
        public, signing = public_of(self._own.directory, checks.terms, key), self._own.identity.signing
        servers = {}
        for index, (name, declared) in enumerate(self._declared.items()):
            question = Question(checks=checks, key=public.session, name=name, told=declared.told)
            servers[name] = CheckedServer(question, index, declared, signing)
        return CheckedScoring(
            checks=checks,
            key=public.session,
            servers=servers,
            queries=queries,
            cohort=cohort,
            directory=self._own.directory,
            report=report,
        )

    def sealed_bytes(self, bounds: LinearBounds) -> int | None:
        terms = self._terms.get(bounds)
        return None if terms is None else terms.ciphertext_bytes + SIGNATURE_BYTES

    def error_bound(self) -> float | None:
        return max((terms.error_bound() for terms in self._terms.values()), default=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedScoring:
    """The server's part of one exchange. key: the name of the key holder's key."""

    checks: Checks
    key: bytes
    servers: Mapping[str, CheckedServer]
    queries: Queries
    cohort: int
    directory: Directory
    report: Report

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.servers)

    @property
    def sealed_bytes(self) -> int:
        return self.checks.message_bytes

    @property
    def replies(self) -> Limit:
        own = self.checks.reply_bytes(self.cohort) + 8
        return Limit(own * len(self.servers) + OVERHEAD, len(self.servers))

    def admit(self, sender: str, sealed: bytes) -> None:
        # The rest of the checks, which take longer, is the work order's.
        if len(sealed) != self.checks.message_bytes:
            raise RemoteProtocolError(
                f"Expected {self.checks.message_bytes} bytes, got {len(sealed)}.", sender=sender, phase="gate"
            )
        terms = self.checks.terms
        tag = gate.tag("ciphertext", self.key, terms.digest())
        admitted(sealed[:-SIGNATURE_BYTES], tag, terms, sender=sender)

    def score(self, sent: tuple[Sent, ...]) -> RequestShares:
        return RequestShares(self, sent)


@dataclass(frozen=True, eq=False)
class Requested:
    """The messages of one query, in the order of a request."""

    name: str
    sent: tuple[Sent, ...]
    arrived: tuple[Arrived, ...] = field(repr=False)
    offsets: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class RequestShares:
    """A work order of the server: check what clients signed, and make one request for each query."""

    part: CheckedScoring
    sent: tuple[Sent, ...]

    def run(self) -> Asked | Found:
        requested = [own for name in self.part.servers if (own := self._requested(name)).sent]
        if not requested:
            return {}
        items = tuple(self.part.servers[own.name].request(own.arrived) for own in requested)
        return Asked(items, partial(AddShares, self.part, tuple(requested)))

    def _requested(self, name: str) -> Requested:
        part, query = self.part, self.part.queries[name]
        sent, arrived, offsets = [], [], []
        for one in self.sent:
            if one.name != name:
                continue
            with blaming(part.report):
                clear = clear_part(one.clear, part.checks.terms.bounds, one.sender)
                public = part.directory.roster([one.sender]).members[0].identity
                server, check = part.servers[name], part.directory.verify
                arrived.append(server.admit(one.sealed, one.client, one.sender, public, check=check))
                offsets.append(query.offset + float(clear @ query.clear))
                sent.append(one)
        return Requested(name, tuple(sent), tuple(arrived), tuple(offsets))


@dataclass(frozen=True, eq=False)
class AddShares:
    """A work order of the server: add its own part to the key holder's shares."""

    part: CheckedScoring
    requested: tuple[Requested, ...]
    replies: tuple[bytes, ...]

    def run(self) -> Found:
        found: dict[Place, float] = {}
        for own, reply in zip(self.requested, self.replies, strict=True):
            # A refused request costs only its own query the scores.
            if reply == REFUSED:
                continue
            with blaming(self.part.report):
                opened = self.part.servers[own.name].opened(own.arrived, reply, sender=KEY_HOLDER)
                for one, offset, value in zip(own.sent, own.offsets, opened, strict=True):
                    if value is not None:
                        with blaming(self.part.report):
                            found[one.place] = self._score(value, offset, one.sender)
        return found

    def _score(self, value: int, offset: float, sender: str) -> float:
        terms = self.part.checks.terms
        return score_of(value * terms.unit, offset, terms, terms.error_bound(), sender=sender).value


class CheckedKeyHolderSide:
    """The key holder's side: a key for each set of bounds, and the count of its openings.

    Keys live as long as the process. After a restart, the key holder makes new ones and counts openings from
    0.
    """

    def __init__(self, scheme: CheckedCkks, own: Own, report: Report) -> None:
        self._scheme, self._own, self._report = scheme, own, report
        self._ring = Ring.of(scheme.parameters)
        self._known: dict[LinearBounds, tuple[KeyPair, bytes, Openings]] = {}

    def machine(self, asked: Questions, header: Header) -> tuple[KeyHolder, bytes]:
        if not asked.distinct:
            raise ConfigError("Expected each query once, got one twice.")
        checks = self._scheme.checks(asked.bounds, header)
        if asked.bounds not in self._known:
            pair, key = made_key(self._own, checks.terms, len(self._known))
            self._known[asked.bounds] = pair, key, Openings()
        pair, key, openings = self._known[asked.bounds]
        directory = self._own.directory
        holder = CheckedKeyHolder(
            pair,
            checks,
            asked.names,
            asked.cohort,
            directory.server.identity,
            self._member,
            openings,
            self._ring,
            check=directory.verify,
        )
        largest = checks.request_bytes(asked.cohort) + 8
        most = Limit(largest * len(asked.names) + OVERHEAD, len(asked.names))
        open_ = partial(holder.open, report=self._report, sender=SERVER)
        return KeyHolder(header=header, most=most, open_=open_, report=self._report), key

    def _member(self, number: int) -> tuple[str, PublicKey]:
        name = client_name(number)
        return name, self._own.directory.roster([name]).members[0].identity


def made_key(own: Own, terms: LinearTerms, before: int) -> tuple[KeyPair, bytes]:
    """A new key pair for these terms, and the public key as the key holder signs it.

    One key per set of bounds: a key's flooding is sized for one set of bounds and one count. `before` is the
    number of keys that the session has. Raises ConfigError if it has the most.
    """
    if before >= MOST_KINDS:
        raise ConfigError(
            f"Expected at most {MOST_KINDS} sets of bounds in a session, got one more. Use the same "
            "bounds for several queries."
        )
    pair = KeyPair.generate(terms.parameters)
    return pair, own.identity.vouch(_purpose(terms), own.directory.session, pair.public.key.raw)


def _purpose(terms: LinearTerms) -> bytes:
    """The purpose that a key's signature binds: queries under these terms, which size its flooding."""
    return b"scores" + terms.digest()


def public_of(directory: Directory, terms: LinearTerms, key: bytes) -> EncryptionKey:
    """The key holder's public key for these terms. Raises CryptoError if it is another's."""
    return checked(terms.parameters, directory.vouched(_purpose(terms), key))
