"""Schemes that `[privacy] scores` names: the server learns one number per client only.

A scheme has a side for each party, which keeps that party's keys of a session. They are the same under every
cipher, and play one turn (`turn`) in an exchange:

client       `conceal`              conceals the hidden part of a value, by the name of the query
server       `declare`              declares the weights; the public part, which the calls state
             `admit`                the gate: checks sealed bytes before any native library reads them
             `score`                slow work, which ends in one `KeyHolderRequest`, and in numbers `Found`
key holder   `machine`              opens that request

What a cipher does differently are the methods of `LinearScheme` that its two kinds have (`pads.Pads`,
`checked.CheckedCkks`). Numbers in the clear need no scheme: the exchange itself computes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final

from securefl.core.agreement import Directory, Identity
from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.hiding import ConcealVector
from securefl.core.linear import Floats, LinearBounds, LinearQuery
from securefl.core.machine import Expects, Need, Outgoing, Step, Work
from securefl.core.messages import OVERHEAD, REFUSED, OpenReply, OpenRequest, client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header, Limit
from securefl.linear.turn import (
    Answerer,
    Arrived,
    Declared,
    PublicQuery,
    QueryKeyHolder,
    QueryServer,
    refusal,
)
from securefl.storage.own_record import PartyKeys

DIGEST: Final = 32
MOST_KINDS: Final = 16
"""The most keys that a key holder makes in a session: under CKKS one for each set of bounds.

The server chooses the bounds, so without a limit it could have the key holder make keys without end.
"""
Place = tuple[int, str]
"""The place of a number: the client and the name of the value."""
Queries = Mapping[str, LinearQuery]
"""The linear queries of one exchange whose values are concealed, by name of the value."""
Identities = Callable[[Sequence[str]], Sequence[Identity]]
"""The clients' own keys, by their names, in the same order.

A function, so that none are made for a scheme that needs none.
"""
Report = Callable[[str, str], None]
"""A function that reports to an observer which party caused a missing number, and the reason.

No party of the protocol sees the report.
"""


@dataclass(frozen=True)
class Sent:
    """One client's message for the query of this name, as it passed the gate, and its plaintext part."""

    client: int
    name: str
    message: Any = field(repr=False)
    clear: Floats = field(repr=False)

    @property
    def sender(self) -> str:
        return client_name(self.client)

    @property
    def place(self) -> Place:
        return (self.client, self.name)


Found = Mapping[Place, float]
"""The numbers that were opened. A number that could not be opened is absent."""


@dataclass(frozen=True)
class KeyHolderRequest:
    """A request to the key holder.

    Attributes:
        items: the items to open. The key holder gives one reply per item.
        then: reads these replies, which is slow work. It holds the masks, which stay here.
    """

    items: tuple[bytes, ...]
    then: Callable[[tuple[bytes, ...]], Found]


@dataclass(frozen=True)
class PublicQueries:
    """The public part of one exchange of scores.

    Attributes:
        names: the names of the concealed values.
        bounds: the bounds of all their queries.
        cohort: the number of queried clients.
        weights: a digest of each query's weights, to which its numbers are bound; () for none.
    """

    names: tuple[str, ...]
    bounds: LinearBounds
    cohort: int
    weights: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, queries: Queries, cohort: int) -> PublicQueries:
        """The public part of these queries. Raises LocalProtocolError for queries of several bounds."""
        # A dictionary keeps the order of the distinct bounds. A call names one set of bounds, and so one key.
        first, *others = {query.bounds: None for query in queries.values()}
        if others:
            raise LocalProtocolError(
                "Expected queries of one set of bounds in one exchange, got several. Query the others in "
                "another exchange."
            )
        return cls(tuple(queries), first, cohort)

    @property
    def distinct(self) -> bool:
        """Whether each query comes once. Two of one name would be two requests of one vector."""
        return len(set(self.names)) == len(self.names)

    def digests(self) -> Mapping[str, bytes]:
        """The digest of each query's weights. Raises CryptoError unless each has one, and comes once."""
        if not self.distinct:
            raise CryptoError("Expected each query once, got one twice.")
        if len(self.weights) != len(self.names) or any(len(one) != DIGEST for one in self.weights):
            raise CryptoError(
                f"Expected a digest of {DIGEST} bytes for each of {len(self.names)} queries, got "
                f"{len(self.weights)}, or some of another length."
            )
        return dict(zip(self.names, self.weights, strict=True))


class LinearScheme(ABC):
    """A scheme for linear queries under one plan. Each party makes its own side from its own secrets.

        >>> from securefl.linear import scheme_of
        >>> scheme = scheme_of("pads", parameters="strong", asks=1, clients=10)
        >>> scheme.key_holder_learns
        "how many are asked and answer, not which; the weights of each query, such as the server's baseline"

    Raises nothing.

    Attributes:
        key_holder_learns: what the key holder learns, in words.
        limit: what a server that breaks the protocol learns beyond one declared number. Empty: nothing.
        signs: whether clients sign what they send.
    """

    key_holder_learns: ClassVar[str]
    limit: ClassVar[str] = ""
    signs: ClassVar[bool] = False

    def clients(self, directory: Directory, identities: Identities) -> LinearClients:
        """The clients' side, from the pinned keys of all parties and the clients' own."""
        return LinearClients(self, directory, identities)

    def server(self, own: PartyKeys) -> LinearServer:
        """The server's side, from its identity and the pinned keys."""
        return LinearServer(self, own)

    def key_holder(self, own: PartyKeys, report: Report) -> LinearKeyHolder:
        """The key holder's side. `report` gets the reasons of refusals."""
        return LinearKeyHolder(self, own, report)

    def pinned(self, directory: Directory, terms: Any, key: bytes) -> Any:
        """The key holder's key for these terms. Raises CryptoError if it is another's."""
        return self.public(terms, directory.vouched(self.purpose(terms), key))

    # What the ciphers do differently

    @abstractmethod
    def terms(self, bounds: LinearBounds, header: Header) -> Any:
        """The terms of one exchange (`turn.Terms`). Every party computes them for itself."""

    @abstractmethod
    def purpose(self, terms: Any) -> bytes:
        """What the key holder's signature of its key binds. One key serves one purpose."""

    @abstractmethod
    def generated(self, terms: Any, own: PartyKeys, report: Report) -> tuple[Answerer, bytes]:
        """A new key: how the key holder answers under it, and its public half."""

    @abstractmethod
    def public(self, terms: Any, raw: bytes) -> Any:
        """The public half. It has a `name`, and makes a `concealer`. Raises CryptoError for no key."""

    @abstractmethod
    def admit(self, sealed: bytes, terms: Any, key: Any, sender: str) -> Any:
        """The gate: a client's message, or RemoteProtocolError(sender) for bytes that no client makes."""

    @abstractmethod
    def entry(self, declared: Declared, key: Any, one: Sent, directory: Directory) -> tuple[bytes, int]:
        """What the request has for a client, and the server's integer. Errors as for `admit`."""


# The clients ----------------------------------------------------------------------------------------


class LinearClients:
    """The clients' side: they conceal under the key that the key holder signed."""

    def __init__(self, scheme: LinearScheme, directory: Directory, identities: Identities) -> None:
        self._scheme, self._directory, self._identities = scheme, directory, identities
        self._known: dict[bytes, tuple[bytes, bytes, Any]] = {}
        self._latest: Any = None

    def conceal(
        self, asked: PublicQueries, header: Header, key: bytes, clients: Sequence[str]
    ) -> Mapping[str, Mapping[str, ConcealVector]]:
        """The functions that conceal a client's part of a value, by name of the client and of the query.

        key: the key holder's signed key. clients: who is asked. Raises CryptoError for a key that is not the
        key holder's.
        """
        scheme, digests, terms = self._scheme, asked.digests(), self._scheme.terms(asked.bounds, header)
        # A key holder that restarted has another key: clients must not encrypt under the old one.
        known = self._known.get(purpose := scheme.purpose(terms))
        if known is None or known[0] != key:
            public = scheme.pinned(self._directory, terms, key)
            known = self._known[purpose] = key, public.name, public.concealer(terms)
        _, name_of_key, self._latest = known
        queries = [
            PublicQuery(terms=terms, name=name, told=told, key=name_of_key) for name, told in digests.items()
        ]

        def of(own: Identity | None) -> Mapping[str, ConcealVector]:
            conceal = self._latest.conceal
            return {one.name: ConcealVector(asked.bounds, partial(conceal, one, own)) for one in queries}

        if not scheme.signs:
            return dict.fromkeys(clients, of(None))
        return {own.name: of(own) for own in self._identities(clients)}

    def prepare(self) -> bool:
        """Do a piece of a later answer's work beforehand, while the client waits: some milliseconds.

        Returns whether another piece is to be done. A party that never calls it does all work as it answers.
        """
        return self._latest is not None and self._latest.prepare()


# The server -----------------------------------------------------------------------------------------


class LinearServer:
    """The server's side: it declares weights before it asks, and has one integer opened per client."""

    def __init__(self, scheme: LinearScheme, own: PartyKeys) -> None:
        self._scheme, self._own = scheme, own
        self._declared: dict[str, Declared] = {}
        self._sealed: dict[LinearBounds, int] = {}

    def declare(self, queries: Queries, cohort: int, header: Header) -> PublicQueries:
        """The public part of one exchange, as the calls state it. It comes before `begin`.

        Raises LocalProtocolError for queries of several bounds, and ConfigError for weights outside them.
        """
        asked = PublicQueries.of(queries, cohort)
        terms = self._scheme.terms(asked.bounds, header)
        self._sealed[asked.bounds] = terms.message_bytes
        self._declared = {name: Declared.of(queries[name], terms, name) for name in asked.names}
        return replace(asked, weights=tuple(one.told for one in self._declared.values()))

    def begin(self, asked: PublicQueries, key: bytes, report: Report) -> Scoring:
        """The server's part of the exchange of these queries. Raises CryptoError as for `conceal`."""
        directory, terms = self._own.directory, next(iter(self._declared.values())).terms
        public = self._scheme.pinned(directory, terms, key)
        servers = {
            name: QueryServer(declared, index, self._own.identity.signing, public.name)
            for index, (name, declared) in enumerate(self._declared.items())
        }
        return Scoring(
            scheme=self._scheme,
            terms=terms,
            key=public,
            servers=servers,
            asked=asked,
            reply=key,
            directory=directory,
            report=report,
        )

    def sealed_bytes(self, bounds: LinearBounds) -> int | None:
        """The length of a client's message for a query of these bounds. None before any query."""
        return self._sealed.get(bounds)

    def error_bound(self) -> float | None:
        """The largest error of a score, except with probability 1e-6. None before any query."""
        return max((one.error for one in self._declared.values()), default=None)


Requested = tuple[str, tuple[tuple[Sent, Arrived], ...]]
"""The messages of one query, in the order of a request."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scoring:
    """The server's part of one exchange of scores, for its machine.

    key: the key holder's, and reply: its bytes, which clients get. servers: by the names of the concealed
    values. asked: what the calls state.
    """

    scheme: LinearScheme
    terms: Any
    key: Any
    servers: Mapping[str, QueryServer]
    asked: PublicQueries
    reply: bytes
    directory: Directory
    report: Report

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.servers)

    @property
    def sealed_bytes(self) -> int:
        """The exact length of a client's message."""
        return int(self.terms.message_bytes)

    @property
    def replies(self) -> Limit:
        """The limit of the key holder's replies."""
        tag = len(self.terms.reply_tag(self.key.name))
        each = tag + self.terms.answer_bytes * self.asked.cohort + 8
        return Limit(each * len(self.servers) + OVERHEAD, len(self.servers))

    def admit(self, sender: str, sealed: bytes) -> Any:
        """A client's message. Raises RemoteProtocolError(sender) for bytes that no client makes.

        The rest of the checks, which take longer, is part of `request`.
        """
        return self.scheme.admit(sealed, self.terms, self.key, sender)

    def request(self, sent: tuple[Sent, ...]) -> KeyHolderRequest | Found:
        """Check what clients sent, and make one request for each query. Empty if nothing is to open."""
        arrived: list[tuple[Sent, Arrived]] = []
        for one in sent:
            with blaming(self.report):
                declared = self.servers[one.name].declared
                entry, own_integer = self.scheme.entry(declared, self.key, one, self.directory)
                arrived.append((one, declared.arrived(entry, own_integer, one.clear, one.sender)))
        # Before requests are made, since the key holder refuses a whole request that has an entry twice. One
        # of the two copied it, and the server cannot tell which.
        uses = Counter(own.short for _, own in arrived)
        for _, own in arrived:
            if uses[own.short] > 1:
                self.report(
                    own.sender, "Expected a fresh key of its own, got one that another message has too."
                )
        requested: list[Requested] = []
        for name in self.servers:
            listed = tuple(pair for pair in arrived if pair[0].name == name and uses[pair[1].short] == 1)
            if listed:
                requested.append((name, listed))
        if not requested:
            return {}
        items = tuple(self.servers[name].request([own for _, own in listed]) for name, listed in requested)
        return KeyHolderRequest(items, partial(self.add, requested))

    def add(self, requested: Sequence[Requested], replies: tuple[bytes, ...]) -> Found:
        """Add the server's own integers to the key holder's."""
        found: dict[Place, float] = {}
        for (name, listed), reply in zip(requested, replies, strict=True):
            # A refused request costs only its own query the scores.
            if reply == REFUSED:
                continue
            server = self.servers[name]
            with blaming(self.report):
                opened = server.opened([own for _, own in listed], reply, sender=KEY_HOLDER)
                for (one, own), value in zip(listed, opened, strict=True):
                    if value is not None:
                        with blaming(self.report):
                            found[one.place] = server.score(own, value).value
        return found


@contextmanager
def blaming(report: Report) -> Iterator[None]:
    """Report a peer's fault in this block and go on, so that one bad ciphertext costs one score."""
    try:
        yield
    # Only a peer's fault: an error of this party must not be reported as a client's.

    except RemoteProtocolError as error:
        report(error.sender, str(error))


# The key holder -------------------------------------------------------------------------------------


class LinearKeyHolder:
    """The key holder's side: its keys, which live as long as the process, and their openings.

    After a restart, the key holder makes new ones and counts openings from 0.
    """

    def __init__(self, scheme: LinearScheme, own: PartyKeys, report: Report) -> None:
        self._scheme, self._own, self._report = scheme, own, report
        self._known: dict[bytes, tuple[Answerer, bytes]] = {}

    def machine(self, asked: PublicQueries, header: Header) -> tuple[OpeningMachine, bytes]:
        """The machine of one exchange, and the public key. Raises ConfigError if no key fits."""
        if not asked.distinct:
            raise ConfigError("Expected each query once, got one twice.")
        directory, terms = self._own.directory, self._scheme.terms(asked.bounds, header)
        answerer, key = self._key(terms)
        holder = QueryKeyHolder(terms, asked.names, asked.cohort, directory.server.identity, answerer)
        most = Limit(holder.request_bytes * len(asked.names) + OVERHEAD, len(asked.names))
        open_ = partial(holder.open, sender=SERVER)
        return OpeningMachine(header=header, most=most, open_=open_, report=self._report), key

    def _key(self, terms: Any) -> tuple[Answerer, bytes]:
        purpose = self._scheme.purpose(terms)
        if purpose not in self._known:
            if len(self._known) >= MOST_KINDS:
                raise ConfigError(
                    f"Expected at most {MOST_KINDS} sets of bounds in a session, got one more. Use the same "
                    "bounds for several queries."
                )
            answerer, raw = self._scheme.generated(terms, self._own, self._report)
            directory = self._own.directory
            self._known[purpose] = answerer, self._own.identity.vouch(purpose, directory.session, raw)
        return self._known[purpose]


@dataclass(frozen=True)
class Ready:
    """The request, if it came, and its reply, if it is made."""

    request: OpenRequest | None = None
    reply: OpenReply | None = None


@dataclass(frozen=True, kw_only=True)
class OpeningMachine:
    """The key holder's machine of one exchange.

    Attributes:
        header: the place of the exchange.
        most: the largest request.
        open_: opens an item, or raises RemoteProtocolError.
        report: is told why an item was refused.
    """

    header: Header
    most: Limit
    open_: Callable[[bytes], bytes]
    report: Callable[[str, str], None]

    def begin(self) -> Step[Ready]:
        return Step(Ready())

    def expects(self, state: Ready) -> Expects:
        return Expects(self.header, {OpenRequest: self.most})

    def receive(self, state: Ready, sender: str, message: OpenRequest) -> Step[Ready]:
        if sender != SERVER:
            raise refusal(f"Expected a request from the server, got one from {sender}.", sender, "opening")
        # Repeating a request spends nothing: one is opened, and its reply is kept.
        if state.request not in (None, message):
            raise refusal("Expected one request, got a second one: one is opened.", sender, "opening")
        if state.request is None:
            return Step(Ready(message), need=Need(Work(partial(self.opened, message.items))))
        return Step(state, out=() if state.reply is None else (Outgoing((SERVER,), state.reply),))

    def opened(self, items: Sequence[bytes]) -> tuple[bytes, ...]:
        """The opening of each item, or `REFUSED`. Reasons go to `report`."""
        replies = [REFUSED] * len(items)
        for i, item in enumerate(items):
            with blaming(self.report):
                replies[i] = self.open_(item)
        return tuple(replies)

    def provide(self, state: Ready, answer: tuple[bytes, ...]) -> Step[Ready]:
        reply = OpenReply(items=tuple(answer))
        return Step(replace(state, reply=reply), out=(Outgoing((SERVER,), reply),), result="opened")

    def deadline(self, state: Ready) -> Step[Ready]:
        return Step(state, result="unused")
