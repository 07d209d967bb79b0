"""A client's contribution to a head: sums over its records' bounded features, of known sensitivity.

Before they are summed, a record's features are bounded by 1, and integers of a grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.queries import Floats, Value, ValueSpec
from securefl.core.release import Adjacency, Unit
from securefl.dp import clipping
from securefl.protocols.heads.blocks import UNIT, Blocks, Integers
from securefl.training.chunks import body_features
from securefl.training.heads import Projection
from securefl.training.task import Problem


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
            return clipping.clip_l2(features / self.bound, 1.0)
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


_BOUNDED_BY: Mapping[Unit, str] = {
    "record": "noise, by an `epsilon` in [privacy]",
    "client": "`client_bound` in its arm, and noise",
}
_ROWS = 4096
"""Records that are put on the grid at a time. Integers add up to the same sum in any division."""


@dataclass(frozen=True, eq=False)
class Statistic:
    """Sums of a client's records, as `blocks` says.

    A record's features are the input of the public model's last dense layer. A record with features that are
    not finite, or without a known label, takes no part. To refuse the whole contribution would tell that it
    is there.
    """

    problem: Problem
    bounding: Bounding
    projection: Projection
    blocks: Blocks
    reveals: str
    client_bound: float | None = None

    @cached_property
    def spec(self) -> ValueSpec:
        """The declared sensitivities. Per client it is the bound on the whole vector, or twice that."""
        found: dict[tuple[Unit, Adjacency], float] = {
            ("record", "add-remove"): self.blocks.sensitivity("add-remove") + self._rescaled(),
            ("record", "replace-one"): self.blocks.sensitivity("replace-one") + self._rescaled(),
        }
        if self.client_bound is not None:
            found["client", "zero-out"] = self.client_bound
            found["client", "replace-one"] = 2 * self.client_bound
        return ValueSpec(
            name="statistic",
            reduction="sum",
            reveals=self.reveals,
            sensitivity=found,
            bounded_by=_BOUNDED_BY,
            grid=self.blocks.grid,
            on_model=False,
            once=True,
            cohort=self.problem.clients,
        )

    def _rescaled(self) -> float:
        """How much further one record can move a vector that is scaled down to the client's bound."""
        if self.client_bound is None:
            return 0.0
        return clipping.spread(self.blocks.size, self._limit(self.client_bound)) * self.blocks.grid.step

    def _limit(self, bound: float) -> int:
        """The bound of a client's whole vector in grid units."""
        return int(bound / self.blocks.grid.step)

    def features(self, x: NDArray[Any]) -> Floats:
        """Records (n, ...) as projected features (n, k), not yet bounded."""
        return body_features(self.problem.module(self.problem.initial), x, self.projection)

    def compute(self, context: ClientContext) -> Value:
        y = np.asarray(context.y)
        total, beyond = np.zeros(self.blocks.size, np.int64), 0
        for start in range(0, len(y), _ROWS):
            own, over = self._summed(context.x[start : start + _ROWS], y[start : start + _ROWS])
            total, beyond = total + own, beyond + over
        total = self.blocks.on_grid(total)
        if self.client_bound is not None:
            step = self.blocks.grid.step
            whole = total[None].astype(np.float64) * step
            total = clipping.to_grid(whole, step, self._limit(self.client_bound))[0]
        return Value(integers=total, clipped=beyond, new_state={"clipped": np.array([beyond])})

    def _summed(self, x: NDArray[Any], y: Integers) -> tuple[Integers, int]:
        """The exact sums of these records, and how many of them lay beyond the bound."""
        features = self.features(x)
        known = clipping.finite(features) & (y >= 0) & (y < self.blocks.classes)
        return (
            self.blocks.exact(self.bounding.integers(features[known]), y[known]),
            self.bounding.beyond(features[known]),
        )
