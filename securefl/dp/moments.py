"""A profile and a loss as noised releases (specification, section 3).

One joint Gaussian over the records' vectors (w, x / C, x^2 / C2), where x is clipped to |x| <= C and x^2 to
|x^2| <= C2: their norm is at most D = sqrt(w^2 + 2), whatever the record. Count, means and variances are
post-processing of the one noised sum: the count is never sent.
Unit: record. Adjacency: add/remove D; replace-one at most 2 D, without the constant coordinate
max(2 sqrt(2)): the difference of two vectors has no first coordinate.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from securefl.dp import clipping, gaussian
from securefl.dp.noise import Source
from securefl.errors import ConfigError
from securefl.profiles import Profile
from securefl.release import Adjacency

Floats = NDArray[np.float64]
WEIGHT = 0.5
"""w: how the count shares the budget with the moments."""


@dataclass(frozen=True, kw_only=True)
class MomentsMechanism:
    """Means, variances and count of q outputs in one release.

    bound, square_bound: C and C2, public. noise_multiplier: sigma over D. step: of the grid that sums are on.
    """

    bound: float
    square_bound: float
    noise_multiplier: float
    adjacency: Adjacency = "add-remove"
    step: float = 2.0**-16

    def __post_init__(self) -> None:
        values = (self.bound, self.square_bound, self.noise_multiplier, self.step)
        if not all(np.isfinite(v) and v > 0 for v in values):
            raise ConfigError(f"Expected finite bounds, noise multiplier and step > 0, got {values}.")

    @property
    def sensitivity(self) -> float:
        """In grid units; exact, since every record is an integer vector of bounded integer norm."""
        return sensitivity(self.step, self.adjacency)

    @property
    def sigma(self) -> float:
        """In grid units."""
        return self.noise_multiplier * self.sensitivity

    def event(self) -> DpEvent:
        return gaussian.event(self.sigma, self.sensitivity)

    def sums(self, outputs: Floats) -> NDArray[np.int64]:
        """The records' integer vectors, summed: (2 q + 1,). Records that are not finite take no part."""
        x = outputs[clipping.finite(outputs)]
        unit = int(1 / self.step)
        # clipped before they are divided: a bound below 1 would make a huge record infinite
        means = clipping.to_grid(clipping.l2(x, self.bound) / self.bound, self.step, unit)
        root = sqrt(self.square_bound)
        squares = np.clip(x, -root, root) ** 2
        variances = clipping.to_grid(squares / self.square_bound, self.step, unit)
        count = np.full((len(x), 1), int(WEIGHT * unit), dtype=np.int64)
        total: NDArray[np.int64] = np.concatenate([count, means, variances], axis=1).sum(axis=0)
        return total

    def release(self, outputs: Floats, source: Source) -> NDArray[np.int64]:
        """The noised sums, grid integers (2 q + 1,)."""
        sums = self.sums(outputs)
        return sums + gaussian.rounded(len(sums), self.sigma, source)

    def profile(self, released: NDArray[np.int64], *, floor: float = 1e-6) -> Profile:
        """Post-processing: means, variances of at least `floor`, and a count of at least 1."""
        values = released * self.step
        q = len(values) // 2
        count = max(values[0] / WEIGHT, 1.0)
        mean = values[1 : q + 1] * self.bound / count
        variance = np.maximum(values[q + 1 :] * self.square_bound / count - mean**2, floor)
        return Profile(mean, variance, max(1, round(count)))


def sensitivity(step: float, adjacency: Adjacency) -> float:
    """D over the step. Two blocks of norm at most 1 / step, and a constant that replacing does not change."""
    unit = int(1 / step)
    match adjacency:
        case "add-remove":
            return sqrt(2 * unit**2 + int(WEIGHT * unit) ** 2)
        case "replace-one":
            return 2 * sqrt(2) * unit


@dataclass(frozen=True, kw_only=True)
class LossMechanism:
    """The sum of losses clipped to [0, B], on a grid; one release of sensitivity B, by either adjacency."""

    bound: float
    noise_multiplier: float
    steps: int = 2**16

    def __post_init__(self) -> None:
        if not all(np.isfinite(v) and v > 0 for v in (self.bound, self.noise_multiplier, self.steps)):
            raise ConfigError("Expected a finite bound, noise multiplier and steps > 0.")

    @property
    def sensitivity(self) -> float:
        """In grid units of bound / steps."""
        return float(self.steps)

    def event(self) -> DpEvent:
        return gaussian.event(self.noise_multiplier * self.sensitivity, self.sensitivity)

    def sums(self, losses: Floats) -> NDArray[np.int64]:
        """The clipped losses of the finite records, summed on the grid: (1,)."""
        x = losses[np.isfinite(losses)]
        total: NDArray[np.int64] = np.trunc(np.clip(x / self.bound, 0, 1) * self.steps).astype(np.int64)
        return np.array([total.sum()], dtype=np.int64)

    def release(self, losses: Floats, source: Source) -> NDArray[np.int64]:
        """The noised sum, grid integers (1,)."""
        return self.sums(losses) + gaussian.rounded(1, self.noise_multiplier * self.sensitivity, source)
