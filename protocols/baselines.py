"""The systems that FedProf is compared with (v2, Table 1): FedAvg-RP, FedProx, FedAdam, CFCFM, Active FL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np

from securefl.algorithm import Algorithm, Contribution, Floats, PerClient, Population, Schedule, State
from securefl.core.ranges import Decay, Positive, Range, Weight
from securefl.protocols.averaging import (
    Adam,
    Averaging,
    ByLosses,
    Cohort,
    Momentum,
    Options,
    Replace,
    Scaled,
    Selection,
    cohort_size,
    known_or_mean,
)
from securefl.protocols.contributions import LOSS, SIZE, Loss, LossBound, Size
from securefl.protocols.selection import by_valuation, first_come, with_replacement
from securefl.protocols.stale import part_of, with_stale
from securefl.training import Problem


@dataclass(frozen=True, eq=False)
class BySize(Selection):
    """Selects by K independent draws with probability n_k / n (Scheme I of Li et al. 2020)."""

    problem: Problem

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        return (Size(self.problem),)

    def draw(self, state: State, population: Population, count: int, rng: np.random.Generator) -> Cohort:
        # Log-weights, in which -inf marks a client that must not be drawn.
        log_sizes = np.log(known_or_mean(state.memory["size"]))
        return with_replacement(population.among(log_sizes), count, rng, population.admits)


Scheme = Literal["I", "II"]


@dataclass(frozen=True, kw_only=True)
class FedAvgRP(Options):
    """FedAvg-RP (Li et al. 2020).

    scheme: "II" draws K clients uniformly without replacement, and w + sum (N / K) p_k (w_k - w) is the next
        model, p_k = n_k / n. "I" draws K with replacement and probability p_k, and takes their plain mean.
        FedProf compares with "II". Both have the mean of full participation. In "II" the weights of one round
        sum to 1 on average only, unless all clients have as many records.
    """

    scheme: Scheme = "II"

    def build(self, problem: Problem) -> Algorithm:
        if self.scheme == "II":
            # Clients apply the weight n_k / n. N / K is the same for all, so the server applies it.
            return Averaging(
                problem=problem,
                fraction=self.fraction,
                aggregation="full",
                server=Scaled(factor=problem.clients / cohort_size(self.fraction, problem.clients)),
            )
        return Averaging(
            problem=problem,
            selection=BySize(problem),
            fraction=self.fraction,
            replacement=True,
        )


@dataclass(frozen=True, kw_only=True)
class FedProx(Options):
    """FedProx (Li et al., MLSys 2020): FedAvg-RP with mu/2 |w - w_t|^2 in the local loss.

    mu: the weight of the term that keeps a client's model near the broadcast one. 0 is FedAvg-RP.
    scheme: as in FedAvg-RP: "I" draws clients with replacement by their sizes, "II" uniformly without.
    """

    mu: Weight = 0.1
    scheme: Scheme = "II"

    def build(self, problem: Problem) -> Algorithm:
        # set in both, since a run trains with one of them
        private = problem.private and replace(problem.private, proximal=self.mu)
        local = replace(problem.local, proximal=self.mu)
        proximal = replace(problem, local=local, private=private)
        return FedAvgRP(fraction=self.fraction, scheme=self.scheme).build(proximal)


@dataclass(frozen=True, kw_only=True)
class FedAdam(Options):
    """FedAdam: uniform selection, plain mean, server Adam ("with momentum" in FedProf v2, Table 1).

    learning_rate: of the server's Adam, which takes the mean update for its gradient.
    beta1, beta2: the decay of Adam's first and second moments.
    """

    learning_rate: Positive = 1e-3
    beta1: Decay = 0.9
    beta2: Decay = 0.999

    def build(self, problem: Problem) -> Algorithm:
        adam = Adam(learning_rate=self.learning_rate, beta1=self.beta1, beta2=self.beta2)
        return Averaging(problem=problem, fraction=self.fraction, server=adam)


@dataclass(frozen=True)
class FirstCome(Selection):
    """Selects the K fastest clients. Those of the last round come last (CFCFM, Wu et al. 2021)."""

    def draw(self, state: State, population: Population, count: int, rng: np.random.Generator) -> Cohort:
        # Negated twice: `among` gives retired clients -inf, and here they must count as the slowest.
        last = np.isin(np.arange(population.clients), state.memory["cohort"]).astype(np.float64)
        return first_come(-population.among(-population.seconds), last, count)


@dataclass(frozen=True, kw_only=True)
class CFCFM(Options):
    """CFCFM: the K clients whose updates would arrive first are merged, with full aggregation.

    The order is that of the devices at an equal number of records, which is public. A true time of arrival
    tells a client's number of records. In the paper all clients train, and late updates are thrown away. Here
    the server does not ask clients that would be late, which saves their energy and changes no result.

    stale: as in FedAvg, whose full aggregation it has.
    """

    stale: bool = field(default=False, metadata={"words": with_stale})

    def build(self, problem: Problem) -> Algorithm:
        return Averaging(
            problem=problem,
            selection=FirstCome(),
            fraction=self.fraction,
            aggregation="full",
            part=part_of(problem, self.stale),
        )


@dataclass(frozen=True, eq=False)
class ByLoss(ByLosses):
    """Selects by the valuation sqrt(n_k) * loss_k, of each client's newest loss (Goetz et al. 2019)."""

    options: ActiveFL

    @property
    def loss(self) -> Loss:
        return Loss(self.problem, self.options.loss_bound, Schedule(initial=1))

    def watch(self, state: State) -> tuple[tuple[PerClient, ...], Mapping[str, Floats]]:
        return (self.loss.query,), {}

    def draw(self, state: State, population: Population, count: int, rng: np.random.Generator) -> Cohort:
        # the paper's valuation: sqrt(n_k) times the mean loss
        valuations = np.sqrt(known_or_mean(state.memory[SIZE.name])) * state.memory[LOSS.name]
        return by_valuation(
            population.among(valuations),
            count,
            excluded=self.options.excluded,
            temperature=self.options.temperature,
            explored=self.options.explored,
            rng=rng,
        )

    def figures(self, state: State) -> Mapping[str, Floats]:
        return {"loss": state.memory[LOSS.name]}


@dataclass(frozen=True, kw_only=True)
class ActiveFL(Options):
    """Active federated learning (Goetz et al. 2019): alpha_1 0.75, alpha_2 0.01, alpha_3 0.1.

    excluded: alpha_1, the share of the clients, those of the lowest valuations, that have no chance by it.
    temperature: alpha_2, the factor on valuations in the softmax of the chances.
    explored: alpha_3, the share of the cohort that is drawn uniformly.
    momentum: beta of the server's momentum, 0 for none. FedProf v2 (Table 1) has Active FL "with momentum",
        as FedAdam, and names no number; FedAdam's is 0.9.
    loss_bound: largest loss of a record; larger ones are clipped. Without it losses cannot be noised.
    """

    excluded: Decay = 0.75
    temperature: Weight = 0.01
    explored: Annotated[float, Range("[0, 1]")] = 0.1
    momentum: Decay = 0.0
    loss_bound: LossBound = None

    def build(self, problem: Problem) -> Algorithm:
        return Averaging(
            problem=problem,
            selection=ByLoss(problem, self),
            fraction=self.fraction,
            server=Momentum(beta=self.momentum) if self.momentum else Replace(),
        )
