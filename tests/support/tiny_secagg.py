"""A small cohort for secure aggregation, with seeded randomness, a journal and a host for the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent
from numpy.typing import NDArray

from securefl.accounting.events import NO_COST
from securefl.accounting.ledger import Ledger, Terms
from securefl.core.acts import Begin, RecordAct
from securefl.core.hiding import ComputeAndConceal
from securefl.core.keys import SecretKey
from securefl.core.messages import client_name
from securefl.core.release import SERVER, Charge, Release, ReleaseKey
from securefl.core.wire import Header
from securefl.engine.drive import Driver, Traffic
from securefl.engine.network import Faults, Network
from securefl.secagg import (
    Aborted,
    Agreement,
    Channels,
    Client,
    Identity,
    Parameters,
    Policy,
    Roster,
    Server,
    Summed,
    Unmasking,
    Vector,
    centred,
)
from securefl.secagg.policy import parameters
from securefl.storage.journal import Answer, Journal

TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)
CHARGE = Charge(server=GaussianDpEvent(10.0), key_holder=NO_COST.server, others=GaussianDpEvent(10.0))


def entropy(*labels: str | int) -> Callable[[int], bytes]:
    """Bytes like those of the operating system, but the same in every run."""
    state = hashlib.shake_256("/".join(map(str, labels)).encode())
    drawn = 0

    def random(count: int) -> bytes:
        nonlocal drawn
        drawn += count
        return state.digest(drawn)[drawn - count :]

    return random


def told(what: str) -> bytes:
    return hashlib.sha256(what.encode()).digest()


@lru_cache
def identity(number: int) -> Identity:
    return Identity.of(client_name(number), SecretKey(entropy("identity", number)(32)))


@lru_cache
def pinned(clients: int) -> Roster:
    return Roster(tuple(identity(number).member() for number in range(clients)))


def header(number: int = 1, attempt: int = 1) -> Header:
    return Header(hashlib.sha256(b"session").digest(), number, attempt, 2)


VECTORS = (
    Vector(name="update", length=11, bits=32, bound=10**6),
    Vector(name="count", length=1, bits=20, bound=100),
)
PLAN, TASK = (hashlib.sha256(one).digest() for one in (b"plan", b"task"))


def agreement(
    clients: int = 5,
    *,
    corrupt: float = 0.2,
    dropout: float = 0.2,
    mode: Any = "active",
    vectors: tuple[Vector, ...] = VECTORS,
    at: Header | None = None,
    chosen: Parameters | None = None,
    ordered: int | None = None,
    task: bytes = TASK,
) -> Agreement:
    terms = chosen or parameters(clients, corrupt, dropout, mode, ordered=ordered)
    roster = pinned(clients)
    return Agreement(
        header=at or header(), roster=roster, vectors=vectors, plan=PLAN, task=task, parameters=terms
    )


@dataclass(frozen=True, kw_only=True)
class Lenient(Policy):
    """The least that a client may insist on; it takes whatever parameters it is given."""

    mode: Any = "active"
    corrupt: float = 0.0
    dropout: float = 0.0

    def check(self, given: Parameters) -> None:
        pass


def client(number: int, agreed: Agreement, policy: Policy | None = None) -> Client:
    channels = Channels(identity(number), agreed.roster, agreed.header.session)
    return Client(agreement=agreed, channels=channels, policy=policy or Lenient())


def integers(number: int, vector: Vector) -> NDArray[np.int64]:
    rng = np.random.default_rng([number, vector.length, vector.bits])
    return rng.integers(-vector.bound, vector.bound, vector.length, endpoint=True)


def expected(agreed: Agreement, survivors: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    numbers = [agreed.roster.numbers[name] for name in survivors]
    return {
        v.name: np.sum([integers(number, v) for number in numbers], axis=0, dtype=np.int64)
        for v in agreed.vectors
    }


def assert_exact(agreed: Agreement, summed: Any) -> None:
    """The totals are those of the survivors it names."""
    assert isinstance(summed, Summed), summed
    for vector in agreed.vectors:
        total = centred(summed.totals[vector.name], vector.bits)
        np.testing.assert_array_equal(total, expected(agreed, summed.survivors)[vector.name])


def release(order: ComputeAndConceal, name: str, values: NDArray[Any]) -> Release:
    at = order.header
    key = ReleaseKey(order.client, at.session, at.round, at.stage, at.attempt, name)
    masked = order.conceal[name](values)
    return Release(key=key, unit="record", form="masked", charge=CHARGE, _numbers=masked)


def journal(*labels: str | int) -> Journal:
    return Journal(random=entropy("journal", *labels))


@dataclass
class Host:
    """Answers every need: masks the vectors of a client, keeps the journal, unmasks."""

    agreed: Agreement
    ledger: Ledger
    journal: Journal = field(default_factory=journal)
    abstaining: frozenset[str] = frozenset()

    def work(self, needs: Sequence[tuple[str, Any]]) -> list[Any]:
        return [self.answer(order) for _, order in needs]

    def encode(self, outbox: Sequence[tuple[Header, Any]]) -> list[bytes]:
        return self.ledger.send(outbox)

    def answer(self, order: Any) -> Any:
        match order:
            case Begin() | RecordAct():
                return self.record(order)
            case ComputeAndConceal():
                return None if order.client in self.abstaining else self.masked(order)
            case Unmasking():
                return order.run()
        raise AssertionError(order)

    def record(self, order: Begin | RecordAct) -> Answer:
        [answer] = self.journal.record([order])
        return answer

    def masked(self, order: ComputeAndConceal) -> tuple[Release, ...]:
        number = self.agreed.roster.numbers[order.client]
        releases = tuple(
            release(order, vector.name, integers(number, vector)) for vector in self.agreed.vectors
        )
        assert not self.ledger.reserve([(one.key, one.charge) for one in releases])
        return releases


@dataclass
class Outcome:
    results: dict[str, Any]
    traffic: Traffic
    host: Host

    @property
    def server(self) -> Summed | Aborted:
        outcome: Summed | Aborted = self.results[SERVER]
        return outcome


def aggregate(
    agreed: Agreement,
    *,
    faults: Faults = Faults(),  # noqa: B008  frozen
    seed: int = 0,
    tamper: Callable[[str, str, bytes], bytes] | None = None,
    machines: Mapping[str, Any] | None = None,
    abstaining: frozenset[str] = frozenset(),
    kept: Journal | None = None,
) -> Outcome:
    """One aggregation through the engine. `machines` replace those of some parties; None takes one away."""
    parties: dict[str, Any] = {SERVER: Server(agreement=agreed)}
    parties |= {client_name(k): client(k, agreed) for k in range(len(agreed.roster.members))}
    parties |= machines or {}
    with Ledger(None, TERMS) as ledger:
        host = Host(agreed, ledger, kept or journal(), abstaining)
        running = {name: machine for name, machine in parties.items() if machine is not None}
        drive = Driver(running, agreed.header, host)
        Network(faults, rng=np.random.default_rng(seed), tamper=tamper).run([drive])
        return Outcome(drive.results, drive.traffic, host)
