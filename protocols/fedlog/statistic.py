"""What clients send: sums of (1, phi(x)) over the records of each class, on a grid, of known sensitivity."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, sqrt
from typing import Literal

import numpy as np

from securefl.dp import clipping
from securefl.rounds import Floats, Grid, Job, Sends, Value
from securefl.training.heads import body_features
from securefl.training.task import Problem

Clip = Literal["unit-l2", "bounded"]
GRID = Grid(step=2.0**-10, bound=2.0**20)
_UNIT = 2**10
"""The constant feature, 1, in grid units."""


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """kind "unit-l2": the features are scaled to unit norm, and those of norm 0 stay.
    kind "bounded": each is clipped to [-bound, bound], as in the paper."""

    kind: Clip = "unit-l2"
    bound: float = 1.0

    def limit(self, width: int) -> int:
        """The largest integer norm of a record's clipped features, in grid units."""
        if self.kind == "unit-l2":
            return _UNIT
        return isqrt(width * int(self.bound * _UNIT) ** 2)

    def integers(self, features: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Features (n, width) as grid integers of a norm of at most `limit`."""
        if self.kind == "bounded":
            return clipping.to_grid(
                clipping.coordinates(features, self.bound), GRID.step, self.limit(features.shape[1])
            )
        norms = np.linalg.norm(features, axis=1, keepdims=True)
        unit = np.divide(features, norms, out=np.zeros_like(features), where=norms > 0)
        return clipping.to_grid(unit, GRID.step, self.limit(features.shape[1]))


def sends(clip: Clipping, width: int) -> Sends:
    """The statistic of a body that does not depend on the records: record-level sensitivities are exact.

    Add or remove a record: |(1, phi)|. Replace one: two classes change by that, or one by twice |phi|.
    """
    limit = clip.limit(width)
    alone = sqrt(_UNIT**2 + limit**2) * GRID.step
    return Sends(
        name="statistic",
        how="sum",
        reveals="the sums of its features by class",
        sensitivity={
            ("record", "add-remove"): alone,
            ("record", "replace-one"): max(sqrt(2) * alone, 2 * limit * GRID.step),
        },
        grid=GRID,
        on_model=False,
    )


@dataclass(frozen=True, eq=False)
class Statistic:
    """T = sum of onehot(y) x (1, phi(x)), (C, 1 + width), over a client's records; public body.

    A record whose features are not finite, or whose label is none, takes no part: to refuse the whole
    would tell that it is there.
    """

    problem: Problem
    clip: Clipping
    width: int

    @property
    def sends(self) -> Sends:
        return sends(self.clip, self.width)

    def compute(self, job: Job) -> Value:
        classes = self.problem.outputs
        y = np.asarray(job.y)
        phi = body_features(self.problem.module(self.problem.initial), job.x)
        kept = clipping.finite(phi) & (y >= 0) & (y < classes)
        integers = self.clip.integers(phi[kept])
        rows = np.hstack([np.full((len(integers), 1), _UNIT, dtype=np.int64), integers])
        total = np.zeros((classes, 1 + self.width), dtype=np.int64)
        np.add.at(total, y[kept], rows)
        return Value(clear=(total.ravel() * GRID.step).astype(np.float64))
