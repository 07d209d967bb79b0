"""What clients of the model-averaging systems send: updates, sizes and losses.

A size and a loss are ready for noise: where a plan adds none, they leave as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from securefl.dp.moments import STEP, Losses
from securefl.release import Adjacency, Unit
from securefl.rounds import Each, Floats, Job, Sends, Value
from securefl.training import mean_loss, record_losses, to_vector
from securefl.training.client import train_on, with_training
from securefl.training.task import Problem

ADJACENCIES: Final[tuple[Adjacency, ...]] = ("add-remove", "replace-one")

UPDATE = Sends(name="update", how="sum", reveals="its model update", reads="trained")
SIZE = Sends(
    name="size",
    how="each",
    reveals="its number of records",
    on_model=False,
    sensitivity={("record", "replace-one"): 0.0, ("record", "add-remove"): 1.0},
    extra=1,
    every=0,
)
LOSS = Sends(name="loss", how="each", reveals="the mean loss of the model on its records", extra=1)
LARGEST_LOSS = 1e6
"""A public bound that clients clip their loss to."""
_OF_LOSSES: Mapping[tuple[Unit, Adjacency], float] = {
    ("record", a): Losses.sensitivity(a) for a in ADJACENCIES
}


@dataclass(frozen=True, eq=False)
class Update:
    """w_k - w after local training from the broadcast w."""

    problem: Problem

    @property
    def sends(self) -> Sends:
        return with_training(UPDATE, self.problem)

    def compute(self, job: Job) -> Value:
        model = self.problem.module(job.model)
        train_on(self.problem, model, job)
        return Value(clear=to_vector(model).astype(np.float64) - job.model)


@dataclass(frozen=True, eq=False)
class Size:
    """n_k, the number of records: public under replace-one adjacency, a release under add/remove."""

    problem: Problem
    sends: Sends = SIZE

    def compute(self, job: Job) -> Value:
        return Value(clear=np.array([float(len(job.x))]), then=self._possible)

    def _possible(self, noised: Floats) -> Value:
        return Value(clear=np.clip(noised, 1, self.problem.records))


@dataclass(frozen=True, eq=False)
class Loss:
    """Mean loss of the broadcast model on the client's records.

    bound: a record's largest loss, public; without it the mean cannot be noised, for a record moves it
    without bound.
    """

    problem: Problem
    bound: float | None = None

    @property
    def sends(self) -> Sends:
        return LOSS if self.bound is None else replace(LOSS, sensitivity=_OF_LOSSES)

    def compute(self, job: Job) -> Value:
        model, loss = self.problem.module(job.model), self.problem.loss
        if self.bound is None:
            return Value(clear=np.array([min(mean_loss(model, job.x, job.y, loss), LARGEST_LOSS)]))
        losses = Losses(bound=self.bound)
        return Value(
            clear=losses.sums(record_losses(model, job.x, job.y, loss)).astype(np.float64) * STEP,
            then=lambda noised: Value(clear=np.array([losses.mean(noised)])),
        )

    @property
    def ask(self) -> Each:
        return Each(self.sends, least=0.0, most=self.bound or LARGEST_LOSS)


def ask_size(problem: Problem) -> Each:
    """Ask for n_k: at least 1, and at most the records that all clients have together."""
    return Each(SIZE, least=1, most=problem.records)
