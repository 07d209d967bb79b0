"""The contributions of clients to the model-averaging systems: updates, sizes and losses.

A size and a loss are ready for noise. If a plan adds none, they leave as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, log2
from typing import Final, Literal

import numpy as np

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.queries import Float32s, Floats, PerClient, Value, ValueSpec
from securefl.core.errors import DataError
from securefl.core.grid import Grid
from securefl.core.release import Adjacency, Unit
from securefl.dp import clipping
from securefl.dp.moments import GRID, Losses
from securefl.training import mean_loss, record_losses
from securefl.training.fit import Fit, Fitted, fitted, usable, with_training
from securefl.training.task import Problem

ADJACENCIES: Final[tuple[Adjacency, ...]] = ("add-remove", "replace-one")

CLIPPED: Mapping[Unit, str] = {"client": "`update_bound` in [local], and noise"}
"""What bounds an update, however it was trained."""
UPDATE = ValueSpec(
    name="update",
    reduction="sum",
    reveals="its model update",
    depends_on="trained-state",
    bounded_by={"record": 'a section [dpsgd], under adjacency = "add-remove"', **CLIPPED},
)
SIZE = ValueSpec(
    name="size",
    reduction="none",
    reveals="its number of records",
    on_model=False,
    sensitivity={("record", "replace-one"): 1.0, ("record", "add-remove"): 1.0},
    period=0,
    initial_queries=1,
)
COUNT = ValueSpec(
    name="count",
    reduction="sum",
    reveals="its number of records",
    depends_on="model",
    on_model=False,
    once=True,
    sensitivity={
        ("record", "add-remove"): 0.0,
        ("record", "replace-one"): 0.0,
        ("client", "zero-out"): 0.0,
        ("client", "replace-one"): 0.0,
    },
)
LOSS = ValueSpec(
    name="loss",
    reduction="none",
    reveals="the mean loss of the model on its records",
    bounded_by={"record": "`loss_bound` in its arm, and noise"},
)
LARGEST_LOSS = 1e6
"""A public bound that clients clip their loss to."""
_OF_LOSSES: Mapping[tuple[Unit, Adjacency], float] = {
    ("record", a): Losses.sensitivity(a) for a in ADJACENCIES
}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a protocol draws the cohort of one sum, as far as that is known before.

    cohort: the least number of clients that are asked, 0 if that is not known. further: how often one asks in
    a run beyond once a round. weighs, draws: as in `ValueSpec`.
    """

    cohort: int = 0
    extra_queries: int = 0
    weighs: Literal["equal", "draws", "counts"] = "equal"
    draws: int = 0

    def of(self, spec: ValueSpec) -> ValueSpec:
        """The description of a value that is sampled so."""
        return replace(
            spec, cohort=self.cohort, extra_queries=self.extra_queries, weighs=self.weighs, draws=self.draws
        )


UNSAMPLED: Final = Sampling()
"""Nothing is known before of how cohorts are drawn."""


def update_sends(problem: Problem, sampling: Sampling) -> ValueSpec:
    """A client's update. If the problem bounds it, its sensitivity per client is declared."""
    spec = sampling.of(with_training(UPDATE, problem))
    bound = problem.local.update_bound
    if bound is None:
        return spec
    moved: Mapping[tuple[Unit, Adjacency], float] = {
        ("client", "zero-out"): bound,
        ("client", "replace-one"): 2 * bound,
    }
    return replace(spec, sensitivity=moved, grid=_grid(bound))


def to_fit(problem: Problem, context: ClientContext, start: Float32s) -> Fit:
    """The training behind an update."""
    return Fit(problem=problem, start=start, context=fitting(problem, context))


def fitting(problem: Problem, context: ClientContext) -> ClientContext:
    """The job that an update is trained by. Under a bound, or privately, unusable records take no part."""
    bare = problem.local.update_bound is None and problem.private is None
    return context if bare else usable(problem, context)


def bounded(problem: Problem, broadcast: Float32s, shared: Float32s | DataError) -> Value:
    """The update from the broadcast to the trained values (d,).

    Under the problem's bound it is scaled down and put on the grid, as integers. A client is never silent
    there, since silence would tell of its records: an update that diverges is 0. Without a bound this raises
    the DataError of a training that came to nothing.
    """
    bound = problem.local.update_bound
    if bound is None:
        if isinstance(shared, DataError):
            raise shared
        # In float32, as both models are. The difference is exact where they are within a factor of two.
        # Elsewhere it is off by 2^-24 of itself at most.
        with np.errstate(over="ignore"):  # the grid refuses it
            return Value(clear=shared - broadcast)
    step = np.zeros(len(broadcast))
    if not isinstance(shared, DataError):
        step += shared
        step -= broadcast
    if not np.isfinite(step).all():
        step = np.zeros(len(broadcast))
    grid = _grid(bound)
    # to_grid scales down to the bound, so that the integers' norm is within it exactly
    return Value(integers=clipping.to_grid(step[None], grid.step, int(bound / grid.step))[0])


def _grid(bound: float) -> Grid:
    """A grid with 2^14 to 2^15 steps to the bound."""
    # fine beside any noise, and coarse enough for the noise to stay below 2^24 steps
    step = float(2.0 ** (floor(log2(bound)) - 14))
    return Grid(step=step, bound=step * 2**24)


@dataclass(frozen=True, eq=False)
class Update:
    """w_k - w after local training from the broadcast w."""

    problem: Problem
    sampling: Sampling = UNSAMPLED

    @cached_property
    def spec(self) -> ValueSpec:
        return update_sends(self.problem, self.sampling)

    def fit(self, context: ClientContext) -> Fit:
        return to_fit(self.problem, context, context.broadcast)

    def value(self, context: ClientContext, trained: Fitted) -> Value:
        return bounded(self.problem, context.broadcast, trained)

    def compute(self, context: ClientContext) -> Value:
        return self.value(context, fitted(self.fit(context)))


@dataclass(frozen=True, eq=False)
class Size:
    """n_k, the number of records: a release, unless no neighbour has another number (`size_sends`)."""

    problem: Problem

    @property
    def spec(self) -> ValueSpec:
        return size_sends(self.problem)

    def compute(self, context: ClientContext) -> Value:
        units = round(1 / self.spec.grid.step)  # finer than whole records: little noise would round to none
        records = len(context.x) + (0 if context.held is None else len(context.held[0]))
        return Value(integers=np.array([records * units], dtype=np.int64), after_noise=self._possible)

    def _possible(self, noised: Floats) -> Value:
        return Value(clear=np.clip(noised, 1, self.problem.records))


@dataclass(frozen=True, eq=False)
class Count:
    """n_k as far as others may know it, summed over all clients once. The sum is n in the weights n_k / n.

    The plan says which number that is: the clipped number of records if it is public, or else a public number
    in its place. So it costs nothing.
    """

    problem: Problem

    @property
    def spec(self) -> ValueSpec:
        """On a grid that ends at the declared records of all clients, so that nobody can claim more."""
        problem = self.problem
        return replace(COUNT, cohort=problem.clients, grid=Grid(step=1.0, bound=float(problem.records)))

    def compute(self, context: ClientContext) -> Value:
        # within the grid: a client whose public number is beyond it would fall silent
        return Value(clear=np.array([float(min(context.count, self.problem.records))]))


@dataclass(frozen=True, eq=False)
class Loss:
    """Mean loss of the broadcast model on the client's held-out records, or on all if it holds out none.

    A client whose draw held out no record tells the loss on what it trains on. It would else answer nothing
    of what it is asked for at once. With noise it tells noised zeros: that it has none must not show.

    bound: a record's largest loss, public. Without it the mean cannot be noised, for one record moves it
    without bound. every, introductions, further: how often it is asked for, as in `ValueSpec`.
    """

    problem: Problem
    bound: float | None = None
    period: int = 1
    initial_queries: int = 0
    extra_queries: int = 0

    @property
    def spec(self) -> ValueSpec:
        spec = replace(
            LOSS, period=self.period, initial_queries=self.initial_queries, extra_queries=self.extra_queries
        )
        return spec if self.bound is None else replace(spec, sensitivity=_OF_LOSSES, grid=GRID)

    def compute(self, context: ClientContext) -> Value:
        model, loss = self.problem.to_read(context.broadcast), self.problem.loss
        x, y = (context.x, context.y) if context.held is None else context.held
        if self.bound is None:
            x, y = (x, y) if len(x) else (context.x, context.y)
            if len(usable(self.problem, replace(context, x=x, y=y)).x) < len(x):
                raise DataError("Expected finite records of known labels, got others: it abstains.")
            return Value(clear=np.array([min(mean_loss(model, x, y, loss), LARGEST_LOSS)]))
        losses = Losses(bound=self.bound)
        own_job = usable(self.problem, replace(context, x=x, y=y))
        x, y = own_job.x, own_job.y
        # without such a record it sends noised zeros all the same: silence would tell that it has none
        own = record_losses(model, x, y, loss) if len(x) else np.zeros(0)
        return Value(
            integers=losses.sums(own),
            after_noise=lambda noised: Value(clear=np.array([losses.mean(noised)])),
        )

    @property
    def query(self) -> PerClient:
        return PerClient(self.spec, least=0.0, most=self.bound or LARGEST_LOSS)


def check_loss_bound(bound: float | None) -> None:
    """Raises ValueError for a bound that no loss can be clipped to."""
    if bound is not None and not 0 < bound <= LARGEST_LOSS:
        raise ValueError(f"Expected 0 < loss_bound <= {LARGEST_LOSS:g}, got {bound}.")


def ask_size(problem: Problem) -> PerClient:
    """Ask for n_k: at least 1, and at most the records that all clients have together."""
    return PerClient(size_sends(problem), least=1, most=problem.records)


def size_sends(problem: Problem) -> ValueSpec:
    """n_k as a release. Under replace-one it is public where no record can leave its client.

    A record that is replaced may change between training and hold-out, of which n_k is the sum. Where a share
    becomes the server's it may leave both.
    """
    moved = 1.0 if problem.leaving else 0.0
    return replace(SIZE, sensitivity={**SIZE.sensitivity, ("record", "replace-one"): moved})
