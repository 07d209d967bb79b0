"""The clients' statistic: sums of (1, phi(x)) over each class's records, on a grid, of known sensitivity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isqrt, sqrt
from typing import Literal

import numpy as np

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.queries import Floats, Value, ValueSpec
from securefl.core.grid import Grid
from securefl.core.release import Adjacency, Unit
from securefl.dp import clipping
from securefl.protocols.fedlog.bodies import Body
from securefl.training.chunks import body_features
from securefl.training.fit import Fit, Fitted, fitted
from securefl.training.heads import Bounded

Clip = Literal["unit-l2", "bounded", "none"]
GRID = Grid(step=2.0**-10, bound=2.0**20)
_UNIT = 2**10
"""The constant feature, 1, in grid units."""

_BOUNDED_BY: Mapping[Unit, str] = {
    "record": '`clip` of kind "unit-l2" or "bounded" in its arm, body = "public" or "dp-sgd", and noise',
    "client": "`client_bound` in its arm, and noise",
}
_CLIPS = {"unit-l2": "unit norm", "bounded": "bounded features", "none": "features as they are"}


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """How features are bounded: the same way in training, in the statistic and in predictions.

    kind "unit-l2": features are scaled to the norm `bound`, by default 1. Those of norm 0 stay. FedLog models
        features of unit variance, so this public scale decides how sure its head is.
    kind "bounded": each feature is clipped to [-bound, bound], as in the paper.
    kind "none": features are not bounded, and no noise can be added.
    """

    kind: Clip = field(default="unit-l2", metadata={"words": _CLIPS.get})
    bound: float = 1.0

    def __post_init__(self) -> None:
        if not 1 / _UNIT <= self.bound <= 1024:
            raise ValueError(f"Expected clip.bound from 2^-10 to 1024, got {self.bound}.")

    def in_words(self) -> str:
        """As a legend says it."""
        if self.kind == "unit-l2" and self.bound != 1:
            return f"norm {self.bound:g}"
        return f"features within ±{self.bound:g}" if self.kind == "bounded" else _CLIPS[self.kind]

    def limit(self, width: int) -> int | None:
        """The largest integer norm of a record's clipped features, in grid units. None is no limit."""
        match self.kind:
            case "unit-l2":
                return int(self.bound * _UNIT)
            case "bounded":
                return isqrt(width * int(self.bound * _UNIT) ** 2)
            case "none":
                return None

    def activation(self) -> Bounded | None:
        """The same on tensors, between body and head."""
        return None if self.kind == "none" else Bounded(kind=self.kind, bound=self.bound)

    def integers(self, features: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """Features (n, width), as the activation leaves them, as grid integers of a norm within `limit`."""
        limit = self.limit(features.shape[1])
        if limit is None:
            # nothing is noised then, so rounding to nearest may lengthen a record: it is closer to the value
            largest = GRID.bound / GRID.step
            return np.clip(np.rint(features / GRID.step), -largest, largest).astype(np.int64)
        return clipping.to_grid(features, GRID.step, limit)


def spec(
    clip: Clipping, classes: int, width: int, body: Body, client_bound: float | None, clients: int
) -> ValueSpec:
    """The statistic's sensitivities. They are exact for a body that was not made from the records.

    Adding or removing a record moves the sum by |(1, phi)|. Replacing one changes two classes by that, or one
    class by twice |phi|. A client whose whole statistic is clipped to `client_bound` moves the sum by that
    bound, or by twice that. A record moves a clipped statistic further than one that is not, since scaling it
    down truncates every entry.
    """
    limit, found = clip.limit(width), dict[tuple[Unit, Adjacency], float]()
    if limit is not None:
        entries = classes * (1 + width)
        more = 0.0 if client_bound is None else clipping.spread(entries, _whole(client_bound)) * GRID.step
        alone = sqrt(_UNIT**2 + limit**2) * GRID.step
        found["record", "add-remove"] = alone + more
        found["record", "replace-one"] = max(sqrt(2) * alone, 2 * limit * GRID.step) + more
    if client_bound is not None:
        found["client", "zero-out"] = client_bound
        found["client", "replace-one"] = 2 * client_bound
    return ValueSpec(
        name="statistic",
        reduction="sum",
        reveals="the sums of its features by class (of a class that it alone holds, its own sums; and which "
        "classes nobody holds)",
        depends_on=body.depends_on,
        training=body.training,
        sensitivity=found,
        bounded_by=_BOUNDED_BY,
        grid=GRID,
        on_model=False,
        initial_queries=body.initial_queries,
        once=body.once,
        cohort=clients,
    )


def _whole(bound: float) -> int:
    """The bound of a client's whole statistic in grid units."""
    return int(bound / GRID.step)


@dataclass(frozen=True, eq=False)
class Statistic:
    """T = sum of onehot(y) x (1, phi(x)), (C, 1 + width), over a client's records.

    A record with non-finite features, or without a known label, takes no part. To refuse the whole
    contribution would tell that the record is there.
    """

    body: Body
    clip: Clipping
    classes: int
    width: int
    clients: int
    client_bound: float | None = None

    @property
    def spec(self) -> ValueSpec:
        return spec(self.clip, self.classes, self.width, self.body, self.client_bound, self.clients)

    def fit(self, context: ClientContext) -> Fit | None:
        return self.body.fit(context)

    def compute(self, context: ClientContext) -> Value:
        fit = self.fit(context)
        return self.value(context, None if fit is None else fitted(fit))

    def value(self, context: ClientContext, trained: Fitted | None) -> Value:
        model, kept = self.body.prepared(context, trained)
        y = np.asarray(context.y)
        phi = body_features(model, context.x, self.clip.activation())
        known = clipping.finite(phi) & (y >= 0) & (y < self.classes)
        integers = self.clip.integers(phi[known])
        # The count is a feature, the constant 1, and so is noised with the sums. It never travels by itself.
        rows = np.hstack([np.full((len(integers), 1), _UNIT, dtype=np.int64), integers])
        total = np.zeros((self.classes, 1 + self.width), dtype=np.int64)
        # Not `total[y] += rows`: with repeated indices that adds one record of a class and drops the others.
        np.add.at(total, y[known], rows)
        if self.client_bound is not None:
            whole = total.ravel()[None].astype(np.float64) * GRID.step
            total = clipping.to_grid(whole, GRID.step, _whole(self.client_bound))
        return Value(integers=total.ravel(), new_state=kept)
