"""Scaling of records by public constants, after any corruption and before the model: (x - mean) / deviation.

The constants must be published numbers, as a paper's are. Statistics of a study's own records would be a
release that no ledger counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.ranges import Positive, Range, Ranged


@dataclass(frozen=True, kw_only=True)
class Scaling(Ranged):
    """Scaling by public constants: one for all values of a record, or one for each channel of an image.

    mean: subtracted from each value. deviation: divides the difference.

    Raises ValueError for other than finite means and as many finite deviations above 0.
    """

    mean: tuple[Annotated[float, Range("(-inf, inf)")], ...]
    deviation: tuple[Positive, ...]

    def refusals(self) -> Iterator[str]:
        if not 1 <= len(self.mean) == len(self.deviation):
            yield f"Expected as many deviations as means, got {len(self.deviation)} and {len(self.mean)}."

    def require(self, shape: tuple[int, ...]) -> None:
        """Raises ValueError unless records of `shape` have one channel for each constant, or one is given."""
        channels = shape[0] if len(shape) > 1 else 1
        if len(self.mean) not in (1, channels):
            many = f", or {channels}, one for each channel" if channels > 1 else ""
            raise ValueError(
                f"Expected one mean and one deviation for records of shape {shape}{many}, got "
                f"{len(self.mean)}."
            )

    def of(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """The scaled records: float32, of the shape (n, ...) of `x`."""
        rest = (1,) * max(0, x.ndim - 2)
        mean, deviation = (np.array(c, np.float32).reshape(-1, *rest) for c in (self.mean, self.deviation))
        return np.asarray((x - mean) / deviation, np.float32)
