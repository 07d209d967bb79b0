"""Gaussian noise on integers: rounded, and discrete.

Rounded: x + round(N) is round(x + N) for an integer x, which is post-processing of the Gaussian mechanism,
so its event is the plain Gaussian's. Discrete (Canonne, Kamath and Steinke 2020): probability proportional
to exp(-k^2 / 2 sigma^2), whose *sums* are what distributed noise needs. A plain Gaussian account of it is
slightly optimistic at small sigma: it is accounted with sigma_eff^2 = sigma^2 - 4, and refused below 4 grid
units.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, exp, isfinite, sqrt

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent
from numpy.typing import NDArray

from securefl.dp.noise import Source
from securefl.errors import ConfigError

Integers = NDArray[np.int64]
SMALLEST_SHARE = 4.0
"""Least sigma of one discrete Gaussian share, in grid units."""
SMALLEST_TOTAL = 64.0
"""Least sigma of a sum of shares, in grid units."""
_TAIL = 13.0
_FRACTION = 192


def rounded(count: int, sigma: float, source: Source) -> Integers:
    """`count` integers round(N(0, sigma^2)), sigma > 0 in grid units."""
    _check(sigma)
    return np.rint(sigma * source.normal(count)).astype(np.int64)


def event(sigma: float, sensitivity: float) -> DpEvent:
    """Of the rounded Gaussian: sigma over the exact integer sensitivity, both in grid units."""
    _check(sigma)
    _check(sensitivity)
    return GaussianDpEvent(sigma / sensitivity)


def discrete(count: int, sigma: float, source: Source) -> Integers:
    """`count` discrete Gaussian integers, from a cumulative table of 128 bits.

    What the table cuts off beyond 13 sigma has less than 2^-120 of the mass.
    """
    if not SMALLEST_SHARE <= sigma < 2**24:
        raise ConfigError(
            f"Expected a discrete sigma from {SMALLEST_SHARE:g} to 2^24 grid units, got {sigma:g}; take a "
            "finer grid, or a coarser one."
        )
    high, low, first = _table(float(sigma))
    words = source.words(2 * count).reshape(2, count)
    place = np.searchsorted(high, words[0], side="left")
    # where the upper words tie, the lower ones decide
    tied = np.flatnonzero((place < len(high)) & (high[np.minimum(place, len(high) - 1)] == words[0]))
    for i in tied:
        while place[i] < len(high) and high[place[i]] == words[0, i] and low[place[i]] < words[1, i]:
            place[i] += 1
    found: Integers = first + place.astype(np.int64)
    return found


def discrete_event(sigma: float, sensitivity: float) -> DpEvent:
    """Of a sum of discrete Gaussians with this *guaranteed* total sigma, in grid units."""
    if not SMALLEST_TOTAL <= sigma < np.inf:
        raise ConfigError(
            f"Expected a total sigma of at least {SMALLEST_TOTAL:g} grid units, got {sigma:g}: the grid is "
            "too coarse for distributed noise."
        )
    return event(sqrt(sigma**2 - 4), sensitivity)


def share(total: float, survivors: int, corrupt: int) -> float:
    """Sigma of each client's share, so that the honest of at least `survivors` clients give `total`.

    Sources: specification of secure aggregation; H = survivors - corrupt honest shares are guaranteed.
    """
    honest = survivors - corrupt
    if honest < 1:
        raise ConfigError(f"Expected more survivors than corrupt clients, got {survivors} and {corrupt}.")
    own = total / sqrt(honest)
    if own < SMALLEST_SHARE:
        raise ConfigError(
            f"Expected shares of at least {SMALLEST_SHARE:g} grid units, got {own:.3g} for each of {honest} "
            "clients: the grid is too coarse for distributed noise."
        )
    return own


@lru_cache(maxsize=8)
def _table(sigma: float) -> tuple[NDArray[np.uint64], NDArray[np.uint64], int]:
    """Upper and lower words of 2^128 P(X <= k) - 1, for k from `first` on; in integers of 192 bits."""
    radius = ceil(_TAIL * sigma)
    one = 1 << _FRACTION
    # exp(-(k+1)^2 / 2s^2) = exp(-k^2 / 2s^2) * a * b^k with a = exp(-1/2s^2), b = exp(-1/s^2)
    a, b = _fixed(1 / (2 * sigma**2)), _fixed(1 / sigma**2)
    weights, ratio = [one], a
    for _ in range(radius):
        weights.append(weights[-1] * ratio >> _FRACTION)
        ratio = ratio * b >> _FRACTION
    whole = weights[0] + 2 * sum(weights[1:])
    cumulative, total, first = [], 0, -radius
    for k in range(-radius, radius + 1):
        total += weights[abs(k)]
        if (share := (total << 128) // whole) == 0:
            first = k + 1  # less than 2^-128 of the mass lies here or below
        else:
            cumulative.append(share - 1)
    mask = (1 << 64) - 1
    high = np.array([c >> 64 for c in cumulative], dtype=np.uint64)
    low = np.array([c & mask for c in cumulative], dtype=np.uint64)
    return high, low, first


def _fixed(x: float) -> int:
    """exp(-x) for 0 <= x <= 1 with 192 fractional bits, by its series."""
    numerator, denominator = x.as_integer_ratio()
    term = total = 1 << _FRACTION
    n = 1
    while term:
        term = term * numerator // (denominator * n)
        total += -term if n % 2 else term
        n += 1
    assert abs(total / (1 << _FRACTION) - exp(-x)) < 1e-12
    return total


def _check(value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise ConfigError(f"Expected a finite value > 0, got {value}.")
