"""Quantisation of clients' values to a public integer grid, on which every sum is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError, RemoteProtocolError

Floats = NDArray[np.floating[Any]]
_BLOCK: Final = 2**16
"""The values that are put on a grid at a time: 256 kB in float32."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The public integer grid of a sum. On one grid, all sum schemes give the same totals, bit for bit.

    Values within +-`bound` become the nearest multiple of `step`. They travel as int32.

    Raises:
        ConfigError: unless step > 0, bound > 0 and bound / step < 2^31.

    >>> import numpy as np
    >>> from securefl.algorithm import Grid
    >>> Grid(step=0.25, bound=8.0).quantise(np.array([0.5, -1.1]))
    array([ 2, -4], dtype=int32)
    """

    step: float = 2.0**-21
    bound: float = 2.0**9

    def __post_init__(self) -> None:
        if not (self.step > 0 and self.bound > 0 and self.limit < 2**31):
            raise ConfigError(
                f"Expected step > 0 and bound > 0 with bound / step < 2^31, got {self.step}, {self.bound}."
            )

    @property
    def limit(self) -> int:
        """The largest grid integer: `bound` in units of `step`."""
        ratio = self.bound / self.step
        return int(np.rint(ratio)) if np.isfinite(ratio) else 2**31

    def quantise(self, values: Floats, weight: float = 1.0) -> NDArray[np.int32]:
        """Return `weight * values` as grid integers.

        Args:
            values: (d,) floats. The product is taken in their own precision.
            weight: the factor, from 0 to 1, without unit.

        Returns:
            (d,) int32, in units of `step`.

        Raises:
            DataError: if a value is not finite or exceeds `bound` in magnitude, before or after it is
                weighted. So sums with weights that add up to 1 stay within the bound too.
        """
        # One product instead of two: if `step` is a power of two, dividing by it adds no rounding.
        factor, room = float(weight / self.step), self.bound / self.step
        numbers = np.empty(values.shape, np.int32)
        # Block by block in the memory of the first one: it stays in the cache, and no large vector is
        # allocated beside the result.
        scaled = np.empty(min(len(values), _BLOCK), np.result_type(values, np.float16))
        for at in range(0, len(values), _BLOCK):
            part = values[at : at + _BLOCK]
            block = scaled[: len(part)]
            with np.errstate(over="ignore"):
                np.multiply(part, factor, out=block)
            if not (_surely_within(block, weight * room) or self._holds(part, block)):
                raise DataError(self._why_not(values))
            numbers[at : at + _BLOCK] = np.rint(block, out=block)
        return numbers

    def _holds(self, values: Floats, scaled: Floats) -> bool:
        """Whether values are within the bound, and these products with weight / step too."""
        # If a value is nan, minimum and maximum are nan, and the comparisons are false. They are of Python
        # floats, because in float32 the bound could be rounded up.
        return all(
            -most <= float(of.min()) and float(of.max()) <= most
            for of, most in ((values, self.bound), (scaled, self.bound / self.step))
        )

    def _why_not(self, values: Floats) -> str:
        # The messages name no value: they may be logged, and a client's values are private.
        if not np.isfinite(values).all():
            return (
                "Expected a finite contribution, got one that is not finite. Lower the learning rate or "
                "clean the records."
            )
        return (
            f"Expected a contribution within +-{self.bound:g}, the bound of its grid, got a larger one. "
            "Lower the learning rate, or bound the update (`update_bound`)."
        )

    def check(self, numbers: NDArray[Any], size: int, sender: str) -> int:
        """Return the largest magnitude among a peer's grid integers, after a check of type, shape and bound.

        Args:
            numbers: the array that the peer sent.
            size: the declared number of entries.
            sender: the peer's name, for the error.

        Raises:
            RemoteProtocolError: unless `numbers` is (size,) int32 within +-`limit`.
        """
        if numbers.dtype != np.int32 or numbers.shape != (size,):
            raise RemoteProtocolError(
                f"Expected {size} int32 values, got {numbers.dtype} of shape {numbers.shape}.",
                sender=sender,
                phase="contribution",
            )
        # minimum and maximum, not the absolute value: |-2^31| overflows to -2^31 in int32, and would pass
        largest = max(-int(numbers.min(initial=0)), int(numbers.max(initial=0)))
        if largest > self.limit:
            raise RemoteProtocolError(
                f"Expected grid values within +-{self.limit}.", sender=sender, phase="contribution"
            )
        return largest


def _surely_within(numbers: Floats, most: float) -> bool:
    """Whether the norm of these numbers shows that none is larger than half of `most` in magnitude.

    One product takes a quarter of the time of a search for the smallest and the largest. nan shows nothing.
    """
    # Rounding takes less than a hundredth from the sum of a block, and half of `most` leaves room for it.
    return float(np.dot(numbers, numbers)) <= (most / 2) ** 2
