"""One masked sum, timed: the machines of `sum = "masked"`, fed with encoded bytes, on one thread.

Counted: encoding and decoding, the ledger's commit, the record of acts (both in memory), every key agreement.
Not counted: training, and the reservation of the charge.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
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
from securefl.core.acts import Begin, RecordAct
from securefl.core.grid import Grid
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


class Sum:
    """One sum whose parties take turns; CPU seconds and bytes by party. One vector exists at a time."""

    def __init__(self, vector: Vector, chosen: Grid, ledger: Ledger, journal: Journal) -> None:
        self.header, self.vector, self.grid = Header(os.urandom(32), 1, 1, 2), vector, chosen
        self.ledger, self.journal = ledger, journal
        self.machines: dict[str, Any] = {}
        self.steps: dict[str, Any] = {}
        self.spent, self.up, self.down, self.quantise = (Counter[str]() for _ in range(4))
        self.summed, self.clear = np.zeros(vector.length), np.zeros(vector.length, np.int64)

    @contextmanager
    def of(self, party: str) -> Iterator[None]:
        began = process_time()
        yield
        self.spent[party] += process_time() - began

    def begin(self, party: str, make: Callable[[], Any]) -> None:
        with self.of(party):
            self.machines[party] = machine = make()
            self.steps[party] = machine.begin()

    def work(self, party: str) -> None:
        """Answer one need."""
        with self.of(party):
            order = self.steps[party].need.order
            answer = self.journal.record([order])[0] if isinstance(order, Begin | RecordAct) else order.run()
            self.steps[party] = self.machines[party].provide(self.steps[party].state, answer)

    def conceal(self, name: str, values: NDArray[np.float64]) -> None:
        order, at, before = self.steps[name].need.order, self.header, self.spent[name]
        with self.of(name):
            integers = self.grid.quantise(values)
        self.quantise[name] = self.spent[name] - before
        self.summed += values
        self.clear += integers
        with self.of(name):
            numbers = order.conceal[self.vector.name](integers)
        key = ReleaseKey(name, at.session, at.round, at.stage, at.attempt, self.vector.name)
        self.ledger.reserve([(key, NO_COST)])
        with self.of(name):
            release = Release(key=key, unit="record", form="masked", charge=NO_COST, _numbers=numbers)
            self.steps[name] = self.machines[name].provide(self.steps[name].state, (release,))

    def post(self, sender: str) -> None:
        """Encode what this party says, and let its receivers take it in."""
        step = self.steps[sender]
        self.steps[sender] = Step(step.state, need=step.need)  # what is sent is not held
        for envelope in step.out:
            with self.of(sender):
                (data,) = self.ledger.send([(self.header, envelope.message)])
            self.up[sender] += len(data)
            for to in envelope.to:
                self.down[to] += len(data)
                with self.of(to):
                    state, machine = self.steps[to].state, self.machines[to]
                    expects = machine.expects(state)
                    message = decode(data, expects.header, expects.kinds, sender)
                    self.steps[to] = machine.receive(state, sender, message)

    def deadline(self) -> None:
        with self.of(SERVER):
            self.steps[SERVER] = self.machines[SERVER].deadline(self.steps[SERVER].state)

    def figures(self, total: NDArray[np.int64]) -> dict[str, float]:
        """Milliseconds and bytes, those of clients means over the survivors. SystemExit for a wrong sum."""
        if not np.array_equal(total, self.clear):
            raise SystemExit("Expected the exact sum of the quantised vectors.")
        stayed = list(self.quantise)
        return {
            "client_ms": 1e3 * fmean(self.spent[name] for name in stayed),
            "quantise_ms": 1e3 * fmean(self.quantise.values()),
            "server_ms": 1e3 * self.spent[SERVER],
            "bytes_up": fmean(self.up[name] for name in stayed),
            "bytes_down": fmean(self.down[name] for name in stayed),
            "error": float(np.abs(total * self.grid.step - self.summed).max()),
        }


def ours(policy: Policy, clients: int, length: int, silent: int) -> dict[str, float]:
    """The figures of one round. The last `silent` clients fall silent when their masked input is due."""
    owners, chosen = identities(clients), policy.parameters(clients)
    vector = Vector(name="update", length=length, bits=32, bound=grid(clients).limit)
    with Ledger(None, TERMS) as ledger, Journal() as journal:
        own = Sum(vector, grid(clients), ledger, journal)
        roster = Roster(tuple(owner.member() for owner in owners))
        agreement = Agreement(
            header=own.header,
            roster=roster,
            parameters=chosen,
            vectors=(vector,),
            plan=bytes(32),
            task=bytes(32),
        )
        own.begin(SERVER, lambda: Server(agreement=agreement, patience=0))
        for owner in owners:
            made = partial(Channels, owner, roster, own.header.session)
            own.begin(
                owner.name, lambda made=made: Client(agreement=agreement, channels=made(), policy=policy)
            )
        names = [owner.name for owner in owners]
        staying = names[: clients - silent]
        for _ in range(2):  # they begin, and advertise; the roster comes, they deal
            for name in names:
                own.work(name)
                own.post(name)
            own.post(SERVER)
        for number, name in enumerate(staying):
            own.work(name)
            own.conceal(name, update(number, length))
            own.post(name)
        if silent:
            own.deadline()
        own.post(SERVER)
        for name in staying:  # the survivors come, they sign; or open, if no quorum follows
            own.work(name)
            own.post(name)
        if chosen.mode == "active":
            own.post(SERVER)
            for name in staying:
                own.post(name)
        with own.of(SERVER):
            result = own.steps[SERVER].need.order.run()
        if isinstance(result, Aborted):
            raise SystemExit(f"Expected a sum, but it aborted: {result}.")
        return own.figures(centred(result.totals[vector.name], vector.bits))
