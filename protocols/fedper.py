"""FedPer (Arivazhagan et al. 2019): the body is averaged, and each client keeps its own last layers.

Differences from the paper: the mean over the clients is unweighted, as in FedLog's comparison, so that no
client tells its number of records. `[local]` names the optimizer. The paper's is SGD.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefl.algorithm import Algorithm
from securefl.core.ranges import Count, Fraction
from securefl.protocols.averaging import Averaging, Options
from securefl.protocols.personal import SharedLayers
from securefl.training import Problem


@dataclass(frozen=True, kw_only=True)
class FedPer(Options):
    """Options of FedPer: base layers are averaged, and the last `layers` dense layers are personal.

    layers: K_P, the number of dense layers, from the last, that each client keeps. Both parts are trained
        together.
    """

    fraction: Fraction = 1.0
    layers: Count = 1

    def build(self, problem: Problem) -> Algorithm:
        part = SharedLayers(problem, layers=self.layers)
        return Averaging(problem=problem, fraction=self.fraction, part=part)
