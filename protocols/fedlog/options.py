"""FedLog (Bayesian logistic heads from sufficient statistics) with a public body."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from protocols.fedlog.head import solve
from protocols.fedlog.statistic import Clipping, Statistic
from securefl.errors import ConfigError, DataError
from securefl.rounds import Algorithm, Answers, Ask, Roster, State, Sum
from securefl.training.heads import last_dense, with_head
from securefl.training.task import Problem


@dataclass(frozen=True, kw_only=True)
class FedLog:
    """Options of FedLog.

    body: "public", the model's body as its public seed makes it, frozen. A body that is trained on the
        records voids the record-level guarantee of the paper's theorem ("private"), unless its training is
        accounted with it ("dp-sgd"); neither is built yet, and both are refused.
    clip: how features are bounded.
    """

    body: Literal["public", "private", "dp-sgd"] = "public"
    clip: Clipping = field(default_factory=Clipping)

    def __post_init__(self) -> None:
        if self.body != "public":
            raise ValueError(f'body = {self.body!r} is not built yet; use body = "public".')
        if not 0 < self.clip.bound <= 1024:
            raise ValueError(f"Expected 0 < clip.bound <= 1024, got {self.clip.bound}.")

    def build(self, problem: Problem) -> Algorithm:
        if problem.kind != "classification":
            raise ConfigError("FedLog is for classification; the data set has numeric targets.")
        width = last_dense(problem.module(problem.initial)).in_features
        return Heads(problem, Statistic(problem, self.clip, width))


@dataclass(frozen=True, eq=False)
class Heads:
    """Every round: the clients' statistics, summed; the head that maximises the posterior of their mean.

    With a frozen body the statistic is the same in each round, so rounds after the first only average
    their noise. Counts are read from the noised sum and never sent.
    """

    problem: Problem
    statistic: Statistic

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        return (self.statistic,)

    def start(self) -> State:
        nobody = np.zeros(self.problem.clients)
        size = self.problem.outputs * (1 + self.statistic.width)
        return State(
            self.problem.initial,
            {"sum": np.zeros(size), "rounds": np.zeros(1), "cohort": nobody, "survivors": nobody},
        )

    def round(
        self, state: State, roster: Roster, number: int, rng: np.random.Generator
    ) -> Generator[Ask, Answers, State]:
        size = len(state.memory["sum"])
        answers = yield Ask(
            cohort=roster.everyone(), model=state.model[:0], sums=(Sum(self.statistic.sends, size),)
        )
        there = np.isin(np.arange(roster.clients), answers.survivors).astype(float)
        state = state.remember(cohort=np.ones(roster.clients), survivors=there)
        if not answers.survivors:
            return state
        total = state.memory["sum"] + answers.totals["statistic"].value
        rounds = state.memory["rounds"] + 1
        state = state.remember(sum=total, rounds=rounds)
        try:
            head = solve(total.reshape(self.problem.outputs, -1) / rounds)
        except DataError:  # the noise outweighs the records: the model stays
            return state
        model = with_head(self.problem.module(self.problem.initial), head)
        return State(model, state.memory)
