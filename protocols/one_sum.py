"""The rounds of FedLog, the heads in closed form and FedProto: one statistic, summed over all clients.

In each round all clients send their statistic, and the server learns from its sum. If the statistic is
constant, each client sends it once: later rounds ask the clients that were absent, and sums add up. Counts
that travel apart (`class_counts`) complete the sum.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from securefl.algorithm import (
    Answers,
    CohortQuery,
    Contribution,
    Float32s,
    Floats,
    Population,
    RoundResult,
    State,
    Sum,
)
from securefl.protocols.class_counts import Counting
from securefl.protocols.parts import NOBODY, absent, including
from securefl.training import Problem


class Summed(Contribution, Protocol):
    """A statistic of `size` values. `counting` is the server's side of counts that travel apart, or None."""

    @property
    def size(self) -> int: ...

    @property
    def counting(self) -> Counting | None: ...


@dataclass(frozen=True, eq=False)
class OneSum:
    """An algorithm of such rounds, without `evaluate` and `learnt`.

    A state's memory has the newest `sum`, and by client whether it is `counted`.
    """

    problem: Problem
    statistic: Summed

    def learn(self, state: State, total: Floats, survivors: int) -> State:
        """The state after a sum over so many clients, float64 (size,), with its counts."""
        raise NotImplementedError

    @property
    def initial(self) -> Float32s:
        """The broadcast of the first round."""
        return np.zeros(0, np.float32)

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        counting = self.statistic.counting
        return (self.statistic,) if counting is None else (self.statistic, counting.counts)

    def start(self) -> State:
        memory = {"sum": np.zeros(self.statistic.size), "counted": np.zeros(self.problem.clients)}
        if self.statistic.counting is not None:
            memory["counts"] = np.zeros(self.problem.outputs)
        return State(self.initial, memory)

    def round(
        self, state: State, population: Population, number: int, rng: np.random.Generator
    ) -> Generator[CohortQuery, Answers, RoundResult]:
        if (counting := self.statistic.counting) is not None:
            state = yield from counting.late(state, population)
        for initial in range(self.statistic.spec.schedule.initial if number == 1 else 0):
            state = self._answered(state, (yield self._ask(state, population, initial + 1)))
        asked = self._ask(state, population)
        answers = (yield asked) if asked.cohort else NOBODY
        state = self._answered(state, answers)
        return RoundResult(state=state, drawn=dict.fromkeys(asked.cohort, 1), survivors=answers.survivors)

    def _ask(self, state: State, population: Population, initial: int = 0) -> CohortQuery:
        """The query to all, or to those that are not in the sum yet if the statistic is constant."""
        question = Sum(self.statistic.spec, self.statistic.size)
        if (counting := self.statistic.counting) is not None:
            return counting.query(state, population, question, initial)
        sent, cohort = state.broadcast, population.everyone()
        if self.statistic.spec.schedule.once:
            sent, cohort = sent[:0], absent(state.memory["counted"], population)
        return CohortQuery(cohort=cohort, broadcast=sent, sums=(question,), initial=initial)

    def _answered(self, state: State, answers: Answers) -> State:
        if not answers.survivors:
            return state
        total = answers.totals[self.statistic.spec.name].value
        if (counting := self.statistic.counting) is not None:
            state = counting.learn(state, answers)
            total = counting.whole(state, answers, total.reshape(self.problem.outputs, -1)).ravel()
        elif self.statistic.spec.schedule.once:
            total = total + state.memory["sum"]
            state = state.remember(counted=including(state.memory["counted"], answers.survivors))
        return self.learn(state.remember(sum=total), total, len(answers.survivors))
