"""Quantisation of clients' values to a public integer grid, on which every sum is taken."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log2
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError, LocalProtocolError, RemoteProtocolError

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

    @staticmethod
    def around(bound: float) -> Grid:
        """A grid for noised vectors of a norm within `bound`, which is 2^14 to 2^15 of its steps."""
        # A step is small against any noise, and large enough that noise stays below 2^24 steps.
        step = float(2.0 ** (floor(log2(bound)) - 14))
        return Grid(step=step, bound=step * 2**24)

    @staticmethod
    def within(bound: float) -> Grid:
        """A grid for vectors without noise whose entries are within `bound`: 2^29 to 2^30 of its steps."""
        # A power of two, so that whole numbers are exact.
        return Grid(step=2.0 ** (ceil(log2(bound)) - 30), bound=bound)

    @property
    def limit(self) -> int:
        """The largest grid integer: `bound` in units of `step`."""
        ratio = self.bound / self.step
        return int(np.rint(ratio)) if np.isfinite(ratio) else 2**31

    def quantise(self, values: Floats, weight: float = 1.0) -> NDArray[np.int32]:
        """Return `weight * values` as grid integers.

        Args:
            values: (d,) floats. The product is taken in their own precision, and at least in float32.
            weight: the factor, above 0 and at most 1, without unit.

        Returns:
            (d,) int32 within +-`limit`, in units of `step`.

        Raises:
            DataError: if a value is not finite or exceeds `bound` in magnitude before it is weighted. So sums
                with weights that add up to 1 stay within the bound too.
            LocalProtocolError: if the weight is outside its range.
        """
        if not 0 < weight <= 1:
            raise LocalProtocolError(f"Expected a weight above 0 and at most 1, got {weight}.")
        # One product instead of two: if `step` is a power of two, dividing by it adds no rounding.
        factor, room = float(weight / self.step), self.bound / self.step
        numbers = np.empty(values.shape, np.int32)
        # Block by block in the memory of the first one: it stays in the cache, and no large vector is
        # allocated beside the result. A float16 would round more than the room of a sum allows for.
        scaled = np.empty(min(len(values), _BLOCK), np.result_type(values, np.float32))
        limit = _at_most(self.limit, scaled.dtype)
        for at in range(0, len(values), _BLOCK):
            part = values[at : at + _BLOCK]
            block = scaled[: len(part)]
            with np.errstate(over="ignore"):
                np.multiply(part, factor, out=block, dtype=block.dtype)
            if not _surely_within(block, weight * room):
                if not self._holds(part):
                    raise DataError(self._why_not(values))
                # By rounding alone, a product can exceed the limit.
                np.clip(block, -limit, limit, out=block)
            numbers[at : at + _BLOCK] = np.rint(block, out=block)
        return numbers

    def clipped(self, values: Floats) -> Floats:
        """Move entries beyond +-`bound` to it.

        Args:
            values: floats (d,).

        Returns:
            Floats (d,) of the same type, within the bound also after rounding to that type. nan stays.
        """
        most = _at_most(self.bound, values.dtype)
        return np.clip(values, -most, most)

    def _holds(self, values: Floats) -> bool:
        """Whether values are finite and within the bound."""
        # If a value is nan, minimum and maximum are nan, and the comparisons are false. They are of Python
        # floats, because in float32 the bound could be rounded up.
        return -self.bound <= float(values.min()) and float(values.max()) <= self.bound

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


def _at_most(number: float, dtype: np.dtype[Any]) -> Any:
    """The largest number of this type that is not above the given one, which is positive."""
    near = dtype.type(number)
    return near if float(near) <= number else np.nextafter(near, dtype.type(0))


def _surely_within(numbers: Floats, most: float) -> bool:
    """Whether the norm of these numbers shows that none is larger than half of `most` in magnitude.

    One product takes a quarter of the time of a search for the smallest and the largest. nan shows nothing.
    """
    # Rounding takes less than a hundredth from the sum of a block, and half of `most` leaves room for it.
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite norm shows nothing either
        return float(np.dot(numbers, numbers)) <= (most / 2) ** 2
