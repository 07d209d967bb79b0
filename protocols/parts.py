"""The part of the models that is averaged: what its clients are asked for, and how totals become a step.

A value that cannot change each client gives once. Later rounds ask those that were absent.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.clients import Contribution, Device, Evaluation, Population
from securefl.algorithm.queries import (
    Answers,
    ByCount,
    ClientState,
    CohortQuery,
    Float32s,
    Floats,
    Sum,
    Total,
)
from securefl.protocols.contributions import Sampling, Update
from securefl.training.learnt import Learnt, common
from securefl.training.task import Problem

Gathering = Generator[CohortQuery, Answers, tuple[Floats | None, Answers]]
"""Ends in the step, None if no sum was opened, and in the answers to the loop's own questions."""


class Part(Protocol):
    """Which part of the models is averaged, and how totals become a step. Clients keep the rest.

    `initial` is the part before round 1, (d,). The broadcast and the step have its length.
    `contributions` are its values, of cohorts that are drawn as `sampling` says.
    """

    @property
    def initial(self) -> Float32s: ...

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]: ...

    def gather(
        self,
        query: CohortQuery,
        population: Population,
        rng: np.random.Generator,
        contributions: Sequence[Contribution],
    ) -> Gathering:
        """Ask for the part's sums. `query` has cohort, broadcast, weights and numbers of the round, no sums.

        Clients train in the first Ask. The loop's numbers are asked for in that one.
        """
        ...

    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation: ...

    def learnt(self, shared: Float32s, client: int | None, kept: ClientState) -> Learnt:
        """The model that is taken away (see `training.learnt.Exportable`)."""
        ...


@dataclass(frozen=True, eq=False)
class Whole:
    """The whole model is averaged: everybody has the same one."""

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
        return gather_mean(query, *contributions)

    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation:
        return self.problem.evaluate(shared)

    def learnt(self, shared: Float32s, client: int | None, kept: ClientState) -> Learnt:
        return common(self.problem, shared, client)


def gather_mean(query: CohortQuery, contribution: Contribution) -> Gathering:
    """One sum of values of the broadcast's length, and its step."""
    answers = yield replace(query, sums=(Sum(contribution.spec, len(query.broadcast)),))
    if not answers.survivors:
        return None, answers
    return step_of(query, answers.totals[contribution.spec.name]), answers


def step_of(query: CohortQuery, total: Total) -> Floats:
    """The aggregated step: the mean over the survivors (partial), or the plain weighted sum (full).

    Full aggregation is w + sum over the selected of (n_k / n)(w_k - w). An absent client counts with the old
    model.
    """
    if isinstance(query.weights, ByCount) or total.weight == 0:
        return total.value
    return total.value / total.weight


Counted = NDArray[np.float64]
"""Which clients are in the sum already, (N,): 1 for those."""


def absent(counted: Counted, population: Population) -> tuple[int, ...]:
    """The clients that are not in the sum yet."""
    # Two sums of an unchanging value over different sets would give one client's value by subtraction.
    return tuple(k for k in population.everyone() if not counted[k])


def including(counted: Counted, survivors: Sequence[int]) -> Counted:
    """The same with these clients, whose values were added now."""
    found: Counted = counted + np.isin(np.arange(len(counted)), survivors)
    return found
