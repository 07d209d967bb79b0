"""What the model-averaging systems share: the loop, the values clients send, and the two aggregations.

FedAvg, FedProx, FedAdam, FedProf and their baselines differ in four parts only:

    selection  x  local training  x  aggregation  x  server update

and privacy (how sums are summed, what is noised) is none of them: it is in the plan.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from protocols.selection import gumbel_top_k
from securefl.rounds import (
    Answers,
    Ask,
    Each,
    Floats,
    Job,
    Roster,
    Sends,
    State,
    Statistic,
    Sum,
    Total,
    Value,
)
from securefl.training import mean_loss, to_vector, train
from securefl.training.task import Problem

Aggregation = Literal["full", "partial"]
Cohort = Mapping[int, int]
"""Chosen clients, and how often each was drawn."""


# What clients send ------------------------------------------------------------------------------

UPDATE = Sends(name="update", how="sum")
SIZE = Sends(
    name="size",
    how="each",
    sensitivity={("record", "replace-one"): 0.0, ("record", "add-remove"): 1.0},
)
LOSS = Sends(name="loss", how="each")


@dataclass(frozen=True, eq=False)
class Update:
    """w_k - w after local training from the broadcast w."""

    problem: Problem
    sends: Sends = UPDATE

    def compute(self, job: Job) -> Value:
        model = self.problem.module(job.model)
        train(model, job.x, job.y, self.problem.local, self.problem.loss, job.rng, job.round - 1)
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
        return Value(clear=np.array([loss]))


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


class ServerUpdate(Protocol):
    """The next model from the aggregated step."""

    def apply(self, state: State, step: Floats) -> State: ...


@dataclass(frozen=True)
class Replace:
    """w + step."""

    def apply(self, state: State, step: Floats) -> State:
        return State((state.model + step).astype(np.float32), state.memory)


def weights(aggregation: Aggregation, cohort: Cohort, state: State) -> dict[int, float]:
    """Public weight of each chosen client: draws / K (partial), n_k / n (full).

    Under full aggregation a client without a known number of records has no weight and is left out.
    """
    if aggregation == "partial":
        draws = sum(cohort.values())
        return {client: times / draws for client, times in cohort.items()}
    sizes = state.memory["size"]
    return {client: float(sizes[client] / np.nansum(sizes)) for client in cohort if sizes[client] > 0}


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

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        own: tuple[Statistic, ...] = (Update(self.problem), *self.selection.statistics)
        names = {statistic.sends.name for statistic in own}
        sizes = (Size(),) if self.aggregation == "full" and "size" not in names else ()
        return (*own, *sizes)

    def start(self) -> State:
        unknown = {name: np.full(self.problem.clients, np.nan) for name in ("version", *self._watched())}
        return State(self.problem.initial, {**unknown, "cohort": np.zeros(self.problem.clients)})

    def round(
        self, state: State, roster: Roster, number: int, rng: np.random.Generator
    ) -> Generator[Ask, Answers, State]:
        watch, public = self.selection.watch(state)
        state = yield from self._introduce(state, roster, number, watch, public)
        count = max(1, ceil(self.fraction * roster.clients - 1e-9))
        cohort = self.selection.choose(state, roster, count, rng)
        shares = weights(self.aggregation, cohort, state)
        update = Sum(UPDATE, len(state.model))
        answers = yield Ask(
            cohort=tuple(sorted(shares)),
            model=state.model,
            sums=(update,),
            each=watch,
            public=public,
            weights=shares,
        )
        state = _learn(state, answers, version=number - 1)
        state = state.remember(cohort=_draws({k: cohort[k] for k in shares}, roster.clients))
        if not answers.survivors:
            return state
        return self.server.apply(state, step_of(self.aggregation, answers.totals["update"]))

    def _introduce(
        self,
        state: State,
        roster: Roster,
        number: int,
        watch: tuple[Each, ...],
        public: Mapping[str, Floats],
    ) -> Generator[Ask, Answers, State]:
        """Ask whoever the server does not know yet, in round 1 everybody, for the watched numbers."""
        each = (*watch, *((Each(SIZE),) if "size" in self._watched() else ()))
        unknown = [k for k in roster.everyone() if any(np.isnan(state.memory[e.sends.name][k]) for e in each)]
        if not unknown:
            return state
        answers = yield Ask(cohort=tuple(unknown), model=state.model, each=each, public=public)
        return _learn(state, answers, version=number - 1)

    def _watched(self) -> tuple[str, ...]:
        return tuple(s.sends.name for s in self.statistics if s.sends.how == "each")


def _learn(state: State, answers: Answers, version: int) -> State:
    """Remember each client's newest numbers and the version of the model they were taken on.

    A client that answered but whose encrypted number could not be opened keeps number and version.
    """
    news: dict[str, NDArray[Any]] = {}
    for name, numbers in answers.each.items():
        news[name] = state.memory[name].copy()
        for client, number in numbers.items():
            news[name][client] = number
    version_of = state.memory["version"].copy()
    known = [k for k in answers.survivors if all(k in numbers for numbers in answers.each.values())]
    version_of[known] = version
    return state.remember(**news, version=version_of)


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
