"""The part of a model that is averaged: its contributions, and the step that follows from their totals.

If a value is constant, each client sends it once. Later rounds ask the clients that were absent.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import (
    Answers,
    ByCount,
    ClientState,
    CohortQuery,
    Contribution,
    Device,
    Evaluation,
    Float32s,
    Floats,
    Population,
    Sum,
    Total,
)
from securefl.protocols.contributions import Sampling, Update
from securefl.protocols.local_accuracy import of_common_model
from securefl.training import Learnt, Problem
from securefl.training.learnt import common

Gathering = Generator[CohortQuery, Answers, tuple[Floats | None, Answers]]
"""A generator of queries. It ends in the step, or None if no sum was opened, and in the first answers."""


@dataclass(frozen=True, eq=False)
class Part:
    """The part of the models that is averaged, by default the whole model, the same of all clients.

    `initial` is the part before round 1, (d,). The broadcast and the step have its length.
    `contributions` are its contributions, for cohorts that are drawn as `sampling` says.
    """

    problem: Problem

    @property
    def initial(self) -> Float32s:
        return self.problem.initial

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        return (Update(self.problem, sampling),)

    def gather(
        self,
        query: CohortQuery,
        population: Population,
        rng: np.random.Generator,
        contributions: Sequence[Contribution],
    ) -> Gathering:
        """Yield the queries for the part's sums. `query` is the round's query without sums.

        Clients train when they answer the first query. It carries the loop's own numbers too.
        """
        return gather_mean(query, contributions[0])

    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation:
        found = self.problem.evaluate(shared)
        return replace(found, figures=of_common_model(devices, self.problem, shared))

    def learnt(self, shared: Float32s, client: int | None, kept: ClientState) -> Learnt:
        """The model that a user exports (see `training.learnt.Exportable`)."""
        return common(self.problem, shared, client)


def gather_mean(query: CohortQuery, contribution: Contribution) -> Gathering:
    """Yield one query for a sum of the broadcast's length. It ends in the step of that sum."""
    answers = yield replace(query, sums=(Sum(contribution.spec, len(query.broadcast)),))
    if not answers.survivors:
        return None, answers
    return step_of(query, answers.totals[contribution.spec.name]), answers


def step_of(query: CohortQuery, total: Total) -> Floats:
    """The aggregated step: the mean over the survivors (partial), or the weighted sum (full).

    Full aggregation is w + sum over the selected of (n_k / n)(w_k - w). An absent client counts with the old
    model.
    """
    if isinstance(query.weights, ByCount) or total.weight == 0:
        return total.value
    return total.value / total.weight


Counted = NDArray[np.float64]
"""1 for each client whose value is in the sum, else 0, (N,)."""


def absent(counted: Counted, population: Population) -> tuple[int, ...]:
    """The clients whose values are not in the sum yet."""
    # The difference of two sums of a constant value over two sets of clients would be one client's value.
    return tuple(k for k in population.everyone() if not counted[k])


def including(counted: Counted, survivors: Sequence[int]) -> Counted:
    """`counted` with these clients, whose values were added now."""
    found: Counted = counted + np.isin(np.arange(len(counted)), survivors)
    return found
