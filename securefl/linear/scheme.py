"""The interface of a scheme that `[privacy] scores` names: the server learns one number per client only.

A scheme has a side for each party, which keeps that party's keys of a session. An exchange consists of these
calls, in every scheme:

client       `conceal`              conceals the hidden part of a value, by the name of the query
server       `questions`            the public part of the exchange, which the calls state
             `admit`                the gate: checks sealed bytes before any native library reads them
             `score`, then `Asked`  slow work, which ends in one request, and in the numbers `Found`
key holder   `machine`              opens that request

Numbers in the clear need no scheme: the exchange itself computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from securefl.core.agreement import Directory, Identity
from securefl.core.errors import CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.hiding import ConcealVector
from securefl.core.linear import Floats, LinearBounds, LinearQuery
from securefl.core.machine import Machine, Work
from securefl.core.messages import client_name
from securefl.core.wire import Header, Limit
from securefl.linear.pad_terms import DIGEST
from securefl.storage.own_record import Own

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
    """One client's admitted message for the query of this name."""

    client: int
    name: str
    sealed: bytes = field(repr=False)
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
class Asked:
    """A request to the key holder.

    Attributes:
        items: the items to open. The key holder gives one reply per item.
        then: makes the work order that reads these replies, and ends in `Found`. It holds the masks, which
            stay here.
    """

    items: tuple[bytes, ...]
    then: Callable[[tuple[bytes, ...]], Work]


@dataclass(frozen=True)
class Questions:
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
    def of(cls, queries: Queries, cohort: int) -> Questions:
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
            raise CryptoError("Expected the digest of each query's weights, got another number of them.")
        return dict(zip(self.names, self.weights, strict=True))

    def bound_to(self, weights: Iterable[bytes]) -> Questions:
        """The same questions, with a digest of each query's weights."""
        return replace(self, weights=tuple(weights))

    @property
    def most(self) -> int:
        """The largest number of scores of the exchange."""
        return self.cohort * len(self.names)


class Scoring(Protocol):
    """The server's part of one exchange of scores, for its machine.

    Attributes:
        names: the names of the concealed values.
        sealed_bytes: the exact length of a client's message.
        replies: the limit of one reply of the key holder.
    """

    @property
    def names(self) -> frozenset[str]: ...

    @property
    def sealed_bytes(self) -> int: ...

    @property
    def replies(self) -> Limit: ...

    def admit(self, sender: str, sealed: bytes) -> None:
        """Raises RemoteProtocolError(sender) for bytes that no client of this exchange makes."""
        ...

    def score(self, sent: tuple[Sent, ...]) -> Work:
        """The server's work order, which ends in an `Asked`, or in an empty `Found` if nothing is to open."""
        ...


class ClientSide(Protocol):
    """The clients' side of a scheme, for one session."""

    def conceal(
        self, asked: Questions, header: Header, key: bytes, clients: Sequence[str]
    ) -> Mapping[str, Mapping[str, ConcealVector]]:
        """The functions that conceal a client's part of a value, by name of the client and of the query.

        key: the key holder's signed key. clients: who is asked. Raises CryptoError for a key that is not the
        key holder's.
        """
        ...

    def prepare(self) -> bool:
        """Do a piece of a later answer's work beforehand, while the client waits: some milliseconds.

        Returns whether another piece is to be done. A party that never calls it does all work as it answers.
        """
        ...


class ServerSide(Protocol):
    """The server's side of a scheme, for one session."""

    def questions(self, queries: Queries, cohort: int, header: Header) -> Questions:
        """The public part of one exchange, as the calls state it. It comes before `begin`.

        Raises LocalProtocolError for queries of several bounds, and ConfigError for weights outside them.
        """
        ...

    def begin(self, queries: Queries, cohort: int, header: Header, key: bytes, report: Report) -> Scoring:
        """The server's part of one exchange with `cohort` clients.

        Raises:
            ConfigError: no score of these vectors fits the key.
            CryptoError: as for `ClientSide.conceal`.
            LocalProtocolError: queries of several bounds.
        """
        ...

    def sealed_bytes(self, bounds: LinearBounds) -> int | None:
        """The length of a client's message for a query of these bounds. None before any query."""
        ...

    def error_bound(self) -> float | None:
        """The largest error of a score, except with probability 1e-6. None before any query."""
        ...


class KeyHolderSide(Protocol):
    """The key holder's side of a scheme, for one session."""

    def machine(self, asked: Questions, header: Header) -> tuple[Machine[Any], bytes]:
        """The machine of one exchange, and the public key. Raises ConfigError if no key fits."""
        ...


class LinearScheme(Protocol):
    """A scheme for linear queries under one plan. Each party makes its own side from its own secrets.

        >>> from securefl.linear import scheme_of
        >>> scheme = scheme_of("pads", parameters="strong", asks=1, clients=10)
        >>> scheme.key_holder_learns
        "how many are asked and answer, not which; the weights of each query, such as the server's baseline"

    Raises nothing.
    """

    @property
    def key_holder_learns(self) -> str:
        """What the key holder learns, in words."""
        ...

    @property
    def limit(self) -> str:
        """What a server that breaks the protocol learns beyond one declared number. Empty: nothing."""
        ...

    def clients(self, directory: Directory, identities: Identities) -> ClientSide:
        """The clients' side, from the pinned keys of all parties and the clients' own."""
        ...

    def server(self, own: Own) -> ServerSide:
        """The server's side, from its identity and the pinned keys."""
        ...

    def key_holder(self, own: Own, report: Report) -> KeyHolderSide:
        """The key holder's side. `report` gets the reasons of refusals."""
        ...


@contextmanager
def blaming(report: Report) -> Iterator[None]:
    """Report a peer's fault in this block and go on, so that one bad ciphertext costs one score."""
    try:
        yield
    # Only a peer's fault: an error of this party must not be reported as a client's.

    except RemoteProtocolError as error:
        report(error.sender, str(error))
