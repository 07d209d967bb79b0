"""FedCor's options, and the composition they name."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.algorithm.clients import Algorithm
from securefl.protocols.averaging import Averaging, check_fraction, cohort_size, sampling
from securefl.protocols.contributions import Update, check_loss_bound
from securefl.protocols.fedcor.selection import ByCorrelation, Schedule
from securefl.training.task import Problem


@dataclass(frozen=True, kw_only=True)
class FedCor:
    """Options of FedCor. The defaults are the paper's for Fashion-MNIST.

    fraction: C / N; K = ceil(fraction * N) clients a round.
    warm_up: rounds with uniform cohorts, after each of which everybody tells its loss (15; CIFAR-10: 20).
    interval: rounds between two trials afterwards (10; CIFAR-10: 50).
    updates: the most trials in a run. Each asks everybody for two losses and K clients for an update. Noise
        is calibrated for that many.
    annealing: beta (0.95; CIFAR-10: 0.9).
    discount: theta, the weight of a change for each round that it is old (0.9; CIFAR-10: 0.99).
    dimension: numbers in a client's embedding.
    window, window_after: the earlier changes that an update reads, in the warm-up and afterwards.
    steps: of Adam in one update of the embeddings.
    loss_bound: largest loss of a record; larger ones are clipped. Without it losses cannot be noised.
    """

    fraction: float
    warm_up: int = 15
    interval: int = 10
    updates: int = 50
    annealing: float = 0.95
    discount: float = 0.9
    dimension: int = 15
    window: int = 10
    window_after: int = 1
    steps: int = 150
    loss_bound: float | None = None

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        check_loss_bound(self.loss_bound)
        least = {"warm_up": 1, "interval": 1, "updates": 0, "dimension": 1}
        least |= {"window": 0, "window_after": 0, "steps": 1}
        for name, fewest in least.items():
            if not fewest <= getattr(self, name) <= 10**6:
                raise ValueError(f"Expected {name} from {fewest} to 10^6, got {getattr(self, name)}.")
        if not (0 < self.annealing <= 1 and 0 < self.discount <= 1):
            raise ValueError(
                f"Expected annealing and discount in (0, 1], got {self.annealing} and {self.discount}."
            )

    def build(self, problem: Problem) -> Algorithm:
        # one description, so that a cohort on trial is asked for what clients offer
        count = cohort_size(self.fraction, problem.clients)
        update = Update(problem, sampling(count, "partial", trials=self.updates))
        schedule = Schedule(
            warm_up=self.warm_up,
            interval=self.interval,
            updates=self.updates,
            window=self.window,
            window_after=self.window_after,
            discount=self.discount,
        )
        selection = ByCorrelation(
            problem=problem,
            update=update,
            schedule=schedule,
            dimension=self.dimension,
            annealing=self.annealing,
            steps=self.steps,
            loss_bound=self.loss_bound,
        )
        return Averaging(
            problem=problem,
            selection=selection,
            fraction=self.fraction,
            aggregation="partial",
            trials=self.updates,
        )
