"""What the model-averaging systems share: the loop, the values clients send, and the two aggregations.

FedAvg, FedProx, FedAdam, FedProf and their baselines differ in four parts only:

    selection  x  local training  x  aggregation  x  server update

and privacy (how sums are summed, what is noised) is none of them: it is in the plan.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from protocols.selection import gumbel_top_k
from securefl.rounds import (
    Answers,
    Ask,
    Device,
    Each,
    Evaluation,
    Floats,
    Job,
    Roster,
    Sends,
    State,
    Statistic,
    Sum,
    Total,
    Value,
    Vector,
)
from securefl.training import mean_loss, to_vector
from securefl.training.client import train_on, with_training
from securefl.training.task import Problem

Aggregation = Literal["full", "partial"]
Cohort = Mapping[int, int]
"""Chosen clients, and how often each was drawn."""


# What clients send ------------------------------------------------------------------------------

UPDATE = Sends(name="update", how="sum", reveals="its model update", reads="trained")
SIZE = Sends(
    name="size",
    how="each",
    reveals="its number of records",
    on_model=False,
    sensitivity={("record", "replace-one"): 0.0, ("record", "add-remove"): 1.0},
)
LOSS = Sends(name="loss", how="each", reveals="the mean loss of the model on its records")
LARGEST_LOSS = 1e6
"""A public bound that clients clip their loss to."""


@dataclass(frozen=True, eq=False)
class Update:
    """w_k - w after local training from the broadcast w."""

    problem: Problem

    @property
    def sends(self) -> Sends:
        return with_training(UPDATE, self.problem)

    def compute(self, job: Job) -> Value:
        model = self.problem.module(job.model)
        train_on(self.problem, model, job)
        return Value(clear=to_vector(model).astype(np.float64) - job.model)


@dataclass(frozen=True)
class Size:
    """n_k, the number of records: public under replace-one adjacency, a release under add/remove."""

    sends: Sends = SIZE

    def compute(self, job: Job) -> Value:
        return Value(clear=np.array([float(len(job.x))]))


@dataclass(frozen=True, eq=False)
class Loss:
    """Mean loss of the broadcast model on the client's records."""

    problem: Problem
    sends: Sends = LOSS

    def compute(self, job: Job) -> Value:
        loss = mean_loss(self.problem.module(job.model), job.x, job.y, self.problem.loss)
        return Value(clear=np.array([min(loss, LARGEST_LOSS)]))


ASK_LOSS = Each(LOSS, least=0.0, most=LARGEST_LOSS)


def ask_size(problem: Problem) -> Each:
    """Ask for n_k: at least 1, and at most the records that all clients have together."""
    return Each(SIZE, least=1, most=problem.records)


def known_or_mean(sizes: Floats) -> Floats:
    """n_k of every client, (N,); one that is not known yet counts as the mean of the known ones."""
    known = sizes[~np.isnan(sizes)]
    return np.where(np.isnan(sizes), known.mean() if known.size else 1.0, sizes)


# The four parts ---------------------------------------------------------------------------------


class Selection(Protocol):
    """Who takes part. `watch` is asked of every client once, and of the cohort in every round."""

    @property
    def statistics(self) -> tuple[Statistic, ...]: ...

    def watch(self, state: State) -> tuple[tuple[Each, ...], Mapping[str, Floats]]: ...

    def choose(self, state: State, roster: Roster, count: int, rng: np.random.Generator) -> Cohort: ...


@dataclass(frozen=True)
class Uniform:
    """Every set of K clients is as likely as any other."""

    statistics: tuple[Statistic, ...] = ()

    def watch(self, state: State) -> tuple[tuple[Each, ...], Mapping[str, Floats]]:
        return (), {}

    def choose(self, state: State, roster: Roster, count: int, rng: np.random.Generator) -> Cohort:
        return gumbel_top_k(np.zeros(roster.clients), count, rng)


class Part(Protocol):
    """Which part of the models is averaged; what is left of them, clients keep."""

    @property
    def initial(self) -> Vector: ...

    @property
    def update(self) -> Statistic: ...

    def evaluate(self, shared: Vector, devices: Sequence[Device]) -> Evaluation: ...


@dataclass(frozen=True, eq=False)
class Whole:
    """The whole model is averaged: everybody has the same one."""

    problem: Problem

    @property
    def initial(self) -> Vector:
        return self.problem.initial

    @property
    def update(self) -> Statistic:
        return Update(self.problem)

    def evaluate(self, shared: Vector, devices: Sequence[Device]) -> Evaluation:
        return self.problem.evaluate(shared)


class ServerUpdate(Protocol):
    """The next model from the aggregated step."""

    def apply(self, state: State, step: Floats) -> State: ...


@dataclass(frozen=True)
class Replace:
    """w + step."""

    def apply(self, state: State, step: Floats) -> State:
        return State((state.model + step).astype(np.float32), state.memory)


def weights(aggregation: Aggregation, cohort: Cohort, state: State) -> dict[int, float]:
    """Public weight of each chosen client: draws / K (partial), n_k / n (full)."""
    if aggregation == "partial":
        draws = sum(cohort.values())
        return {client: times / draws for client, times in cohort.items()}
    sizes = known_or_mean(state.memory["size"])
    return {client: float(sizes[client] / sizes.sum()) for client in cohort}


def step_of(aggregation: Aggregation, total: Total) -> Floats:
    """The aggregated step: the mean over the survivors (partial), or the plain weighted sum (full).

    Full aggregation is w + sum over the selected of (n_k / n)(w_k - w): whoever is absent counts
    with the old model.
    """
    if aggregation == "full" or total.weight == 0:
        return total.value
    return total.value / total.weight


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

    @property
    def averaged(self) -> Part:
        return self.part or Whole(self.problem)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        own: tuple[Statistic, ...] = (self.averaged.update, *self.selection.statistics)
        names = {statistic.sends.name for statistic in own}
        sizes = (Size(),) if self.aggregation == "full" and "size" not in names else ()
        return (*own, *sizes)

    def start(self) -> State:
        nobody = np.zeros(self.problem.clients)
        unknown = {name: np.full(self.problem.clients, np.nan) for name in self._watched()}
        return State(self.averaged.initial, {**unknown, "cohort": nobody, "survivors": nobody})

    def round(
        self, state: State, roster: Roster, number: int, rng: np.random.Generator
    ) -> Generator[Ask, Answers, State]:
        watch, public = self.selection.watch(state)
        state = yield from self._introduce(state, roster, watch, public)
        count = max(1, ceil(self.fraction * roster.clients - 1e-9))
        cohort = self.selection.choose(state, roster, count, rng)
        shares = weights(self.aggregation, cohort, state)
        update = Sum(self.averaged.update.sends, len(state.model))
        answers = yield Ask(
            cohort=tuple(sorted(cohort)),
            model=state.model,
            sums=(update,),
            each=watch,
            public=public,
            weights=shares,
        )
        state = _learn(state, answers).remember(
            cohort=_draws(cohort, roster.clients),
            survivors=_draws(dict.fromkeys(answers.survivors, 1), roster.clients),
        )
        if not answers.survivors:
            return state
        return self.server.apply(state, step_of(self.aggregation, answers.totals["update"]))

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        return self.averaged.evaluate(state.model, devices)

    def _introduce(
        self,
        state: State,
        roster: Roster,
        watch: tuple[Each, ...],
        public: Mapping[str, Floats],
    ) -> Generator[Ask, Answers, State]:
        """Ask whoever the server does not know yet, in round 1 everybody, for the watched numbers."""
        sizes = (ask_size(self.problem),) if "size" in self._watched() else ()
        each = (*watch, *sizes)
        unknown = [k for k in roster.everyone() if any(np.isnan(state.memory[e.sends.name][k]) for e in each)]
        if not unknown:
            return state
        model = state.model if any(e.sends.on_model for e in each) else state.model[:0]
        return _learn(state, (yield Ask(cohort=tuple(unknown), model=model, each=each, public=public)))

    def _watched(self) -> tuple[str, ...]:
        return tuple(s.sends.name for s in self.statistics if s.sends.how == "each")


def _learn(state: State, answers: Answers) -> State:
    """Remember each client's newest numbers; one whose number could not be opened keeps the older."""
    news: dict[str, NDArray[Any]] = {}
    for name, numbers in answers.each.items():
        news[name] = state.memory[name].copy()
        for client, number in numbers.items():
            news[name][client] = number
    return state.remember(**news)


def _draws(cohort: Cohort, clients: int) -> Floats:
    draws = np.zeros(clients)
    draws[list(cohort)] = list(cohort.values())
    return draws


def check_fraction(fraction: float) -> None:
    """Raises ValueError unless K = ceil(fraction * N) is between 1 and N for every N."""
    if not 0 < fraction <= 1:
        raise ValueError(
            f"Expected 0 < fraction <= 1, got {fraction}: a cohort has at least one client and at most all."
        )
