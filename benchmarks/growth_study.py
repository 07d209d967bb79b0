"""The study of `benchmarks/growth.py`: clients that compute next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from securefl.algorithm.clients import Algorithm, ClientContext, Contribution, Device, Evaluation
from securefl.algorithm.queries import Float32s, Value, ValueSpec
from securefl.protocols.averaging import Averaging
from securefl.protocols.contributions import Sampling, update_sends
from securefl.protocols.parts import Part
from securefl.study import world
from securefl.study.config import Arm, Study, parse
from securefl.study.cost import PRESETS
from securefl.training.task import Problem

SIZE, LATE = 610, 1000
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
class Nothing(Part):
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
        return Averaging(problem=problem, fraction=self.fraction, part=Nothing(problem))


def made(clients: int, share: float, kind: str) -> tuple[Study, Arm, world.World]:
    """A study of so many clients of two records each, its arm and its world. kind: a key of `KINDS`."""
    arm = '[[arm]]\nname = "growth"\nprotocol = "fedavg"\nfraction = 0.1\n'
    study = parse(STUDY + KINDS[kind] + arm)
    small = world.build(study, 0)
    x, y = small.records[0]
    problem = replace(small.problem, clients=clients, records=2 * clients)
    devices = PRESETS[study.cost.preset].draw(clients, np.random.default_rng(0))
    here = replace(
        small,
        problem=problem,
        records=[(x[:2], y[:2])] * clients,
        quality=("clean",) * clients,
        devices=devices,
    )
    data = replace(study.data, clients=clients)
    return replace(study, data=data), Arm(name="growth", protocol="growth", options=Growing(share)), here
