"""Protocols without input or output: a party is a pure function of its state and a message.

A machine holds no clock, socket, thread, disk or global random generator. An engine calls

    begin() -> Step                              the first state and what to send
    receive(state, sender, message) -> Step      one decoded message arrived
    provide(state, answer) -> Step               slow work asked for by a Need is done
    deadline(state) -> Step                      nothing more will come in this phase

and moves the bytes. States are frozen, so that after a `RemoteProtocolError` the old one stands
and the sender alone has lost its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from securefl.core.wire import Header, Limit

S = TypeVar("S")


@dataclass(frozen=True)
class Outgoing:
    """One message for one or several receivers; it is encoded once."""

    to: tuple[str, ...]
    message: Any


@dataclass(frozen=True)
class Need:
    """Slow or guarded work (training, encryption, ledger) that the host does between two steps."""

    order: Any


class Work(Protocol):
    """An order that carries all it needs: a host runs it anywhere and provides what it returns."""

    def run(self) -> Any: ...


@dataclass(frozen=True)
class Step(Generic[S]):
    """What a machine does next. `result` is set once, when the machine is done."""

    state: S
    out: tuple[Outgoing, ...] = ()
    need: Need | None = None
    result: Any = None


@dataclass(frozen=True)
class Expects:
    """What may arrive now: the place, and for each kind of message the most it may hold."""

    header: Header
    kinds: Mapping[type[Any], Limit]


class Machine(Protocol[S]):
    """A party of a protocol. `S` is a frozen dataclass per phase."""

    def begin(self) -> Step[S]: ...

    def expects(self, state: S) -> Expects: ...

    def receive(self, state: S, sender: str, message: Any) -> Step[S]: ...

    def provide(self, state: S, answer: Any) -> Step[S]: ...

    def deadline(self, state: S) -> Step[S]: ...
