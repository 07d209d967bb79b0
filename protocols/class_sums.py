"""Sums of (1, phi(x)) over each class's records, on a grid: the statistic of FedLog and FedProto.

`statistic_spec` gives its specification, and the function that computes it from arrays. `Statistic` is a
client's contribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import isqrt, sqrt
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from dp_accounting import DpEvent
from numpy.typing import NDArray
from torch import nn

from securefl.algorithm import (
    ClientContext,
    ClientState,
    Device,
    Evaluation,
    Float32s,
    Floats,
    Grid,
    Schedule,
    State,
    Unit,
    Value,
    ValueSpec,
)
from securefl.core.ranges import Range, Ranged
from securefl.dp import clipping
from securefl.errors import ConfigError, DataError
from securefl.mechanisms import Protection
from securefl.protocols.class_counts import COUNTS, Centres, Counting, Counts, on_grid
from securefl.protocols.contributions import Sensitivity, scaled_down, statistic_of
from securefl.protocols.one_sum import OneSum
from securefl.training import Learnt, Problem
from securefl.training.chunks import body_features
from securefl.training.heads import Bounded
from securefl.training.jobs import TrainingJob, TrainingResult
from securefl.training.run_jobs import FromTraining

Clip = Literal["unit-l2", "bounded", "none"]

_BOUNDED_BY: Mapping[Unit, str] = {
    "record": '`clip` of kind "unit-l2" or "bounded" in its arm, body = "public" or "dp-sgd", and noise',
    "client": "`client_bound` in its arm, and noise",
}
_CLIPS = {"unit-l2": "unit norm", "bounded": "bounded features", "none": "features as they are"}


class Featurizer(Protocol):
    """Turns a client's records into features, with a body that may be trained before.

    `schedule`: its initial queries, which clients answer before anything is trained, and `once` if the body
    is never trained, so that its features never change. `training`: the cost of each training, if it is
    accounted. `reads_state`: as in `ValueSpec`.
    """

    @property
    def depends_on(self) -> Literal["records", "trained-state"]: ...

    @property
    def reads_state(self) -> Literal["unknown", "none", "unbound"]: ...

    @property
    def schedule(self) -> Schedule: ...

    @property
    def training(self) -> DpEvent | None: ...

    def fit(self, context: ClientContext) -> TrainingJob | None:
        """The training of the body for this round's statistic. None if the body is not trained."""
        ...

    def prepared(
        self, context: ClientContext, trained: TrainingResult | None
    ) -> tuple[nn.Module, ClientState | None]:
        """The client's model with the body that `fit` trained, and the client's new state."""
        ...

    def evaluate(self, head: Floats | None, devices: Sequence[Device]) -> Evaluation:
        """The models under this head, or under their own."""
        ...

    def learnt(self, head: Floats | None, client: int | None, kept: ClientState) -> Learnt:
        """The model that a user exports (see `training.learnt.Exportable`)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Clipping(Ranged):
    """How features are bounded: the same way in training, in the statistic and in predictions.

    kind: "unit-l2": features are scaled to the norm `bound`. Those of norm 0 stay. FedLog models features of
        unit variance, so this public scale decides how sure its head is. "bounded": each feature is clipped
        to [-bound, bound], as in the paper. "none": features are not bounded, and no noise can be added.
    bound: the norm, or the largest absolute value, that `kind` names.
    digits: the binary digits of a feature behind its point in sums, of 30 in all. With 10, a client's sum of
        a feature over a class can be 2^20, with 16 it can be 2^14.

    Raises ValueError for a value out of its range. `limit` raises ConfigError for a bound that the grid
    cannot hold.

    >>> import numpy as np
    >>> from securefl.protocols.fedlog import Clipping
    >>> Clipping(kind="bounded", bound=0.5).bounded(np.array([[0.2, -3.0]]))
    array([[ 0.2, -0.5]])
    """

    kind: Clip = field(default="unit-l2", metadata={"words": _CLIPS.get})
    bound: Annotated[float, Range("[2^-10, 2^10]")] = 1.0
    digits: Annotated[int, Range("[10, 20]")] = 10

    @property
    def one(self) -> int:
        """The constant feature, 1, in grid units."""
        return 1 << self.digits

    @property
    def grid(self) -> Grid:
        """The grid of sums of features. It has 30 digits in all."""
        return Grid(step=1 / self.one, bound=2.0 ** (30 - self.digits))

    def in_words(self) -> str:
        """The clipping in the words of a plot's legend."""
        if self.kind == "unit-l2" and self.bound != 1:
            return f"norm {self.bound:g}"
        return f"features within ±{self.bound:g}" if self.kind == "bounded" else _CLIPS[self.kind]

    def limit(self, width: int) -> int | None:
        """The largest integer norm of a record's clipped features, in grid units. None is no limit.

        Raises ConfigError for a norm from 2^31, whose square would overflow.
        """
        if self.kind == "none":
            return None
        entries = width if self.kind == "bounded" else 1
        norm = isqrt(entries * int(self.bound * self.one) ** 2)
        if norm >= 2**31:
            raise ConfigError(
                f"Expected a `clip` whose records have a norm < 2^31 grid units, got {norm:,} from bound = "
                f"{self.bound:g} for each of {width} features and digits = {self.digits}. Lower `bound` or "
                "`digits` of `clip`."
            )
        return norm

    def activation(self) -> Bounded | None:
        """The clipping as an activation between body and head. None without a bound."""
        return None if self.kind == "none" else Bounded(kind=self.kind, bound=self.bound)

    def bounded(self, features: Floats) -> Floats:
        """Bound features, as training, statistic and predictions do.

        Args:
            features: float64 (n, width), finite.

        Returns:
            float64 (n, width). With `kind` "none" the features themselves.
        """
        activation = self.activation()
        return features if activation is None else activation(torch.from_numpy(features)).numpy()

    def integers(self, features: Floats) -> NDArray[np.int64]:
        """Put bounded features on the grid of the statistic.

        Args:
            features: of `bounded`, float64 (n, width), finite.

        Returns:
            int64 (n, width), in grid units, of a norm within `limit` in each row.
        """
        limit = self.limit(features.shape[1])
        if limit is None:
            # Without a bound no noise is added, so rounding to nearest may lengthen a record.
            largest = self.grid.bound * self.one
            return np.clip(np.rint(features * self.one), -largest, largest).astype(np.int64)
        return clipping.to_grid(features, self.grid.step, limit)


def _sensitivities(width: int, clip: Clipping) -> Sensitivity:
    """The L2 sensitivities of the statistic to a record, in units of the features.

    Adding or removing a record moves the sum by |(1, phi)|. Replacing one changes two classes by that, or one
    class by twice |phi|.
    """
    if (limit := clip.limit(width)) is None:
        return {}
    alone = sqrt(clip.one**2 + limit**2) / clip.one
    both = max(sqrt(2) * alone, 2 * limit / clip.one)
    return {("record", "add-remove"): alone, ("record", "replace-one"): both}


def statistic_spec(
    classes: int,
    width: int,
    clip: Clipping = Clipping(),
    client_bound: float | None = None,
    clients: int = 0,
) -> tuple[ValueSpec, Callable[[Floats, NDArray[np.integer[Any]]], Value]]:
    """The specification of FedLog's statistic, and the function that computes it (FedLog, Eqs. 2 and 13).

    T = sum over the records of onehot(y) x (1, phi(x)) leaves a client. The count is a feature, the constant
    1, so it is noised with the sums and never travels by itself. A record with non-finite features, or with a
    label that is no class, is left out: an error would tell that the record is there.

    Sensitivity (L2, for features that were not trained on the records): with clip.kind "unit-l2" and bound b,
    one record moves the statistic by sqrt(1 + b^2) under add-remove, and by max(sqrt(2 + 2 b^2), 2 b) under
    replace-one. One client moves it by `client_bound` under zero-out, and by twice that under replace-one.
    With `client_bound`, truncation adds to the two of a record.

    Args:
        classes: C. Classes are 0 to C - 1.
        width: the number of features, without the constant 1.
        clip: the public bound on the features of a record.
        client_bound: the largest L2 norm of a client's whole statistic, in units of the features. A longer
            statistic is scaled down. None leaves it as it is.
        clients: the least number of clients in a sum, if that is known.

    Returns:
        The specification, and a function of features phi, float64 (n, width), and labels y, integers (n,).
        Rows of phi are bounded by `clip.bounded`; longer ones are scaled down. Its value has the entries of T
        (C, 1 + width), row by row. Column 0 counts the records of a class. The function raises DataError
        unless phi and y fit.

    Raises:
        ConfigError: the grid of `clip` cannot hold its bound or `client_bound`.

    >>> import numpy as np
    >>> from securefl.protocols.fedlog import statistic_spec
    >>> spec, statistic = statistic_spec(classes=2, width=2)
    >>> round(spec.sensitivity["record", "add-remove"], 6)
    1.414214
    >>> phi, y = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), np.array([0, 1, 1])
    >>> statistic(phi, y).floats().reshape(2, 3).round(1)
    array([[1. , 1. , 0. ],
           [2. , 0.6, 1.8]])
    """
    reveals = (
        "the sums of its features by class (of a class that it alone holds, its own sums; and which classes "
        "nobody holds)"
    )
    of_record, entries = _sensitivities(width, clip), classes * (1 + width)
    spec = statistic_of(reveals, of_record, entries, clip.grid, client_bound, _BOUNDED_BY, clients)
    return spec, partial(_statistic, classes, width, clip, client_bound)


def _statistic(
    classes: int,
    width: int,
    clip: Clipping,
    client_bound: float | None,
    features: Floats,
    labels: NDArray[np.integer[Any]],
) -> Value:
    if labels.ndim != 1 or features.shape != (len(labels), width):
        raise DataError(
            f"Expected features (n, {width}) and labels (n,), got {features.shape} and {labels.shape}."
        )
    known = clipping.finite(features) & (labels >= 0) & (labels < classes)
    integers = clip.integers(features[known])
    rows = np.hstack([np.full((len(integers), 1), clip.one, dtype=np.int64), integers])
    total = np.zeros((classes, rows.shape[1]), dtype=np.int64)
    # Not `total[y] += rows`: with repeated indices that adds one record of a class and drops the others.
    np.add.at(total, labels[known], rows)
    return scaled_down(Value(integers=total.ravel(), step=clip.grid.step), clip.grid, client_bound)


def class_means(statistic: Floats) -> Floats:
    """The mean features of each class, Phi_y / Phi_y0 without the constant, (C, width).

    A class with a count below 1 has nan: noise can make a count small, zero or negative, and then the
    quotient is no mean.
    """
    counts = statistic[:, :1]
    return np.where(counts >= 1, statistic[:, 1:] / np.maximum(counts, 1), np.nan)


@dataclass(frozen=True, eq=False)
class Statistic(FromTraining):
    """A client's contribution to FedLog and FedProto: the statistic of its records' features.

    `bounded_by` is as in `ValueSpec`, in the words of the system's options. With `centres`, the numbers of
    records by class are a value of their own (`class_counts`), and the statistic has no bound.
    """

    body: Featurizer
    clip: Clipping
    classes: int
    width: int
    clients: int
    client_bound: float | None = None
    bounded_by: Mapping[Unit, str] = field(default_factory=lambda: _BOUNDED_BY)
    centres: Centres | None = None

    def counts_apart(self, problem: Problem, centres: Centres) -> Statistic:
        """This statistic as a run sends it: without counts where they would leave in each round, unchanged.

        Args:
            problem: with the plan of the run.
            centres: reads class means from a broadcast.
        """
        if self.body.schedule.once or problem.planned is None:
            return self
        plan = problem.planned((self.spec,))
        bare = plan.hidden and not Protection(plan, self.spec).noised
        return replace(self, client_bound=None, centres=centres) if bare else self

    @cached_property
    def counting(self) -> Counting | None:
        """The server's side of counts that are a value of their own."""
        if self.centres is None:
            return None
        counts = replace(COUNTS, schedule=replace(COUNTS.schedule, initial=self.body.schedule.initial))
        return Counting(Counts(self.classes, counts), self.centres, self.clip.grid)

    @property
    def size(self) -> int:
        """The number of entries."""
        return self.classes * (self.width + (self.centres is None))

    @cached_property
    def _own(self) -> tuple[ValueSpec, Callable[[Floats, NDArray[np.integer[Any]]], Value]]:
        return statistic_spec(self.classes, self.width, self.clip, self.client_bound, self.clients)

    @cached_property
    def spec(self) -> ValueSpec:
        body = self.body
        return replace(
            self._own[0],
            depends_on=body.depends_on,
            reads_state=body.reads_state,
            training=body.training,
            bounded_by=self.bounded_by,
            schedule=body.schedule,
            sensitivity={} if self.centres else self._own[0].sensitivity,
        )

    def fit(self, context: ClientContext) -> TrainingJob | None:
        return self.body.fit(context)

    def value(self, context: ClientContext, trained: TrainingResult | None) -> Value:
        model, kept = self.body.prepared(context, trained)
        phi = body_features(model, context.x, self.clip.activation())
        found = self._own[1](phi, np.asarray(context.y))
        if self.centres is not None:
            assert found.integers is not None
            whole = found.integers.reshape(self.classes, -1)
            moved = whole[:, :1] // self.clip.one * on_grid(self.centres(context.broadcast), self.clip.grid)
            found = replace(found, integers=(whole[:, 1:] - moved).ravel())
        return replace(found, new_state=kept)


@dataclass(frozen=True, eq=False)
class ClassSums(OneSum):
    """Rounds of such statistics. What the server broadcasts gives a head of the clients' bodies."""

    statistic: Statistic

    def head(self, sent: Float32s) -> Floats | None:
        """The head (C, 1 + width), bias first, of a broadcast. None leaves each body its own."""
        raise NotImplementedError

    @property
    def keeps_trained(self) -> bool:
        """Whether each client keeps the body that it trained. No body is averaged."""
        return getattr(self.statistic.body, "keeps_trained", False)

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        return self.statistic.body.evaluate(self.head(state.broadcast), devices)

    def learnt(self, state: State, client: int | None, kept: ClientState) -> Learnt:
        return self.statistic.body.learnt(self.head(state.broadcast), client, kept)
