"""Gaussian noise that is correlated over rounds: matrix mechanisms, banded (BandMF) and buffered (BLT).

A model after t rounds is a sum of t totals. Independent noise on each total adds up in it, while correlated
noise cancels in part. Row t (from 1) gets n_t, where C n = z, with z independent Gaussian vectors. C is lower
triangular and Toeplitz, with the first column c: c_0 = 1, and

- of bands, `coefficients` are c, which is 0 after them;
- of buffers (McMahan et al. 2024, arXiv 2408.08868), c_j = sum_i w_i decay_i^(j-1), where w are the
  coefficients after the first. All rows share noise, and whoever draws it keeps a vector for each buffer.

Guarantee (Choquette-Choo et al. 2023, arXiv 2306.08153; adaptivity: Denisov et al. 2022). The totals x get
the noise C^-1 z, so what is released is C^-1 (C x + z). Let a client move only rows that are at least
`min_separation` apart, by a norm of D or less each. In any m rows it moves C x by at most sqrt(m) *
column_norm * D: one Gaussian of multiplier sigma / (column_norm * D) a row, composed as any other.

- C has no more bands than the separation. Its columns at these rows have no entry in common, so column_norm
  is that of c.
- Columns of buffers overlap. As c does not rise or go below 0, the rows 1, 1 + s, 1 + 2 s, ... of the
  separation s move C x furthest (Theorem 2 of McMahan et al.). So column_norm is the norm of the sum of m
  such columns over sqrt(m), for the m that has the largest.

Each row has one total at most. A row to which no total was bound counts as the total 0 of no client. Its
noise goes into the total of the next row that is opened, so prefix sums have the noise that they would have
had. That is a sum of rows of C^-1 (C x + z), with x 0 in the lost ones: post-processing. A total that is lost
after its row was bound takes its noise with it, and prefix sums err more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, hypot, inf, isfinite, nan, sqrt
from numbers import Real
from typing import Any, Literal

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
            With buffers, 1 and the weight of each. Any sequence of numbers; it becomes a tuple of floats, so
            that equal plans have equal digests.
        min_separation: the least number of rounds between two participations of a client.
        max_participations: the most participations of a client, k. A session has k separations of rounds at
            most.
        decays: of the buffers, one for each coefficient after the first. None for bands.

    Raises:
        ConfigError: the coefficients are not finite, do not begin with 1, or are more than `min_separation`
            without buffers; the column of buffers may rise or go below 0; or one of the two numbers is no
            whole number from 1.
    """

    coefficients: tuple[float, ...]
    min_separation: int
    max_participations: int
    decays: tuple[float, ...] = ()

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
        object.__setattr__(self, "decays", decays := _floats(self.decays))
        if decays:
            falls = len(decays) == len(own) - 1 and min(own) >= 0 and fsum(own[1:]) <= 1
            if not (falls and all(0 <= one <= 1 for one in decays)):
                raise ConfigError(
                    "Expected a decay from 0 to 1 for each coefficient after the first, and those from 0 on "
                    f"and of a sum of 1 at most, got the decays {self.decays!r:.80} and the coefficients "
                    f"{own!r:.80}: no bound is proven for a column that rises. Take both from "
                    'CorrelatedNoise.optimised(..., bands="blt"), or no decays.'
                )
        elif len(own) > self.min_separation:
            raise ConfigError(
                f"Expected at most {self.min_separation} coefficients, as many as a client's separation in "
                f"rounds, got {len(own)}: columns of two of its participations would overlap. Take fewer "
                "bands, or a larger separation."
            )

    @staticmethod
    def optimised(
        *, rounds: int, separation: int, bands: int | Literal["blt"] | None = None
    ) -> CorrelatedNoise:
        """The noise of least error of prefix sums, at one epsilon.

        The error is the root mean square over all rounds. At equal epsilon it depends on the separation by
        the bands alone, since k participations cost sqrt(k) under any C whose columns do not overlap.

        Args:
            rounds: T, the number of rounds.
            separation: the least number of rounds between two participations.
            bands: the number of coefficients. By default as many as the separation allows, which has the
                least error. "blt" for two buffers, of up to 7 % more, which need less memory.

        Raises:
            ConfigError: as for the class, for more bands than the separation.
        """
        participations = -(-rounds // separation) if separation > 0 else 0
        if bands == "blt":
            # The class refuses what has no participation.
            coefficients, decays = _buffers(rounds, separation) if participations > 0 else ((1.0,), ())
            return CorrelatedNoise(coefficients, separation, participations, decays)
        bands = min(separation, rounds) if bands is None else bands
        return CorrelatedNoise(_optimum(rounds, bands), separation, participations)

    @property
    def correlated(self) -> bool:
        """Whether rows share noise."""
        return len(self.coefficients) > 1

    @property
    def span(self) -> str:
        """Over which rounds noise is correlated, in words."""
        buffers = len(self.decays)
        if not buffers:
            return f"{len(self.coefficients)} rounds (BandMF)"
        return f"all rounds (BLT of {buffers} buffer{'s' * (buffers > 1)})"

    @property
    def column_norm(self) -> float:
        """The norm of a column of C, and of buffers its largest share in a sum of columns: see the guarantee.

        Sigma of z is this, times the multiplier, times the sensitivity.
        """
        if not self.decays:
            return sqrt(fsum(own * own for own in self.coefficients))
        return _overlapping_norm(self.coefficients, self.decays, self.min_separation, self.max_participations)

    @property
    def sensitivity(self) -> float:
        """How far a client that moves each total by a norm of 1 moves C x in all its participations."""
        return sqrt(self.max_participations) * self.column_norm

    def column(self, rows: int) -> Floats:
        """Return the first column of C, the encoder.

        Args:
            rows: the number of rows of C, from 1.

        Returns:
            c, float64 (rows,). c_0 is 1.
        """
        return _column(self.coefficients, self.decays, rows)

    def inverse(self, rows: int) -> Floats:
        """Return the first column of C^-1. The noise n_t is the sum of d_j z_{t-j} over j from 0 to t - 1.

        Args:
            rows: the number of rows of C, from 1.

        Returns:
            d, float64 (rows,). d_0 is 1.
        """
        return _inverse(self.column(rows))

    def error(self, rounds: int) -> float:
        """The root mean square noise of prefix sums over that of independent noise, at one epsilon."""
        return self.column_norm * sqrt(2 * _prefix_error(self.inverse(rounds)) / (rounds * (rounds + 1)))

    def reach(self, rounds: int) -> float:
        """The largest norm of the weights of one total's noise, whichever rows before it are lost."""
        # The noise of some rows together is a difference of two prefix sums.
        with np.errstate(invalid="ignore"):  # of a C whose inverse grows beyond a float
            prefixes = np.cumsum(self.inverse(rounds))
        return 2 * hypot(*prefixes) if self.correlated else 1.0

    def noise(self, size: int, sigma: float, rows: Sequence[Source], before: int = 0) -> Integers:
        """The noise of all rows after `before` together: the sum of round(sigma * n_t).

        Each row is rounded by itself, once. It takes as many vectors of memory as there are bands or buffers.

        Args:
            size: the number of entries.
            sigma: the deviation of z, in grid units.
            rows: the sources of z of all rows, the first one first. The same source gives the same z, so
                rows before are drawn again.
            before: the number of rows whose noise is not wanted.

        Returns:
            int64 (size,), in grid units.

        Raises:
            ConfigError: sigma is too large for integers (`gaussian.require_exact`).
        """
        from securefl.dp.gaussian import TAIL, require_exact  # late: it loads dp_accounting

        require_exact(TAIL * sigma * hypot(*self.inverse(len(rows))))
        total, weights = np.zeros(size, np.int64), self.coefficients[1:]
        # n_t is z_t less these vectors by their weights: of bands the rows before, the newest first, and of
        # buffers their sums by powers of the decay.
        state = [np.zeros(size) for _ in weights]
        for number, row in enumerate(rows, 1):
            own = row.normal(size)
            for weight, past in zip(weights, state, strict=True):
                own -= weight * past
            if self.decays:
                state = [decay * past + own for decay, past in zip(self.decays, state, strict=True)]
            elif state:
                state = [own, *state[:-1]]
            if number > before:
                total += np.rint(sigma * own).astype(np.int64)
        return total


def _floats(given: Any) -> tuple[float, ...]:
    """A sequence of numbers as floats, and of a nan if it is none."""
    try:
        own = tuple(given)
        numbers = all(isinstance(one, Real) and not isinstance(one, bool) for one in own)
        return tuple(map(float, own)) if numbers else (nan,)
    except (TypeError, OverflowError):
        return (nan,)


def _column(coefficients: tuple[float, ...], decays: tuple[float, ...], rows: int) -> Floats:
    found = np.zeros(rows)
    if not decays:
        found[: len(coefficients)] = coefficients[:rows]
        return found
    found[0] = 1
    for weight, decay in zip(coefficients[1:], decays, strict=True):
        # Products alone: powers differ between hosts in their last bits.
        found[1:] += weight * np.cumprod(np.r_[1.0, np.full(rows, decay)])[: rows - 1]
    return found


@lru_cache(maxsize=64)
def _overlapping_norm(
    coefficients: tuple[float, ...], decays: tuple[float, ...], separation: int, most: int
) -> float:
    """The norm of the sum of m columns a separation apart, over sqrt(m), for the worst m to `most`."""
    sums = _added(_column(coefficients, decays, separation * most), separation)
    found = []
    for m in range(1, most + 1):
        own = sums.copy()
        own[m:] -= sums[: most - m]
        found.append(hypot(*own.ravel()) / sqrt(m))
    return max(found)


def _added(column: Floats, separation: int) -> Floats:
    """The sum of all columns that are a separation apart, from the first: float64 (columns, separation)."""
    summed: Floats = np.cumsum(column.reshape(-1, separation), 0)
    return summed


def _inverse(column: Floats) -> Floats:
    from scipy.signal import lfilter  # late: plans are read by commands that draw no noise

    found: Floats = lfilter([1.0], column, np.eye(1, len(column))[0])
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
        inverse = _inverse(np.r_[own, np.zeros(rounds - bands)])
        prefix, whole, weights = np.cumsum(inverse), _prefix_error(inverse), np.arange(rounds, 0, -1)
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


@lru_cache(maxsize=64)
def _buffers(rounds: int, separation: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The coefficients and decays of the two buffers of least error, or of one that is as good.

    A third one gains nothing where columns overlap: 0.281 at 200 rounds and a separation of 50, with two or
    three. One has 0.284 there, and bands 0.270.
    """
    from scipy.optimize import minimize
    from scipy.signal import lfilter

    def squared(x: Floats) -> float:
        """The squared error, with a little for a first buffer, so that one stays where two alike would do."""
        (first, second), decays = x[:2], x[2:]
        if first + second > 1:
            return inf
        c = _column((1.0, first, second), (*decays,), separation * -(-rounds // separation))
        # C's generating function is a fraction. Its inverse takes fewer steps than that of the column.
        one, two = (np.array([1.0, -own]) for own in decays)
        above = np.convolve(one, two)
        below = above + first * np.r_[0.0, two] + second * np.r_[0.0, one]
        inverse = lfilter(above, below, np.eye(1, rounds)[0])
        added = float((_added(c, separation) ** 2).sum())
        return _prefix_error(inverse) * added * (1 + 1e-3 * float(first))

    # It sums, multiplies and compares alone, and ends long before last bits tell: hosts agree.
    found, limits = np.array([0.1, 0.4, 0.3, 1 - 1 / (2 * separation)]), [(0.0, 1.0)] * 4
    for _ in range(2):  # again from where it ended, with a fresh simplex
        options = {"xatol": 1e-4, "fatol": 1e-4, "maxiter": 2000}
        found = minimize(squared, found, method="Nelder-Mead", bounds=limits, options=options).x
    own = [(round(float(w), _DIGITS), round(float(d), _DIGITS + 1)) for w, d in found.reshape(2, 2).T]
    own = [(weight, decay) for weight, decay in own if weight]
    return (1.0, *(weight for weight, _ in own)), tuple(decay for _, decay in own)
