"""One two-server sum, timed: the machines of `sum = "two-server"`, fed with encoded bytes, on one thread.

Counted: encoding and decoding, the ledger's commit, the record of acts (both in memory), every signature, box
and pad. Not counted: training, the reservation of the charge, and the lasting keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.accounting.events import NO_COST
from securefl.accounting.ledger import Ledger, Terms
from securefl.algorithm.plan import Plan
from securefl.algorithm.weighing import Weights
from securefl.core.acts import Begin, RecordAct
from securefl.core.grid import Grid
from securefl.core.keys import SecretKey
from securefl.core.release import KEY_HOLDER, SERVER, Release, ReleaseKey
from securefl.core.signing import AgreementKey
from securefl.core.wire import Header, decode
from securefl.secagg import Identity, Roster, Vector
from securefl.storage.journal import Journal
from securefl.sums.two_server.agreement import Agreement
from securefl.sums.two_server.client import PadClient
from securefl.sums.two_server.key_holder import PadKeyHolder
from securefl.sums.two_server.scheme import KeyHolderPart
from securefl.sums.two_server.server import PadServer

TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)
PLAN = Plan(
    delta=1e-5,
    max_rounds=1,
    sum="two-server",
    corrupt=0.0,
    min_cohort_size=2,
    max_cohort_size=10_000,
    min_honest=2,
    max_client_weight=0.5,
)


@dataclass
class Round:
    """One sum whose clients take turns; CPU seconds and bytes by party."""

    owners: Sequence[Identity]
    vector: Vector
    grid: Grid
    ledger: Ledger
    journal: Journal
    header: Header = field(default_factory=lambda: Header(os.urandom(32), 1, 1, 2))
    spent: dict[str, float] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    quantise: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        boxed_for, key = AgreementKey.generate(), AgreementKey.generate()
        part = KeyHolderPart(SecretKey(os.urandom(32)), PLAN, (), boxed_for)
        agreed = Agreement(
            header=self.header,
            roster=Roster(tuple(owner.member() for owner in self.owners)),
            vectors=(self.vector,),
            plan=bytes(32),
            task=bytes(32),
            holder=part.key.public,
            ordered=len(self.owners),
            weights=Weights((1,) * len(self.owners)).encoded(),
            server=key.public,
        )
        self.machines: dict[str, Any] = {
            SERVER: PadServer(agreement=agreed, least=2, key=key),
            KEY_HOLDER: PadKeyHolder(agreement=agreed, least=2, part=part),
        }
        for owner in self.owners:
            self.machines[owner.name] = PadClient(identity=owner, agreement=agreed, signers=2)
        self.steps = {name: machine.begin() for name, machine in self.machines.items()}

    @contextmanager
    def of(self, party: str) -> Iterator[None]:
        began = process_time()
        yield
        self.spent[party] = self.spent.get(party, 0.0) + process_time() - began

    def run(self, values: Callable[[int], NDArray[np.float64]], silent: int) -> NDArray[np.int64]:
        """The total; the last `silent` clients never answer."""
        for number, owner in enumerate(self.owners[: len(self.owners) - silent]):
            self._work(owner.name)
            self._pad(owner.name, values(number))
            self._post(owner.name)
        if silent:
            with self.of(SERVER):
                self.steps[SERVER] = self.machines[SERVER].deadline(self.steps[SERVER].state)
        self._post(SERVER)
        while self.steps[KEY_HOLDER].need is not None:
            self._work(KEY_HOLDER)
        self._post(KEY_HOLDER)
        self._work(SERVER)
        total: NDArray[np.int64] = self.steps[SERVER].result.totals[self.vector.name]
        return total

    def _work(self, party: str) -> None:
        """Answer one need."""
        with self.of(party):
            order = self.steps[party].need.order
            answer = self.journal.record([order])[0] if isinstance(order, Begin | RecordAct) else order.run()
            self.steps[party] = self.machines[party].provide(self.steps[party].state, answer)

    def _pad(self, name: str, values: NDArray[np.float64]) -> None:
        order, at = self.steps[name].need.order, self.header
        began = self.spent[name]
        with self.of(name):
            integers = self.grid.quantise(values)
        self.quantise.append(self.spent[name] - began)
        with self.of(name):
            padded = order.conceal[self.vector.name](integers).numbers
        key = ReleaseKey(name, at.session, at.round, at.stage, at.attempt, self.vector.name)
        self.ledger.reserve([(key, NO_COST)])
        with self.of(name):
            release = Release(key=key, unit="record", form="masked", charge=NO_COST, _numbers=padded)
            self.steps[name] = self.machines[name].provide(self.steps[name].state, (release,))

    def _post(self, sender: str) -> None:
        """Encode what this party says, and let its receiver take it in."""
        with self.of(sender):
            (envelope,) = self.steps[sender].out
            (data,) = self.ledger.send([(self.header, envelope.message)])
        self.sent[sender] = len(data)
        (to,) = envelope.to
        with self.of(to):
            state = self.steps[to].state
            expects = self.machines[to].expects(state)
            message = decode(data, expects.header, expects.kinds, sender)
            self.steps[to] = self.machines[to].receive(state, sender, message)


def two_server(
    owners: Sequence[Identity],
    vector: Vector,
    grid: Grid,
    values: Callable[[int], NDArray[np.float64]],
    silent: int,
) -> dict[str, float]:
    """Milliseconds and bytes of one sum; those of clients are means over the survivors."""
    with Ledger(":memory:", TERMS) as ledger, Journal() as journal:
        played = Round(owners, vector, grid, ledger, journal)
        total = played.run(values, silent)
    staying = [owner.name for owner in owners[: len(owners) - silent]]
    clear = np.sum([grid.quantise(values(number)) for number in range(len(staying))], axis=0, dtype=np.int64)
    exact = np.sum([values(number) for number in range(len(staying))], axis=0)
    if not np.array_equal(total, clear):
        raise SystemExit("Expected the exact sum of the quantised vectors.")
    return {
        "client_ms": 1e3 * fmean(played.spent[name] for name in staying),
        "quantise_ms": 1e3 * fmean(played.quantise),
        "server_ms": 1e3 * played.spent[SERVER],
        "key_holder_ms": 1e3 * played.spent[KEY_HOLDER],
        "bytes_up": fmean(played.sent[name] for name in staying),
        "bytes_down": 0.0,
        "bytes_between": float(played.sent[SERVER] + played.sent[KEY_HOLDER]),
        "error": float(np.abs(total * grid.step - exact).max()),
    }
