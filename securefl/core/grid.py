"""The public integer grid that every sum is taken on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError, RemoteProtocolError

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The public integer grid that every sum is taken on, so that all ways of summing agree bit for bit.

    Values within +-`bound` become the nearest multiple of `step`. They travel as int32.
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
        """The largest grid integer, which is `bound` on the grid."""
        ratio = self.bound / self.step
        return int(np.rint(ratio)) if np.isfinite(ratio) else 2**31

    def quantise(self, values: Floats, weight: float = 1.0) -> NDArray[np.int32]:
        """Weight times values (d,) as grid integers (d,). The product is taken in the values' own precision.

        Raises DataError for a product that is not finite or out of bounds.
        """
        # One product: by a power of two it is rounded where the product with the weight alone would be.
        with np.errstate(over="ignore"):
            scaled = values * float(weight / self.step)
        # Of a nan, both ends are nan, and nothing is true of it. Compared as Python's floats: in float32 the
        # room could be rounded up.
        room = self.bound / self.step
        if not (-room <= float(scaled.min(initial=0.0)) and float(scaled.max(initial=0.0)) <= room):
            raise DataError(self._why_not(values))
        numbers: NDArray[np.int32] = np.rint(scaled, out=scaled).astype(np.int32)
        return numbers

    def _why_not(self, values: Floats) -> str:
        # The messages name no value: they may be logged, and the values are a client's.
        if not np.isfinite(values).all():
            return (
                "Expected a finite contribution, got one that is not finite. Lower the learning rate or "
                "clean the records."
            )
        return f"Expected a contribution within +-{self.bound:g}, got a larger one. Lower the learning rate."

    def check(self, numbers: NDArray[Any], size: int, sender: str) -> int:
        """The largest magnitude among a peer's grid integers.

        They are refused unless they have the declared type, shape and bound.
        """
        if numbers.dtype != np.int32 or numbers.shape != (size,):
            raise RemoteProtocolError(
                f"Expected {size} int32 values, got {numbers.dtype} of shape {numbers.shape}.",
                sender=sender,
                phase="contribution",
            )
        # both ends, not the absolute value: that of -2^31 is -2^31 in int32, and would pass
        largest = max(-int(numbers.min(initial=0)), int(numbers.max(initial=0)))
        if largest > self.limit:
            raise RemoteProtocolError(
                f"Expected grid values within +-{self.limit}.", sender=sender, phase="contribution"
            )
        return largest
