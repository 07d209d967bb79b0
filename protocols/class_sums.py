"""Sums of (1, phi(x)) over each class's records, on a grid: the statistic of FedLog and FedProto.

`statistic` computes them from arrays and `sensitivities` bounds them. `Statistic` is a client's contribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isqrt, sqrt
from typing import Any, Literal, Protocol

import numpy as np
import torch
from dp_accounting import DpEvent
from numpy.typing import NDArray
from torch import nn

from securefl.algorithm import (
    Adjacency,
    ClientContext,
    ClientState,
    Floats,
    Grid,
    Unit,
    Value,
    ValueSpec,
)
from securefl.dp import clipping
from securefl.errors import DataError
from securefl.training.chunks import body_features
from securefl.training.fit import Fit, Fitted
from securefl.training.fitting import fitted
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


class Featurizer(Protocol):
    """Turns a client's records into features, with a body that may be trained before.

    `initial_queries`: the number of initial queries, which clients answer before anything is trained.
    `training`: the cost of each training, if it is accounted. `once`: the body is never trained, so its
    features never change.
    """

    @property
    def depends_on(self) -> Literal["records", "trained-state"]: ...

    @property
    def initial_queries(self) -> int: ...

    @property
    def training(self) -> DpEvent | None: ...

    @property
    def once(self) -> bool: ...

    def fit(self, context: ClientContext) -> Fit | None:
        """The training of the body for this round's statistic. None if the body is not trained."""
        ...

    def prepared(
        self, context: ClientContext, trained: Fitted | None
    ) -> tuple[nn.Module, ClientState | None]:
        """The client's model with the body that `fit` trained, and the client's new state."""
        ...


@dataclass(frozen=True, kw_only=True)
class Clipping:
    """How features are bounded: the same way in training, in the statistic and in predictions.

    kind: "unit-l2": features are scaled to the norm `bound`. Those of norm 0 stay. FedLog models features of
        unit variance, so this public scale decides how sure its head is. "bounded": each feature is clipped
        to [-bound, bound], as in the paper. "none": features are not bounded, and no noise can be added.
    bound: the norm, or the largest absolute value, that `kind` names.

    Raises ValueError for a bound that the grid cannot hold.

    >>> import numpy as np
    >>> from securefl.protocols.fedlog import Clipping
    >>> Clipping(kind="bounded", bound=0.5).bounded(np.array([[0.2, -3.0]]))
    array([[ 0.2, -0.5]])
    """

    kind: Clip = field(default="unit-l2", metadata={"words": _CLIPS.get})
    bound: float = 1.0

    def __post_init__(self) -> None:
        if not 1 / _UNIT <= self.bound <= 1024:
            raise ValueError(f"Expected clip.bound from 2^-10 to 1024, got {self.bound}.")

    def in_words(self) -> str:
        """The clipping in the words of a plot's legend."""
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
        """The clipping as an activation between body and head. None without a bound."""
        return None if self.kind == "none" else Bounded(kind=self.kind, bound=self.bound)

    def bounded(self, features: Floats) -> Floats:
        """Features (n, width), bounded as training, statistic and predictions bound them."""
        activation = self.activation()
        return features if activation is None else activation(torch.from_numpy(features)).numpy()

    def integers(self, features: Floats) -> NDArray[np.int64]:
        """Bounded features (n, width) as grid integers. The norm of each row is within `limit`."""
        limit = self.limit(features.shape[1])
        if limit is None:
            # Without a bound no noise is added, so rounding to nearest may lengthen a record.
            largest = GRID.bound / GRID.step
            return np.clip(np.rint(features / GRID.step), -largest, largest).astype(np.int64)
        return clipping.to_grid(features, GRID.step, limit)


def sensitivities(
    clip: Clipping, classes: int, width: int, client_bound: float | None = None
) -> Mapping[tuple[Unit, Adjacency], float]:
    """The L2 sensitivities of `statistic`, for a body that was not made from the records.

    Adding or removing a record moves the sum by |(1, phi)|. Replacing one changes two classes by that, or one
    class by twice |phi|. A client whose whole statistic is clipped to `client_bound` moves the sum by that
    bound, or by twice that. A record moves a clipped statistic further than one that is not, since scaling it
    down truncates every entry.

    Args:
        clip: as in `statistic`.
        classes: C.
        width: the number of features, without the constant 1.
        client_bound: as in `statistic`.

    Returns:
        The sensitivity by (unit, adjacency), in units of the features. No entry stands for no bound.

    Raises nothing.

    >>> from securefl.protocols.fedlog import Clipping, sensitivities
    >>> round(sensitivities(Clipping(), classes=3, width=4)["record", "add-remove"], 6)
    1.414214
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
    return found


def spec(
    clip: Clipping,
    classes: int,
    width: int,
    body: Featurizer,
    client_bound: float | None,
    clients: int,
    bounded_by: Mapping[Unit, str] = _BOUNDED_BY,
) -> ValueSpec:
    """The description of the statistic, with its sensitivities."""
    return ValueSpec(
        name="statistic",
        reduction="sum",
        reveals="the sums of its features by class (of a class that it alone holds, its own sums; and which "
        "classes nobody holds)",
        depends_on=body.depends_on,
        training=body.training,
        sensitivity=sensitivities(clip, classes, width, client_bound),
        bounded_by=bounded_by,
        grid=GRID,
        on_model=False,
        initial_queries=body.initial_queries,
        once=body.once,
        cohort=clients,
    )


def _whole(bound: float) -> int:
    """The bound of a client's whole statistic in grid units."""
    return int(bound / GRID.step)


def statistic(
    features: Floats,
    labels: NDArray[np.integer[Any]],
    classes: int,
    clip: Clipping = Clipping(),
    client_bound: float | None = None,
) -> NDArray[np.int64]:
    """T = sum over the records of onehot(y) x (1, phi(x)), which leaves a client (FedLog, Eqs. 2 and 13).

    The count is a feature, the constant 1, so it is noised with the sums and never travels by itself. A
    record with non-finite features, or with a label that is no class, is left out: an error would tell that
    the record is there.

    Sensitivity (L2, of the integers times 2^-10; `sensitivities` computes it for every `clip`): with
    clip.kind "unit-l2" and bound b, one record moves the statistic by sqrt(1 + b^2) under add-remove, and by
    max(sqrt(2 + 2 b^2), 2 b) under replace-one. One client moves it by `client_bound` under zero-out, and by
    twice that under replace-one. With `client_bound`, truncation adds to the two of a record.

    Args:
        features: phi, float64 (n, width), bounded by `clip.bounded`. A longer row is scaled down.
        labels: y, integers (n,). Classes are 0 to classes - 1.
        classes: C.
        clip: the public bound on the features of a record.
        client_bound: the largest L2 norm of a client's whole statistic, in units of the features. A longer
            statistic is scaled down. None leaves it as it is.

    Returns:
        int64 (C, 1 + width), in units of 2^-10. Column 0 counts the records of a class.

    Raises:
        DataError: features and labels are not of n records.

    >>> import numpy as np
    >>> from securefl.protocols.fedlog import statistic
    >>> phi, y = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), np.array([0, 1, 1])
    >>> (statistic(phi, y, classes=2) / 2**10).round(1)
    array([[1. , 1. , 0. ],
           [2. , 0.6, 1.8]])
    """
    if features.ndim != 2 or labels.shape != (len(features),):
        raise DataError(
            f"Expected features (n, width) and labels (n,), got {features.shape} and {labels.shape}."
        )
    known = clipping.finite(features) & (labels >= 0) & (labels < classes)
    integers = clip.integers(features[known])
    rows = np.hstack([np.full((len(integers), 1), _UNIT, dtype=np.int64), integers])
    total = np.zeros((classes, rows.shape[1]), dtype=np.int64)
    # Not `total[y] += rows`: with repeated indices that adds one record of a class and drops the others.
    np.add.at(total, labels[known], rows)
    if client_bound is None:
        return total
    whole = total.ravel()[None].astype(np.float64) * GRID.step
    return clipping.to_grid(whole, GRID.step, _whole(client_bound)).reshape(total.shape)


def class_means(statistic: Floats) -> Floats:
    """The mean features of each class, Phi_y / Phi_y0 without the constant, (C, width).

    A class with a count below 1 has nan: noise can make a count small, zero or negative, and then the
    quotient is no mean.
    """
    counts = statistic[:, :1]
    return np.where(counts >= 1, statistic[:, 1:] / np.maximum(counts, 1), np.nan)


@dataclass(frozen=True, eq=False)
class Statistic:
    """A client's contribution to FedLog and FedProto: the `statistic` of its records' features.

    `bounded_by` is as in `ValueSpec`, in the words of the system's options.
    """

    body: Featurizer
    clip: Clipping
    classes: int
    width: int
    clients: int
    client_bound: float | None = None
    bounded_by: Mapping[Unit, str] = field(default_factory=lambda: _BOUNDED_BY)

    @property
    def spec(self) -> ValueSpec:
        return spec(
            self.clip,
            self.classes,
            self.width,
            self.body,
            self.client_bound,
            self.clients,
            self.bounded_by,
        )

    def fit(self, context: ClientContext) -> Fit | None:
        return self.body.fit(context)

    def compute(self, context: ClientContext) -> Value:
        fit = self.fit(context)
        return self.value(context, None if fit is None else fitted(fit))

    def value(self, context: ClientContext, trained: Fitted | None) -> Value:
        model, kept = self.body.prepared(context, trained)
        phi = body_features(model, context.x, self.clip.activation())
        total = statistic(phi, np.asarray(context.y), self.classes, self.clip, self.client_bound)
        return Value(integers=total.ravel(), new_state=kept)
