"""Bounding what one record can do, exactly: on an integer grid, where sums do not round.

Every function rejects records that are not finite first: `np.clip(nan)` is nan, and one nan in a sum tells
that its record was there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def finite(records: Floats) -> NDArray[np.bool_]:
    """Which of the (n, m) records are finite throughout; the others take no part, whatever they hold."""
    return np.asarray(np.isfinite(records).all(axis=1))


def l2(records: Floats, bound: float) -> Floats:
    """The finite (n, m) records, scaled down to a Euclidean norm of at most `bound` > 0."""
    _positive(bound)
    largest = np.abs(records).max(axis=1, initial=0.0, keepdims=True)
    # dividing by the largest entry first: squares of huge entries overflow, those of tiny ones vanish
    direction = np.divide(records, largest, out=np.zeros_like(records), where=largest > 0)
    norm = np.maximum(np.sqrt(np.sum(direction**2, axis=1, keepdims=True)), 1.0)
    return np.where(largest > bound / norm, direction * (bound / norm), records)


def coordinates(records: Floats, bound: float) -> Floats:
    """The finite (n, m) records, each entry clipped to [-bound, bound]."""
    _positive(bound)
    return np.clip(records, -bound, bound)


def to_grid(records: Floats, step: float, limit: int) -> Integers:
    """Integers of shape (n, m) whose norm, as integers, is at most `limit`: truncated, and shrunk if over.

    Truncation towards zero never lengthens a record; what floating point lets over the limit is shrunk until
    the integer norm holds.
    """
    if not (0 < step < np.inf and limit >= 1):
        raise ConfigError(f"Expected a step > 0 and a limit >= 1, got {step} and {limit}.")
    if limit >= 2**31:
        raise ConfigError(f"Expected a limit below 2^31 grid units, got {limit}: squares would overflow.")
    if not np.isfinite(records).all():
        raise DataError("Expected finite records: reject the others first.")
    integers = np.trunc(l2(records, limit * step) / step).astype(np.int64)
    while (over := np.sum(integers**2, axis=1) > limit**2).any():
        integers[over] = np.trunc(integers[over] * (1 - 2.0**-20)).astype(np.int64)
    return integers


def _positive(bound: float) -> None:
    if not 0 < bound < np.inf:
        raise ConfigError(f"Expected a finite bound > 0, got {bound}.")
