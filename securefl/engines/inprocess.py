"""The embedded engine: all parties in one process, always through encoded bytes.

Messages can be reordered, delayed, duplicated and lost, from a seeded stream. What one party
sends badly costs that party its place in the exchange; nobody else notices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from securefl.core.errors import RemoteProtocolError
from securefl.core.machine import Machine, Step
from securefl.core.wire import Header, decode, peek


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How unreliable the network is.

    Attributes:
        reorder: deliver in random order.
        delay: probability that a message takes extra ticks, up to twice `patience`.
        duplicate: probability that a message arrives twice.
        dropout: probability that a message never arrives.
        patience: ticks until the deadline of an exchange.
    """

    reorder: bool = False
    delay: float = 0.0
    duplicate: float = 0.0
    dropout: float = 0.0
    patience: int = 8

    def __post_init__(self) -> None:
        for name in ("delay", "duplicate", "dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Expected 0 <= {name} <= 1, got {getattr(self, name)}.")
        if self.patience < 1:
            raise ValueError(f"Expected patience >= 1, got {self.patience}.")


class Worker(Protocol):
    """What stands beside the machines: slow work in waves, and the ledger in front of the bytes."""

    def work(self, needs: Sequence[tuple[str, Any]]) -> Sequence[Any]: ...

    def encode(self, outbox: Sequence[tuple[Header, Any]]) -> Sequence[bytes]: ...


@dataclass(frozen=True)
class _Parcel:
    sender: str
    to: str
    data: bytes
    due: int


@dataclass
class Traffic:
    """Bytes per party, and what went wrong, over one exchange.

    sent: every message once, whether it arrives or not. received: every copy that arrived in time
    and could be decoded. blamed: who sent what had to be refused, and why.
    """

    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    blamed: dict[str, str] = field(default_factory=dict)
    late: int = 0

    def add(self, other: Traffic) -> None:
        """Count another exchange's traffic in."""
        for mine, theirs in ((self.sent, other.sent), (self.received, other.received)):
            for party, count in theirs.items():
                mine[party] = mine.get(party, 0) + count
        self.blamed |= other.blamed
        self.late += other.late


class InProcess:
    """Drives machines to their results. Late parcels of one exchange reach the next one it drives."""

    def __init__(
        self,
        worker: Worker,
        *,
        faults: Faults = Faults(),
        rng: np.random.Generator | None = None,
        tamper: Callable[[str, str, bytes], bytes] | None = None,
    ) -> None:
        self._worker = worker
        self._faults = faults
        self._rng = rng or np.random.default_rng(0)
        self._tamper = tamper
        self._parcels: list[_Parcel] = []
        self._tick = 0

    def run(self, machines: Mapping[str, Machine[Any]], header: Header) -> tuple[dict[str, Any], Traffic]:
        """Run one exchange. Returns each machine's result and the traffic."""
        exchange = _Exchange(machines, header, Traffic())
        start = self._tick
        self._absorb(exchange, {party: machine.begin() for party, machine in machines.items()})
        while exchange.unfinished():
            self._tick += 1
            delivered = self._deliver(exchange)
            worked = self._work(exchange)
            waited = self._tick - start >= self._faults.patience
            if not worked and (waited or not (delivered or self._parcels)):
                start = self._tick
                if not self._deadline(exchange):
                    break
        return exchange.results, exchange.traffic

    def _deliver(self, exchange: _Exchange) -> bool:
        due = [p for p in self._parcels if p.due <= self._tick]
        self._parcels = [p for p in self._parcels if p.due > self._tick]
        if self._faults.reorder:
            due = [due[i] for i in self._rng.permutation(len(due))]
        for parcel in due:
            self._absorb(exchange, exchange.deliver(parcel))
        return bool(due)

    def _work(self, exchange: _Exchange) -> bool:
        needs, exchange.needs = exchange.needs, []
        if needs:
            answers = self._worker.work(needs)
            steps = {
                party: exchange.machines[party].provide(exchange.states[party], answer)
                for (party, _), answer in zip(needs, answers, strict=True)
            }
            self._absorb(exchange, steps)
        return bool(needs)

    def _deadline(self, exchange: _Exchange) -> bool:
        """Whether anything moved."""
        before = {party: exchange.states[party] for party in exchange.unfinished()}
        steps = {party: exchange.machines[party].deadline(state) for party, state in before.items()}
        self._absorb(exchange, steps)
        moved = any(step.state is not before[party] for party, step in steps.items())
        return bool(moved or exchange.needs or self._parcels)

    def _absorb(self, exchange: _Exchange, steps: Mapping[str, Step[Any]]) -> None:
        outbox = [(party, envelope) for party, step in steps.items() for envelope in step.out]
        for party, step in steps.items():
            exchange.take(party, step)
        if not outbox:
            return
        encoded = self._worker.encode([(exchange.header, envelope.message) for _, envelope in outbox])
        for (party, envelope), data in zip(outbox, encoded, strict=True):
            for to in envelope.to:
                exchange.traffic.sent[party] = exchange.traffic.sent.get(party, 0) + len(data)
                self._post(party, to, data)

    def _post(self, sender: str, to: str, data: bytes) -> None:
        if self._tamper is not None:
            data = self._tamper(sender, to, data)
        faults, rng = self._faults, self._rng
        copies = 1 + (rng.random() < faults.duplicate) if faults.duplicate else 1
        for _ in range(copies):
            if faults.dropout and rng.random() < faults.dropout:
                continue
            slow = faults.delay and rng.random() < faults.delay
            extra = int(rng.integers(1, 2 * faults.patience)) if slow else 0
            self._parcels.append(_Parcel(sender, to, data, self._tick + 1 + extra))


class _Exchange:
    """The states of one exchange's machines."""

    def __init__(self, machines: Mapping[str, Machine[Any]], header: Header, traffic: Traffic) -> None:
        self.machines = machines
        self.header = header
        self.traffic = traffic
        self.states: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self.needs: list[tuple[str, Any]] = []
        self.refused: set[tuple[str, str]] = set()  # a peer loses its place with whom it wronged

    def unfinished(self) -> list[str]:
        return [party for party in self.machines if party not in self.results]

    def take(self, party: str, step: Step[Any]) -> None:
        self.states[party] = step.state
        if step.need is not None:
            self.needs.append((party, step.need.order))
        if step.result is not None:
            self.results[party] = step.result

    def deliver(self, parcel: _Parcel) -> Mapping[str, Step[Any]]:
        """Decode and hand over one parcel; a bad one is remembered against its sender."""
        machine = self.machines.get(parcel.to)
        link = (parcel.sender, parcel.to)
        if machine is None or link in self.refused:
            return {}
        state = self.states[parcel.to]
        expects = machine.expects(state)
        try:
            if self._late(parcel, expects.header):
                self.traffic.late += 1
                return {}
            body = decode(parcel.data, expects.header, expects.kinds, parcel.sender)
            self.traffic.received[parcel.to] = self.traffic.received.get(parcel.to, 0) + len(parcel.data)
            return {parcel.to: machine.receive(state, parcel.sender, body)}
        except RemoteProtocolError as error:
            self.refused.add(link)
            self.traffic.blamed[parcel.sender] = str(error)
            return {}

    @staticmethod
    def _late(parcel: _Parcel, header: Header) -> bool:
        came = peek(parcel.data, parcel.sender)
        return came.session == header.session and came.place() < header.place()
