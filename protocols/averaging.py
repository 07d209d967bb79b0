"""The shared parts of the model-averaging systems: the loop and the two aggregations.

FedAvg, FedProx, FedAdam, FedProf and their baselines differ in four parts only:

    selection  x  local training  x  aggregation  x  server update

Privacy (how sums are summed, what is noised) is not among them. It is in the plan.

Server updates stand here, too: what a server makes of the aggregated step, beside adding it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.clients import Contribution, Device, Evaluation, Population, RoundResult, State
from securefl.algorithm.queries import (
    Answers,
    ByCount,
    ByDraws,
    ClientState,
    CohortQuery,
    Floats,
    PerClient,
    Sum,
)
from securefl.core.draws import sample_without_replacement
from securefl.core.errors import ConfigError
from securefl.protocols.contributions import COUNT, Count, Sampling, ask_size
from securefl.protocols.parts import Part, Whole
from securefl.training.learnt import Learnt
from securefl.training.task import Problem

Aggregation = Literal["full", "partial"]


def aggregated(aggregation: Aggregation) -> str:
    """As a legend says it."""
    return f"{aggregation} aggregation"


Cohort = Mapping[int, int]
"""Chosen clients, and how often each was drawn."""
Chosen = Generator[CohortQuery, Answers, tuple[Cohort, State]]
"""A choice: what it asks before, and the cohort and the state that it ends in."""


def known_or_mean(sizes: Floats) -> Floats:
    """n_k of every client, (N,). An unknown n_k counts as the mean of the known ones."""
    # As 0 an unknown client could never be drawn.
    known = sizes[~np.isnan(sizes)]
    return np.where(np.isnan(sizes), known.mean() if known.size else 1.0, sizes)


# The four parts ---------------------------------------------------------------------------------


class Selection(Protocol):
    """Who takes part.

    `watch` has the numbers asked of every client once, and of the cohort in every round. `choose` may ask for
    more before it ends in the cohort and the state: what it learns, it remembers there. `number` is the
    round's. What it asks again in a round bears a number of its own (`CohortQuery.number`).
    """

    @property
    def contributions(self) -> tuple[Contribution, ...]: ...

    def watch(self, state: State) -> tuple[tuple[PerClient, ...], Mapping[str, Floats]]: ...

    def choose(
        self, state: State, population: Population, count: int, number: int, rng: np.random.Generator
    ) -> Chosen: ...

    def figures(self, state: State) -> Mapping[str, Floats]:
        """The figures behind the choice for an observer, by name, (N,)."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Every set of K clients is as likely as any other; every set of batches where clients are in batches."""

    contributions: tuple[Contribution, ...] = ()

    def watch(self, state: State) -> tuple[tuple[PerClient, ...], Mapping[str, Floats]]:
        return (), {}

    def choose(
        self, state: State, population: Population, count: int, number: int, rng: np.random.Generator
    ) -> Chosen:
        yield from ()
        chances = population.among(np.zeros(population.clients))
        if (batch := population.fixed_batch) == 1:
            return sample_without_replacement(chances, count, rng), state
        # A batch without one of its clients takes no part.
        together = chances[: len(chances) // batch * batch].reshape(-1, batch).sum(1)
        drawn = sample_without_replacement(together, min(count // batch, len(together)), rng)
        return {k: 1 for b in drawn for k in range(b * batch, (b + 1) * batch)}, state

    def figures(self, state: State) -> Mapping[str, Floats]:
        return {}


class ServerUpdate(Protocol):
    """The next model from the aggregated step."""

    def apply(self, state: State, step: Floats) -> State: ...


@dataclass(frozen=True)
class Replace:
    """w + step."""

    def apply(self, state: State, step: Floats) -> State:
        return State((state.broadcast + step).astype(np.float32), state.memory)


def weights(aggregation: Aggregation, cohort: Cohort, state: State) -> ByDraws | ByCount | None:
    """The weights of the chosen clients: draws / K (partial), or n_k / n with their own n_k (full)."""
    # The server sets neither: draws are whole numbers that the whole cohort signs, and n_k is the client's
    # own. Weights of the server's choice would let it give one client nearly all of a hidden sum.
    if aggregation == "full":
        return ByCount(int(state.memory["records"][0]))
    return ByDraws(cohort) if cohort else None


def sampling(count: int, aggregation: Aggregation, *, replacement: bool = False, trials: int = 0) -> Sampling:
    """How `count` clients a round are drawn, and weighed."""
    return Sampling(
        cohort=0 if replacement else count,
        extra_queries=trials,
        weighs="counts" if aggregation == "full" else "draws",
        draws=count,
    )


# The loop ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """Federated averaging over `fraction` of the clients a round (McMahan et al. 2017)."""

    problem: Problem
    selection: Selection
    fraction: float
    aggregation: Aggregation
    server: ServerUpdate = Replace()
    part: Part | None = None
    """By default the whole model."""
    replacement: bool = False
    """Whether the selection may draw a client twice, and so fewer than it was asked for."""
    trials: int = 0
    """How often in a run the selection asks for an update before it chooses."""

    @property
    def averaged(self) -> Part:
        return self.part or Whole(self.problem)

    @property
    def _sums(self) -> tuple[Contribution, ...]:
        """What the part sums."""
        count = cohort_size(self.fraction, self.problem.clients)
        return self.averaged.contributions(
            sampling(count, self.aggregation, replacement=self.replacement, trials=self.trials)
        )

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        own = (*self._sums, *self.selection.contributions)
        counts = (self._count_of_records,) if self.aggregation == "full" else ()
        return (*own, *counts)

    @property
    def _count_of_records(self) -> Count:
        return Count(self.problem)

    def start(self) -> State:
        nobody = np.zeros(0, np.int64)
        unknown = {name: np.full(self.problem.clients, np.nan) for name in self._watched()}
        return State(self.averaged.initial, {**unknown, "cohort": nobody})

    def round(
        self, state: State, population: Population, number: int, rng: np.random.Generator
    ) -> Generator[CohortQuery, Answers, RoundResult]:
        watch, public = self.selection.watch(state)
        state = yield from self._introduce(state, population, watch, public)
        if self.aggregation == "full":
            state = yield from self._count_records(state, population)
        count = cohort_size(self.fraction, population.clients)
        if population.fixed_batch > 1 and not isinstance(self.selection, Uniform):
            raise ConfigError(
                f"Expected a selection that draws whole batches, as `fixed_batch` under [privacy] asks for, "
                f"got {type(self.selection).__name__}, which draws clients. Take a protocol that selects "
                "uniformly, such as fedavg."
            )
        cohort, state = yield from self.selection.choose(state, population, count, number, rng)
        due = tuple(per_client for per_client in watch if per_client.spec.due(number))
        query = CohortQuery(
            cohort=tuple(sorted(cohort)),
            broadcast=state.broadcast,
            per_client=due,
            public=public if due else {},
            weights=weights(self.aggregation, cohort, state),
        )
        step, answers = yield from self.averaged.gather(query, population, rng, self._sums)
        state = _learn(state, answers).remember(cohort=np.array(sorted(cohort), np.int64))
        if step is not None:
            state = self.server.apply(state, step)
        figures = self.selection.figures(state)
        return RoundResult(state=state, drawn=cohort, survivors=answers.survivors, figures=figures)

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        return self.averaged.evaluate(state.broadcast, devices)

    def learnt(self, state: State, client: int | None, kept: ClientState) -> Learnt:
        return self.averaged.learnt(state.broadcast, client, kept)

    def _introduce(
        self,
        state: State,
        population: Population,
        watch: tuple[PerClient, ...],
        public: Mapping[str, Floats],
    ) -> Generator[CohortQuery, Answers, State]:
        """Ask the clients with unknown numbers for the watched numbers. In round 1 these are all clients."""
        sizes = (ask_size(self.problem),) if "size" in self._watched() else ()
        per_client = (*watch, *sizes)
        # One at a time: a client whose budget refuses one number would otherwise give none of them.
        for question in per_client:
            known = state.memory[question.spec.name]
            unknown: list[int] = np.flatnonzero(np.isnan(known)).tolist()
            cohort = tuple(k for k in unknown if k not in population.retired)
            if cohort:
                on_model = question.spec.on_model
                asked = CohortQuery(
                    cohort=cohort,
                    broadcast=state.broadcast if on_model else state.broadcast[:0],
                    per_client=(question,),
                    public=public if on_model else {},
                    initial=1,
                )
                state = _learn(state, (yield asked))
        return state

    def _count_records(self, state: State, population: Population) -> Generator[CohortQuery, Answers, State]:
        """n, from one sum over all clients in the whole run. An absent client counts as an average one."""
        # Once: sums of n_k over the changing cohorts of many rounds would give each n_k by linear algebra.
        if "records" in state.memory:
            return state
        question = Sum(self._count_of_records.spec, 1)
        answers = yield CohortQuery(
            cohort=population.everyone(), broadcast=state.broadcast[:0], sums=(question,)
        )
        counted = len(answers.survivors)
        total = self.problem.records  # public, where nobody answered
        if counted:
            total = round(float(answers.totals[COUNT.name].value[0]) * population.clients / counted)
        # A client can claim a false number within the grid. n is kept between the values that it can have.
        within = min(max(total, population.clients), self.problem.records)
        return state.remember(records=np.array([within]))

    def _watched(self) -> tuple[str, ...]:
        return tuple(s.spec.name for s in self.contributions if s.spec.reduction == "none")


def _learn(state: State, answers: Answers) -> State:
    """Remember each client's newest numbers. A client without an opened number keeps its older one."""
    news: dict[str, NDArray[Any]] = {}
    for name, numbers in answers.per_client.items():
        news[name] = state.memory[name].copy()
        for client, number in numbers.items():
            news[name][client] = number
    return state.remember(**news)


def cohort_size(fraction: float, clients: int) -> int:
    """K."""
    # 0.07 * 100 is a little above 7 in floats, and must not become 8
    return max(1, ceil(fraction * clients - 1e-9))


def check_fraction(fraction: float) -> None:
    """Raises ValueError unless K = ceil(fraction * N) is between 1 and N for every N."""
    if not 0 < fraction <= 1:
        raise ValueError(
            f"Expected 0 < fraction <= 1, got {fraction}: a cohort has at least one client and at most all."
        )


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """w + factor * step."""

    factor: float

    def apply(self, state: State, step: Floats) -> State:
        return State((state.broadcast + self.factor * step).astype(np.float32), state.memory)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam on the averaged step as a pseudo-gradient (Leroy et al. 2019), moments corrected for bias."""

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float = 1e-8

    def apply(self, state: State, step: Floats) -> State:
        zeros = np.zeros(len(step))
        turn = float(state.memory.get("adam_turn", np.zeros(1))[0]) + 1
        first = self.beta1 * state.memory.get("adam_first", zeros) + (1 - self.beta1) * step
        second = self.beta2 * state.memory.get("adam_second", zeros) + (1 - self.beta2) * step**2
        unbiased = first / (1 - self.beta1**turn)
        scale = np.sqrt(second / (1 - self.beta2**turn)) + self.epsilon
        model = (state.broadcast + self.learning_rate * unbiased / scale).astype(np.float32)
        moments = {"adam_turn": np.array([turn]), "adam_first": first, "adam_second": second}
        return State(model, state.memory).remember(**moments)


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """w + the mean of the steps so far, older ones weighed down by `beta` a round: FedAdam's first moment."""

    beta: float

    def apply(self, state: State, step: Floats) -> State:
        turn = float(state.memory.get("momentum_turn", np.zeros(1))[0]) + 1
        mean = self.beta * state.memory.get("momentum", np.zeros(len(step))) + (1 - self.beta) * step
        # corrected for bias: the first step counts whole
        model = (state.broadcast + mean / (1 - self.beta**turn)).astype(np.float32)
        return State(model, state.memory).remember(momentum_turn=np.array([turn]), momentum=mean)
