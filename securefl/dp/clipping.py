"""Clipping records to a norm, on an integer grid on which sums do not round.

Reject non-finite records before you clip: `np.clip(nan)` is nan, and one nan in a sum reveals that its record
was there.
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
"""The relative shrinkage of a row that rounding errors left above the limit."""


def finite(records: Floats) -> NDArray[np.bool_]:
    """Which of the (n, m) records are finite in every entry: bool (n,). Callers drop the others."""
    return np.asarray(np.isfinite(records).all(axis=1))


def clip_l2(records: Floats, bound: float) -> Floats:
    """Clip records: scale each down to a Euclidean norm of at most `bound`.

        >>> import numpy as np
        >>> from securefl.dp import clip_l2
        >>> clip_l2(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0).round(2).tolist()
        [[0.6, 0.8], [0.3, 0.4]]

    Args:
        records: finite float64 (n, m).
        bound: the largest norm, above 0.

    Returns:
        float64 (n, m).

    Raises:
        ConfigError: the bound is not finite and above 0.
    """
    if not 0 < bound < np.inf:
        raise ConfigError(f"Expected a finite bound > 0, got {bound}.")
    largest, direction, norm = directions(records)
    return np.where(largest > bound / norm, direction * (bound / norm), records)


def directions(records: Floats) -> tuple[Floats, Floats, Floats]:
    """Each record's largest magnitude (n, 1), the record over it (n, m), and the norm of that (n, 1).

    Squares of huge entries overflow, and those of tiny ones vanish: of the quotient, none does. A record of
    zeros has the quotient 0 and the norm 1.
    """
    largest = np.abs(records).max(axis=1, initial=0.0, keepdims=True)
    direction = np.divide(records, largest, out=np.zeros_like(records), where=largest > 0)
    return largest, direction, np.maximum(np.sqrt(np.sum(direction**2, axis=1, keepdims=True)), 1.0)


def to_grid(records: Floats, step: float, limit: int) -> Integers:
    """Put records on the integer grid, each row with a norm of at most `limit`.

        >>> import numpy as np
        >>> from securefl.dp import to_grid
        >>> to_grid(np.array([[0.3, 0.4], [30.0, 40.0]]), step=0.01, limit=100).tolist()
        [[30, 40], [60, 80]]

    The norm is that of the integers, so the sensitivity of their sum is exact. Truncation towards zero never
    lengthens a record. A row that rounding errors leave above the limit is shrunk until its integer norm is
    within.

    Args:
        records: finite floats (n, m).
        step: the grid's step, above 0.
        limit: the largest L2 norm in grid units, from 1 to below 2^31.

    Returns:
        int64 (n, m), in grid units.

    Raises:
        ConfigError: the step or the limit is out of range.
        DataError: a record is not finite.
    """
    if not (0 < step < np.inf and limit >= 1):
        raise ConfigError(f"Expected a step > 0 and a limit >= 1, got {step} and {limit}.")
    if limit >= 2**31:
        raise ConfigError(f"Expected a limit below 2^31 grid units, got {limit}: squares would overflow.")
    if not np.isfinite(records).all():
        raise DataError("Expected finite records, got nan or infinity in some. Reject those first.")
    # Neither np.rint nor randomised rounding: both can lengthen a record beyond the limit.
    integers = np.trunc(clip_l2(records, limit * step) / step).astype(np.int64)
    while (over := np.sum(integers**2, axis=1) > limit**2).any():
        integers[over] = np.trunc(integers[over] * (1 - _SHRUNK)).astype(np.int64)
    return integers


def spread(entries: int, limit: int) -> float:
    """How much `to_grid` can increase the distance of two rows of this many entries, in grid units.

    If a sum is scaled down as a whole, each of its records can move it by that much more. Scaling into a ball
    does not increase distances. Truncating adds less than 1 to the difference of two entries. A row t that is
    shrunk had a norm above the limit L, and came by truncation from a row a of a norm of at most L, up to a
    part e < 2^-42 for rounding errors. So |a - t|^2 <= |a|^2 - |t|^2 <= 2 e L^2, and t is shrunk by 2^-20 L:
    together less than 2^-19 L.
    """
    return sqrt(entries) + 2 * _SHRUNK * limit
