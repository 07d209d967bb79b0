"""Power-of-choice (Cho et al. 2020): of d candidates, drawn by size, the K with the largest losses train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from securefl.algorithm import (
    Algorithm,
    Floats,
    Population,
    State,
    sample_without_replacement,
)
from securefl.core.ranges import Range
from securefl.protocols.averaging import (
    Averaging,
    ByLosses,
    Chosen,
    Options,
    cohort_size,
    known_or_mean,
)
from securefl.protocols.contributions import SIZE, Loss, LossBound
from securefl.training import Problem


@dataclass(frozen=True, eq=False)
class ByLargestLoss(ByLosses):
    """Selects the K of `candidates` clients with the largest losses.

    Candidates are drawn without replacement, with probability proportional to n_k. The server asks them for
    their loss. A candidate that does not answer ranks last.
    """

    candidates: int
    loss_bound: float | None = None

    @property
    def loss(self) -> Loss:
        return Loss(self.problem, self.loss_bound)

    def choose(
        self, state: State, population: Population, count: int, number: int, rng: np.random.Generator
    ) -> Chosen:
        log_sizes = np.log(known_or_mean(state.memory[SIZE.name]))
        candidates = tuple(
            sorted(sample_without_replacement(population.among(log_sizes), self.candidates, rng))
        )
        losses = yield from self.losses(state, population, candidates)
        # nan sorts last, so the largest known losses come first
        order = sorted(candidates, key=lambda k: (np.isnan(losses[k]), -losses[k]))
        return dict.fromkeys(order[:count], 1), state.remember(newest=losses)

    def figures(self, state: State) -> Mapping[str, Floats]:
        return {"loss": state.memory["newest"]}


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(Options):
    """Options of power-of-choice.

    candidates: d as a multiple of K. FedCor compares with 2.
    loss_bound: largest loss of a record; larger ones are clipped. Without it losses cannot be noised.
    """

    candidates: Annotated[float, Range("[1, inf)")] = 2.0
    loss_bound: LossBound = None

    def build(self, problem: Problem) -> Algorithm:
        count = cohort_size(self.fraction, problem.clients)
        drawn = min(round(self.candidates * count), problem.clients)
        selection = ByLargestLoss(problem, drawn, self.loss_bound)
        return Averaging(problem=problem, selection=selection, fraction=self.fraction)
