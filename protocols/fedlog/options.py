"""FedLog and FedLog-C: a Bayesian logistic head from the clients' sufficient statistics."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from protocols.fedlog.bodies import Body, Public, Trained
from protocols.fedlog.head import solve
from protocols.fedlog.statistic import Clipping, Statistic
from securefl.errors import ConfigError, DataError
from securefl.rounds import (
    Algorithm,
    Answers,
    Ask,
    Device,
    Evaluation,
    Float32s,
    Floats,
    Played,
    Population,
    State,
    Sum,
)
from securefl.training.bodies import Bodies
from securefl.training.heads import last_dense
from securefl.training.task import Problem

NOBODY = Answers(survivors=(), totals={}, each={})


@dataclass(frozen=True, kw_only=True)
class FedLog:
    """Options of FedLog.

    body: "public", the model's body as its public seed makes it, frozen; "private", trained by each client on
        its records, which voids the record-level guarantee of the paper's theorem: epsilon per record is
        infinite, and per client it is finite with `client_bound`; "dp-sgd", trained as [dpsgd] says, whose
        cost and the statistic's compose to a finite epsilon per record.
    clip: how features are bounded; what noise is scaled to.
    client_bound: the largest norm of a client's whole statistic, to which it is scaled down.
    alpha, beta: FedLog-C's pull to the mean of the own class and push from the others (0.01 and 0 or 5e-4).
    shorter: share of the clients whose body lacks its first hidden dense layer.
    """

    body: Literal["public", "private", "dp-sgd"] = "public"
    clip: Clipping = field(default_factory=Clipping)
    client_bound: float | None = None
    alpha: float = 0.0
    beta: float = 0.0
    shorter: float = 0.0

    def __post_init__(self) -> None:
        if self.body == "dp-sgd" and (self.alpha or self.beta):
            raise ValueError(
                'Expected alpha and beta with body = "private" only: DP-SGD clips the loss alone.'
            )
        if self.body == "public" and (self.alpha or self.beta or self.shorter):
            raise ValueError(
                'Expected alpha, beta and shorter with body = "private" only: others are not trained.'
            )
        if not (0 <= self.alpha < np.inf and 0 <= self.beta < np.inf and 0 <= self.shorter <= 1):
            raise ValueError("Expected alpha >= 0, beta >= 0 and 0 <= shorter <= 1, all finite.")
        if self.client_bound is not None and not 0.01 <= self.client_bound <= 2**20:
            raise ValueError(f"Expected 0.01 <= client_bound <= 2^20, got {self.client_bound}.")

    def build(self, problem: Problem) -> Algorithm:
        if problem.kind != "classification":
            raise ConfigError("FedLog is for classification; the data set has numeric targets.")
        width = last_dense(problem.module(problem.initial)).in_features
        body = self._body(problem)
        statistic = Statistic(body, self.clip, problem.outputs, width, problem.clients, self.client_bound)
        return Heads(problem, body, statistic)

    def _body(self, problem: Problem) -> Body:
        activation = self.clip.activation()
        if self.body == "public":
            return Public(problem, activation)
        if self.body == "private":
            problem = replace(problem, private=None)
        elif problem.private is None:
            raise ConfigError(
                'body = "dp-sgd" needs a section [dpsgd] that says how bodies are trained; add it.'
            )
        bodies = Bodies(problem, self.shorter)
        bodies.of(0)  # a body that cannot be shortened is told here
        return Trained(bodies, activation, self.alpha, self.beta)


@dataclass(frozen=True, eq=False)
class Heads:
    """Every round: the clients' statistics, summed; the head that maximises the posterior of the sum.

    The server broadcasts the sum itself, from which every client solves for the same head (and, in FedLog-C,
    reads the class means): two statistics a round, whatever the bodies. Counts are read from the noised sum
    and never sent. Before the first round there is one exchange on the initial bodies, where bodies are
    trained. With a frozen body the statistic cannot change: one exchange spends the whole epsilon, and later
    rounds ask only whoever was absent from it.
    """

    problem: Problem
    body: Body
    statistic: Statistic

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
        """Whom to ask: everybody, or where the statistic cannot change whoever is not in the sum yet."""
        counted = state.memory["counted"]
        return tuple(k for k in population.everyone() if not (self.body.once and counted[k]))

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
            there = np.isin(np.arange(self.problem.clients), answers.survivors)
            state = state.remember(counted=state.memory["counted"] + there)
        found = total.astype(np.float32)
        state = state.remember(sum=total)
        try:
            self._head(found)
        except DataError:  # the noise outweighs the records: the head stays
            return state
        return State(found, state.memory)

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        head = self._head(state.broadcast) if state.broadcast.size else self._initial_head()
        return self.body.evaluate(head, devices)

    def _head(self, mean: Float32s) -> Floats:
        return solve(mean.astype(np.float64).reshape(self.problem.outputs, -1))

    def _initial_head(self) -> Floats:
        dense = last_dense(self.problem.module(self.problem.initial))
        return np.column_stack([dense.bias.detach().numpy(), dense.weight.detach().numpy()]).astype(
            np.float64
        )
