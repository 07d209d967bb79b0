"""The study of `benchmarks/growth.py`: clients that compute next to nothing, rounds that nobody played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from securefl.accounting.chain import head, move
from securefl.accounting.store import connect
from securefl.algorithm.clients import Algorithm, ClientContext, Contribution, Device, Evaluation
from securefl.algorithm.queries import Float32s, Value, ValueSpec
from securefl.core.messages import client_name
from securefl.dp import clipping
from securefl.protocols.averaging import Averaging, Uniform
from securefl.protocols.contributions import Sampling, update_sends
from securefl.protocols.parts import Whole
from securefl.storage.journal import Journal
from securefl.study import world
from securefl.study.checkpoint import Checkpoint
from securefl.study.composition import composition
from securefl.study.config import Arm, Study, parse
from securefl.study.cost import PRESETS
from securefl.training.task import Problem

SIZE, LATE = 610, 1000
NOISES = {
    "none": 'noise = "none"\nbudget = inf\nnon_private = ["update"]\n',
    "local": 'noise = "local"\nepsilon = 8.0\nbudget = 8.0\nnon_private = []\n',
}
STUDY = f"""
[study]
name = "growth"
rounds = {LATE}

[data]
source = "digits"
clients = 100
partition = {{ kind = "iid" }}

[model]
kind = "mlp"
hidden = [8]

[local]
optimizer = "sgd"
learning_rate = 0.1
epochs = 1
batch_size = 16
update_bound = 1.0

[privacy]
sum = "clear"
scores = "clear"
unit = "client"
adjacency = "zero-out"
delta = 1e-6
adversaries = ["others"]
min_cohort_size = 1
min_honest = 1
max_client_weight = 0.5
force_delta = true
"""


@dataclass(frozen=True)
class Constant:
    """A client's update without any training."""

    problem: Problem
    sampling: Sampling

    @property
    def spec(self) -> ValueSpec:
        return update_sends(self.problem, self.sampling)

    def compute(self, context: ClientContext) -> Value:
        step = self.spec.grid.step
        return Value(integers=clipping.to_grid(np.full((1, SIZE), 1e-4), step, int(1.0 / step))[0])


@dataclass(frozen=True, eq=False)
class Nothing(Whole):
    """The part of a model that is averaged: as large as a model, and never tested."""

    @property
    def initial(self) -> Float32s:
        return np.zeros(SIZE, np.float32)

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        return (Constant(self.problem, sampling),)

    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation:
        return Evaluation(accuracy=0.5, loss=1.0)


@dataclass(frozen=True)
class Growing:
    fraction: float

    def build(self, problem: Problem) -> Algorithm:
        return Averaging(
            problem=problem,
            selection=Uniform(),
            fraction=self.fraction,
            aggregation="partial",
            part=Nothing(problem),
        )


def made(clients: int, share: float, noise: str) -> tuple[Study, Arm, world.World]:
    """A study of so many clients of two records each, its arm and its world."""
    arm = '[[arm]]\nname = "growth"\nprotocol = "fedavg"\nfraction = 0.1\n'
    study = parse(STUDY + NOISES[noise] + arm)
    small = world.build(study, 0)
    x, y = small.records[0]
    problem = replace(small.problem, clients=clients, records=2 * clients)
    devices = PRESETS[study.cost.preset].law.draw(clients, np.random.default_rng(0))
    here = replace(
        small,
        problem=problem,
        records=[(x[:2], y[:2])] * clients,
        quality=("clean",) * clients,
        devices=devices,
    )
    data = replace(study.data, clients=clients)
    return replace(study, data=data), Arm(name="growth", protocol="growth", options=Growing(share)), here


def fill(study: Study, arm: Arm, here: world.World, home: Path, record: Mapping[str, Any], last: int) -> None:
    """Write the rounds after `record` up to `last`, as a run would have left them."""
    _, plan = composition(study, arm, here)
    rng = np.random.default_rng(1)
    cohort = len(record["selected"])
    ledger = connect(home / "ledger.sqlite", plan.terms())
    with Checkpoint(home / "checkpoint.sqlite") as checkpoint:
        state, _ = checkpoint.load()
        assert state is not None
        (row,) = ledger.rows(
            "SELECT session, charge, content, at FROM releases ORDER BY reserved DESC LIMIT 1"
        )
        session, charge, content, at = row
        for number in range(record["round"] + 1, last + 1):
            drawn = np.sort(rng.choice(here.problem.clients, cohort, replace=False)).tolist()
            with ledger.transaction():
                link = head(ledger.rows)
                reserved = []
                for k in drawn:
                    parts = (client_name(k), session, number, 0, 0, "update", charge, 0, 0, at)
                    link = link.then(*parts)
                    reserved.append((link.count, parts))
                for count, parts in reserved:
                    link = link.then(count, content)
                    ledger.run(
                        "INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (count, link.count, *parts, content),
                    )
                move(ledger, link)
            made_up = {
                **record,
                "round": number,
                "selected": drawn,
                "answered": drawn,
                "charged": [["update", False, drawn]],
                "ledger": {"count": link.count, "head": link.digest.hex()},
            }
            checkpoint.save(number, state, made_up)
    ledger.close()
    with Journal(home / "acts.sqlite") as journal:
        journal.secrets([client_name(k) for k in drawn], session, last)
    # Noted beside the ledger in a run, after each commit.
    (home / "ledger.sqlite-head").unlink()
