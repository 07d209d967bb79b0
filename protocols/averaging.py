"""Federated averaging: the round of the model-averaging systems, its selections and server updates.

FedAvg, FedProx, FedAdam, FedProf and their baselines differ in four parts only:

    selection  x  local training  x  aggregation  x  server update

The plan says how sums are hidden and where noise is added. This module does not.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from operator import index
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import (
    Answers,
    ByCount,
    ByDraws,
    ClientState,
    CohortQuery,
    Contribution,
    Device,
    Evaluation,
    Floats,
    PerClient,
    Population,
    RoundResult,
    State,
    Sum,
    sample_without_replacement,
)
from securefl.core.ranges import Fraction, Range, Ranged
from securefl.errors import ConfigError, SecureFLError
from securefl.protocols.buffers import whole_model
from securefl.protocols.contributions import COUNT, LOSS, Count, Loss, Sampling, Size
from securefl.protocols.parts import Part, ServerContext, ServerUpdate
from securefl.training import Learnt, Problem

__all__ = [
    "Averaging",
    "Options",
    "Part",
    "Range",
    "Replace",
    "Selection",
    "ServerUpdate",
    "Uniform",
    "cohort_size",
    "known_or_mean",
]

Aggregation = Literal["full", "partial"]


def aggregated(aggregation: Aggregation) -> str:
    """The aggregation in the words of a plot's legend."""
    return f"{aggregation} aggregation"


Cohort = Mapping[int, int]
"""The chosen clients, and how often each was drawn."""
Chosen = Generator[CohortQuery, Answers, tuple[Cohort, State]]
"""A choice of a cohort: it yields queries before it ends in the cohort and the state."""


def known_or_mean(sizes: Floats) -> Floats:
    """The number of records of every client. An unknown number counts as the mean of the known ones.

    Args:
        sizes: n_k, float64 (N,). nan is unknown.

    Returns:
        float64 (N,). All are 1 if none is known.

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.protocols.averaging import known_or_mean
    >>> known_or_mean(np.array([10.0, np.nan, 30.0]))
    array([10., 20., 30.])
    """
    # A client with an unknown n_k of 0 could never be drawn.
    known = sizes[~np.isnan(sizes)]
    return np.where(np.isnan(sizes), known.mean() if known.size else 1.0, sizes)


@dataclass(frozen=True, kw_only=True)
class Options(Ranged):
    """Options of a protocol that draws a share of the clients: the keys of its arm, with ranges in types.

    fraction: C; K = ceil(C N) clients a round.

    Raises ValueError for an option out of its range.

    >>> from dataclasses import dataclass
    >>> from typing import Annotated
    >>> from securefl.protocols.averaging import Options, Range
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Mine(Options):
    ...     own: Annotated[float, Range("[0, 1]")] = 0.5
    >>> Mine(fraction=0.1, own=2.0)
    Traceback (most recent call last):
    ValueError: Expected own in [0, 1], got 2.0. 2 % is 0.02.
    """

    fraction: Fraction


# The four parts ---------------------------------------------------------------------------------


class Selection:
    """How a system chooses the clients of a round. It overrides `draw`, and what else it needs.

    `contributions` are the clients' contributions that the choice reads. `watch` has the numbers that every
    client is asked for once, and the cohort in every round, with public arrays for them. `choose` may yield
    further queries before it ends in the cohort and the state, in which it remembers the answers. By default
    it asks nothing and takes the cohort of `draw`. `count` is the size of the cohort, and `number` is the
    round's. A query that is repeated within a round has a number of its own (`CohortQuery.number`).

    Raises nothing when it is made. `choose` may raise ConfigError if `count` is above the number of clients.

    >>> import numpy as np
    >>> from securefl.algorithm.clients import Population, State
    >>> from securefl.protocols.averaging import Selection, Uniform
    >>> def cohort(selection: Selection, population, count):
    ...     state, rng = State(np.zeros(1, np.float32)), np.random.default_rng(0)
    ...     yield sorted((yield from selection.choose(state, population, count, 1, rng))[0])
    >>> next(cohort(Uniform(), Population(clients=5, seconds=np.ones(5), retired=frozenset({0})), 4))
    [1, 2, 3, 4]
    """

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        return ()

    def watch(self, state: State) -> tuple[tuple[PerClient, ...], Mapping[str, Floats]]:
        """Return the numbers that clients are asked for. A selection that asks nothing has none.

        Args:
            state: the server's state, with the broadcast that clients see.

        Returns:
            Queries for one number from each client, and public arrays for them by name, float64 of any shape.
        """
        return (), {}

    def choose(
        self, state: State, population: Population, count: int, number: int, rng: np.random.Generator
    ) -> Chosen:
        yield from ()
        return self.draw(state, population, count, rng), state

    def draw(self, state: State, population: Population, count: int, rng: np.random.Generator) -> Cohort:
        """The cohort of a choice that asks nothing."""
        raise NotImplementedError

    def figures(self, state: State) -> Mapping[str, Floats]:
        """Return the numbers behind the choice, for an observer of a study.

        Args:
            state: the server's state after the round.

        Returns:
            By name, float64 (N,), nan for a client without one.
        """
        return {}


@dataclass(frozen=True)
class Uniform(Selection):
    """Uniform selection: every set of K clients is as likely as any other.

    With fixed batches, every set of batches is.

    Raises nothing when it is made. `choose` raises ConfigError if `count` is above the number of clients.

    >>> from securefl.protocols.averaging import Uniform
    >>> Uniform().contributions
    ()
    """

    def draw(self, state: State, population: Population, count: int, rng: np.random.Generator) -> Cohort:
        chances = population.among(np.zeros(population.clients))
        if (batch := population.fixed_batch) == 1:
            return sample_without_replacement(chances, count, rng)
        # A batch that lacks one of its clients is left out.
        together = chances[: len(chances) // batch * batch].reshape(-1, batch).sum(1)
        drawn = sample_without_replacement(together, min(count // batch, len(together)), rng)
        return {k: 1 for b in drawn for k in range(b * batch, (b + 1) * batch)}


@dataclass(frozen=True)
class Replace:
    """The server update of FedAvg: the next model is w + step, in float32.

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.algorithm.clients import State
    >>> from securefl.protocols.averaging import Replace
    >>> Replace().apply(State(np.ones(2, np.float32)), np.array([0.5, -0.5])).broadcast
    array([1.5, 0.5], dtype=float32)
    """

    def apply(self, state: State, step: Floats) -> State:
        """Return the next state.

        Args:
            state: with the model w, float32 (d,).
            step: the aggregated step, float64 (d,). The sum w + step is taken in float64 and rounded once.
        """
        # In float64, as `step` is, and rounded once.
        moved = np.empty_like(state.broadcast)
        np.add(state.broadcast, step, out=moved, dtype=np.float64, casting="same_kind")
        return State(moved, state.memory)


def weights(aggregation: Aggregation, cohort: Cohort, state: State) -> ByDraws | ByCount | None:
    """The weights of the chosen clients: draws / K (partial), or n_k / n, each with its own n_k (full)."""
    # The server sets neither: all clients of the cohort sign the draws, and a client takes n_k from its own
    # records. A server that set the weights could give one client nearly all of a hidden sum.
    if aggregation == "full":
        return ByCount(int(state.memory["records"][0]))
    return ByDraws(cohort) if cohort else None


def sampling(count: int, aggregation: Aggregation, *, replacement: bool = False, trials: int = 0) -> Sampling:
    """How `count` clients are drawn in a round, and how their values are weighted."""
    return Sampling(
        cohort=0 if replacement else count,
        extra=trials,
        weighs="counts" if aggregation == "full" else "draws",
        draws=count,
    )


@dataclass(frozen=True, eq=False)
class ByLosses(Selection):
    """A selection by clients' losses of the broadcast model, and by their numbers of records."""

    problem: Problem

    @property
    def loss(self) -> Loss:
        """The loss that clients are asked for."""
        raise NotImplementedError

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        return (self.loss, Size(self.problem))

    def losses(
        self, state: State, population: Population, cohort: Sequence[int], number: int = 0
    ) -> Generator[CohortQuery, Answers, Floats]:
        """Ask a cohort for its losses: float64 (N,), nan for a client that does not answer.

        number: of the query in its round.
        """
        found = np.full(population.clients, np.nan)
        if cohort:
            answers = yield CohortQuery(
                cohort=tuple(cohort),
                broadcast=state.broadcast,
                per_client=(self.loss.query,),
                number=number,
            )
            found = numbers(answers, LOSS.name, found)
        return found


# The loop ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """Federated averaging over `fraction` of the clients a round (McMahan et al. 2017).

    Raises nothing when it is made. `round` raises ConfigError for fixed batches and a selection that draws
    clients one by one, and for a selection that fails or returns no draws.

    >>> import numpy as np
    >>> from securefl.protocols.averaging import Averaging
    >>> from securefl.training import LocalTraining, ModelConfig
    >>> from securefl.training.task import Problem
    >>> local = LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=1, batch_size=8)
    >>> problem = Problem(
    ...     model=ModelConfig(kind="mlp"), local=local, kind="classification", shape=(4,), outputs=2,
    ...     clients=2, records=30, server_x=np.zeros((2, 4)), server_y=np.zeros(2, np.int64), seed=0
    ... )
    >>> averaging = Averaging(problem=problem, fraction=0.5)
    >>> averaging.start().broadcast.shape == problem.initial.shape
    True
    """

    problem: Problem
    fraction: float
    selection: Selection = Uniform()
    aggregation: Aggregation = "partial"
    server: ServerUpdate = Replace()
    part: Part | None = None
    """The part of the model that is averaged. By default all of it."""
    replacement: bool = False
    """Whether the selection may draw a client twice. A cohort may then have fewer than `count` clients."""
    trials: int = 0
    """How often in a run the selection asks clients for an update before it chooses."""

    @property
    def averaged(self) -> Part:
        return self.part or whole_model(self.problem)

    @property
    def keeps_trained(self) -> bool:
        """Whether each client keeps the model that it trained, so that it can be tested before averaging."""
        return self.averaged.keeps_trained

    @property
    def tests_trained(self) -> bool:
        """Whether local accuracy can be of the model that each client trained."""
        return self.averaged.tests_trained

    @property
    def _sums(self) -> tuple[Contribution, ...]:
        """The contributions that the part sums."""
        count = cohort_size(self.fraction, self.problem.clients)
        own = sampling(count, self.aggregation, replacement=self.replacement, trials=self.trials)
        # Adam divides a total, and momentum adds it over several rounds: what noise cancels in sums over
        # rounds need not cancel in such a model. Nor where each round has a factor of its own, the most draws
        # of one client.
        adds = isinstance(self.server, Replace | Scaled) and not self.replacement
        return self.averaged.contributions(replace(own, adds=adds))

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        own = (*self._sums, *self.selection.contributions)
        return (*own, *((Count(self.problem),) if self.aggregation == "full" else ()))

    def start(self) -> State:
        nobody = np.zeros(0, np.int64)
        unknown = {name: np.full(self.problem.clients, np.nan) for name in self._watched()}
        return State(self.averaged.initial, {**unknown, **self.averaged.memory, "cohort": nobody})

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
        try:
            chosen, state = yield from self.selection.choose(state, population, count, number, rng)
        except SecureFLError:
            raise
        except Exception as error:  # a person's own code: it can raise any error
            told = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"Expected {_named(self.selection)} to draw a cohort, got {told}. Mend it."
            ) from error
        cohort = _drawn(chosen, population.clients, self.selection)
        due = tuple(per_client for per_client in watch if per_client.spec.schedule.due(number))
        query = CohortQuery(
            cohort=tuple(sorted(cohort)),
            broadcast=state.broadcast,
            per_client=due,
            public=public if due else {},
            weights=weights(self.aggregation, cohort, state),
        )
        here = ServerContext(population=population, number=number, rng=rng, contributions=self._sums)
        state, answers = yield from self.averaged.advance(self.server, state, query, here)
        state = _learn(state, answers).remember(cohort=np.array(sorted(cohort), np.int64))
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
        """Ask for the watched numbers of the clients whose numbers are unknown: in round 1, all clients."""
        per_client = (*watch, *((Size(self.problem).query,) if "size" in self._watched() else ()))
        # One number a query: a client whose budget refuses one number would otherwise send none of them.
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
        """n, from one sum over all clients in a run. An absent client counts as an average one."""
        # Once: from sums of n_k over the cohorts of many rounds, linear algebra gives each n_k.
        if "records" in state.memory:
            return state
        question = Sum(Count(self.problem).spec, 1)
        answers = yield CohortQuery(
            cohort=population.everyone(), broadcast=state.broadcast[:0], sums=(question,)
        )
        counted = len(answers.survivors)
        total = self.problem.records  # public, where nobody answered
        if counted:
            total = round(float(answers.totals[COUNT.name].value[0]) * population.clients / counted)
        # A client can claim a false number within the grid, so n is clipped to the values that it can have.
        within = min(max(total, population.clients), self.problem.records)
        return state.remember(records=np.array([within]))

    def _watched(self) -> tuple[str, ...]:
        return tuple(s.spec.name for s in self.contributions if s.spec.reduction == "none")


def _named(selection: Selection) -> str:
    return type(selection).__qualname__


def _drawn(chosen: Any, clients: int, selection: Selection) -> Cohort:
    """The chosen clients in Python's integers. A person's own selection may give numpy's, or what is none."""
    with suppress(AttributeError, TypeError):
        found = {index(client): index(draws) for client, draws in chosen.items()}
        if all(0 <= client < clients and draws >= 1 for client, draws in found.items()):
            return found
    raise ConfigError(
        f"Expected a draw of {_named(selection)} as a mapping of clients' numbers, from 0 to {clients - 1}, "
        f"to how often each was drawn, such as {{0: 1, 2: 1}}, got {chosen!r:.100}."
    )


def _learn(state: State, answers: Answers) -> State:
    """The state with each client's newest numbers. If a number was not opened, the older one stays."""
    return state.remember(**{name: numbers(answers, name, state.memory[name]) for name in answers.per_client})


def numbers(answers: Answers, name: str, before: NDArray[Any]) -> NDArray[Any]:
    """The number of each client (N,). A client without an answer has that of `before`."""
    found = before.copy()
    for client, number in answers.per_client[name].items():
        found[client] = number
    return found


def cohort_size(fraction: float, clients: int) -> int:
    """K = ceil(fraction * N), at least 1: the number of clients in a round.

    Args:
        fraction: C, in (0, 1].
        clients: N.

    Returns:
        K.

    Raises nothing.

    >>> from securefl.protocols.averaging import cohort_size
    >>> cohort_size(0.07, 100)
    7
    """
    # 0.07 * 100 is a little above 7 in floats, and must not become 8
    return max(1, ceil(fraction * clients - 1e-9))


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """The server update w + factor * step."""

    factor: float

    def apply(self, state: State, step: Floats) -> State:
        return Replace().apply(state, self.factor * step)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam on the averaged step as a pseudo-gradient (Leroy et al. 2019), its moments corrected for bias."""

    learning_rate: float
    beta1: float
    beta2: float

    def apply(self, state: State, step: Floats) -> State:
        zeros = np.zeros(len(step))
        turn = float(state.memory.get("adam_turn", np.zeros(1))[0]) + 1
        first = self.beta1 * state.memory.get("adam_first", zeros) + (1 - self.beta1) * step
        second = self.beta2 * state.memory.get("adam_second", zeros) + (1 - self.beta2) * step**2
        unbiased = first / (1 - self.beta1**turn)
        scale = np.sqrt(second / (1 - self.beta2**turn)) + 1e-8
        moments = {"adam_turn": np.array([turn]), "adam_first": first, "adam_second": second}
        return Replace().apply(state, self.learning_rate * unbiased / scale).remember(**moments)


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """Server momentum: w + the mean of all steps, with the factor `beta` for each round that one is old.

    It is FedAdam's first moment.
    """

    beta: float

    def apply(self, state: State, step: Floats) -> State:
        turn = float(state.memory.get("momentum_turn", np.zeros(1))[0]) + 1
        mean = self.beta * state.memory.get("momentum", np.zeros(len(step))) + (1 - self.beta) * step
        # corrected for bias: the first step has the weight 1
        moved = Replace().apply(state, mean / (1 - self.beta**turn))
        return moved.remember(momentum_turn=np.array([turn]), momentum=mean)
