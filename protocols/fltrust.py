"""FLTrust (Cao, Fang, Liu and Gong 2021): an update counts as much as it points where the server's own does.

    server   g = its own training step from the model, on a few root records; tells nobody
    clients  u_k = w_k - w after local training; a_k = u_k / ||u_k||
    server   learns cos_k = <a_k, g> / ||g||, one linear query per client
             trust_k = max(0, cos_k), 0 up to the error of a concealed number (an update of 0 is not trusted)
             whole weights in proportion, 4 on the mean and at most 16; trust 0 is not asked further
    server   w + ||g|| * (sum of weight_k a_k) / (sum of weight_k), from one sum

The paper has real weights. Here they are draws: whole numbers that every client of the sum checks under its
own plan, so that no order opens one client. With 4 clients of unequal trust they move the sum by up to a
tenth; `mean_weight` makes them finer, as in the preset "paper". A client trains once a round, for its cosine,
and keeps its direction for the sum.

**What it does not stop.** A client that lies can break the norm, and can have one vector scored and send
another (`two_faced` in `[corruption]`): nobody sees the vector that is summed. A server that lies cannot
take one entry as its own step: clients and key holder bound the share of one entry. That ends the plain lie
alone. Honest steps have up to half of their norm in one entry, and a lie can spend the rest of the norm on
weights that no client moves, those of units that never fire. So it still reads one entry of each client's
direction. All clients of the sum see its weights, so the trust of one another.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import (
    Algorithm,
    Answers,
    ByDraws,
    ClientContext,
    CohortQuery,
    Contribution,
    Device,
    Evaluation,
    Float32s,
    Floats,
    Grid,
    PerClient,
    Population,
    Schedule,
    State,
    Sum,
    Value,
    ValueSpec,
)
from securefl.core.ranges import Count, Positive, Range
from securefl.errors import ConfigError, DataError
from securefl.linear import LinearBounds, LinearQuery
from securefl.protocols.averaging import Averaging, Options, Uniform, cohort_size
from securefl.protocols.client_state import digest_of, made_in, require_made_in
from securefl.protocols.contributions import UPDATE, Sampling, of_client, require_weights
from securefl.protocols.parts import NOBODY, Part, ServerContext, ServerUpdate
from securefl.training import Problem
from securefl.training.jobs import TrainingJob, TrainingResult, usable, with_training
from securefl.training.run_jobs import FromTraining, run_job

__all__ = ["FLTrust", "cosine_bounds", "direction", "trust_weights"]

_LARGEST: Final = 4
"""The largest weight, in mean ones."""
_MARGIN: Final = 1 + 2.0**-20
"""Above the norm of any unit vector that float64 rounds."""
_LARGEST_SHARE: Final = 0.7
"""The most of its norm that the server's own step may have in one entry. Honest ones: 0.23, seldom 0.46."""
_GRID: Final = Grid(step=2.0**-20, bound=16.0)
DIRECTION: Final = ValueSpec(
    name="direction",
    reduction="none",
    reveals="the direction of its model update",
    reveals_encrypted="the cosine of its model update with the server's own (if that lies: one entry)",
    depends_on="trained-state",
    reads_state="none",
    schedule=Schedule(max_releases="schedule"),
)
UNIT_UPDATE: Final = replace(
    UPDATE,
    reveals="its model update at norm 1 (nobody checks the norm, nor that it is the update that was scored)",
    reads_state="bound",
    accumulates=False,  # the server scales each round's total by its own update and the scores
    sensitivity=of_client(1.0),
    grid=_GRID,
    weighs="draws",
)


# Functions on arrays --------------------------------------------------------------------------------


def direction(update: Floats) -> Floats:
    """An update scaled to norm 1 (Cao et al. 2021, Eq. 3).

    Args:
        update: float64 (d,).

    Returns:
        float64 (d,). Zeros for an update that is 0 or not finite: it points nowhere, and has cosine 0.

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.protocols.fltrust import direction
    >>> direction(np.array([3.0, 4.0])).tolist(), direction(np.array([np.inf, 1.0])).tolist()
    ([0.6, 0.8], [0.0, 0.0])
    """
    largest = float(np.abs(update).max(initial=0.0))
    # nan is not above 0. Scaled first, since squares of huge entries overflow.
    if not 0 < largest < np.inf:
        return np.zeros(len(update))
    scaled: Floats = update / largest
    return scaled / float(np.linalg.norm(scaled))


def trust_weights(cosines: Mapping[int, float], whole: int, largest: int = 16) -> dict[int, int]:
    """Whole weights of the trusted clients, in proportion to max(0, cosine) (Eq. 2 and 4).

    Args:
        cosines: by client, from -1 to 1. A client without a cosine is not trusted.
        whole: what all weights add up to.
        largest: the most that one client weighs. The least is 1.

    Returns:
        The weights by client, without those of trust 0. They add up to `whole`. If the largest for each
        trusted client are fewer than `whole`, or 1 for each are more, all weigh 1.

    Raises nothing.

    >>> from securefl.protocols.fltrust import trust_weights
    >>> trust_weights({0: 0.8, 1: -0.5, 2: 0.4, 3: 0.4}, whole=8)
    {0: 4, 2: 2, 3: 2}
    """
    trusted = {k: cosine for k, cosine in sorted(cosines.items()) if cosine > 0}
    if not len(trusted) <= whole <= largest * len(trusted):
        return dict.fromkeys(trusted, 1)
    share = np.array(list(trusted.values()))
    share *= whole / share.sum()
    # The least weights of 1 take fewer units than there are clients: all others have their whole units.
    found = np.clip(np.floor(share).astype(np.int64) - len(trusted), 1, largest)
    # One unit after the other goes to whom most is due, so the sum is exact and no weight is too large.
    while found.sum() < whole:
        due = np.where(found < largest, share - found, -np.inf)
        found[int(np.argmax(due))] += 1
    return dict(zip(trusted, map(int, found), strict=True))


def cosine_bounds(length: int) -> LinearBounds:
    """The public bounds of a cosine between vectors of `length` entries. Both have norm 1.

    Raises ConfigError for a length below 1.

    >>> from securefl.protocols.fltrust import cosine_bounds
    >>> cosine_bounds(100).product < 1.001
    True
    """
    return LinearBounds(
        hidden_length=length,
        norm=_MARGIN,
        weight_norm=_MARGIN,
        row_norm=_MARGIN,
        product=_MARGIN**2,
        least=-1.0,
        most=1.0,
        spread=max(2.0, _LARGEST_SHARE * sqrt(length)),  # 2 is any vector of up to 4 entries
    )


# Contributions --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Direction(FromTraining):
    """A client's contribution to the cosine: its update scaled to norm 1."""

    problem: Problem

    @cached_property
    def spec(self) -> ValueSpec:
        return with_training(DIRECTION, self.problem)

    def fit(self, context: ClientContext) -> TrainingJob:
        return TrainingJob(
            problem=self.problem, start=context.broadcast, context=usable(self.problem, context)
        )

    def value(self, context: ClientContext, trained: TrainingResult) -> Value:
        found = _direction(context, trained)
        unit = Value.summed(found[None], _GRID, 1.0).integers
        assert unit is not None
        return Value(hidden=found, new_state={**made_in(context), "unit": unit})

    def linear_bounds(self, broadcast: Float32s, public: Mapping[str, NDArray[Any]]) -> LinearBounds:
        return cosine_bounds(len(self.problem.initial))


@dataclass(frozen=True, eq=False)
class UnitUpdate(FromTraining):
    """A client's contribution to the sum: its direction of this round, as integers of the grid.

    With private training it is the output of the training that the direction was charged for.
    """

    problem: Problem
    whole: int

    @cached_property
    def spec(self) -> ValueSpec:
        return replace(with_training(UNIT_UPDATE, self.problem), training=None, draws=self.whole)

    def fit(self, context: ClientContext) -> None:
        return None

    def value(self, context: ClientContext, trained: None) -> Value:
        require_made_in(context, digest_of(context.broadcast))
        return Value(integers=context.kept["unit"], step=_GRID.step)


def _direction(context: ClientContext, trained: TrainingResult) -> Floats:
    if isinstance(trained, DataError):
        return np.zeros(len(context.broadcast))
    with np.errstate(over="ignore", invalid="ignore"):  # a training that diverged points nowhere
        return direction(trained.astype(np.float64) - context.broadcast)


# The round ------------------------------------------------------------------------------------------


class Trusted(Uniform):
    """Uniform selection. An observer sees each client's trust."""

    def figures(self, state: State) -> Mapping[str, Floats]:
        return {"trust": state.memory["trust"]}


@dataclass(frozen=True, kw_only=True, eq=False)
class Trusting(Part):
    """The whole model, which moves by the clients' directions: their cosines, and then one weighted sum."""

    options: FLTrust

    @cached_property
    def _whole(self) -> int:
        """What the weights of a cohort add up to."""
        return self.options.mean_weight * cohort_size(self.options.fraction, self.problem.clients)

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        require_weights(self.problem, "a trust, which scales")
        return Direction(self.problem), UnitUpdate(self.problem, self._whole)

    @property
    def memory(self) -> Mapping[str, NDArray[Any]]:
        return {"trust": np.full(self.problem.clients, np.nan)}

    def advance(
        self, server: ServerUpdate, state: State, query: CohortQuery, here: ServerContext
    ) -> Generator[CohortQuery, Answers, tuple[State, Answers]]:
        scored, unit = (contribution.spec for contribution in here.contributions)
        own = self._own_step(state.broadcast, here)
        asked = LinearQuery(cosine_bounds(len(own)), direction(own))
        trust = np.full(here.population.clients, np.nan)
        # Its step points nowhere, so all cosines are 0. Or nearly at one entry, which clients would refuse.
        spread = np.abs(asked.hidden).max() * sqrt(len(own))  # its norm is 1
        if not 0 < spread <= 0.99 * asked.bounds.spread:
            return state.remember(trust=trust), NOBODY
        answers = yield replace(query, per_client=(PerClient(scored, asked),), weights=None)
        # With the noise of their opening, half of the clients whose update is 0 would have a weight of 1.
        error, told = answers.error_bound, answers.per_client[scored.name]
        cosines = {k: cosine if abs(cosine) > error else 0.0 for k, cosine in told.items()}
        for client, cosine in cosines.items():
            trust[client] = max(0.0, cosine)
        state = state.remember(trust=trust)
        if not (weights := self._weights(cosines, here.population)):
            return state, NOBODY
        summed = yield CohortQuery(
            cohort=tuple(sorted(weights)),
            broadcast=state.broadcast,
            sums=(Sum(unit, len(own)),),
            weights=ByDraws(weights),
        )
        if summed.survivors:
            total = summed.totals[unit.name]
            step = self.options.learning_rate * float(np.linalg.norm(own)) * total.value / total.weight
            state = server.apply(state, step)
        return state, summed

    def _weights(self, cosines: Mapping[int, float], population: Population) -> dict[int, int]:
        """The draws of the sum, flattened until clients of a hidden sum would accept them."""
        power = 1.0
        while power > 1e-3:
            flat = {k: cosine**power for k, cosine in cosines.items() if cosine > 0}
            weights = trust_weights(flat, self._whole, _LARGEST * self.options.mean_weight)
            if population.admits(weights):
                return weights
            power /= 2
        # One draw of each: a plan allows fewer draws than its own for any cohort that is large enough.
        return {k: 1 for k, cosine in sorted(cosines.items()) if cosine > 0}

    def _own_step(self, broadcast: Float32s, here: ServerContext) -> Floats:
        """The server's update from the broadcast, trained as a client trains, on its root records."""
        problem = replace(self.problem, private=None)
        context = ClientContext(
            client=-1,
            round=here.number,
            x=problem.server_x[: self.options.root],
            y=problem.server_y[: self.options.root],
            broadcast=broadcast,
            public={},
            rng=here.rng,
            kept={},
            count=self.options.root,
        )
        trained = run_job(TrainingJob(problem=problem, start=broadcast, context=context))
        if isinstance(trained, DataError):
            return np.zeros(len(broadcast))
        return trained[: len(broadcast)].astype(np.float64) - broadcast

    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation:
        """The model on the server's records without its root records, which it trained on."""
        x, y = (own[self.options.root :] for own in (self.problem.server_x, self.problem.server_y))
        return Part(replace(self.problem, server_x=x, server_y=y)).evaluate(shared, devices)


@dataclass(frozen=True, kw_only=True)
class FLTrust(Options):
    """Options of FLTrust.

    fraction: C; K = ceil(C N) clients a round. The paper takes all.
    root: the number of the server's records that it trains on, and does not test on. The paper takes 100.
        Under a finite epsilon a server that has no more than that trains on all, and tests on none.
    learning_rate: of the server (the paper's alpha).
    mean_weight: the weight of each client of a cohort in which all are trusted alike. A larger one makes
        whole weights finer, and hidden sums longer.

    Raises ValueError for options out of range.

    >>> from securefl.protocols.fltrust import FLTrust
    >>> FLTrust(fraction=1.0).root
    100
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"mean_weight": 4096}}
    root: Count = 100
    learning_rate: Positive = 1.0
    mean_weight: Annotated[int, Range("[1, 4096]")] = 4

    def build(self, problem: Problem) -> Algorithm:
        # Under a finite epsilon an error would tell how many records became the server's.
        claimed = problem.private is not None or (problem.bare_plan is not None and problem.bare_plan.noisy)
        if len(problem.server_x) <= self.root and not claimed:
            raise ConfigError(
                f"Expected more than {self.root} records at the server, to train on `root` of them and test "
                f"on the others, got {len(problem.server_x)}. Take a smaller root, or a larger test_share."
            )
        part = Trusting(problem, options=self)
        return Averaging(problem=problem, fraction=self.fraction, selection=Trusted(), part=part)
