"""Gaussian noise that is correlated over rounds: a banded Toeplitz matrix mechanism (BandMF).

A model after t rounds is a sum of t totals. Independent noise on each total adds up in it, while correlated
noise cancels in part. Row t (from 1) gets n_t = sum_j d_j z_(t-j), with z independent Gaussian vectors and d
the first column of C^-1. C is lower triangular and Toeplitz, and its first column is `coefficients`.

Guarantee (Choquette-Choo et al. 2023, arXiv 2306.08153; adaptivity: Denisov et al. 2022). The totals x get
the noise C^-1 z, so what is released is C^-1 (C x + z). Let a client move only rows that are at least
`min_separation` apart, by a norm of D or less each. C has no more bands than that, so the columns of C at
these rows have no entry in common. The client moves C x by at most sqrt(k) * column_norm * D in k rows:
one Gaussian of multiplier sigma / (column_norm * D) a row, composed as any other.

Each row has one total at most. A row to which no total was bound counts as the total 0 of no client. Its
noise goes into the total of the next row that is opened, so prefix sums have the noise that they would have
had. That is a sum of rows of C^-1 (C x + z), with x 0 in the lost ones: post-processing. A total that is lost
after its row was bound takes its noise with it, and prefix sums err more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, hypot, isfinite, sqrt
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError
from securefl.dp.noise import Source

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_DIGITS = 3
"""Decimals of optimised coefficients. Hosts differ in the last bits of an optimum, and parties compare plans.
The error grows by less than 10^-5 of itself."""


@dataclass(frozen=True)
class CorrelatedNoise:
    """Noise that is correlated over rounds, and the participations for which its sensitivity holds.

        >>> from securefl.dp import CorrelatedNoise
        >>> noise = CorrelatedNoise.optimised(rounds=100, separation=20)
        >>> noise.max_participations, round(noise.column_norm, 3), round(noise.error(100), 3)
        (5, 1.544, 0.361)

    Attributes:
        coefficients: the first column of C, from its diagonal on, which is 1. (1.0,) is independent noise.
            Any sequence of numbers; it becomes a tuple of floats, so that equal plans have equal digests.
        min_separation: the least number of rounds between two participations of a client.
        max_participations: the most participations of a client, k.

    Raises:
        ConfigError: the coefficients are not finite, do not begin with 1, or are more than `min_separation`;
            or one of the two numbers is no whole number from 1.
    """

    coefficients: tuple[float, ...]
    min_separation: int
    max_participations: int

    def __post_init__(self) -> None:
        for name in ("min_separation", "max_participations"):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise ConfigError(f"Expected {name} as a whole number from 1, got {value!r}.")
        own = _floats(self.coefficients)
        if not own or own[0] != 1 or not all(map(isfinite, own)):
            raise ConfigError(
                f"Expected finite coefficients of which the first is 1, got {self.coefficients!r:.80}. Take "
                "(1.0,) for independent noise, or those of CorrelatedNoise.optimised."
            )
        object.__setattr__(self, "coefficients", own)
        if len(own) > self.min_separation:
            raise ConfigError(
                f"Expected at most {self.min_separation} coefficients, as many as a client's separation in "
                f"rounds, got {len(own)}: columns of two of its participations would overlap. Take fewer "
                "bands, or a larger separation."
            )

    @staticmethod
    def optimised(*, rounds: int, separation: int, bands: int | None = None) -> CorrelatedNoise:
        """The noise of least error of prefix sums, at one epsilon.

        The error is the root mean square over all rounds. At equal epsilon it depends on the separation by
        the bands alone, since k participations cost sqrt(k) under any C whose columns do not overlap.

        Args:
            rounds: T, the number of rounds.
            separation: the least number of rounds between two participations.
            bands: the number of coefficients. By default as many as the separation allows.

        Raises:
            ConfigError: as for the class, for more bands than the separation.
        """
        bands = min(separation, rounds) if bands is None else bands
        participations = -(-rounds // separation) if separation > 0 else 0
        return CorrelatedNoise(_optimum(rounds, bands), separation, participations)

    @property
    def correlated(self) -> bool:
        """Whether rows share noise."""
        return len(self.coefficients) > 1

    @property
    def column_norm(self) -> float:
        """The norm of a column of C: sigma of z is this, times the multiplier, times the sensitivity."""
        return sqrt(fsum(own * own for own in self.coefficients))

    @property
    def sensitivity(self) -> float:
        """How far a client that moves each total by a norm of 1 moves C x in all its participations."""
        return sqrt(self.max_participations) * self.column_norm

    def inverse(self, rows: int) -> Floats:
        """The first column of C^-1, d: float64 (rows,)."""
        return _inverse(self.coefficients, rows)

    def error(self, rounds: int) -> float:
        """The root mean square noise of prefix sums over that of independent noise, at one epsilon."""
        return self.column_norm * sqrt(2 * _prefix_error(self.inverse(rounds)) / (rounds * (rounds + 1)))

    def reach(self, rounds: int) -> float:
        """The largest norm of the weights of one total's noise, whichever rows before it are lost."""
        # The noise of some rows together is a difference of two prefix sums.
        with np.errstate(invalid="ignore"):  # of a C whose inverse grows beyond a float
            prefixes = np.cumsum(self.inverse(rounds))
        return 2 * hypot(*prefixes) if self.correlated else 1.0

    def noise(self, size: int, sigma: float, rows: Sequence[Source]) -> Integers:
        """The noise of one row: round(sigma * sum_j d_j z_(t-j)), rounded once after the sum.

        Args:
            size: the number of entries.
            sigma: the deviation of z, in grid units.
            rows: the sources of z of this row and of all rows before it, the newest first. The same source
                gives the same z, so rows before are drawn again.

        Returns:
            int64 (size,), in grid units.

        Raises:
            ConfigError: sigma is too large for integers (`gaussian.require_exact`).
        """
        from securefl.dp.gaussian import TAIL, require_exact  # late: it loads dp_accounting

        total, inverse = np.zeros(size), self.inverse(len(rows))
        require_exact(TAIL * sigma * hypot(*inverse))
        for weight, row in zip(inverse, rows, strict=True):
            if weight:
                total += weight * row.normal(size)
        return np.rint(sigma * total).astype(np.int64)


def _floats(given: Any) -> tuple[float, ...]:
    """A sequence of numbers as floats. Empty if it is none."""
    try:
        own = tuple(given)
        numbers = all(isinstance(one, Real) and not isinstance(one, bool) for one in own)
        return tuple(map(float, own)) if numbers else ()
    except (TypeError, OverflowError):
        return ()


def _inverse(coefficients: tuple[float, ...], rows: int) -> Floats:
    from scipy.signal import lfilter  # late: plans are read by commands that draw no noise

    found: Floats = lfilter([1.0], coefficients, np.eye(1, rows)[0])
    return found


def _prefix_error(inverse: Floats) -> float:
    """The squared norm of A C^-1, with A the matrix of prefix sums: lower triangular, and all ones."""
    return float((np.arange(len(inverse), 0, -1) * np.cumsum(inverse) ** 2).sum())


@lru_cache(maxsize=64)
def _optimum(rounds: int, bands: int) -> tuple[float, ...]:
    """The coefficients of the least `CorrelatedNoise.error` among all C of so many bands."""
    if not 1 <= bands <= rounds:
        raise ConfigError(f"Expected 1 to {rounds} bands in {rounds} rounds, got {bands}.")
    if bands == 1:
        return (1.0,)
    from scipy.optimize import minimize
    from scipy.signal import lfilter

    def squared(falls: Floats) -> tuple[float, Floats]:
        """The log of the squared error, and its gradient by the logs of each coefficient over the next."""
        own = np.exp(-np.cumsum(np.r_[0.0, falls]))
        prefix = np.cumsum(_inverse(tuple(own), rounds))
        whole, weights = _prefix_error(_inverse(tuple(own), rounds)), np.arange(rounds, 0, -1)
        # The generating function of `prefix` is 1 / ((1 - x) c(x)), so its derivative by c_j is
        # -x^j prefix(x) / c(x).
        moved = lfilter([1.0], own, prefix)
        slopes = [-2 * (weights[j:] * prefix[j:] * moved[: rounds - j]).sum() for j in range(1, bands)]
        norm = float((own**2).sum())
        moves = (np.array(slopes) / whole + 2 * own[1:] / norm) * own[1:]
        return float(np.log(whole * norm)), -np.cumsum(moves[::-1])[::-1]

    # Coefficients that fall have an inverse that does not grow (Eneström and Kakeya), so that no step of the
    # search meets one that overflows. Those of the optimum fall.
    # The square root of A, which is optimal without bands (Fichtenberger et al. 2022), is near the optimum.
    root = np.cumprod([(2 * j - 1) / (2 * j) for j in range(1, bands)])
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-10}
    start, bounds = -np.diff(np.log(np.r_[1.0, root])), [(0.0, None)] * len(root)
    found = minimize(squared, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return (1.0, *(round(float(own), _DIGITS) for own in np.exp(-np.cumsum(found.x))))
