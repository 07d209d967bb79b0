"""The algorithm of FedLog: a sum of statistics, and the head that maximises the posterior of the sum."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from securefl.algorithm.clients import Device, Evaluation, Played, Population, State
from securefl.algorithm.queries import Answers, Ask, Float32s, Floats, Kept, Sum
from securefl.core.errors import DataError
from securefl.protocols.fedlog.bodies import Body
from securefl.protocols.fedlog.head import PAPER, Prior, solve
from securefl.protocols.fedlog.statistic import Statistic
from securefl.protocols.once import absent, including
from securefl.training.heads import last_dense
from securefl.training.learnt import Learnt
from securefl.training.task import Problem

NOBODY = Answers(survivors=(), totals={}, each={})


@dataclass(frozen=True, eq=False)
class Heads:
    """In every round the clients' statistics are summed. The head maximises the posterior of the sum.

    The server broadcasts the sum itself. Every client solves it for the same head, and in FedLog-C reads the
    class means from it. So a round has two statistics, whatever the bodies are. Counts are read from the
    noised sum and never sent. If bodies are trained, one exchange on the initial bodies precedes the first
    round. With a frozen body the statistic cannot change. One exchange then spends the whole epsilon, and
    later rounds ask only the clients that were absent from it.
    """

    problem: Problem
    body: Body
    statistic: Statistic
    prior: Prior = PAPER

    @property
    def offers(self) -> tuple[Statistic, ...]:
        return (self.statistic,)

    def start(self) -> State:
        nobody = np.zeros(self.problem.clients)
        size = self.problem.outputs * (1 + self.statistic.width)
        return State(
            np.zeros(0, np.float32),
            {"sum": np.zeros(size), "counted": nobody},
        )

    def round(
        self, state: State, population: Population, number: int, rng: np.random.Generator
    ) -> Generator[Ask, Answers, Played]:
        for introduction in range(self.body.introductions if number == 1 else 0):
            asked = self._ask(state, population.everyone(), introduction + 1)
            state = self._learn(state, (yield asked))
        asked = self._ask(state, self._absent(state, population))
        answers = (yield asked) if asked.cohort else NOBODY
        state = self._learn(state, answers)
        return Played(state=state, drawn=dict.fromkeys(asked.cohort, 1), survivors=answers.survivors)

    def _absent(self, state: State, population: Population) -> tuple[int, ...]:
        """The clients to ask: everybody, or those not in the sum yet if the statistic cannot change."""
        return absent(state.memory["counted"], population) if self.body.once else population.everyone()

    def _ask(self, state: State, cohort: tuple[int, ...], introduction: int = 0) -> Ask:
        question = Sum(self.statistic.sends, len(state.memory["sum"]))
        sent = state.broadcast[:0] if self.body.once else state.broadcast
        return Ask(cohort=cohort, broadcast=sent, sums=(question,), introduction=introduction)

    def _learn(self, state: State, answers: Answers) -> State:
        if not answers.survivors:
            return state
        total = answers.totals["statistic"].value
        if self.body.once:
            total = total + state.memory["sum"]
            state = state.remember(counted=including(state.memory["counted"], answers.survivors))
        # The head is solved from the float32 values that clients will be sent, so that all have the same one.
        found = total.astype(np.float32)
        state = state.remember(sum=total)
        try:
            self._head(found)
        except DataError:  # the noise outweighs the records: the head stays
            return state
        return State(found, state.memory)

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        return self.body.evaluate(self._head_of(state), devices)

    def learnt(self, state: State, client: int | None, kept: Kept) -> Learnt:
        return self.body.learnt(self._head_of(state), client, kept)

    def _head_of(self, state: State) -> Floats:
        return self._head(state.broadcast) if state.broadcast.size else self._initial_head()

    def _head(self, mean: Float32s) -> Floats:
        return solve(mean.astype(np.float64).reshape(self.problem.outputs, -1), self.prior)

    def _initial_head(self) -> Floats:
        dense = last_dense(self.problem.module(self.problem.initial))
        parts = [part.detach().cpu().numpy() for part in (dense.bias, dense.weight)]
        return np.column_stack(parts).astype(np.float64)
