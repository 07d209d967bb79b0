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

from securefl.algorithm.clients import Job
from securefl.algorithm.queries import Each, Float32s, Floats, Sends, Value
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
UPDATE = Sends(
    name="update",
    how="sum",
    reveals="its model update",
    reads="trained",
    bounded_by={"record": 'a section [dpsgd], under adjacency = "add-remove"', **CLIPPED},
)
SIZE = Sends(
    name="size",
    how="each",
    reveals="its number of records",
    on_model=False,
    sensitivity={("record", "replace-one"): 1.0, ("record", "add-remove"): 1.0},
    period=0,
    initial_queries=1,
)
COUNT = Sends(
    name="count",
    how="sum",
    reveals="its number of records",
    reads="nothing",
    on_model=False,
    once=True,
    sensitivity={
        ("record", "add-remove"): 0.0,
        ("record", "replace-one"): 0.0,
        ("client", "zero-out"): 0.0,
        ("client", "replace-one"): 0.0,
    },
)
LOSS = Sends(
    name="loss",
    how="each",
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
    a run beyond once a round. weighs, draws: as in `Sends`.
    """

    cohort: int = 0
    extra_queries: int = 0
    weighs: Literal["equal", "draws", "counts"] = "equal"
    draws: int = 0

    def of(self, sends: Sends) -> Sends:
        """The description of a value that is sampled so."""
        return replace(
            sends, cohort=self.cohort, extra_queries=self.extra_queries, weighs=self.weighs, draws=self.draws
        )


UNSAMPLED: Final = Sampling()
"""Nothing is known before of how cohorts are drawn."""


def update_sends(problem: Problem, sampling: Sampling) -> Sends:
    """A client's update. If the problem bounds it, its sensitivity per client is declared."""
    sends = sampling.of(with_training(UPDATE, problem))
    bound = problem.local.update_bound
    if bound is None:
        return sends
    moved: Mapping[tuple[Unit, Adjacency], float] = {
        ("client", "zero-out"): bound,
        ("client", "replace-one"): 2 * bound,
    }
    return replace(sends, sensitivity=moved, grid=_grid(bound))


def to_fit(problem: Problem, job: Job, start: Float32s) -> Fit:
    """The training behind an update."""
    return Fit(problem=problem, start=start, job=fitting(problem, job))


def fitting(problem: Problem, job: Job) -> Job:
    """The job that an update is trained by. Under a bound, or privately, unusable records take no part."""
    bare = problem.local.update_bound is None and problem.private is None
    return job if bare else usable(problem, job)


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
    def sends(self) -> Sends:
        return update_sends(self.problem, self.sampling)

    def fit(self, job: Job) -> Fit:
        return to_fit(self.problem, job, job.broadcast)

    def value(self, job: Job, trained: Fitted) -> Value:
        return bounded(self.problem, job.broadcast, trained)

    def compute(self, job: Job) -> Value:
        return self.value(job, fitted(self.fit(job)))


@dataclass(frozen=True, eq=False)
class Size:
    """n_k, the number of records: a release, unless no neighbour has another number (`size_sends`)."""

    problem: Problem

    @property
    def sends(self) -> Sends:
        return size_sends(self.problem)

    def compute(self, job: Job) -> Value:
        units = round(1 / self.sends.grid.step)  # finer than whole records: little noise would round to none
        records = len(job.x) + (0 if job.held is None else len(job.held[0]))
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
    def sends(self) -> Sends:
        """On a grid that ends at the declared records of all clients, so that nobody can claim more."""
        problem = self.problem
        return replace(COUNT, cohort=problem.clients, grid=Grid(step=1.0, bound=float(problem.records)))

    def compute(self, job: Job) -> Value:
        # within the grid: a client whose public number is beyond it would fall silent
        return Value(clear=np.array([float(min(job.count, self.problem.records))]))


@dataclass(frozen=True, eq=False)
class Loss:
    """Mean loss of the broadcast model on the client's held-out records, or on all if it holds out none.

    A client whose draw held out no record tells the loss on what it trains on. It would else answer nothing
    of what it is asked for at once. With noise it tells noised zeros: that it has none must not show.

    bound: a record's largest loss, public. Without it the mean cannot be noised, for one record moves it
    without bound. every, introductions, further: how often it is asked for, as in `Sends`.
    """

    problem: Problem
    bound: float | None = None
    period: int = 1
    initial_queries: int = 0
    extra_queries: int = 0

    @property
    def sends(self) -> Sends:
        sends = replace(
            LOSS, period=self.period, initial_queries=self.initial_queries, extra_queries=self.extra_queries
        )
        return sends if self.bound is None else replace(sends, sensitivity=_OF_LOSSES, grid=GRID)

    def compute(self, job: Job) -> Value:
        model, loss = self.problem.to_read(job.broadcast), self.problem.loss
        x, y = (job.x, job.y) if job.held is None else job.held
        if self.bound is None:
            x, y = (x, y) if len(x) else (job.x, job.y)
            if len(usable(self.problem, replace(job, x=x, y=y)).x) < len(x):
                raise DataError("Expected finite records of known labels, got others: it abstains.")
            return Value(clear=np.array([min(mean_loss(model, x, y, loss), LARGEST_LOSS)]))
        losses = Losses(bound=self.bound)
        own_job = usable(self.problem, replace(job, x=x, y=y))
        x, y = own_job.x, own_job.y
        # without such a record it sends noised zeros all the same: silence would tell that it has none
        own = record_losses(model, x, y, loss) if len(x) else np.zeros(0)
        return Value(
            integers=losses.sums(own),
            after_noise=lambda noised: Value(clear=np.array([losses.mean(noised)])),
        )

    @property
    def ask(self) -> Each:
        return Each(self.sends, least=0.0, most=self.bound or LARGEST_LOSS)


def check_loss_bound(bound: float | None) -> None:
    """Raises ValueError for a bound that no loss can be clipped to."""
    if bound is not None and not 0 < bound <= LARGEST_LOSS:
        raise ValueError(f"Expected 0 < loss_bound <= {LARGEST_LOSS:g}, got {bound}.")


def ask_size(problem: Problem) -> Each:
    """Ask for n_k: at least 1, and at most the records that all clients have together."""
    return Each(size_sends(problem), least=1, most=problem.records)


def size_sends(problem: Problem) -> Sends:
    """n_k as a release. Under replace-one it is public where no record can leave its client.

    A record that is replaced may change between training and hold-out, of which n_k is the sum. Where a share
    becomes the server's it may leave both.
    """
    moved = 1.0 if problem.leaving else 0.0
    return replace(SIZE, sensitivity={**SIZE.sensitivity, ("record", "replace-one"): moved})
