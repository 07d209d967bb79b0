"""Running statistics of batch norm beside bounded updates: a sum of their own, with its own bound and charge.

They are no weights. `update_bound` and noise scaled to it would treat them as such, so the update lacks them.
A round has two cohort queries. For the first one clients train, and their updates of the weights are summed.
For the second one the same clients send the steps of their statistics, scaled down to `buffers_bound`. The
plan clips, noises and charges it as any other value, so a client spends two releases a round.

The second query names the whole cohort of the first one. A sum needs `min_cohort_size` clients that are
asked, and the clients of the first sum may be fewer. Each sum may lose as many clients as the plan says. A
client that did not train in this round has no step of it, and abstains. If the second sum does not open, the
statistics stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import (
    ClientContext,
    ClientState,
    CohortQuery,
    Contribution,
    Float32s,
    Sum,
    Value,
    ValueSpec,
)
from securefl.errors import ConfigError, DataError
from securefl.mechanisms import grid_within
from securefl.protocols.adaptive_clipping import Adaptive
from securefl.protocols.client_state import FIRST, digest_of, made_in, require_made_in
from securefl.protocols.contributions import UNSAMPLED, UPDATE, Sampling, of_client, update_sends
from securefl.protocols.parts import Gathering, Part, ServerContext, Whole, gather_mean, step_of
from securefl.training import Problem
from securefl.training.jobs import TrainingResult, with_model

BUFFERS = replace(
    UPDATE,
    name="buffers",
    reveals="the step of its batch norm's running statistics",
    on_model=False,
    reads_state="bound",
    bounded_by={"client": "`buffers_bound` in [local], and noise"},
)


def whole_model(problem: Problem) -> Part:
    """The part that is the whole model, its running statistics apart from weights that have a bound."""
    if problem.local.bound_quantile is not None:
        return Adaptive(problem)
    apart = problem.local.update_bound is not None and len(problem.averaged[0])
    return Apart(problem) if apart else Whole(problem)


@dataclass(frozen=True, eq=False)
class Apart(Part):
    """The whole model. The update has the weights, and a second sum the running statistics.

    Raises ConfigError, in `contributions`, if no bound of the statistics is declared.
    """

    @cached_property
    def weights(self) -> NDArray[np.int64]:
        """The positions of the weights in the model's vector."""
        return np.setdiff1d(np.arange(len(self.initial)), self.problem.averaged[0])

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        if self.problem.local.buffers_bound is None:
            raise ConfigError(
                "Expected a bound for the running statistics of batch norm beside `update_bound`, which "
                "clips, and noise, which moves them as if they were weights; got none. Set "
                'buffers = "local" under [model], so that each client keeps its own. Or set `buffers_bound` '
                "under [local]: their sum is then a release of its own, which epsilon counts."
            )
        return (*super().contributions(sampling), Buffers(self.problem, sampling))

    def spec(self, sampling: Sampling) -> ValueSpec:
        return update_sends(self.charged, sampling, apart=True)

    def before(self, broadcast: Float32s) -> Float32s:
        return broadcast[self.weights]

    def split(self, context: ClientContext, trained: Float32s) -> tuple[Float32s, ClientState | None]:
        return trained[self.weights], None

    def value(self, context: ClientContext, trained: TrainingResult) -> Value:
        averaged = self.problem.averaged[0]
        # After a training that failed it sends 0 twice: silence would tell of its records.
        step = np.zeros(len(averaged), np.float32)
        if not isinstance(trained, DataError) and np.isfinite(trained[averaged]).all():
            step = trained[averaged] - context.broadcast[averaged]
        return replace(super().value(context, trained), new_state={**made_in(context), "step": step})

    def gather(self, query: CohortQuery, here: ServerContext) -> Gathering:
        update, buffers = here.contributions
        moved, answers = yield from gather_mean(query, update, len(self.weights))
        if moved is None:
            return None, answers
        averaged = self.problem.averaged[0]
        asked = replace(
            query,
            broadcast=query.broadcast[:0],
            sums=(Sum(buffers.spec, len(averaged)),),
            public={FIRST: digest_of(query.broadcast)},
        )
        second = yield asked
        step = np.zeros(len(self.initial))
        step[self.weights] = moved
        if second.survivors:  # else the statistics stay
            step[averaged] = step_of(asked, second.totals[BUFFERS.name])
        return step, answers


@dataclass(frozen=True, eq=False)
class Buffers:
    """The step of a client's running statistics in the training behind its update, within their bound."""

    problem: Problem
    sampling: Sampling = field(default=UNSAMPLED)

    @property
    def bound(self) -> float:
        found = self.problem.local.buffers_bound
        assert found is not None
        return found

    @cached_property
    def spec(self) -> ValueSpec:
        own = replace(BUFFERS, sensitivity=of_client(self.bound))
        own = replace(own, grid=grid_within(self.bound, own, self.problem.bare_plan))
        return with_model(self.sampling.of(own), self.problem)

    def compute(self, context: ClientContext) -> Value:
        require_made_in(context, context.public.get(FIRST))
        value = Value.summed(context.kept["step"][None], self.spec.grid, self.bound)
        return replace(value, new_state={})
