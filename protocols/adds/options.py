"""The options of ADDS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from securefl.algorithm import Algorithm
from securefl.core.ranges import Count
from securefl.protocols.adds.importance import Criterion
from securefl.protocols.adds.part import Subnets
from securefl.protocols.adds.subnet_search import Search
from securefl.protocols.averaging import Averaging, Options
from securefl.training import Problem


@dataclass(frozen=True, kw_only=True)
class Adds(Options):
    """ADDS (Gong et al.): each client trains a subnet that fits its records.

    importance: how units are ranked: "slim", "activation" or "lrp".
    initial: the rate of every layer at the begin of a round. 1 is unweighted FedAvg.
    least: the smallest rate of a layer.
    optimizer, rate: of the steps on the rates, "adam" or "sgd". The steps of Adam hardly depend on lambda.
    epsilon, cooling: the inexactness of masks in round 1, and the factor on it in each round.
    validation: share of a client's records that rates are searched on, redrawn in every round.
    offset: lambda is the skew of the client's labels, from 0 to 1, plus this.
    weight: lambda of every client, whatever its labels (the paper's Figures 6 and 7), in place of the former.
    lasting: whether the lots of units are drawn once a round. The paper draws them for each pass.
    scaled: whether masks are divided by their means, as in dropout. The paper's are not.
    fewest: the least number of clients that an entry is averaged over. Hidden sums may need more.

    Raises ValueError for options out of range.

    >>> from securefl.protocols.adds import Adds
    >>> Adds(fraction=0.1, initial=0.8).importance
    'lrp'
    """

    importance: Criterion = Search.importance
    initial: float = Search.initial
    least: float = Search.least
    optimizer: Literal["adam", "sgd"] = Search.optimizer
    rate: float = Search.rate
    epsilon: float = Search.epsilon
    cooling: float = Search.cooling
    validation: float = Search.validation
    offset: float = Search.offset
    weight: float | None = Search.weight
    lasting: bool = Search.lasting
    scaled: bool = Search.scaled
    fewest: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._search()

    def _search(self) -> Search:
        return Search(
            importance=self.importance,
            initial=self.initial,
            least=self.least,
            optimizer=self.optimizer,
            rate=self.rate,
            epsilon=self.epsilon,
            cooling=self.cooling,
            validation=self.validation,
            offset=self.offset,
            weight=self.weight,
            lasting=self.lasting,
            scaled=self.scaled,
        )

    def build(self, problem: Problem) -> Algorithm:
        part = Subnets(problem, search=self._search(), fewest=self.fewest)
        part.supernet  # noqa: B018 -- raises the error of a problem without one
        return Averaging(problem=problem, fraction=self.fraction, part=part)
