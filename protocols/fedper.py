"""FedPer (Arivazhagan et al. 2019): the body is averaged, and each client keeps its own last layers.

Differences from the paper: the mean over the clients is unweighted, as in FedLog's comparison, so that no
client tells its number of records. `[local]` names the optimizer. The paper's is SGD.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefl.algorithm import Algorithm
from securefl.protocols.averaging import Averaging, Uniform, check_fraction
from securefl.protocols.personal import Personal, SharedLayers, check_layers
from securefl.training import Problem
from securefl.training.task import Bodies


@dataclass(frozen=True, kw_only=True)
class FedPer:
    """Options of FedPer: base layers are averaged, and the last `layers` dense layers are personal.

    fraction: C; K = ceil(C N) clients a round.
    layers: K_P, the number of dense layers, from the last, that each client keeps. Both parts are trained
        together.
    """

    fraction: float = 1.0
    layers: int = 1

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        check_layers(self.layers)

    def build(self, problem: Problem) -> Algorithm:
        shared = SharedLayers(layers=self.layers, side="body")
        return Averaging(
            problem=problem,
            selection=Uniform(),
            fraction=self.fraction,
            aggregation="partial",
            part=Personal(Bodies(problem), shared),
        )
