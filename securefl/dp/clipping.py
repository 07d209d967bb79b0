"""Bounding the effect of one record exactly, on an integer grid, where sums do not round.

Non-finite records must be rejected before anything is clipped: `np.clip(nan)` is nan, and one nan in a sum
tells that its record was there.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_SHRUNK: Final = 2.0**-20
"""The part that a row loses which rounding errors let over the limit."""


def finite(records: Floats) -> NDArray[np.bool_]:
    """Which of the (n, m) records are finite in every entry. The others take no part."""
    return np.asarray(np.isfinite(records).all(axis=1))


def clip_l2(records: Floats, bound: float) -> Floats:
    """The finite (n, m) records, scaled down to a Euclidean norm of at most `bound` > 0."""
    if not 0 < bound < np.inf:
        raise ConfigError(f"Expected a finite bound > 0, got {bound}.")
    largest = np.abs(records).max(axis=1, initial=0.0, keepdims=True)
    # Divide by the largest entry first: squares of huge entries overflow, and those of tiny ones vanish.
    direction = np.divide(records, largest, out=np.zeros_like(records), where=largest > 0)
    norm = np.maximum(np.sqrt(np.sum(direction**2, axis=1, keepdims=True)), 1.0)
    return np.where(largest > bound / norm, direction * (bound / norm), records)


def to_grid(records: Floats, step: float, limit: int) -> Integers:
    """Put records (n, m) on the grid: integers int64 (n, m), each row of a norm of at most `limit`.

    The norm is that of the integers, so the sensitivity of their sum is exact. Truncation towards zero never
    lengthens a record. A row that rounding errors let over the limit is shrunk until its integer norm holds.
    """
    if not (0 < step < np.inf and limit >= 1):
        raise ConfigError(f"Expected a step > 0 and a limit >= 1, got {step} and {limit}.")
    if limit >= 2**31:
        raise ConfigError(f"Expected a limit below 2^31 grid units, got {limit}: squares would overflow.")
    if not np.isfinite(records).all():
        raise DataError("Expected finite records: reject the others first.")
    # Not np.rint, and not randomised rounding: both can lengthen a record beyond the limit.
    integers = np.trunc(clip_l2(records, limit * step) / step).astype(np.int64)
    while (over := np.sum(integers**2, axis=1) > limit**2).any():
        integers[over] = np.trunc(integers[over] * (1 - _SHRUNK)).astype(np.int64)
    return integers


def spread(entries: int, limit: int) -> float:
    """How much further apart than before `to_grid` can put two rows of so many entries, in grid units.

    A sum that is scaled down as a whole needs it: each of its records moves it by that much further. Scaling
    into a ball moves no two rows further apart. Truncating two entries puts them less than 1 further apart.
    A row t that is shrunk had a norm above the limit L, and came by truncation from a row a of a norm of at
    most L, up to a part e < 2^-42 for rounding errors. So |a - t|^2 <= |a|^2 - |t|^2 <= 2 e L^2, and t is
    shrunk by 2^-20 L: together less than 2^-19 L.
    """
    return sqrt(entries) + 2 * _SHRUNK * limit
