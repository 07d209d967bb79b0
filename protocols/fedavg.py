"""FedAvg (McMahan et al. 2017): uniform selection, weighted averaging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from protocols.averaging import Aggregation, Averaging, Cohort, check_fraction
from protocols.selection import gumbel_top_k
from securefl.rounds import Algorithm, Each, Floats, Roster, State, Statistic
from securefl.training.task import Problem


@dataclass(frozen=True)
class Uniform:
    """Every set of K clients is as likely as any other."""

    statistics: tuple[Statistic, ...] = ()

    def watch(self, state: State) -> tuple[tuple[Each, ...], Mapping[str, Floats]]:
        return (), {}

    def choose(self, state: State, roster: Roster, count: int, rng: np.random.Generator) -> Cohort:
        return gumbel_top_k(np.zeros(roster.clients), count, rng)


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Options of FedAvg.

    fraction: C; K = ceil(C N) clients a round.
    aggregation: "full" keeps the old model for absent clients, "partial" is the mean over the selected.
    """

    fraction: float
    aggregation: Aggregation = "full"

    def __post_init__(self) -> None:
        check_fraction(self.fraction)

    def build(self, problem: Problem) -> Algorithm:
        return Averaging(
            problem=problem, selection=Uniform(), fraction=self.fraction, aggregation=self.aggregation
        )
