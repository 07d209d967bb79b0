"""Gaussian noise on integers: the rounded and the discrete Gaussian, with their privacy events.

Rounded: x + round(N) is round(x + N) for an integer x. That is post-processing of the Gaussian mechanism, so
its event is the Gaussian's.

Discrete (Canonne, Kamath and Steinke 2020): an integer k has a probability proportional to
exp(-k^2 / 2 sigma^2). Distributed noise is a *sum* of such numbers. Accounting it as a Gaussian of the same
variance is slightly optimistic at small sigma. So it is accounted with sigma_eff^2 = sigma^2 - 4, and a sigma
below 4 grid units is refused.

A discrete Gaussian is drawn by rejection, exact to 2^-120 at any sigma, from a table of at most 1,664
entries. With m a power of two and s = sigma / m, |X| = m Q + R is proposed: Q from the table, of weights
exp(-q^2 / 2 s^2), and R uniform below m, with a random sign. It is kept with probability
exp(-(X^2 - (m Q)^2) / 2 sigma^2), which is 0.8 or more. A negative zero is rejected.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import ceil, exp, isfinite, sqrt

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent
from numpy.typing import NDArray

from securefl.core.errors import ConfigError
from securefl.dp.noise import Source

Integers = NDArray[np.int64]
SMALLEST_SHARE = 4.0
"""The least sigma of one discrete Gaussian share, in grid units."""
SMALLEST_TOTAL = 64.0
"""Least sigma of a sum of shares, in grid units."""
LARGEST_SHARE = 2.0**24
"""An upper bound of one share's sigma, in grid units: 13 sigma stay far within a 32-bit grid integer."""
TAIL = 13.0
"""In sigma: discrete noise is truncated here. The mass beyond is less than 2^-120."""
LARGEST_NOISE = 2.0**52
"""An upper bound of 13 deviations of noise, in grid units. An int64 holds more, but totals are floats: a sum
of 2^21 clients on the finest grid, with its noise, is a whole number below 2^53, so it is not rounded. Gaps
between variates (`ziggurat`) stay below one unit."""
_FRACTION = 192
"""Fractional bits of a table's recurrence. A table keeps 128 of them; the others absorb rounding."""
_BLOCKS = 128
"""An upper bound of a table's sigma, so that a table has at most 13 * 128 entries."""
_DOUBT = 2.0**-48
"""A generous bound on the error of a probability in float64."""


def rounded(count: int, sigma: float, source: Source) -> Integers:
    """Rounded Gaussian noise: `count` integers round(N(0, sigma^2)).

        >>> from securefl.dp import Source, rounded
        >>> noise = rounded(1000, 50.0, Source())
        >>> noise.dtype, bool(40 < noise.std() < 60)
        (dtype('int64'), True)

    Args:
        count: the number of integers.
        sigma: above 0, in grid units.
        source: the randomness.

    Returns:
        int64 (count,), in grid units.

    Raises:
        ConfigError: sigma is not finite and above 0, or too large for integers (`require_exact`).
    """
    _check(sigma)
    require_exact(TAIL * sigma)
    return np.rint(sigma * source.normal(count)).astype(np.int64)


def discrete(count: int, sigma: float, source: Source) -> Integers:
    """Discrete Gaussian noise: `count` integers, truncated at 13 sigma. The mass beyond is less than 2^-120.

        >>> from securefl.dp import Source, discrete
        >>> noise = discrete(1000, 8.0, Source())
        >>> noise.dtype, bool(abs(noise).max() <= 13 * 8)
        (dtype('int64'), True)

    Args:
        count: the number of integers.
        sigma: from 4 to below 2^24, in grid units.
        source: the randomness.

    Returns:
        int64 (count,), in grid units.

    Raises:
        ConfigError: sigma is out of range.
    """
    _check_share(sigma)
    found: Integers = np.zeros(0, np.int64)
    while len(found) < count:
        found = np.concatenate([found, _kept(count - len(found), sigma, source)])
    return found


def discrete_event(sigma: float, sensitivity: float) -> DpEvent:
    """The event of a sum of discrete Gaussians with this *guaranteed* total sigma.

        >>> from securefl.dp import discrete_event
        >>> discrete_event(100.0, 50.0)
        GaussianDpEvent(noise_multiplier=1.999599959991998)

    Args:
        sigma: of the sum, at least 64 grid units.
        sensitivity: L2, in grid units.

    Raises:
        ConfigError: sigma is below 64, or the sensitivity is not finite and above 0.
    """
    if not SMALLEST_TOTAL <= sigma < np.inf:
        raise ConfigError(
            f"Expected a total sigma of at least {SMALLEST_TOTAL:g} grid units, got {sigma:g}: the grid is "
            "too coarse for distributed noise. Ask for more noise, or take local noise."
        )
    _check(sensitivity)
    return GaussianDpEvent(sqrt(sigma**2 - 4) / sensitivity)


def share(total: float, survivors: int, corrupt: int) -> float:
    """Sigma of each client's share, so that the honest of at least `survivors` clients add up to `total`.

    H = survivors - corrupt honest shares are guaranteed (specification of secure aggregation).

    Raises:
        ConfigError: no honest share is guaranteed, or the share is too small or too large for the grid.
    """
    honest = survivors - corrupt
    if honest < 1:
        raise ConfigError(f"Expected more survivors than corrupt clients, got {survivors} and {corrupt}.")
    own = total / sqrt(honest)
    _check_share(own)
    return own


def require_exact(farthest: float) -> None:
    """Refuse noise that no float or int64 holds exactly. Beyond int64 a cast makes a constant of all noise.

    Args:
        farthest: 13 deviations of the noise, in grid units. Not what was drawn: a refusal says nothing of it.

    Raises:
        ConfigError: it is above 2^52, or not a number.
    """
    if not farthest <= LARGEST_NOISE:
        raise ConfigError(
            f"Expected noise within 2^52 grid units, got {farthest:.3g} at {TAIL:g} deviations: integers "
            "beyond are not exact, and the noise would not be what is charged. Take a smaller "
            "noise_multiplier, or a coarser grid. If noise is correlated over rounds, take coefficients of "
            "CorrelatedNoise.optimised."
        )


def _check_share(sigma: float) -> None:
    if not sigma >= SMALLEST_SHARE:
        raise ConfigError(
            f"Expected shares of at least {SMALLEST_SHARE:g} grid units of noise, got {sigma:.3g}: the grid "
            "is too coarse for distributed noise. Ask for more noise, or take local noise."
        )
    if not sigma < LARGEST_SHARE:
        raise ConfigError(
            f"Expected shares of noise below {LARGEST_SHARE:.0f} grid units, got {sigma:.3g}: the grid is "
            "too fine for so much noise. Take a coarser grid, or less noise."
        )


def _kept(proposals: int, sigma: float, source: Source) -> Integers:
    """The accepted numbers of this many proposals."""
    # A power of two divides the words' range, so masking the low bits of a word is uniform below it.
    width = 1
    while sigma / width >= _BLOCKS:
        width *= 2
    words = source.words(5 * proposals).reshape(5, proposals)
    block = width * _block(*_table(sigma / width), words[0], words[1])
    rest = (words[2] & np.uint64(width - 1)).astype(np.int64)
    negative = (words[2] >> np.uint64(63)).astype(bool)  # a width has far fewer bits
    magnitude = block + rest
    # With a random sign 0 would be twice as likely as it should be: the negative one is rejected.
    kept = _happens(magnitude**2 - block**2, sigma, words[3], words[4]) & ~(negative & (magnitude == 0))
    found: Integers = np.where(negative, -magnitude, magnitude)[kept]
    return found


def _block(
    high: NDArray[np.uint64], low: NDArray[np.uint64], upper: NDArray[np.uint64], lower: NDArray[np.uint64]
) -> Integers:
    """The first entry of the table that is not below each word of 128 bits."""
    place = np.searchsorted(high, upper, side="left")
    # if the upper words are equal, the lower ones decide
    for i in np.flatnonzero(high[place] == upper):
        while high[place[i]] == upper[i] and low[place[i]] < lower[i]:
            place[i] += 1
    found: Integers = place.astype(np.int64)
    return found


def _happens(
    numbers: Integers, sigma: float, upper: NDArray[np.uint64], lower: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Whether each uniform word of 128 bits is below exp(-a / 2 sigma^2) for the number a.

    Floating point decides. If its error could matter, about once in 2^47, integers of 192 bits decide.
    """
    scale = 1 / (2 * sigma**2)
    margin = np.exp(-scale * numbers) - upper.astype(np.float64) * 2.0**-64
    below: NDArray[np.bool_] = margin > 0
    for i in np.flatnonzero(np.abs(margin) < _DOUBT):
        word = (int(upper[i]) << 64 | int(lower[i])) << _FRACTION - 128
        below[i] = word < _fixed(int(numbers[i]) * Fraction(scale))
    return below


@lru_cache(maxsize=8)
def _table(sigma: float) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Upper and lower words of 2^128 P(Q <= q) - 1, for q from 0 to 13 sigma; in integers of 192 bits."""
    # exp(-(q+1)^2 / 2s^2) = exp(-q^2 / 2s^2) * a * b^q with a = exp(-1/2s^2), b = exp(-1/s^2)
    a, b = _fixed(Fraction(1 / (2 * sigma**2))), _fixed(Fraction(1 / sigma**2))
    weights, ratio = [1 << _FRACTION], a
    for _ in range(ceil(TAIL * sigma)):
        weights.append(weights[-1] * ratio >> _FRACTION)
        ratio = ratio * b >> _FRACTION
    whole, total, cumulative = sum(weights), 0, []
    for weight in weights:
        total += weight
        # Less 1: the draw is the first entry that is not below the word, so the last entry must be
        # 2^128 - 1.
        cumulative.append((total << 128) // whole - 1)
    mask = (1 << 64) - 1
    high = np.array([c >> 64 for c in cumulative], dtype=np.uint64)
    low = np.array([c & mask for c in cumulative], dtype=np.uint64)
    return high, low


def _fixed(x: Fraction) -> int:
    """exp(-x) for 0 <= x <= 1 with 192 fractional bits, by its series."""
    term = total = 1 << _FRACTION
    n = 1
    while term:
        term = term * x.numerator // (x.denominator * n)
        total += -term if n % 2 else term
        n += 1
    assert abs(total / (1 << _FRACTION) - exp(-x)) < 1e-12
    return total


def _check(value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise ConfigError(f"Expected a finite value > 0, got {value}.")
