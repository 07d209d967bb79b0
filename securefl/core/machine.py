"""Sans-IO state machines: a party is a pure function of its state and one message.

A machine holds no clock, socket, thread, disk or global random generator. An engine calls

    begin() -> Step                              the first state and the first messages
    receive(state, sender, message) -> Step      one decoded message arrived
    provide(state, answer) -> Step               the slow work that a `Need` ordered is done
    deadline(state) -> Step                      no further message will arrive in this phase

and moves the bytes. States are frozen. If `receive` raises `RemoteProtocolError`, the engine keeps the old
state, and only the sender loses its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from securefl.core.wire import Header, Limit

S = TypeVar("S")


@dataclass(frozen=True)
class Outgoing:
    """One message for one or several receivers. It is encoded once. Raises nothing.

    >>> from securefl.sums import Outgoing
    >>> Outgoing(to=("client-0000", "client-0001"), message="hello").to
    ('client-0000', 'client-0001')
    """

    to: tuple[str, ...]
    message: Any


@dataclass(frozen=True)
class Need:
    """Slow or guarded work (training, encryption, ledger) that the host does between two steps.

    The host gives the answer to `Machine.provide`. Raises nothing.

    >>> from securefl.sums import Need
    >>> Need("train").order
    'train'
    """

    order: Any


@dataclass(frozen=True)
class Work:
    """An order that contains its own inputs. The host runs it, and provides its return value."""

    run: Callable[[], Any] = field(repr=False)


@dataclass(frozen=True)
class Step(Generic[S]):
    """The output of a machine: its next state, messages to send, and work to do. Raises nothing.

    Attributes:
        state: the state for the next call.
        out: messages to send now.
        need: work that the host does now, or None.
        result: None until the machine is done; then its result, once.

    >>> from securefl.sums import Outgoing, Step
    >>> Step(state=1, out=(Outgoing(to=("server",), message="done"),)).result is None
    True
    """

    state: S
    out: tuple[Outgoing, ...] = ()
    need: Need | None = None
    result: Any = None


@dataclass(frozen=True)
class Expects:
    """The messages that may arrive now: their place, and the limit of each class of message. Raises nothing.

    >>> from securefl.sums import Expects, Header, Limit
    >>> place = Header(session=bytes(32), round=1, attempt=1, stage=0)
    >>> Expects(place, {str: Limit(bytes=100, elements=2)}).kinds[str].bytes
    100
    """

    header: Header
    kinds: Mapping[type[Any], Limit]


class Machine(Protocol[S]):
    """A party of a protocol. `S` is a frozen dataclass for each phase.

    Raises:
        RemoteProtocolError: by `receive`, if the sender's message breaks a rule.
        LocalProtocolError: by `provide`, if the host's answer does not fit the `Need`.

    >>> from securefl.sums import Machine, Step
    >>> class Counter:
    ...     def begin(self): return Step(state=0)
    ...     def expects(self, state): ...
    ...     def receive(self, state, sender, message): return Step(state=state + 1)
    ...     def provide(self, state, answer): return Step(state=state)
    ...     def deadline(self, state): return Step(state=state, result=state)
    >>> machine: Machine = Counter()
    >>> machine.deadline(machine.receive(machine.begin().state, "client-0000", "hello").state).result
    1
    """

    def begin(self) -> Step[S]: ...

    def expects(self, state: S) -> Expects: ...

    def receive(self, state: S, sender: str, message: Any) -> Step[S]: ...

    def provide(self, state: S, answer: Any) -> Step[S]: ...

    def deadline(self, state: S) -> Step[S]: ...
