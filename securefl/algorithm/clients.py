"""A federated learning system: what its clients compute, and its server's rounds.

An algorithm is its server's side, a generator that reads like the paper: it yields Asks, is sent
Answers, and returns the next State.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.queries import Answers, ClientState, CohortQuery, Float32s, Floats, Value, ValueSpec
from securefl.dp.noise import Source


@dataclass(frozen=True, kw_only=True)
class Population:
    """Who may be asked: clients 0 .. clients - 1, and how long each device takes (seconds).

    retired: clients whose ledgers do not bear this round, or that were proven to cheat. They must not be
    asked. All of this is public knowledge. A time that depends on a client's records would be a release. What
    a ledger bears follows from what was asked before.
    fewest: the least number of contributors that each entry of a sum must have, by the number of clients that
    are asked. 1 where sums are in the clear.
    fixed_batch: how many clients are in a fixed batch, of which a cohort takes all or none. 1 if there are
        no batches.
    admits: whether these draws of clients may weigh a sum, by client number. In the clear all may.
    """

    clients: int
    seconds: Floats
    retired: frozenset[int] = frozenset()
    fewest: Callable[[int], int] = lambda cohort: 1
    fixed_batch: int = 1
    admits: Callable[[Mapping[int, int]], bool] = lambda draws: True

    def everyone(self) -> tuple[int, ...]:
        """All clients except the retired."""
        return tuple(k for k in range(self.clients) if k not in self.retired)

    def among(self, log_weights: Floats) -> Floats:
        """Log-weights of all clients, (N,), with -inf for the retired, so that they are never drawn."""
        weights = np.array(log_weights, dtype=np.float64)
        weights[list(self.retired)] = -np.inf
        return weights


@dataclass(frozen=True)
class State:
    """The server's memory between rounds: its broadcast, and named arrays beside it.

    The arrays are the algorithm's own. Nobody else reads them.
    """

    broadcast: Float32s
    memory: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def remember(self, **arrays: NDArray[Any]) -> State:
        return replace(self, memory={**self.memory, **arrays})


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """The end of an algorithm's round: the next state, and figures for the observer of a study.

    Attributes:
        drawn: how often each client was drawn for the round's sums. An absent client was not drawn.
        survivors: the clients whose contributions are in the sums.
        figures: further figures for the observer by name, float64 (N,), nan for a client without one.
    """

    state: State
    drawn: Mapping[int, int] = field(default_factory=dict)
    survivors: tuple[int, ...] = ()
    figures: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClientContext:
    """The inputs of a client when it computes a value: its records, the broadcast, and its kept state.

    `kept` is the state kept before this Ask. Changes apply once the exchange is over, so that a retry
    computes the same value. `rng` is the client's own stream for this round and this number. `round` counts
    from 1. `count` is the number of records as others may know it. `initial` and `number` are those of
    the Ask. If `initial` is not 0, nothing is trained. `source` gives the randomness of private
    training, the same if the round is cut off and played again. None draws from the operating system. `held`
    are the x and y of records that are never trained on. Without a hold-out it is None.
    """

    client: int
    round: int
    x: NDArray[Any]
    y: NDArray[Any]
    broadcast: Float32s
    public: Mapping[str, NDArray[Any]]
    rng: np.random.Generator
    kept: ClientState = field(default_factory=dict)
    count: int = 0
    initial: int = 0
    number: int = 0
    source: Source | None = None
    held: tuple[NDArray[Any], NDArray[Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """accuracy: share of records that are right, or `relative_accuracy`. loss: mean over the records.

    figures: further figures for the observer by name, float64 (N,), nan for a client without one.
    personal: whether each client's own model was tested on records like its own, in place of one global model
    on the server's records.
    """

    accuracy: float
    loss: float
    figures: Mapping[str, Floats] = field(default_factory=dict)
    personal: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Device:
    """The observer's view of a client: test records that are like its own, and its kept state."""

    x: NDArray[Any]
    y: NDArray[Any]
    kept: ClientState


class Contribution(Protocol):
    """A client's side: a value that it sends, and how it computes that value."""

    @property
    def spec(self) -> ValueSpec: ...

    def compute(self, context: ClientContext) -> Value: ...


@dataclass(frozen=True)
class ClientFunction:
    """A value that clients contribute, and the function that computes it on a client's device: a
    `Contribution`.
    """

    spec: ValueSpec
    compute: Callable[[ClientContext], Value]


class Algorithm(Protocol):
    """A federated learning system: what its clients compute, and its server's rounds."""

    @property
    def contributions(self) -> tuple[Contribution, ...]: ...

    def start(self) -> State: ...

    def round(
        self, state: State, population: Population, number: int, rng: np.random.Generator
    ) -> Generator[CohortQuery, Answers, RoundResult]: ...

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        """The quality of the models. It is an observer's figure, and no party of the protocol sees it."""
        ...


def run_round(
    algorithm: Algorithm,
    state: State,
    population: Population,
    number: int,
    rng: np.random.Generator,
    query: Callable[[CohortQuery, int], Answers],
) -> RoundResult:
    """Play one round: answer the algorithm's asks until it returns the round's end.

    Args:
        number: the round's number, from 1.
        ask: runs one Ask as the stage of the given number, and answers it.
    """
    turn = algorithm.round(state, population, number, rng)
    stage = 0
    try:
        question = next(turn)
        # `send` raises StopIteration with the generator's result, which ends the loop
        while True:
            question, stage = turn.send(query(question, stage)), stage + 1
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a generator's result is untyped here
