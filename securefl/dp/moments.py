"""Noised moments: profiles (means, variances, count) and losses as integer sums on a grid.

Each record becomes an integer vector of bounded norm. The noised sum of these vectors is released. Means,
variances and counts are post-processing of that sum, so the exact count is never sent (specification of DP,
3). The unit is the record. Sensitivities are exact, since the vectors are integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.arguments import numbers
from securefl.core.errors import ConfigError, DataError
from securefl.core.grid import Grid
from securefl.core.release import Adjacency
from securefl.dp import clipping

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_UNIT = 2**20
STEP = 1 / _UNIT
"""The step of the sums' grid."""
GRID = Grid(step=STEP, bound=2.0**10)
WEIGHT = 0.5
"""w: the weight of the count relative to the moments. A larger one makes the count more precise."""
_COUNT = int(WEIGHT * _UNIT)


@dataclass(frozen=True, eq=False)
class MeanVariance:
    """Mean and population variance per element, over `count` records.

        >>> from securefl.dp import MeanVariance
        >>> len(MeanVariance([0.1, 0.2], [1.0, 0.9], 10))
        2

    A constant element has variance 0, which is allowed. It is floored when two profiles are compared.

    Attributes:
        mean: float64 (q,).
        variance: float64 (q,), each at least 0.
        count: the number of records, from 1.

    Raises:
        DataError: vectors of two lengths, non-finite values, negative variances, or a count below 1.
    """

    mean: Floats
    variance: Floats
    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", finite_vector("mean", self.mean))
        object.__setattr__(self, "variance", finite_vector("variance", self.variance))
        require_same_length("mean", self.mean, "variance", self.variance)
        if (negative := int(np.count_nonzero(self.variance < 0))) > 0:
            raise DataError(
                f"Expected variances of at least 0, got {negative} of {len(self)} that are negative."
            )
        if not isinstance(self.count, Integral) or self.count < 1:
            raise DataError(f"Expected a profile of at least one record, got count={self.count!r}.")

    def __len__(self) -> int:
        return len(self.mean)


def finite_vector(name: str, values: Any) -> Floats:
    """A read-only float64 copy. Raises DataError unless it is a vector of one finite number or more."""
    vector = numbers(name, values)
    if vector.ndim != 1 or len(vector) == 0:
        raise DataError(f"Expected {name} as a vector of at least one element, got shape {vector.shape}.")
    if (bad := int(np.count_nonzero(~np.isfinite(vector)))) > 0:
        raise DataError(
            f"Expected finite entries of {name}, got {bad} of {len(vector)} that are not finite. Check the "
            "records and the model's weights."
        )
    # checked once and read-only, so that no caller can put a nan into a profile afterwards
    vector.flags.writeable = False
    return vector


def require_same_length(first: str, a: Floats, second: str, b: Floats) -> None:
    """Raises DataError, with both names, for vectors of two lengths."""
    if len(a) != len(b):
        raise DataError(f"Expected {first} and {second} of one length, got {len(a)} and {len(b)}.")


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Count, means and variances of q outputs: the sum of the records' vectors (w, x / C, x^2 / C2).

        >>> import numpy as np
        >>> from securefl.dp import Moments
        >>> moments = Moments(bound=2.0, square_bound=4.0)
        >>> sums = moments.sums(np.array([[0.0, 1.0], [1.0, 1.0]]))  # add noise of this sensitivity, then
        >>> moments.profile(sums * 2.0**-20).mean.tolist(), round(moments.sensitivity("add-remove"), 2)
        ([0.5, 1.0], 1.5)

    Attributes:
        bound, square_bound: C and C2, public. x is clipped to |x| <= C, and x^2 to |x^2| <= C2.

    Raises:
        ConfigError: a bound is not finite and above 0.
    """

    bound: float
    square_bound: float

    def __post_init__(self) -> None:
        _check_bounds(self.bound, self.square_bound)

    @staticmethod
    def sensitivity(adjacency: Adjacency) -> float:
        """L2 sensitivity of the sums times STEP.

        Replacing a record changes the count only if exactly one of the two records is not finite. That case
        equals adding one, of norm sqrt(2 + w^2). Otherwise the means differ by at most twice their bound, so
        by 4 in squared units. Squares are not negative, also after truncation, so the product of two records'
        is at least 0, and |s - s'|^2 = |s|^2 + |s'|^2 - 2 s s' <= 2. Together at most sqrt(4 + 2).
        """
        return sqrt(6) if adjacency == "replace-one" else sqrt(2 * _UNIT**2 + _COUNT**2) * STEP

    def sums(self, outputs: Floats) -> Integers:
        """Sum the vectors of a client's records.

        Args:
            outputs: float64 (n, q). A record with a non-finite entry is left out.

        Returns:
            int64 (2 q + 1,), in units of STEP: the count, the means and the squares. One record moves them
            by at most `sensitivity`.

        Raises:
            DataError: outputs of another number of dimensions.
        """
        if outputs.ndim != 2:
            raise DataError(
                f"Expected outputs of shape (n, q), got shape {outputs.shape}. Give each record a row."
            )
        x = outputs[clipping.finite(outputs)]
        # Clip before dividing: a bound below 1 would make a huge record infinite.
        means = clipping.to_grid(clipping.clip_l2(x, self.bound) / self.bound, STEP, _UNIT)
        root = sqrt(self.square_bound)
        squares = np.clip(x, -root, root) ** 2
        variances = clipping.to_grid(squares / self.square_bound, STEP, _UNIT)
        return _summed(_counted(len(x)), means, variances)

    def profile(self, sums: Floats, *, floor: float = 1e-6) -> MeanVariance:
        """Return the profile in noised sums.

        Args:
            sums: finite sums of all clients with noise, times STEP, float64 (2 q + 1,).
            floor: the least variance. Noise can make a variance negative.

        Returns:
            Mean and variance, (q,) each. The count is at least 1.

        Raises:
            DataError: sums of another shape, or that are not finite.
        """
        sums = finite_vector("sums", sums)
        if len(sums) % 2 == 0:
            raise DataError(f"Expected sums of shape (2 q + 1,), got shape {sums.shape}. Leave none out.")
        # Noise can make the count or a variance negative, and callers divide by both and take roots.
        q = len(sums) // 2
        count = max(sums[0] / WEIGHT, 1.0)
        mean = sums[1 : q + 1] * self.bound / count
        with np.errstate(over="ignore"):  # the square of a huge mean is infinite, and the floor holds
            variance = np.maximum(sums[q + 1 :] * self.square_bound / count - mean**2, floor)
        return MeanVariance(mean, variance, max(1, round(count)))


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Count and mean of losses clipped to [0, B]: the sum of the records' vectors (w, loss / B).

        >>> import numpy as np
        >>> from securefl.dp import Losses
        >>> losses = Losses(bound=4.0)
        >>> losses.mean(losses.sums(np.array([1.0, 2.0, 9.0])) * 2.0**-20)
        2.3333333333333335

    Raises:
        ConfigError: the bound is not finite and above 0.
    """

    bound: float

    def __post_init__(self) -> None:
        _check_bounds(self.bound)

    @staticmethod
    def sensitivity(adjacency: Adjacency) -> float:
        """L2 sensitivity of the sums times STEP."""
        # Two finite losses differ by at most 1 in units of B, and a non-finite one counts as absent. So
        # replacing a loss changes the sums at most as much as adding one.
        return sqrt(_UNIT**2 + _COUNT**2) * STEP

    def sums(self, losses: Floats) -> Integers:
        """Sum the vectors of a client's losses.

        Args:
            losses: float64 (n,). Those that are not finite are left out.

        Returns:
            int64 (2,), in units of STEP: the count and the losses over B. One record moves them by at most
            `sensitivity`.
        """
        x = losses[np.isfinite(losses)]
        clipped = np.trunc(np.clip(x / self.bound, 0, 1) * _UNIT).astype(np.int64)
        return _summed(_counted(len(x)), clipped[:, None])

    def mean(self, sums: Floats) -> float:
        """Return the mean loss in noised sums, within [0, B].

        Args:
            sums: finite sums of all clients with noise, times STEP, float64 (2,).

        Raises:
            DataError: sums of another shape, or that are not finite.
        """
        sums = finite_vector("sums", sums)
        if len(sums) != 2:
            raise DataError(f"Expected sums of shape (2,), got shape {sums.shape}: the count and the losses.")
        return float(np.clip(sums[1] * self.bound / max(sums[0] / WEIGHT, 1.0), 0, self.bound))


def _counted(records: int) -> Integers:
    return np.full((records, 1), _COUNT, dtype=np.int64)


def _summed(*blocks: Integers) -> Integers:
    total: Integers = np.concatenate(blocks, axis=1).sum(axis=0)
    return total


def _check_bounds(*bounds: float) -> None:
    if not all(np.isfinite(bound) and bound > 0 for bound in bounds):
        raise ConfigError(f"Expected finite bounds > 0, got {', '.join(map(str, bounds))}.")
