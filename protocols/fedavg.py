"""FedAvg (McMahan et al. 2017): uniform selection, weighted averaging."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.algorithm import Algorithm
from securefl.protocols.averaging import Averaging
from securefl.protocols.stale import Aggregating, part_of
from securefl.training import Problem


@dataclass(frozen=True, kw_only=True)
class FedAvg(Aggregating):
    """Options of FedAvg."""

    def build(self, problem: Problem) -> Algorithm:
        return Averaging(
            problem=problem,
            fraction=self.fraction,
            aggregation=self.aggregation,
            part=part_of(problem, self.stale),
        )
