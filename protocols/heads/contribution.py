"""The statistic of a closed-form head: sums over records' bounded features, of known sensitivity.

Before they are summed, a record's features are bounded by 1, and become integers of a grid. `statistic_spec`
gives the specification of the sums, and the function that computes them from arrays. `Statistic` is a
client's contribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import ClientContext, Floats, Schedule, Unit, Value, ValueSpec
from securefl.core.ranges import Range, Ranged
from securefl.dp import clipping
from securefl.errors import DataError
from securefl.protocols.contributions import ADJACENCIES, Sensitivity, scaled_down, statistic_of
from securefl.protocols.heads.blocks import UNIT, Blocks
from securefl.training import Problem
from securefl.training.chunks import body_features
from securefl.training.heads import Projection
from securefl.training.jobs import with_model


@dataclass(frozen=True, kw_only=True)
class Bounding(Ranged):
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
    bound: Annotated[float, Range("[1e-6, 1e9]")] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "unit-l2" and self.bound != 1.0:
            raise ValueError(
                f'Expected `bound` with kind = "clip-l2" alone, got {self.bound} with "unit-l2", which '
                "scales each record to norm 1. Leave it out."
            )

    def bounded(self, features: Floats) -> Floats:
        """Bound the norm of features.

        Args:
            features: float64 (n, k), finite.

        Returns:
            float64 (n, k), with rows of a norm of at most 1.
        """
        if self.kind == "clip-l2":
            # Clipped first: a huge feature over a small bound would be infinite.
            return clipping.clip_l2(features, self.bound) / self.bound
        _, direction, norm = clipping.directions(features)
        return np.asarray(direction / norm)

    def beyond(self, features: Floats) -> int:
        """Return the number of records that lie beyond the bound and are scaled down.

        Args:
            features: float64 (n, k), finite.
        """
        if self.kind == "unit-l2":
            return 0
        largest = np.abs(features).max(axis=1, initial=0.0)
        # Entries are clipped first: the squares of huge ones may overflow, and all beyond the bound count.
        inside = np.minimum(np.abs(features), self.bound * 2)
        norms = np.linalg.norm(inside, axis=1)
        return int(np.sum((largest > self.bound) | (norms > self.bound)))

    def integers(self, features: Floats) -> NDArray[np.int64]:
        """Bound features and put them on a grid of step 1 / UNIT.

        Args:
            features: float64 (n, k), finite.

        Returns:
            int64 (n, k), with rows of a norm of at most UNIT.
        """
        return clipping.to_grid(self.bounded(features), 1 / UNIT, UNIT)


_BOUNDED_BY: Mapping[Unit, str] = {
    "record": "noise, by an `epsilon` in [privacy]",
    "client": "`client_bound` in its arm, and noise",
}
_ROWS = 4096
"""The number of records that are put on the grid at a time. Any division gives the same sum of integers."""


def statistic_spec(
    blocks: Blocks,
    bounding: Bounding = Bounding(),
    client_bound: float | None = None,
    clients: int = 0,
    reveals: str = "the sums of its features and their products",
) -> tuple[ValueSpec, Callable[[Floats, NDArray[np.integer[Any]]], Value]]:
    """The specification of a head's statistic, and the function that computes it: the sums of features.

    `blocks` says which of class counts, class sums and second moments are sent, and with which weights. A
    record with features that are not finite, or with a label that is no class, is left out: an error would
    tell that the record is there.

    Source: ridge regression and linear discriminants from their sufficient statistics; the weights and the
    sensitivity are derived at the head of `securefl.protocols.heads.blocks`.

    Sensitivity (L2): with weights c, s and m of counts, sums and moments, one record moves the statistic by
    sqrt(c^2 + s^2 + m^2) under add-remove, and by less than twice that under replace-one. Rounding adds a
    grid step times the root of the number of rounded entries. One client moves it by `client_bound` under
    zero-out, and by twice that under replace-one. A record moves a statistic that is scaled down to
    `client_bound` further, since scaling truncates every entry.

    Args:
        blocks: which sums are sent, for k features. Classes are 0 to blocks.classes - 1.
        bounding: how a record's features come to have a norm of at most 1.
        client_bound: the largest L2 norm of a client's whole statistic. A longer one is scaled down. None
            leaves it as it is.
        clients: the least number of clients in a sum, if that is known.
        reveals: what the server sees of it in the clear, in words.

    Returns:
        The specification, and a function of features, float64 (n, k), not yet bounded, and labels, integers
        (n,). `blocks.parts` takes a total of its values apart. The function raises DataError unless features
        and labels fit.

    Raises:
        ConfigError: the grid of `blocks` cannot hold `client_bound`.

    >>> import numpy as np
    >>> from securefl.protocols.heads import Blocks, grid_of, statistic_spec
    >>> blocks = Blocks(classes=2, width=2, grid=grid_of(records=4, clients=2), counts=1.0)
    >>> spec, statistic = statistic_spec(blocks)
    >>> round(spec.sensitivity["record", "add-remove"], 6)
    1.414214
    >>> statistic(np.array([[2.0, 0.0], [3.0, 4.0]]), np.array([0, 1])).floats().round(2)
    array([1. , 1. , 1. , 0. , 0.6, 0.8])
    """
    of_record: Sensitivity = {("record", a): blocks.sensitivity(a) for a in ADJACENCIES}
    spec = statistic_of(reveals, of_record, blocks.size, blocks.grid, client_bound, _BOUNDED_BY, clients)
    return spec, partial(_statistic, blocks, bounding, client_bound)


def _statistic(
    blocks: Blocks,
    bounding: Bounding,
    client_bound: float | None,
    features: Floats,
    labels: NDArray[np.integer[Any]],
) -> Value:
    if labels.ndim != 1 or features.shape != (len(labels), blocks.width):
        raise DataError(
            f"Expected labels (n,) and features (n, {blocks.width}), got {labels.shape} and {features.shape}."
        )
    return _summed(features.__getitem__, labels, blocks, bounding, client_bound)


def _summed(
    features: Callable[[slice], Floats],
    labels: NDArray[np.integer[Any]],
    blocks: Blocks,
    bounding: Bounding,
    client_bound: float | None,
) -> Value:
    """The statistic of labels and features, which are read in parts, so that few are in memory at a time."""
    total, beyond = np.zeros(blocks.size, np.int64), 0
    for start in range(0, len(labels), _ROWS):
        at = slice(start, start + _ROWS)
        own, y = features(at), labels[at]
        known = clipping.finite(own) & (y >= 0) & (y < blocks.classes)
        total += blocks.exact(bounding.integers(own[known]), y[known])
        beyond += bounding.beyond(own[known])
    whole = Value(integers=blocks.on_grid(total), step=blocks.grid.step, clipped=beyond)
    return scaled_down(whole, blocks.grid, client_bound)


@dataclass(frozen=True, eq=False)
class Statistic:
    """A client's contribution: the statistic of its records.

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
        own = self.blocks, self.bounding, self.client_bound, self.problem.clients, self.reveals
        spec = replace(statistic_spec(*own)[0], schedule=Schedule(once=True), reads_state="none")
        return with_model(spec, self.problem)

    @property
    def size(self) -> int:
        return self.blocks.size

    counting = None

    def features(self, x: NDArray[Any]) -> Floats:
        """Records (n, ...) as projected features (n, k), not yet bounded."""
        return body_features(self.problem.module(self.problem.initial), x, self.projection)

    def compute(self, context: ClientContext) -> Value:
        y, own = np.asarray(context.y), (self.blocks, self.bounding, self.client_bound)
        found = _summed(lambda at: self.features(context.x[at]), y, *own)
        return replace(found, new_state={"clipped": np.array([found.clipped])})
