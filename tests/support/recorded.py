"""Honest aggregations, recorded once: machines are pure, so each lie is told to a recorded state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pytest

from securefl.core.errors import RemoteProtocolError
from securefl.core.machine import Step
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.core.signing import verify
from securefl.secagg import Agreement, Server
from securefl.secagg.messages import Dealt, Survivors
from support.tiny_secagg import Host, aggregate, agreement, assert_exact, client, header

CLIENTS = 10  # one corrupt: a quorum of 6


@dataclass
class Recording:
    """A machine that remembers what it was given in which state, and what it said."""

    inner: Any
    seen: list[tuple[Any, str, Any, Step[Any]]] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    lie: Callable[[Any, Step[Any]], Step[Any]] = lambda inner, step: step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def receive(self, state: Any, sender: str, message: Any) -> Any:
        step = self.lie(self.inner, self.inner.receive(state, sender, message))
        self.seen.append((state, sender, message, step))
        return self.saying(step)

    def provide(self, state: Any, answer: Any) -> Any:
        return self.saying(self.lie(self.inner, self.inner.provide(state, answer)))

    def saying(self, step: Step[Any]) -> Step[Any]:
        self.said += [envelope.message for envelope in step.out]
        return step

    def at(self, kind: type, sender: str = SERVER) -> tuple[Any, Any, Step[Any]]:
        """State, message and step where this kind of message came."""
        for state, who, message, step in self.seen:
            if isinstance(message, kind) and who == sender:
                return state, message, step
        raise AssertionError(kind)


@dataclass
class Honest:
    agreed: Agreement
    clients: dict[int, Recording]
    server: Recording
    host: Host


@lru_cache
def honest(mode: Any = "active", attempt: int = 1, clients: int = CLIENTS) -> Honest:
    agreed = agreement(clients, corrupt=0.1, dropout=0.3, mode=mode, at=header(1, attempt))
    recorded = {number: Recording(client(number, agreed)) for number in range(clients)}
    server = Recording(Server(agreement=agreed))
    machines = {client_name(number): machine for number, machine in recorded.items()}
    gone = {client_name(4): None}
    outcome = aggregate(agreed, machines={**machines, **gone, SERVER: server})
    assert_exact(agreed, outcome.server)
    return Honest(agreed, recorded, server, outcome.host)


@lru_cache
def sparse() -> tuple[Agreement, Recording, Recording]:
    """A run of 60 clients that are not all neighbours, its first client, and its server."""
    agreed = agreement(60, corrupt=0.05, dropout=0.1)
    one, server = Recording(client(0, agreed)), Recording(Server(agreement=agreed))
    assert_exact(agreed, aggregate(agreed, machines={client_name(0): one, SERVER: server}).server)
    return agreed, one, server


def refused(machine: Any, state: Any, message: Any, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why) as raised:
        machine.receive(state, SERVER, message)
    assert raised.value.sender == SERVER


def watched(machine: Any, state: Any, **roster: Any) -> tuple[Any, Any, list[bytes]]:
    """The same client and state, and the keys under which it verifies signatures from here on."""
    checked: list[bytes] = []

    def noted(key: Any, *more: Any) -> None:
        checked.append(key.raw)
        verify(key, *more)

    closed = state.held.closed
    agreed = replace(closed.agreement, roster=replace(closed.agreement.roster, verify=noted, **roster))
    held = replace(state.held, closed=replace(closed, agreement=agreed))
    return replace(machine, agreement=agreed), replace(state, held=held), checked


def without(message: Any, at: int) -> Any:
    fields = {
        name: value[:at] + value[at + 1 :]
        for name, value in vars(message).items()
        if isinstance(value, tuple)
    }
    return replace(message, **fields)


def fewer(message: Any) -> Any:
    """The same message without the last client."""
    if isinstance(message, Survivors):
        return Survivors(survivors=message.survivors[:-1], dropped=message.survivors[-1:])
    if isinstance(message, Dealt):
        rest = {name: value[:-1] for name, value in vars(message).items()}
        return Dealt(**rest)
    return without(message, len(message.members) - 1)
