"""One word of `[privacy] scores`: a way of scoring profiles that the server does not see.

A way has a side for each party, which keeps that party's keys of a session. This is all there is to an
exchange, whatever the way:

client       `conceal`              hides its part of a value, by the name of the question
server       `admit`                the gate: what was sealed is checked before any native library sees it
             `score`, then `Asked`  slow work, which ends in a request or in what was `Found`
key holder   `machine`              opens one request a turn

Numbers in the clear need no way: the exchange itself takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from securefl.core.agreement import Directory
from securefl.core.errors import LocalProtocolError, RemoteProtocolError
from securefl.core.hiding import Conceal
from securefl.core.linear import Floats, LinearBounds, LinearQuery
from securefl.core.machine import Machine, Work
from securefl.core.messages import client_name
from securefl.core.wire import Header, Limit
from securefl.storage.own_record import Own

Place = tuple[int, str]
"""Whose number it is, and which: client and name."""
Queries = Mapping[str, LinearQuery]
"""The questions of one exchange whose values are concealed, by name."""
Tell = Callable[[str, str], None]
"""Tells an observer who is to blame for a missing number, and why. No party of the protocol sees it."""


@dataclass(frozen=True)
class Sent:
    """What one client sent for the question of this name, through the gate."""

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


@dataclass(frozen=True)
class Found:
    """The numbers that could be opened; one that could not is absent."""

    numbers: Mapping[Place, float]

    def beside(self, numbers: Mapping[Place, float]) -> Found:
        return Found({**self.numbers, **numbers})


NOTHING = Found({})


@dataclass(frozen=True)
class Asked:
    """The end of one turn: a request to the key holder.

    Attributes:
        items: what it is to open; it gives one reply an item.
        then: the server's next slow work, from these replies. It holds the masks, which do not travel.
        found: what is known already, should the key holder never answer.
    """

    items: tuple[bytes, ...]
    then: Callable[[tuple[bytes, ...]], Work]
    found: Found = NOTHING


@dataclass(frozen=True)
class Questions:
    """What is public of one exchange of scores.

    Attributes:
        names: of the questions whose values are concealed.
        bounds: of all their queries.
        cohort: how many clients are asked.
    """

    names: tuple[str, ...]
    bounds: LinearBounds
    cohort: int

    @classmethod
    def of(cls, queries: Queries, cohort: int) -> Questions:
        """LocalProtocolError for queries of several bounds."""
        # A dictionary for its order: the bounds of the questions, each once. The call names one, and so its
        # key.
        first, *others = {query.bounds: None for query in queries.values()}
        if others:
            raise LocalProtocolError(
                "Expected queries of one set of bounds in one exchange, got several. Ask for the others in "
                "another one."
            )
        return cls(tuple(queries), first, cohort)

    @property
    def most(self) -> int:
        """The most scores of the exchange."""
        return self.cohort * len(self.names)


class Scoring(Protocol):
    """The scores of one exchange, as the server's machine needs them.

    Attributes:
        names: of the questions whose values are concealed.
        sealed_bytes: the exact length of what a client sends.
        replies: the most that one reply of the key holder holds.
    """

    @property
    def names(self) -> frozenset[str]: ...

    @property
    def sealed_bytes(self) -> int: ...

    @property
    def replies(self) -> Limit: ...

    def admit(self, sender: str, sealed: bytes) -> None:
        """RemoteProtocolError(sender) for bytes that no client of this exchange makes."""
        ...

    def score(self, sent: tuple[Sent, ...]) -> Work:
        """The server's first slow work. This and each later one ends in an `Asked` or in `Found`."""
        ...


class ClientSide(Protocol):
    """A way of scoring as clients have it, for one session."""

    def conceal(self, asked: Questions, header: Header, key: bytes) -> Mapping[str, Conceal]:
        """By name, what hides a client's part of a value.

        key: what the key holder said its key is. CryptoError for one that is not the key holder's.
        """
        ...


class ServerSide(Protocol):
    """A way of scoring as the server has it, for one session."""

    def begin(self, queries: Queries, cohort: int, header: Header, key: bytes, tell: Tell) -> Scoring:
        """The scores of one exchange with `cohort` clients. CryptoError as for `ClientSide.conceal`.

        ConfigError where no score of these profiles fits the key. LocalProtocolError for questions of
        several kinds.
        """
        ...

    def sealed_bytes(self, bounds: LinearBounds) -> int | None:
        """The length of what a client sends for a query of these bounds; None before any was asked."""
        ...

    def error_bound(self) -> float | None:
        """The largest error of a score, but with probability 1e-6; None before any was asked."""
        ...


class KeyHolderSide(Protocol):
    """A way of scoring as the key holder has it, for one session."""

    def machine(self, asked: Questions, header: Header) -> tuple[Machine[Any], bytes]:
        """Its machine of one exchange, and its key for everybody. ConfigError where nothing fits a key."""
        ...


class LinearScheme(Protocol):
    """A way of scoring under one plan. Each party makes its own side, and has nothing of the others'."""

    @property
    def key_holder_learns(self) -> str:
        """What the key holder learns, in words."""
        ...

    def clients(self, directory: Directory) -> ClientSide: ...

    def server(self, own: Own) -> ServerSide: ...

    def key_holder(self, own: Own, tell: Tell) -> KeyHolderSide: ...


@contextmanager
def blaming(tell: Tell) -> Iterator[None]:
    """A peer's fault in this block is told, and ends here: one bad ciphertext costs one score."""
    try:
        yield
    # A peer's fault alone: an error of our own must not pass as a client's.
    except RemoteProtocolError as error:
        tell(error.sender, str(error))
