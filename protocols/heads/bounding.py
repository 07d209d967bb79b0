"""One record's features before they are summed: bounded by 1, and integers of a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.queries import Floats
from securefl.dp import clipping

UNIT = 2**14
"""The norm 1 in the integers of a row. Products of two rows of it sum exactly in float64 for 2^25 records."""


@dataclass(frozen=True, kw_only=True)
class Bounding:
    """How the features of a record come to have a norm of at most 1. All constants are public.

    kind "unit-l2": features are scaled to norm 1. Those of norm 0 stay.
    kind "clip-l2": features are divided by `bound`, and those of a norm beyond 1 are scaled down to 1.
    """

    kind: Literal["unit-l2", "clip-l2"] = "unit-l2"
    bound: float = 1.0

    def __post_init__(self) -> None:
        if not 1e-6 <= self.bound <= 1e9:
            raise ValueError(f"Expected bounding.bound from 1e-6 to 1e9, got {self.bound}.")
        if self.kind == "unit-l2" and self.bound != 1.0:
            raise ValueError(
                f'Expected `bound` with kind = "clip-l2" alone, got {self.bound} with "unit-l2", which '
                "scales each record to norm 1. Leave it out."
            )

    def bounded(self, features: Floats) -> Floats:
        """Finite features (n, k) with rows of a norm of at most 1."""
        if self.kind == "clip-l2":
            return clipping.l2(features / self.bound, 1.0)
        # Divide by the largest entry first: squares of huge entries overflow, and those of tiny ones vanish.
        largest = np.abs(features).max(axis=1, initial=0.0, keepdims=True)
        direction = np.divide(features, largest, out=np.zeros_like(features), where=largest > 0)
        lengths = np.linalg.norm(direction, axis=1, keepdims=True)
        return np.asarray(direction / np.maximum(lengths, 1.0))

    def beyond(self, features: Floats) -> int:
        """How many of these records lie beyond the bound and are scaled down."""
        if self.kind == "unit-l2":
            return 0
        largest = np.abs(features).max(axis=1, initial=0.0)
        # squares of entries beyond the bound may overflow, and need not be taken
        inside = np.minimum(np.abs(features), self.bound * 2)
        norms = np.linalg.norm(inside, axis=1)
        return int(np.sum((largest > self.bound) | (norms > self.bound)))

    def integers(self, features: Floats) -> NDArray[np.int64]:
        """Finite features (n, k) as integers of norm at most UNIT a row."""
        return clipping.to_grid(self.bounded(features), 1 / UNIT, UNIT)
