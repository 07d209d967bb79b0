"""The study of `benchmarks/growth.py`: clients that compute next to nothing, rounds that nobody played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from securefl.accounting.chain import head, move
from securefl.accounting.store import KIND
from securefl.algorithm.clients import Algorithm, ClientContext, Contribution, Device, Evaluation
from securefl.algorithm.queries import Float32s, Value, ValueSpec
from securefl.core.acts import Act, Begin, RecordAct
from securefl.core.agreement import Question
from securefl.core.messages import client_name
from securefl.core.wire import Header
from securefl.protocols.averaging import Averaging, Uniform
from securefl.protocols.contributions import Sampling, update_sends
from securefl.protocols.parts import Whole
from securefl.storage.journal import Journal
from securefl.study import world
from securefl.study.arm import opened
from securefl.study.composition import composition
from securefl.study.config import Arm, Study, parse
from securefl.study.cost import PRESETS
from securefl.training.task import Problem

SIZE, LATE = 610, 1000
ACTS: tuple[Act, ...] = ("deal", "mask", "sign")
_CLEAR = 'sum = "clear"\nmin_cohort_size = 1\nmin_honest = 1\n'
_OPEN = 'noise = "none"\nbudget = inf\nnon_private = ["update"]\n'
KINDS = {
    "none": _CLEAR + _OPEN,
    "local": _CLEAR + 'noise = "local"\nepsilon = 8.0\nbudget = 8.0\nnon_private = []\n',
    "masked": 'sum = "masked"\ndropout = 0.1\ncorrupt = 0.0\nmin_cohort_size = 20\nmin_honest = 2\n' + _OPEN,
}
"""Whether sums are in the clear, without noise and with noise by each client, or under masks."""
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
scores = "clear"
unit = "client"
adjacency = "zero-out"
delta = 1e-6
adversaries = ["others"]
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
        return Value.summed(np.full((1, SIZE), 1e-4), self.spec.grid, 1.0)


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


def made(clients: int, share: float, kind: str) -> tuple[Study, Arm, world.World]:
    """A study of so many clients of two records each, its arm and its world. kind: a key of `KINDS`."""
    arm = '[[arm]]\nname = "growth"\nprotocol = "fedavg"\nfraction = 0.1\n'
    study = parse(STUDY + KINDS[kind] + arm)
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
    with opened(study, arm, here, plan, home) as saved:
        assert saved.file is not None
        assert saved.state is not None
        ledger = saved.file.part(KIND)
        (row,) = ledger.rows(
            "SELECT session, attempt, charge, content, at FROM releases ORDER BY reserved DESC LIMIT 1"
        )
        session, attempt, charge, content, at = row
        for number in range(record["round"] + 1, last + 1):
            drawn = np.sort(rng.choice(here.problem.clients, cohort, replace=False)).tolist()
            names = tuple(map(client_name, drawn))
            with saved.one_commit():
                link = head(ledger.rows)
                reserved = []
                for name in names:
                    parts = (name, session, number, 0, attempt, "update", charge, 0, 0, at)
                    link = link.then(*parts)
                    reserved.append((link.count, parts))
                for count, parts in reserved:
                    link = link.then(count, content)
                    ledger.run(
                        "INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (count, link.count, *parts, content),
                    )
                move(ledger, link)
                if plan.hidden or plan.noisy:
                    saved.journal.secrets(names, session, number)
                if plan.hidden:
                    _act(saved.journal, names, Header(session, number, attempt, 0))
                made_up = {
                    **record,
                    "round": number,
                    "selected": drawn,
                    "answered": drawn,
                    "charged": [["update", False, drawn]],
                    "ledger": {"count": link.count, "head": link.digest.hex()},
                }
                saved.checkpoint.save(number, saved.state, made_up)
    # Noted beside the ledger in a run, after each commit.
    (home / "ledger.sqlite-head").unlink()


def _act(journal: Journal, names: Sequence[str], at: Header) -> None:
    """Write what each of these clients did in a masked sum."""
    journal.lasting(names, at.session)
    asked = (Question(at.session, at.round, "update"),)
    journal.record(
        [
            Begin(
                client=name,
                header=at,
                questions=asked,
                members=tuple(names),
                signers=len(names) // 2 + 1,
                once=frozenset(),
                context=at.session,
            )
            for name in names
        ]
    )
    for act in ACTS:
        journal.record(
            [RecordAct(client=name, header=at, questions=asked, act=act, digest=at.session) for name in names]
        )
