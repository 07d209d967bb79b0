"""FedCor's options, and its selection of clients by the correlation of loss changes (Algorithms 1 and 2).

FedCor models the clients' loss changes in a round as a Gaussian process. Each client has an embedding, a
short vector. The covariance of two clients' changes follows from their embeddings, which are fitted to
observed changes (`process`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from securefl.algorithm import (
    Algorithm,
    Answers,
    ByDraws,
    CohortQuery,
    Contribution,
    Floats,
    Population,
    Schedule,
    State,
    sample_without_replacement,
)
from securefl.core.ranges import Fraction, Range
from securefl.protocols.averaging import (
    Averaging,
    ByLosses,
    Chosen,
    Options,
    Replace,
    cohort_size,
    known_or_mean,
    sampling,
)
from securefl.protocols.contributions import SIZE, Loss, LossBound
from securefl.protocols.fedcor.process import covariance, fit, grouped, most_informative, plane
from securefl.protocols.parts import Part, Update, gather_mean
from securefl.training import Problem

LOSSES, TRIAL = 1, 2
"""The query numbers of the losses: those on the round's model, and those on a trial's model.

A trial's update has number 1 too. It precedes the losses on the trial's model.
"""
_LEARNING_RATE: Final = 0.01


@dataclass(frozen=True, eq=False)
class ByCorrelation(ByLosses):
    """Selects the K clients whose losses together are most informative of all clients' losses.

    update: the contribution that a trial's cohort is asked for.
    """

    options: FedCor
    update: Contribution

    @property
    def loss(self) -> Loss:
        return Loss(
            self.problem,
            self.options.loss_bound,
            Schedule(period=0, extra=self.options.losses(self.problem.rounds)),
        )

    def choose(
        self, state: State, population: Population, count: int, number: int, rng: np.random.Generator
    ) -> Chosen:
        options = self.options
        uniform = sample_without_replacement(population.among(np.zeros(population.clients)), count, rng)
        if number == 1:
            state = self._begun(state, population.clients, rng)
        if number <= options.warm_up + 1:
            before = state.memory["losses"]
            state = yield from self._known(state, population, LOSSES)
            state = self._learnt(state, state.memory["losses"] - before, number, options.window)
        if number <= options.warm_up:
            return uniform, state
        if options.trial(number):
            state = yield from self._tried(state, population, tuple(sorted(uniform)), number)
        return self._chosen(state, population, count)

    def _begun(self, state: State, clients: int, rng: np.random.Generator) -> State:
        options = self.options
        most = 1 + max(options.window, options.window_after)
        return state.remember(
            embedding=rng.standard_normal((options.dimension, clients)) / np.sqrt(options.dimension),
            losses=np.full(clients, np.nan),
            changes=np.full((most, clients), np.nan),
            changed=np.zeros(most, np.int64),
            chosen=np.zeros(clients, np.int64),
        )

    def _known(
        self, state: State, population: Population, number: int
    ) -> Generator[CohortQuery, Answers, State]:
        """The state with the losses of all clients on its broadcast."""
        found = yield from self.losses(state, population, population.everyone(), number)
        return state.remember(losses=found)

    def _tried(
        self, state: State, population: Population, cohort: tuple[int, ...], number: int
    ) -> Generator[CohortQuery, Answers, State]:
        """The state after a trial (Algorithm 2, lines 4 to 11). The trial's model is dropped."""
        state = yield from self._known(state, population, LOSSES)
        if not cohort:
            return state
        draws = ByDraws(dict.fromkeys(cohort, 1))
        query = CohortQuery(cohort=cohort, broadcast=state.broadcast, weights=draws, number=1)
        step, _ = yield from gather_mean(query, self.update)
        if step is None:  # no sum was opened
            return state
        trained = Replace().apply(state, step)
        after = yield from self._known(trained, population, TRIAL)
        change = after.memory["losses"] - state.memory["losses"]
        return self._learnt(state, change, number, self.options.window_after)

    def _learnt(self, state: State, change: Floats, number: int, window: int) -> State:
        """The state with embeddings that learned one more change (Eqs. 16 and 17), and annealing reset."""
        memory = state.memory
        if not grouped(change[None], np.ones(1)):  # no loss changed, or none is known
            return state
        changes = np.concatenate([change[None], memory["changes"][:-1]])
        changed = np.concatenate([[number], memory["changed"][:-1]])
        # The fit takes floats. A discount given as the integer 1 to an integer power would stay an integer.
        weight = self.options.discount ** (number - changed[: window + 1]).astype(np.float64)
        embedding = fit(
            memory["embedding"],
            changes[: window + 1],
            weight,
            steps=self.options.steps,
            learning_rate=_LEARNING_RATE,
        )
        return state.remember(
            embedding=embedding,
            changes=changes,
            changed=changed,
            chosen=np.zeros_like(memory["chosen"]),
        )

    def _chosen(self, state: State, population: Population, count: int) -> tuple[Mapping[int, int], State]:
        memory = state.memory
        sizes = known_or_mean(memory[SIZE.name])
        allowed = np.isfinite(population.among(np.zeros(population.clients)))
        scale = self.options.annealing ** memory["chosen"].astype(np.float64)
        sigma = covariance(memory["embedding"])
        cohort = most_informative(sigma, sizes / sizes.sum(), count, scale=scale, allowed=allowed)
        times = memory["chosen"].copy()
        times[cohort] += 1
        return dict.fromkeys(cohort, 1), state.remember(chosen=times)

    def figures(self, state: State) -> Mapping[str, Floats]:
        """The newest losses, and the embeddings in their two main directions."""
        first, second = plane(state.memory["embedding"])
        return {"loss": state.memory["losses"], "embedding_1": first, "embedding_2": second}


Least0 = Annotated[int, Range("[0, 10^6]")]
Least1 = Annotated[int, Range("[1, 10^6]")]


@dataclass(frozen=True, kw_only=True)
class FedCor(Options):
    """Options of FedCor. The defaults are the paper's for Fashion-MNIST; brackets have those for CIFAR-10.

    fraction: of the clients that a round selects: K = ceil(fraction * N) of N.
    warm_up: the number of rounds with uniform cohorts. After each, all clients send their losses (20).
    interval: the number of rounds between two trials after the warm-up (50).
    updates: the most trials in a run. Each asks all clients for two losses and K clients for an update. Noise
        is calibrated for those that the run's rounds have.
    annealing: beta, the factor on a client's gain for each time that it was chosen since the last update of
        the embeddings (0.9).
    discount: theta, the factor on the weight of a change for each round that it is old (0.99).
    dimension: the number of entries of a client's embedding.
    window, window_after: the earlier changes that an update of the embeddings reads, in the warm-up and
        afterwards.
    steps: the steps of Adam in one update of the embeddings.
    loss_bound: the largest loss of a record. Larger losses are clipped. Without a bound, losses cannot be
        noised.

    The preset "authors" is that of their README for Fashion-MNIST. Their code also subtracts the weighted
    mean of a client's changes, and an update reads those of the last 100 rounds: no option here does that.

    Raises ValueError for options out of range.

    >>> from securefl.protocols.fedcor import FedCor
    >>> FedCor(fraction=0.1, warm_up=20).interval
    10
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "authors": {
            "warm_up": 16,
            "annealing": 0.9,
            "discount": 0.95,
            "steps": 100,
            "local": {"epochs": 3},
        },
    }
    warm_up: Least1 = 15
    interval: Least1 = 10
    updates: Least0 = 50
    annealing: Fraction = 0.95
    discount: Fraction = 0.9
    dimension: Least1 = 15
    window: Least0 = 10
    window_after: Least0 = 1
    steps: Least1 = 150
    loss_bound: LossBound = None

    def trial(self, number: int) -> bool:
        """Whether this round has a trial."""
        passed = number - self.warm_up - 1
        return passed > 0 and passed % self.interval == 0 and passed // self.interval <= self.updates

    def trials(self, rounds: int | None) -> int:
        """The number of trials in a run of so many rounds. None is an unknown number."""
        if rounds is None:
            return self.updates
        return min(self.updates, max(0, rounds - self.warm_up - 1) // self.interval)

    def losses(self, rounds: int | None) -> int:
        """The number of queries for a client's loss in such a run."""
        # A change takes the losses before and after: warm_up + 1 queries in a row, and 2 for each trial.
        in_a_row = self.warm_up + 1
        return (in_a_row if rounds is None else min(rounds, in_a_row)) + 2 * self.trials(rounds)

    def build(self, problem: Problem) -> Algorithm:
        count, trials = cohort_size(self.fraction, problem.clients), self.trials(problem.rounds)
        # One contribution serves both, so that a trial asks for the same value as a round.
        update = Update(Part(problem), sampling(count, "partial", trials=trials))
        return Averaging(
            problem=problem,
            selection=ByCorrelation(problem, self, update),
            fraction=self.fraction,
            trials=trials,
        )
