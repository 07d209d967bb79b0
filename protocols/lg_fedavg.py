"""LG-FedAvg (Liang et al. 2020): the last layers are averaged, and each client keeps its own body.

Differences from the paper: the mean over the clients is unweighted, so that no client tells its number of
records. The authors' code can begin with models that FedAvg trained. Here all begin at the first model.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefl.algorithm import Algorithm
from securefl.core.ranges import Count, Fraction, Probability
from securefl.protocols.averaging import Averaging, Options
from securefl.protocols.personal import SharedLayers
from securefl.training import Problem


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Options):
    """Options of LG-FedAvg: the last `layers` dense layers are averaged (1 or 2 in the FedLog paper).

    layers: the number of dense layers, from the last, that are shared. The others stay at their client.
    shorter: share of the clients whose body lacks its first hidden dense layer.
    """

    fraction: Fraction = 1.0
    layers: Count = 1
    shorter: Probability = 0.0

    def build(self, problem: Problem) -> Algorithm:
        """Raises ConfigError if the shared layers differ between the bodies of both lengths."""
        part = SharedLayers(problem, layers=self.layers, side="head", shorter=self.shorter)
        return Averaging(problem=problem, fraction=self.fraction, part=part)
