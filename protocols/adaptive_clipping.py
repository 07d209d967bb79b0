"""Adaptive clipping (Andrew et al., NeurIPS 2021): the bound of updates follows a quantile of their norms.

A client divides its update by the round's bound C, clips that to norm 1, and appends a bit: 1/4 if its
update was within C, else -1/4. The plan noises and charges this one vector. The server multiplies the mean by
C again. The mean of the bits, with its noise, gives the share of updates within C, and a round ends with

    C <- C * exp(-rate * (share - quantile)),    rate = max(0.2, 2 / sqrt(round))

Whatever C is, one client moves the vector by `NORM` at most. So noise, charge, grid and modulus do not depend
on C, and a server that lies about it gains nothing. C is a public array of the order, on which all who sign a
hidden sum agree. A client answers no C outside the range of `update_bound`.

At one epsilon an update has 3.1 % more noise than under a fixed bound of C: sqrt(17) / 4 for 1. The paper
noises bits apart. One vector is the same mechanism: independent Gaussians, of which each entry has its own.

The rate falls to the paper's 0.2 over 100 rounds. From a first bound ten times the median, 0.2 alone takes 24
rounds down to it, and their noise, in multiples of C, stays in the model. This rate takes 4. A large rate
must not stay, since C follows the noise of the share too. Where the share moves by about 1 as C moves by a
factor of e, a small constant rate spreads log C by sqrt(rate / 2) of that noise's deviation: by 0.2 at the
rate 0.2, where it is 0.6, as for 20 clients at epsilon 1. There the first rounds spread C by a factor of 3.

Server optimisers and momentum get the step in the model's own unit. They read noised totals alone, which is
post-processing. A learning rate that falls shortens updates, and C follows. Noise that is correlated over
rounds is refused: totals are in multiples of another C each round, so it would not cancel in the model.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from math import hypot
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import (
    Answers,
    ClientContext,
    CohortQuery,
    State,
    Value,
    ValueSpec,
)
from securefl.errors import ConfigError, DataError
from securefl.mechanisms import grid_within
from securefl.protocols.contributions import (
    UNSAMPLED,
    UPDATE,
    Sampling,
    finite_step,
    of_client,
    require_bounded_weights,
)
from securefl.protocols.parts import Part, ServerContext, ServerUpdate, gather_mean, stepped
from securefl.training.jobs import TrainingResult, with_training
from securefl.training.local import BOUND, BOUNDS

BIT: Final = 1 / 4
"""Half of what the bit moves an entry. A larger one has less noise, and the update more."""
NORM: Final = hypot(1.0, BIT)
"""The largest norm of a client's vector."""
_RATE: Final = 0.2
"""The paper's rate, which it found good for all of its models. Early rounds have a larger one."""


@dataclass(frozen=True, eq=False)
class Adaptive(Part):
    """The whole model. A client's update counts in multiples of the round's bound, with a bit behind it.

    Raises ConfigError, in `contributions`, where the share of updates within the bound or the step would not
    follow from the sum.
    """

    @property
    def memory(self) -> Mapping[str, NDArray[Any]]:
        return {BOUND: np.array([self.problem.local.update_bound])}

    def spec(self, sampling: Sampling) -> ValueSpec:
        problem = self.problem
        require_bounded_weights(problem)
        if sampling.weighs == "counts" or sampling.extra:
            raise ConfigError(
                "Expected one mean of updates a round beside `bound_quantile` under [local], got weights "
                "n_k / n, whose sum nobody knows, or trial updates: the share of updates within the bound "
                "would not follow. Leave it out, or take a protocol with neither, such as fedavg with "
                'aggregation = "partial", or fedcor with updates = 0.'
            )
        if (plan := problem.bare_plan) is not None and len(plan.coefficients) > 1:
            raise ConfigError(
                "Expected independent noise beside `bound_quantile` under [local], got noise that is "
                "correlated over rounds: totals count in multiples of another bound each round, so it would "
                "not cancel in the model. Set bands = 1 under [privacy], or leave `bound_quantile` out."
            )
        spec = replace(
            sampling.of(with_training(UPDATE, problem)),
            reveals="its model update in multiples of a bound, and whether the bound clips it",
            form="discrete",  # the bit
            accumulates=False,
            sensitivity=of_client(NORM),
        )
        return replace(spec, grid=grid_within(NORM, spec, plan))

    def value(self, context: ClientContext, trained: TrainingResult) -> Value:
        bound = _agreed(context)
        step, why = finite_step(context.broadcast, trained)
        grid = self.spec(UNSAMPLED).grid
        clipped = Value.summed(step[None] / bound, grid, 1.0)
        assert clipped.integers is not None
        bit = int(BIT / grid.step) * (1 if np.linalg.norm(step) <= bound else -1)
        return replace(clipped, integers=np.append(clipped.integers, bit), blank=why)

    def advance(
        self, server: ServerUpdate, state: State, query: CohortQuery, here: ServerContext
    ) -> Generator[CohortQuery, Answers, tuple[State, Answers]]:
        bound = state.memory[BOUND]
        asked = replace(query, public={**query.public, BOUND: bound})
        mean, answers = yield from gather_mean(asked, here.contributions[0], len(query.broadcast) + 1)
        if mean is None:  # nobody's update, so no share
            return state, answers
        share = 0.5 + mean[-1] / (2 * BIT)
        quantile = self.problem.local.bound_quantile
        # Noise may put a share of few clients far outside of [0, 1]: a round moves the bound by e at most.
        rate = max(_RATE, 2 * here.number**-0.5)
        moved = bound * np.exp(np.clip(rate * (quantile - share), -1, 1))
        after = stepped(self, server, state, bound * mean[:-1])
        return after.remember(**{BOUND: np.clip(moved, *BOUNDS.ends)}), answers


def _agreed(context: ClientContext) -> float:
    """The round's bound, which all signers of the sum agreed on. Raises DataError for none in its range."""
    own = np.asarray(context.public.get(BOUND, np.nan))
    if own.shape != (1,) or float(own[0]) not in BOUNDS:
        raise DataError(
            f"Expected a query with one bound of updates in {BOUNDS}, got {own!r:.60}: the client abstains. "
            "Ask with the bound that the last round ended with."
        )
    return float(own[0])
