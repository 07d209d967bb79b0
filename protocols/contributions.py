"""The contributions of clients to the model-averaging systems: model updates, numbers of records, losses.

A number of records and a loss are grid integers, on which a plan can add noise. If it adds none, they leave a
client unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal

import numpy as np

from securefl.algorithm import (
    Adjacency,
    ClientContext,
    Float32s,
    Floats,
    Grid,
    PerClient,
    Schedule,
    Unit,
    Value,
    ValueSpec,
)
from securefl.core.ranges import Range
from securefl.data.dataset import TARGETS
from securefl.dp import Losses, clipping
from securefl.dp.moments import GRID
from securefl.errors import ConfigError, DataError
from securefl.mechanisms import grid_within
from securefl.training import Problem, mean_loss, record_losses
from securefl.training.jobs import TrainingJob, usable, with_training

ADJACENCIES: Final[tuple[Adjacency, ...]] = ("add-remove", "replace-one")

Sensitivity = Mapping[tuple[Unit, Adjacency], float]


def of_client(bound: float | None) -> Sensitivity:
    """The L2 sensitivities to a client of a value with a norm of at most `bound`. None is no bound."""
    return {} if bound is None else {("client", "zero-out"): bound, ("client", "replace-one"): 2 * bound}


def statistic_of(
    reveals: str,
    of_record: Sensitivity,
    entries: int,
    grid: Grid,
    client_bound: float | None,
    bounded_by: Mapping[Unit, str],
    clients: int,
) -> ValueSpec:
    """The spec of sums over a client's records, which are scaled down to `client_bound`, a norm.

    Args:
        of_record: the L2 sensitivities of sums that are not scaled. A record moves scaled ones further, since
            scaling truncates every one of the `entries`.
        clients: the least number of clients in a sum, if that is known.
        reveals, bounded_by: as in `ValueSpec`.

    Raises:
        ConfigError: the grid cannot hold `client_bound`.
    """
    step = grid.step
    if client_bound is not None and int(client_bound / step) >= 2**31:
        raise ConfigError(
            f"Expected client_bound < {2**31 * step:,.0f}, which is 2^31 steps of the statistic's grid, got "
            f"{client_bound:,g}. Lower it, or lower `digits` of `clip` if the arm has them."
        )
    more = 0.0 if client_bound is None else clipping.spread(entries, int(client_bound / step)) * step
    return ValueSpec(
        name="statistic",
        reduction="sum",
        reveals=reveals,
        form="real",
        sensitivity={**{key: own + more for key, own in of_record.items()}, **of_client(client_bound)},
        bounded_by=bounded_by,
        grid=grid,
        on_model=False,
        cohort=clients,
    )


def scaled_down(whole: Value, grid: Grid, client_bound: float | None) -> Value:
    """A client's statistic within its bound."""
    if client_bound is None:
        return whole
    return replace(Value.summed(whole.floats()[None], grid, client_bound), clipped=whole.clipped)


UNMOVED: Sensitivity = {**{("record", a): 0.0 for a in ADJACENCIES}, **of_client(0.0)}
"""The sensitivities of a value that no record moves."""
CLIPPED: Mapping[Unit, str] = {"client": "`update_bound` in [local], and noise"}
"""The bound of an update, for every kind of training."""
UPDATE = ValueSpec(
    name="update",
    reduction="sum",
    reveals="its model update",
    form="real",
    depends_on="trained-state",
    reads_state="none",
    accumulates=True,
    bounded_by={"record": 'a section [dpsgd], under adjacency = "add-remove"', **CLIPPED},
)
SIZE = ValueSpec(
    name="size",
    reduction="none",
    reveals="its number of records",
    reads_state="none",
    on_model=False,
    sensitivity={("record", a): 1.0 for a in ADJACENCIES},
    schedule=Schedule(period=0, initial=1),
)
COUNT = ValueSpec(
    name="count",
    reduction="sum",
    reveals="its number of records",
    reveals_public="a public number in place of its number of records",
    depends_on="model",
    reads_state="none",
    on_model=False,
    schedule=Schedule(once=True),
    sensitivity=UNMOVED,
)
LOSS = ValueSpec(
    name="loss",
    reduction="none",
    reveals="the mean loss of the model on its records",
    reads_state="none",
    bounded_by={"record": "`loss_bound` in its arm, and noise"},
)
SMALL_WHOLE: Final = Grid(step=2.0**-10, bound=2.0**14)
"""The grid of -1, 0 and 1 under noise. A step is small against any noise, which stays within the bound."""
LARGEST_LOSS = 1e6
"""A public bound. Clients clip their loss to it."""
ClientBound = Annotated[float, Range("[0.01, 2^20]")] | None
LossBound = Annotated[float, Range("(0, 10^6]")] | None
_OF_LOSSES: Sensitivity = {("record", a): Losses.sensitivity(a) for a in ADJACENCIES}


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a protocol draws the cohort of one sum, as far as it is known before the run.

    cohort: the least number of clients that the server asks, 0 if it is unknown.
    extra: the number of queries in a run beyond one in each round.
    weighs, draws: as in `ValueSpec`.
    adds: whether the server adds each total to the model, times a constant (`ValueSpec.accumulates`).
    """

    cohort: int = 0
    extra: int = 0
    weighs: Literal["equal", "draws", "counts"] = "equal"
    draws: int = 0
    adds: bool = True

    def of(self, spec: ValueSpec) -> ValueSpec:
        """The value's spec with this sampling."""
        schedule = replace(spec.schedule, extra=self.extra)
        own = replace(spec, cohort=self.cohort, schedule=schedule, weighs=self.weighs, draws=self.draws)
        return replace(own, accumulates=own.accumulates and self.adds)


UNSAMPLED: Final = Sampling()
"""The sampling of cohorts of which nothing is known before the run."""


def update_sends(problem: Problem, sampling: Sampling, *, apart: bool = False) -> ValueSpec:
    """The spec of a client's update. If the problem bounds it, it declares the sensitivity per client.

    apart: whether the update lacks running statistics, which are summed under `buffers_bound`.
    """
    spec = sampling.of(with_training(UPDATE, problem))
    bound = problem.local.update_bound
    if bound is None:
        return spec
    if problem.local.bound_quantile is not None:
        raise ConfigError(
            "Expected a protocol that averages updates of the whole model, such as fedavg, for "
            "`bound_quantile` under [local], got another one, or stale models. Leave it out: `update_bound` "
            "then stays as it is."
        )
    if not apart:
        require_bounded_weights(problem)
    return replace(spec, sensitivity=of_client(bound), grid=_grid(problem, bound))


def require_classes(problem: Problem, protocol: str) -> None:
    """Raises ConfigError unless each record has one class. protocol: what needs it, in words."""
    if problem.kind != "classification":
        raise ConfigError(
            f"Expected a data set with classes for {protocol}, got {TARGETS[problem.kind]}. Take another "
            "protocol."
        )


def require_bounded_weights(problem: Problem) -> None:
    """Raises ConfigError if `update_bound` would clip running statistics, or another bound has none."""
    require_weights(problem, "`update_bound`, which clips, and noise, which moves,")
    if problem.local.buffers_bound is not None:
        raise ConfigError(
            "Expected a model with running statistics that are averaged, for `buffers_bound` under "
            "[local], got none. Leave it out."
        )


def require_weights(problem: Problem, what: str) -> None:
    """Raises ConfigError if running statistics of norms are among the values that are averaged.

    what: what treats all of them as weights, in words.
    """
    if len(problem.averaged[0]):
        apart = "" if problem.local.buffers_bound is None else ", and leave `buffers_bound` out"
        raise ConfigError(
            f"Expected no running statistics of batch norm in the model's sums, got {what} them as if they "
            'were weights. Set buffers = "local" under [model], so that each client keeps its own, or take a '
            f"model with group norm{apart}."
        )


def _grid(problem: Problem, bound: float) -> Grid:
    """The grid of updates within a bound."""
    return grid_within(bound, replace(UPDATE, sensitivity=of_client(bound)), problem.bare_plan)


def training_job(problem: Problem, context: ClientContext, start: Float32s) -> TrainingJob:
    """The training behind an update."""
    return TrainingJob(problem=problem, start=start, context=trainable(problem, context))


def trainable(problem: Problem, context: ClientContext) -> ClientContext:
    """The context of the training behind an update.

    If updates are bounded or training is private, it lacks the records that the model cannot use.
    """
    return usable(problem, context) if is_protected(problem) else context


def is_protected(problem: Problem) -> bool:
    """Whether updates are bounded or training is private: then no error may tell of a client's records."""
    return problem.local.update_bound is not None or problem.private is not None


def bounded(problem: Problem, broadcast: Float32s, shared: Float32s | DataError) -> Value:
    """The update from the broadcast to the trained values (d,).

    Under the problem's bound it is scaled down and rounded to integers of the grid. If training diverges, a
    client under a bound sends 0, since silence would tell of its records, and its owner is told (`blank`).
    Without a bound this raises the DataError of the training that failed.
    """
    bound = problem.local.update_bound
    if bound is None:
        if isinstance(shared, DataError):
            raise shared
        # Both models are float32. Their difference is exact if they are within a factor of two of each other.
        # Otherwise its relative error is at most 2^-24.
        with np.errstate(over="ignore"):  # the grid refuses infinite values
            return Value(clear=shared - broadcast)
    step, why = finite_step(broadcast, shared)
    return replace(Value.summed(step[None], _grid(problem, bound), bound), blank=why)


def finite_step(broadcast: Float32s, shared: Float32s | DataError) -> tuple[Floats, str]:
    """The step (d,) from the broadcast to the trained values. Zeros, and why, if training diverges."""
    step, why = np.zeros(len(broadcast)), ""
    if isinstance(shared, DataError):
        why = str(shared)
    else:
        step += shared
        step -= broadcast
    if not np.isfinite(step).all():
        step, why = np.zeros(len(broadcast)), "Expected a finite update, got one that diverged."
    return step, why


@dataclass(frozen=True, eq=False)
class Size:
    """A client's number of records, n_k: a release, unless all neighbours have the same."""

    problem: Problem

    @property
    def spec(self) -> ValueSpec:
        """The spec. Under replace-one its sensitivity is 0 if no record can leave its client.

        n_k is the sum of a client's training and held-out records. A replaced record may change from one part
        to the other. If the server takes a share of the records, it may leave both.
        """
        moved = 1.0 if self.problem.leaving else 0.0
        return replace(SIZE, sensitivity={**SIZE.sensitivity, ("record", "replace-one"): moved})

    @property
    def query(self) -> PerClient:
        """The query. An answer is at least 1, and at most the declared records of all clients."""
        return PerClient(self.spec, least=1, most=self.problem.records)

    def compute(self, context: ClientContext) -> Value:
        step = self.spec.grid.step  # finer than records, or small noise would round to 0
        records = len(context.x) + (0 if context.held is None else len(context.held[0]))
        integers = np.array([records / step]).astype(np.int64)
        return Value(integers=integers, step=step, after_noise=self._possible)

    def _possible(self, noised: Floats) -> Value:
        return Value(clear=np.clip(noised, 1, self.problem.records))


@dataclass(frozen=True, eq=False)
class Count:
    """The public number of records of each client, summed over all clients once.

    The sum is n in the weights n_k / n. The plan sets the number: the clipped n_k if n_k is public, and
    otherwise a public number in its place. So the sum costs nothing.
    """

    problem: Problem

    @property
    def spec(self) -> ValueSpec:
        """The spec. Its grid ends at the declared records of all clients, so no client can claim more."""
        problem = self.problem
        return replace(COUNT, cohort=problem.clients, grid=Grid(step=1.0, bound=float(problem.records)))

    def compute(self, context: ClientContext) -> Value:
        # clipped: a client whose public number is beyond the grid would send nothing
        return Value(clear=np.array([float(min(context.count, self.problem.records))]))


@dataclass(frozen=True, eq=False)
class Loss:
    """The mean loss of the broadcast model on a client's held-out records, or on all if none are held out.

    If a client's own draw held out no record, it sends the loss on its training records. Otherwise it could
    not answer the other numbers of the query either. With noise it sends noised zeros, which hide that it has
    no held-out record.

    bound: a record's largest loss, public. Without it the mean has no sensitivity and cannot be noised.
    schedule: when it is queried.
    """

    problem: Problem
    bound: float | None = None
    schedule: Schedule = field(default_factory=Schedule)

    @property
    def spec(self) -> ValueSpec:
        spec = replace(LOSS, schedule=self.schedule)
        return spec if self.bound is None else replace(spec, sensitivity=_OF_LOSSES, grid=GRID)

    def compute(self, context: ClientContext) -> Value:
        model, loss = self.problem.to_read(context.broadcast), self.problem.loss
        x, y = (context.x, context.y) if context.held is None else context.held
        if self.bound is None:
            x, y = (x, y) if len(x) else (context.x, context.y)
            if len(usable(self.problem, replace(context, x=x, y=y)).x) < len(x):
                raise DataError(
                    "Expected finite records of known labels, got some that the model cannot read: the "
                    "client abstains. Clean them, or set `loss_bound`, under which they are left out."
                )
            return Value(clear=np.array([min(mean_loss(model, x, y, loss), LARGEST_LOSS)]))
        losses = Losses(bound=self.bound)
        own_job = usable(self.problem, replace(context, x=x, y=y))
        x, y = own_job.x, own_job.y
        # Without such a record it sends noised zeros: silence would tell that it has none.
        own = record_losses(model, x, y, loss) if len(x) else np.zeros(0)
        return Value(
            integers=losses.sums(own),
            step=GRID.step,
            after_noise=lambda noised: Value(clear=np.array([losses.mean(noised)])),
        )

    @property
    def query(self) -> PerClient:
        return PerClient(self.spec, least=0.0, most=self.bound or LARGEST_LOSS)
