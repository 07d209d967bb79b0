"""The part of the models that is averaged: what its clients are asked for, and how totals become a step.

A value that cannot change each client gives once. Later rounds ask those that were absent.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.clients import Device, Evaluation, Offer, Population
from securefl.algorithm.queries import Answers, Ask, ByCount, Float32s, Floats, Kept, Sum, Total
from securefl.protocols.contributions import Sampling, Update
from securefl.training.learnt import Learnt, common
from securefl.training.task import Problem

Gathering = Generator[Ask, Answers, tuple[Floats | None, Answers]]
"""Ends in the step, None if no sum was opened, and in the answers to the loop's own questions."""


class Part(Protocol):
    """Which part of the models is averaged, and how totals become a step. Clients keep the rest.

    `initial` is the part before round 1, (d,). The broadcast and the step have its length.
    `offers` are its values, of cohorts that are drawn as `sampling` says.
    """

    @property
    def initial(self) -> Float32s: ...

    def offers(self, sampling: Sampling) -> tuple[Offer, ...]: ...

    def gather(
        self, ask: Ask, population: Population, rng: np.random.Generator, offers: Sequence[Offer]
    ) -> Gathering:
        """Ask for the part's sums. `ask` has cohort, broadcast, weights and numbers of the round, no sums.

        Clients train in the first Ask. The loop's numbers are asked for in that one.
        """
        ...

    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation: ...

    def learnt(self, shared: Float32s, client: int | None, kept: Kept) -> Learnt:
        """The model that is taken away (see `training.learnt.Exportable`)."""
        ...


@dataclass(frozen=True, eq=False)
class Whole:
    """The whole model is averaged: everybody has the same one."""

    problem: Problem

    @property
    def initial(self) -> Float32s:
        return self.problem.initial

    def offers(self, sampling: Sampling) -> tuple[Offer, ...]:
        return (Update(self.problem, sampling),)

    def gather(
        self, ask: Ask, population: Population, rng: np.random.Generator, offers: Sequence[Offer]
    ) -> Gathering:
        return gather_mean(ask, *offers)

    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation:
        return self.problem.evaluate(shared)

    def learnt(self, shared: Float32s, client: int | None, kept: Kept) -> Learnt:
        return common(self.problem, shared, client)


def gather_mean(ask: Ask, offer: Offer) -> Gathering:
    """One sum of values of the broadcast's length, and its step."""
    answers = yield replace(ask, sums=(Sum(offer.sends, len(ask.broadcast)),))
    if not answers.survivors:
        return None, answers
    return step_of(ask, answers.totals[offer.sends.name]), answers


def step_of(ask: Ask, total: Total) -> Floats:
    """The aggregated step: the mean over the survivors (partial), or the plain weighted sum (full).

    Full aggregation is w + sum over the selected of (n_k / n)(w_k - w). An absent client counts with the old
    model.
    """
    if isinstance(ask.weights, ByCount) or total.weight == 0:
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
