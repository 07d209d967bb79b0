"""FedAvg (McMahan et al. 2017): uniform selection, weighted averaging."""

from __future__ import annotations

from dataclasses import dataclass, field

from securefl.algorithm import Algorithm
from securefl.protocols.averaging import Aggregation, Averaging, Options, aggregated
from securefl.protocols.stale import check_stale, part_of, with_stale
from securefl.training import Problem


@dataclass(frozen=True, kw_only=True)
class FedAvg(Options):
    """Options of FedAvg.

    aggregation: "full" keeps the old model for absent clients, "partial" is the mean over the selected.
    stale: under full aggregation, absent clients count with the model of their last training (SAFA's cache).
    """

    aggregation: Aggregation = field(default="full", metadata={"words": aggregated})
    stale: bool = field(default=False, metadata={"words": with_stale})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stale(self.stale, self.aggregation)

    def build(self, problem: Problem) -> Algorithm:
        return Averaging(
            problem=problem,
            fraction=self.fraction,
            aggregation=self.aggregation,
            part=part_of(problem, self.stale),
        )
