"""The statistic of a closed-form head: sums over records' bounded features, of known sensitivity.

Before they are summed, a record's features are bounded by 1, and become integers of a grid. `statistic`
computes the sums from arrays. `Statistic` is a client's contribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import Adjacency, ClientContext, Floats, Unit, Value, ValueSpec
from securefl.dp import clipping
from securefl.errors import DataError
from securefl.protocols.heads.blocks import UNIT, Blocks, Integers
from securefl.training import Problem
from securefl.training.chunks import body_features
from securefl.training.heads import Projection


@dataclass(frozen=True, kw_only=True)
class Bounding:
    """How the features of a record come to have a norm of at most 1. All constants are public.

    kind: "unit-l2": features are scaled to norm 1. Those of norm 0 stay. "clip-l2": features are divided by
        `bound`, and those of a norm beyond 1 are scaled down to 1.
    bound: the divisor of "clip-l2".

    Raises ValueError for a bound outside 1e-6 to 1e9, and for a bound beside "unit-l2".

    >>> import numpy as np
    >>> from securefl.protocols.heads import Bounding
    >>> Bounding(kind="clip-l2", bound=10.0).bounded(np.array([[3.0, 4.0], [30.0, 40.0]]))
    array([[0.3, 0.4],
           [0.6, 0.8]])
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
        """The number of records that lie beyond the bound and are scaled down."""
        if self.kind == "unit-l2":
            return 0
        largest = np.abs(features).max(axis=1, initial=0.0)
        # Entries are clipped first: the squares of huge ones may overflow, and all beyond the bound count.
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
"""The number of records that are put on the grid at a time. Any division gives the same sum of integers."""


def statistic(
    features: Floats,
    labels: NDArray[np.integer[Any]],
    blocks: Blocks,
    bounding: Bounding = Bounding(),
    client_bound: float | None = None,
) -> Integers:
    """The sums of records' features that leave a client: class counts, class sums and second moments.

    `blocks` says which of the three are sent, and with which weights. A record with features that are not
    finite, or with a label that is no class, is left out: an error would tell that the record is there.

    Source: ridge regression and linear discriminants from their sufficient statistics; the weights and the
    sensitivity are derived at the head of `securefl.protocols.heads.blocks`.

    Sensitivity (L2, of the integers times blocks.grid.step; `sensitivities` computes it): with weights c, s
    and m of counts, sums and moments, one record moves the statistic by sqrt(c^2 + s^2 + m^2) under
    add-remove, and by less than twice that under replace-one. Rounding adds a grid step times the root of the
    number of rounded entries. One client moves it by `client_bound` under zero-out, and by twice that under
    replace-one.

    Args:
        features: float64 (n, k), not yet bounded.
        labels: integers (n,). Classes are 0 to blocks.classes - 1.
        blocks: which sums are sent, for k features.
        bounding: how a record's features come to have a norm of at most 1.
        client_bound: the largest L2 norm of a client's whole statistic. A longer one is scaled down. None
            leaves it as it is.

    Returns:
        int64 (blocks.size,), in units of blocks.grid.step. `blocks.parts` takes a total apart.

    Raises:
        DataError: features and labels are not of n records with k features.

    >>> import numpy as np
    >>> from securefl.protocols.heads import Blocks, grid_of, statistic
    >>> blocks = Blocks(classes=2, width=2, grid=grid_of(records=4, clients=2), counts=1.0)
    >>> sums = statistic(np.array([[2.0, 0.0], [3.0, 4.0]]), np.array([0, 1]), blocks)
    >>> (sums * blocks.grid.step).round(2)
    array([1. , 1. , 1. , 0. , 0.6, 0.8])
    """
    if features.shape != (len(labels), blocks.width) or labels.ndim != 1:
        raise DataError(
            f"Expected labels (n,) and features (n, {blocks.width}), got {labels.shape} and {features.shape}."
        )
    total = np.zeros(blocks.size, np.int64)
    for start in range(0, len(labels), _ROWS):
        rows = slice(start, start + _ROWS)
        total += _exact(features[rows], labels[rows], blocks, bounding)
    return _weighted(total, blocks, client_bound)


def _known(features: Floats, labels: NDArray[np.integer[Any]], blocks: Blocks) -> NDArray[np.bool_]:
    """The records (n,) that take part."""
    return np.asarray(clipping.finite(features) & (labels >= 0) & (labels < blocks.classes))


def _exact(
    features: Floats, labels: NDArray[np.integer[Any]], blocks: Blocks, bounding: Bounding
) -> Integers:
    """The exact sums (size,) of some records, before they are weighted."""
    known = _known(features, labels, blocks)
    return blocks.exact(bounding.integers(features[known]), labels[known])


def _weighted(total: Integers, blocks: Blocks, client_bound: float | None) -> Integers:
    """The exact sums of all records of a client as its statistic (size,)."""
    total = blocks.on_grid(total)
    if client_bound is None:
        return total
    step = blocks.grid.step
    whole = total[None].astype(np.float64) * step
    clipped: Integers = clipping.to_grid(whole, step, _limit(blocks, client_bound))[0]
    return clipped


def _limit(blocks: Blocks, bound: float) -> int:
    """The bound of a client's whole vector in grid units."""
    return int(bound / blocks.grid.step)


def sensitivities(
    blocks: Blocks, client_bound: float | None = None
) -> Mapping[tuple[Unit, Adjacency], float]:
    """The L2 sensitivities of `statistic`.

    A record moves a statistic that is scaled down to `client_bound` further than one that is not, since
    scaling truncates every entry.

    Args:
        blocks: as in `statistic`.
        client_bound: as in `statistic`.

    Returns:
        The sensitivity by (unit, adjacency). No entry stands for no bound.

    Raises nothing.

    >>> from securefl.protocols.heads import Blocks, grid_of, sensitivities
    >>> sensitivities(Blocks(classes=2, width=2, grid=grid_of(records=4, clients=2)))["record", "add-remove"]
    1.0
    """
    rescaled = 0.0
    if client_bound is not None:
        rescaled = clipping.spread(blocks.size, _limit(blocks, client_bound)) * blocks.grid.step
    found: dict[tuple[Unit, Adjacency], float] = {
        ("record", "add-remove"): blocks.sensitivity("add-remove") + rescaled,
        ("record", "replace-one"): blocks.sensitivity("replace-one") + rescaled,
    }
    if client_bound is not None:
        found["client", "zero-out"] = client_bound
        found["client", "replace-one"] = 2 * client_bound
    return found


@dataclass(frozen=True, eq=False)
class Statistic:
    """A client's contribution: the `statistic` of its records.

    A record's features are the input of the public model's last dense layer.
    """

    problem: Problem
    bounding: Bounding
    projection: Projection
    blocks: Blocks
    reveals: str
    client_bound: float | None = None

    @cached_property
    def spec(self) -> ValueSpec:
        """The description of the statistic, with its sensitivities."""
        return ValueSpec(
            name="statistic",
            reduction="sum",
            reveals=self.reveals,
            sensitivity=sensitivities(self.blocks, self.client_bound),
            bounded_by=_BOUNDED_BY,
            grid=self.blocks.grid,
            on_model=False,
            once=True,
            cohort=self.problem.clients,
        )

    def features(self, x: NDArray[Any]) -> Floats:
        """Records (n, ...) as projected features (n, k), not yet bounded."""
        return body_features(self.problem.module(self.problem.initial), x, self.projection)

    def compute(self, context: ClientContext) -> Value:
        y = np.asarray(context.y)
        total, beyond = np.zeros(self.blocks.size, np.int64), 0
        # `statistic` in parts, so that the features of few records are in memory at a time
        for start in range(0, len(y), _ROWS):
            features, labels = self.features(context.x[start : start + _ROWS]), y[start : start + _ROWS]
            total += _exact(features, labels, self.blocks, self.bounding)
            beyond += self.bounding.beyond(features[_known(features, labels, self.blocks)])
        total = _weighted(total, self.blocks, self.client_bound)
        return Value(integers=total, clipped=beyond, new_state={"clipped": np.array([beyond])})
