"""One masked sum, timed: the machines of `sum = "masked"`, fed with encoded bytes, on one thread.

Counted: encoding and decoding, the ledger's commit, the record of acts (both in memory), every key agreement.
Not counted: training, and the reservation of the charge.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean
from time import process_time
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from securefl.accounting.events import NO_COST
from securefl.accounting.ledger import Ledger, Terms
from securefl.core.grid import Grid
from securefl.core.hiding import ComputeAndConceal
from securefl.core.machine import Step
from securefl.core.messages import client_name
from securefl.core.release import SERVER, Release, ReleaseKey
from securefl.core.wire import Header, decode
from securefl.secagg import (
    Aborted,
    Agreement,
    Channels,
    Client,
    Identity,
    Policy,
    Roster,
    Server,
    Vector,
    centred,
)
from securefl.storage.journal import Journal

CLIP = 8.0  # Flower's
TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)


@dataclass
class Costs:
    """CPU seconds of each client and of the server, and the bytes of each client."""

    client: dict[str, float] = field(default_factory=dict)
    quantise: dict[str, float] = field(default_factory=dict)
    server: float = 0.0
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    error: float = 0.0

    @contextmanager
    def of(self, party: str) -> Iterator[None]:
        began = process_time()
        yield
        spent = process_time() - began
        if party == SERVER:
            self.server += spent
        else:
            self.client[party] = self.client.get(party, 0.0) + spent


@lru_cache
def identities(clients: int) -> tuple[Identity, ...]:
    return tuple(Identity.generate(client_name(number)) for number in range(clients))


def update(number: int, length: int) -> NDArray[np.float64]:
    return np.random.default_rng([number, length]).uniform(-1, 1, length)


def grid(clients: int) -> Grid:
    """The finest steps whose sum fits 32 bits: for 30 clients 32 times finer than Flower's default ones."""
    halvings = ((1 << 31) - 1).bit_length() - clients.bit_length()
    return Grid(step=CLIP / 2**halvings, bound=CLIP)


FLOOR_BYTES = 1 << 18  # the fastest here


def keystream(masks: int, length: int) -> float:
    """Milliseconds for `masks` keystreams of `length` 32-bit words, thrown away."""
    zeros, buffer = memoryview(bytes(FLOOR_BYTES)), bytearray(FLOOR_BYTES + 16)
    began = process_time()
    for _ in range(masks):
        stream = Cipher(AES(os.urandom(32)), CTR(bytes(16))).encryptor()
        for start in range(0, 4 * length, FLOOR_BYTES):
            stream.update_into(zeros[: 4 * length - start], buffer)
    return 1e3 * (process_time() - began)


class Round:
    """One aggregation whose clients take turns: one client's vector exists at a time."""

    def __init__(self, policy: Policy, clients: int, length: int, ledger: Ledger, journal: Journal) -> None:
        owners, chosen = identities(clients), policy.parameters(clients)
        self.header, self.ledger, self.journal = Header(os.urandom(32), 1, 1, 2), ledger, journal
        self.costs = Costs()
        roster = Roster(tuple(owner.member() for owner in owners))
        self.grid = grid(chosen.clients)
        vector = Vector(name="update", length=length, bits=32, bound=self.grid.limit)
        agreement = Agreement(
            header=self.header,
            roster=roster,
            parameters=chosen,
            vectors=(vector,),
            plan=bytes(32),
            task=bytes(32),
        )
        server = Server(agreement=agreement, patience=0)
        self.vector, self.mode, self.summed = vector, chosen.mode, np.zeros(length)
        self.machines: dict[str, Any] = {SERVER: server}
        self.steps: dict[str, Any] = {SERVER: server.begin()}
        self.post: dict[str, list[bytes]] = {}
        for owner in owners:
            with self.costs.of(owner.name):
                channels = Channels(owner, roster, self.header.session)
                client = Client(agreement=agreement, channels=channels, policy=policy)
                self.machines[owner.name] = client
                self.steps[owner.name] = client.begin()

    def run(self, silent: int) -> Costs:
        """The last `silent` clients fall silent when their masked input is due."""
        names = [name for name in self.machines if name != SERVER]
        staying = names[: len(names) - silent]
        self._every(names, self._record, self._up)  # it begins, and advertises
        self._every(names, self._down, self._record, self._up)  # the roster comes, it deals
        self._every(staying, self._down, self._record, self._mask, self._up)
        if silent:
            self._server(lambda: self.machines[SERVER].deadline(self.steps[SERVER].state))
        if self.mode == "active":
            self._every(staying, self._down, self._record, self._up)  # the survivors come, it signs
            self._every(staying, self._down, self._up)  # the quorum comes, it opens
        else:
            self._every(staying, self._down, self._record, self._up)  # the survivors come, it opens
        with self.costs.of(SERVER):
            result = self.steps[SERVER].need.order.run()
        if isinstance(result, Aborted):
            raise SystemExit(f"Expected a sum, but it aborted: {result}.")
        total = centred(result.totals[self.vector.name], self.vector.bits) * self.grid.step
        self.costs.error = float(np.abs(total - self.summed).max())
        allowed = 0.51 * len(staying) * self.grid.step  # each client rounds to the nearest step
        if not self.costs.error <= allowed:
            raise SystemExit(f"Expected an error of the sum of at most {allowed}, got {self.costs.error}.")
        return self.costs

    def _every(self, names: Sequence[str], *acts: Callable[[str], None]) -> None:
        for name in names:
            for act in acts:
                act(name)

    def _record(self, name: str) -> None:
        with self.costs.of(name):
            (answer,) = self.journal.record([self.steps[name].need.order])
            self.steps[name] = self.machines[name].provide(self.steps[name].state, answer)

    def _mask(self, name: str) -> None:
        order: ComputeAndConceal = self.steps[name].need.order
        values = update(int(name.split("-")[1]), self.vector.length)
        self.summed += values
        began = self.costs.client[name]
        with self.costs.of(name):
            integers = self.grid.quantise(values)
        self.costs.quantise[name] = self.costs.client[name] - began
        at = self.header
        key = ReleaseKey(name, at.session, at.round, at.stage, at.attempt, self.vector.name)
        with self.costs.of(name):
            masked = order.conceal[self.vector.name](integers).numbers
        self.ledger.reserve([(key, NO_COST)])
        with self.costs.of(name):
            release = Release(key=key, unit="record", form="masked", charge=NO_COST, _numbers=masked)
            self.steps[name] = self.machines[name].provide(self.steps[name].state, (release,))

    def _up(self, name: str) -> None:
        with self.costs.of(name):
            (envelope,) = self.steps[name].out
            (data,) = self.ledger.send([(self.header, envelope.message)])
        self.steps[name] = Step(self.steps[name].state)  # what is sent is not held
        self.costs.up[name] = self.costs.up.get(name, 0) + len(data)
        self._server(lambda: self._received(SERVER, name, data))

    def _down(self, name: str) -> None:
        for data in self.post.pop(name):
            self.costs.down[name] = self.costs.down.get(name, 0) + len(data)
            with self.costs.of(name):
                self.steps[name] = self._received(name, SERVER, data)

    def _received(self, party: str, sender: str, data: bytes) -> Any:
        machine, state = self.machines[party], self.steps[party].state
        expects = machine.expects(state)
        return machine.receive(state, sender, decode(data, expects.header, expects.kinds, sender))

    def _server(self, work: Callable[[], Any]) -> None:
        with self.costs.of(SERVER):
            step = work()
            self.steps[SERVER] = Step(step.state, need=step.need)
            for envelope in step.out:
                (data,) = self.ledger.send([(self.header, envelope.message)])
                for name in envelope.to:
                    self.post.setdefault(name, []).append(data)


def ours(policy: Policy, clients: int, length: int, silent: int) -> dict[str, float]:
    """Milliseconds and bytes of one round, means over the survivors."""
    with Ledger(":memory:", TERMS) as ledger, Journal() as journal:
        costs = Round(policy, clients, length, ledger, journal).run(silent)
    stayed = list(costs.quantise)
    return {
        "client_ms": 1e3 * fmean(costs.client[name] for name in stayed),
        "quantise_ms": 1e3 * fmean(costs.quantise.values()),
        "server_ms": 1e3 * costs.server,
        "bytes_up": fmean(costs.up[name] for name in stayed),
        "bytes_down": fmean(costs.down[name] for name in stayed),
        "error": costs.error,
    }
