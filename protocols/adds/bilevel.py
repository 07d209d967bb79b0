"""A client's search for its subnet: steps on rates and on weights in turn (Eqs. 4 to 9, first order)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.algorithm.clients import Job
from securefl.algorithm.queries import Float32s, Floats
from securefl.core.errors import DataError
from securefl.data.dataset import hold_out
from securefl.protocols.adds.divergence import skew
from securefl.protocols.adds.gates import MOST, Gates, masked
from securefl.protocols.adds.importance import Criterion, importance
from securefl.protocols.adds.supernet import Mask, Supernet
from securefl.training.devices import in_mode
from securefl.training.fit import Fitted
from securefl.training.local import diverged, train
from securefl.training.losses import criterion_of, records
from securefl.training.vector import SGD, Adam, to_vector

_LOOKED_AT: Final = 64
"""Records that the importance of units is read off, at the begin of a round and at its end."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """How rates are searched for.

    Attributes:
        importance: what units are ranked by.
        initial: the rate of every layer before the search. 1 keeps all units and searches for nothing.
        least: the smallest rate of a layer.
        optimizer, rate: of the steps on the rates. Adam's steps hardly depend on lambda, since it divides by
            their size. Those of "sgd" do, so that a larger skew gives a smaller subnet in few steps.
        epsilon, cooling: the inexactness in round 1, and the factor on it in each round.
        validation: share of a client's records that rates are searched on. It is redrawn in every round.
        offset: lambda = skew of the client's labels + offset.
        lasting: whether the lots of units are drawn once a round, or else for each pass.
        scaled: whether masks are divided by their means.
    """

    importance: Criterion
    initial: float
    least: float
    optimizer: Literal["adam", "sgd"]
    rate: float
    epsilon: float
    cooling: float
    validation: float
    offset: float
    lasting: bool
    scaled: bool

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.initial <= 1:
            raise ValueError(f"Expected 0 < least <= initial <= 1, got {self.least} and {self.initial}.")
        if not (self.rate > 0 and self.epsilon > 0 and 0 < self.cooling <= 1 and self.offset >= 0):
            raise ValueError(
                "Expected rate > 0, epsilon > 0, 0 < cooling <= 1 and offset >= 0, got "
                f"{self.rate}, {self.epsilon}, {self.cooling} and {self.offset}."
            )
        if not 0 < self.validation < 1:
            raise ValueError(f"Expected 0 < validation < 1, got {self.validation}.")


@dataclass(frozen=True, kw_only=True, eq=False)
class Subnet:
    """What came of a search.

    model: the supernet's values (d,). units: those that are kept, (J,). alpha: the rates of the layers.
    skew: of the client's labels. It stays with the client.
    """

    model: Float32s
    units: Mask
    alpha: Floats
    skew: float


def search(supernet: Supernet, config: Search, job: Job) -> Subnet:
    """Train the broadcast supernet on the client's records, and find its subnet.

    Raises DataError for a client without records, or with one that is to be searched for: one at least is for
    validation. And for a training that diverges.
    """
    problem = supernet.problem
    model = problem.module(job.broadcast)
    uneven = skew(job.y, problem.outputs)
    learning, held = redrawn(len(job.x), config.validation, job.rng)
    x, y = job.x[learning], job.y[learning]
    steps = _Steps(supernet, config, job, model, held, (x, y), uneven + config.offset)
    steps.look()
    with masked(model, supernet, steps.gates.draw):
        train(model, x, y, problem.local, problem.loss, job.rng, job.round - 1, before=steps)
    steps.look()
    alpha = steps.alpha.detach().numpy().copy()
    return Subnet(model=to_vector(model), units=steps.gates.subnet(), alpha=alpha, skew=uneven)


def whole(supernet: Supernet, job: Job, trained: Fitted) -> Subnet:
    """The subnet of all units, from a training without a search. Raises DataError if there is no model."""
    if isinstance(trained, DataError):
        raise trained
    uneven, ones = skew(job.y, supernet.problem.outputs), np.ones(len(supernet.sampled))
    return Subnet(model=trained, units=supernet.whole, alpha=ones, skew=uneven)


def redrawn(n: int, share: float, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of a client's n records to learn from, and of those held back, at least one of each.

    Raises DataError for fewer than two records.
    """
    if n < 2:
        raise DataError(
            f"Expected two records or more, one of them for validation, got {n}: the client abstains. Give "
            "it more records, or set initial = 1, which needs no validation."
        )
    return hold_out(n, min(max(share, 0.51 / n), 1 - 0.51 / n), rng)


class _Steps:
    """The steps on the rates. Called before each mini-batch of the weights. `weight` is lambda."""

    def __init__(
        self,
        supernet: Supernet,
        config: Search,
        job: Job,
        model: nn.Module,
        held: NDArray[np.int64],
        learning: tuple[NDArray[Any], NDArray[Any]],
        weight: float,
    ) -> None:
        problem = supernet.problem
        self._supernet, self._config, self._job, self._model = supernet, config, job, model
        self._seen = records(*learning, problem.loss, problem.hardware.device)
        self._held = records(job.x[held], job.y[held], problem.loss, problem.hardware.device)
        self._criterion = criterion_of(problem.loss)
        self._weight = weight
        adam = config.optimizer == "adam"
        self._optimizer = Adam(rate=config.rate) if adam else SGD(rate=config.rate, momentum=0.0)
        initial = min(config.initial, MOST)
        self.alpha = torch.full((len(supernet.sampled),), initial, dtype=torch.float64, requires_grad=True)
        epsilon = config.epsilon * config.cooling ** (job.round - 1)
        self.gates = Gates(
            supernet, self.alpha, epsilon, job.rng, lasting=config.lasting, scaled=config.scaled
        )

    def __call__(self) -> None:
        # The running statistics of batch norm belong to the weights: validation leaves them alone.
        problem = self._supernet.problem
        with in_mode(self._model, training=False):
            x, y = self._drawn(self._held, problem.local.batch_size)
            loss = self._criterion(self._model(x), y) + self._weight * (self.alpha**2).sum()
            (slope,) = torch.autograd.grad(loss, self.alpha)
        if not bool(torch.isfinite(slope).all()):
            # before the rates: no chances follow from a rate that is not a number
            raise diverged(problem.local.rate(self._job.round - 1))
        with torch.no_grad():
            self._optimizer.step(self.alpha, slope)
            self.alpha.clamp_(min(self._config.least, MOST), MOST)

    def look(self) -> None:
        """Rank the units anew, on some of the records that weights learn from."""
        seen = self._drawn(self._seen, _LOOKED_AT)
        self.gates.importance = importance(self._config.importance, self._supernet, self._model, *seen)

    def _drawn(self, columns: tuple[Tensor, Tensor], size: int) -> tuple[Tensor, Tensor]:
        """At most so many of these records, drawn anew."""
        x, y = columns
        chosen = torch.from_numpy(self._job.rng.permutation(len(x))[:size]).to(x.device)
        return x[chosen], y[chosen]
