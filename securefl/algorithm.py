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

from securefl.dp.noise import Source
from securefl.rounds import Answers, Ask, Float32s, Floats, Kept, Sends, Value


@dataclass(frozen=True, kw_only=True)
class Population:
    """Who may be asked: clients 0 .. clients - 1, and how long each device takes (seconds).

    retired: clients whose ledgers do not bear this round, or that were proven to cheat; not to be asked.
    Public knowledge only: a time that depends on a client's records would be a release, while what a ledger
    bears follows from what was asked before.
    """

    clients: int
    seconds: Floats
    retired: frozenset[int] = frozenset()

    def everyone(self) -> tuple[int, ...]:
        """All but the retired."""
        return tuple(k for k in range(self.clients) if k not in self.retired)

    def among(self, log_weights: Floats) -> Floats:
        """Log-weights of all clients, (N,), with -inf for the retired, which is never drawn."""
        weights = np.array(log_weights, dtype=np.float64)
        weights[list(self.retired)] = -np.inf
        return weights


@dataclass(frozen=True)
class State:
    """What the server remembers between rounds: what it broadcasts, and named arrays beside it.

    The arrays are the algorithm's own; nobody else reads them.
    """

    broadcast: Float32s
    memory: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def remember(self, **arrays: NDArray[Any]) -> State:
        return replace(self, memory={**self.memory, **arrays})


@dataclass(frozen=True, kw_only=True)
class Played:
    """What a round of an algorithm ends in: the next state, and what an observer of a study is told.

    Attributes:
        drawn: how often each client was drawn for the round's sums; a client that is absent was not.
        survivors: whose contributions are in them.
        figures: further figures for the observer by name, float64 (N,), nan where there is none for a client.
    """

    state: State
    drawn: Mapping[int, int] = field(default_factory=dict)
    survivors: tuple[int, ...] = ()
    figures: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a client has at hand when it computes a value: its records, the broadcast, and what it kept.

    `rng` is the client's own stream for this round; `round` counts from 1. `count` is the number of records
    as others may know it. `introduction` is that of the Ask: in one that is not 0 nothing is trained.
    `source` gives the randomness of private training, the same if the round is cut off and played again;
    None draws from the operating system.
    """

    client: int
    round: int
    x: NDArray[Any]
    y: NDArray[Any]
    broadcast: Float32s
    public: Mapping[str, NDArray[Any]]
    rng: np.random.Generator
    kept: Kept = field(default_factory=dict)
    count: int = 0
    introduction: int = 0
    source: Source | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """accuracy: share of records that are right, or `relative_accuracy`. loss: mean over the records."""

    accuracy: float
    loss: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Device:
    """What the observer of a study sees of a client: test records that are like its own, what it keeps."""

    x: NDArray[Any]
    y: NDArray[Any]
    kept: Kept


class Offer(Protocol):
    """A client's side: what it sends and how it computes it."""

    @property
    def sends(self) -> Sends: ...

    def compute(self, job: Job) -> Value: ...


class Algorithm(Protocol):
    """A federated learning system: what its clients compute, and its server's rounds."""

    @property
    def offers(self) -> tuple[Offer, ...]: ...

    def start(self) -> State: ...

    def round(
        self, state: State, population: Population, number: int, rng: np.random.Generator
    ) -> Generator[Ask, Answers, Played]: ...

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        """How good the models are; an observer's figure, which no party of the protocol sees."""
        ...


def play(
    algorithm: Algorithm,
    state: State,
    population: Population,
    number: int,
    rng: np.random.Generator,
    ask: Callable[[Ask, int], Answers],
) -> Played:
    """One round: answer the algorithm's asks until it returns what the round ends in.

    Args:
        number: of the round, from 1.
        ask: runs one Ask as the stage of that number, and answers it.
    """
    turn = algorithm.round(state, population, number, rng)
    stage = 0
    try:
        question = next(turn)
        while True:
            question, stage = turn.send(ask(question, stage)), stage + 1
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a generator's result is untyped here
