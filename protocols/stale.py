"""SAFA's cache of stale models (Wu et al. 2021), an option of full aggregation.

    w_t = sum over all clients k of (n_k / n) w_k, where w_k is the model of k's last training, before it w_0

Without the cache an absent client counts with the round's own broadcast, so a round moves the model by the
share of the selected alone. In SAFA the server holds all w_k. Here each client keeps its own, and sends the
difference of its new model to it. It is the same sum, and hides no less than a sum of updates.

If a sum is lost after a client trained, server and client disagree on its w_k from then on. SAFA's bound on
the lag of a model is left out: no model is too old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from securefl.algorithm import (
    ClientContext,
    ClientState,
    CohortQuery,
    Contribution,
    Device,
    Evaluation,
    Float32s,
    Population,
    Value,
    ValueSpec,
)
from securefl.errors import DataError
from securefl.protocols.averaging import Aggregation
from securefl.protocols.contributions import UNSAMPLED, Sampling, bounded, to_fit, update_sends
from securefl.protocols.parts import Gathering, Part, gather_mean
from securefl.training import Learnt, Problem
from securefl.training.fit import Fit, Fitted, fitted
from securefl.training.learnt import common


def part_of(problem: Problem, stale: bool) -> Part | None:
    """The part that is averaged: that of the cache, or None for the whole model without one."""
    return WithStale(problem) if stale else None


def with_stale(stale: bool) -> str | None:
    """The option in the words of a plot's legend."""
    return "stale models" if stale else None


def check_stale(stale: bool, aggregation: Aggregation) -> None:
    """Raises ValueError for a cache under partial aggregation, which has no place for absent clients."""
    if stale and aggregation != "full":
        raise ValueError(
            'Expected aggregation = "full" beside stale = true, got "partial", under which absent clients do '
            "not count. Leave one of them out."
        )


@dataclass(frozen=True, eq=False)
class WithStale:
    """The whole model is averaged over all clients, each with the model of its last training."""

    problem: Problem

    @property
    def initial(self) -> Float32s:
        return self.problem.initial

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        return (Change(self.problem, sampling),)

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


@dataclass(frozen=True, eq=False)
class Change:
    """The change of a client's model since its last training: its new model less the one that it keeps."""

    problem: Problem
    sampling: Sampling = UNSAMPLED

    @cached_property
    def spec(self) -> ValueSpec:
        return update_sends(self.problem, self.sampling)

    def fit(self, context: ClientContext) -> Fit:
        return to_fit(self.problem, context, context.broadcast)

    def value(self, context: ClientContext, trained: Fitted) -> Value:
        last = context.kept.get("model", self.problem.initial)
        found = bounded(self.problem, last, trained)
        if isinstance(trained, DataError):  # it sends 0, and its last model stays
            return found
        if found.integers is None:
            return replace(found, new_state={"model": trained.copy()})
        # Under a bound it keeps what the sum has of it, and not what it trained.
        sent = (last + found.integers * self.spec.grid.step).astype(np.float32)
        return replace(found, new_state={"model": sent})

    def compute(self, context: ClientContext) -> Value:
        return self.value(context, fitted(self.fit(context)))
