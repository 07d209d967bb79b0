"""The interface of a federated learning algorithm: the values that clients compute, and the server's rounds.

The server's side of an algorithm is a generator that reads like the paper. It yields each `CohortQuery`,
receives its `Answers`, and returns the next `State`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.queries import Answers, ClientState, CohortQuery, Float32s, Floats, Value, ValueSpec
from securefl.core.linear import LinearBounds
from securefl.dp.noise import Source


@dataclass(frozen=True, kw_only=True)
class Population:
    """The clients that a server may query, numbered 0 to clients - 1. All of it is public.

        >>> import numpy as np
        >>> from securefl.algorithm import Population
        >>> population = Population(clients=4, seconds=np.ones(4), retired=frozenset({2}))
        >>> population.everyone()
        (0, 1, 3)
        >>> population.among(np.zeros(4)).tolist()
        [0.0, 0.0, -inf, 0.0]

    Attributes:
        clients: the number of clients, N.
        seconds: the time that each device takes, float64 (N,), in seconds. A time that depends on a client's
            records would be a release.
        retired: clients whose ledgers have no budget for this round, clients that were proven to cheat, and
            clients that cannot be reached. A query must not name them. A ledger's budget follows from earlier
            queries, so it is public too.
        fewest: maps the size of a cohort to the least number of contributors to each entry of a sum. 1 if
            sums are in the clear.
        fixed_batch: the size of a fixed batch. A cohort takes all clients of a batch or none. 1 if there are
            no batches.
        admits: maps draws by client number to whether they may weigh a sum. In the clear all draws may.
        last: whether this is the run's last round.

    Raises nothing.
    """

    clients: int
    seconds: Floats
    retired: frozenset[int] = frozenset()
    fewest: Callable[[int], int] = lambda cohort: 1
    fixed_batch: int = 1
    admits: Callable[[Mapping[int, int]], bool] = lambda draws: True
    last: bool = False

    def everyone(self) -> tuple[int, ...]:
        """All clients except the retired."""
        return tuple(k for k in range(self.clients) if k not in self.retired)

    def among(self, log_weights: Floats) -> Floats:
        """Exclude the retired clients from a draw.

        Args:
            log_weights: of all clients, (N,).

        Returns:
            A copy, float64 (N,), with -inf for the retired, which are then never drawn.
        """
        weights = np.array(log_weights, dtype=np.float64)
        weights[list(self.retired)] = -np.inf
        return weights


@dataclass(frozen=True)
class State:
    """The server's state between rounds: the broadcast, and named arrays that only the algorithm reads.

        >>> import numpy as np
        >>> from securefl.algorithm import State
        >>> state = State(np.zeros(2, np.float32)).remember(momentum=np.ones(2))
        >>> state.broadcast.tolist(), state.memory["momentum"].tolist()
        ([0.0, 0.0], [1.0, 1.0])

    Attributes:
        broadcast: float32 (d,), mostly the model.
        memory: arrays by name.

    Raises nothing.
    """

    broadcast: Float32s
    memory: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def remember(self, **arrays: NDArray[Any]) -> State:
        """Return a state with these arrays in its memory. This one stays as it is.

        Args:
            **arrays: of any shape, by name. An array of a known name replaces the old one.
        """
        return replace(self, memory={**self.memory, **arrays})


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """The result of one round: the next state, and figures for the observer of a study.

        >>> import numpy as np
        >>> from securefl.algorithm import RoundResult, State
        >>> RoundResult(state=State(np.zeros(2, np.float32)), survivors=(0, 1)).survivors
        (0, 1)

    Attributes:
        state: the server's next state.
        drawn: how often each client was drawn for the round's sums. An absent client was not drawn.
        survivors: the clients whose contributions are in the sums.
        figures: further figures for the observer by name, float64 (N,), nan for a client without one.

    Raises nothing.
    """

    state: State
    drawn: Mapping[int, int] = field(default_factory=dict)
    survivors: tuple[int, ...] = ()
    figures: Mapping[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClientContext:
    """The inputs of a client when it computes a value: its records, the broadcast, and its client state.

        >>> import numpy as np
        >>> from securefl.algorithm import ClientContext
        >>> context = ClientContext(client=0, round=1, x=np.ones((2, 3)), y=np.array([0, 1]),
        ...           broadcast=np.zeros(3, np.float32), public={}, rng=np.random.default_rng(0), count=2)
        >>> context.x.sum(axis=0).tolist()
        [2.0, 2.0, 2.0]

    Attributes:
        client: the client's number, or its id in a `SecureAggregator`.
        round: the round's number, from 1.
        x, y: the client's records.
        broadcast: the query's broadcast, float32 (d,).
        public: the query's further arrays.
        rng: the client's own stream for this round and this `number`.
        kept: the client state before this query, empty if the value declares `reads_state = "none"`. Changes
            to it apply after the exchange, so that a retry computes the same value.
        count: the number of records that other parties may know.
        initial, number: as in the query. If `initial` is not 0, the client trains nothing.
        source: the randomness of private training. It is the same if a round is interrupted and run again.
            None draws from the operating system.
        held: x and y of records that are never trained on. None without a hold-out.
        session: the name of the session, as in every message of it.

    Raises nothing.
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
    session: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The quality of the models after a round, as an observer measures it.

        >>> from securefl.algorithm import Evaluation
        >>> Evaluation(accuracy=0.9, loss=0.3).personal
        False

    Attributes:
        accuracy: the share of records that are classified correctly, or `relative_accuracy`.
        loss: the mean loss over the records.
        figures: further figures for the observer by name, float64 (N,), nan for a client without one.
        personal: True if each client's own model was tested on records like its own. False if one global
            model was tested on the server's records.

    Raises nothing.
    """

    accuracy: float
    loss: float
    figures: Mapping[str, Floats] = field(default_factory=dict)
    personal: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Device:
    """The observer's view of a client: test records that are like its own, and its client state.

        >>> import numpy as np
        >>> from securefl.algorithm import Device
        >>> Device(x=np.ones((2, 3)), y=np.array([0, 1]), kept={}).y.tolist()
        [0, 1]

    Attributes:
        x: the test records, (n, ...).
        y: their class labels, (n,), or targets, (n, targets).
        kept: the client state.
        held: x and y of the client's own records that it never trains on. None without a hold-out.

    Raises nothing.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    kept: ClientState
    held: tuple[NDArray[Any], NDArray[Any]] | None = None


class Contribution(Protocol):
    """A client's contribution: the spec of one value, and the function that computes it.

        >>> import numpy as np
        >>> from securefl.algorithm import ClientContext, ValueSpec, Value
        >>> class Count:
        ...     spec = ValueSpec(name="count", reduction="none", reveals="the number of records")
        ...     def compute(self, context: ClientContext) -> Value:
        ...         return Value(clear=np.array([float(len(context.x))]))

    A value with a hidden part needs a third method, `linear_bounds(broadcast, public)`: the client's own copy
    of the bounds of its linear queries. It is called before the client is charged, and sees no record. A
    server that asks with other bounds gets no answer. `ClientFunction` has it.

    Raises:
        DataError: `compute` may raise it if the client's records give no value, and `linear_bounds` if the
            broadcast is none that the client answers. The client then abstains.
    """

    @property
    def spec(self) -> ValueSpec: ...

    def compute(self, context: ClientContext) -> Value: ...


@dataclass(frozen=True)
class ClientFunction:
    """A value's spec, and the training loop's function that computes the value on a client's device.

        >>> import numpy as np
        >>> from securefl.algorithm import ClientFunction, ValueSpec, Value
        >>> mean = ValueSpec(name="mean", reduction="sum", reveals="its mean")
        >>> own = ClientFunction(mean, lambda context: Value(clear=context.x.mean(0)))
        >>> own.spec.name
        'mean'

    Raises nothing.
    """

    spec: ValueSpec
    """The spec of the value."""
    compute: Callable[[ClientContext], Value]
    """Takes the client's context (its records `x` and `y`, the broadcast), and returns the value."""
    bounds: LinearBounds | None = None
    """Of the linear queries that the value answers, the client's own copy; None if it answers none. A server
    that asks with other bounds gets no concealed answer, and the client is not charged."""

    def linear_bounds(self, broadcast: Float32s, public: Mapping[str, NDArray[Any]]) -> LinearBounds | None:
        """Return `bounds`, whatever the server sent.

        Args:
            broadcast: the query's broadcast, float32 (d,). It is not read.
            public: the query's further arrays, by name. They are not read.

        Returns:
            The client's own bounds. None if the value answers no linear query.
        """
        return self.bounds


class Algorithm(Protocol):
    """A federated learning algorithm: the contributions of its clients, and the server's rounds.

        >>> import numpy as np
        >>> from securefl.algorithm import CohortQuery, RoundResult, ValueSpec, State, Sum
        >>> STEP = ValueSpec(name="step", reduction="sum", reveals="a step")
        >>> class Mean:  # contributions and evaluate are left out
        ...     def start(self): return State(np.zeros(2, np.float32))
        ...     def round(self, state, population, number, rng):
        ...         cohort = population.everyone()
        ...         query = CohortQuery(cohort=cohort, broadcast=state.broadcast, sums=(Sum(STEP, 2),))
        ...         total = (yield query).totals["step"]
        ...         return RoundResult(state=State((total.value / total.weight).astype(np.float32)))

    Raises nothing.
    """

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        """The contributions that clients may make in a run."""
        ...

    def start(self) -> State:
        """The server's state before round 1."""
        ...

    def round(
        self, state: State, population: Population, number: int, rng: np.random.Generator
    ) -> Generator[CohortQuery, Answers, RoundResult]:
        """The generator of one round: it yields queries, receives their answers, and returns the result.

        Args:
            state: the server's state after the round before.
            population: the clients that may be queried.
            number: the round's number, from 1.
            rng: the server's stream of this round.
        """
        ...

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        """The quality of the models. It is an observer's figure: no party of the protocol sees it."""
        ...


def specs_of(algorithm: Algorithm) -> list[ValueSpec]:
    """What clients may send in a run of this algorithm."""
    return [contribution.spec for contribution in algorithm.contributions]


def run_round(
    algorithm: Algorithm,
    state: State,
    population: Population,
    number: int,
    rng: np.random.Generator,
    query: Callable[[CohortQuery, int], Answers],
) -> RoundResult:
    """Run one round: answer the algorithm's queries until it returns the round's result.

        >>> import numpy as np
        >>> from securefl.algorithm import RoundResult, Population, State, run_round
        >>> class Idle:
        ...     def round(self, state, population, number, rng):
        ...         return RoundResult(state=state)
        ...         yield
        >>> people = Population(clients=2, seconds=np.ones(2))
        >>> rng = np.random.default_rng(0)
        >>> run_round(Idle(), State(np.zeros(1, np.float32)), people, 1, rng, None).survivors
        ()

    Args:
        algorithm: the algorithm whose round is run.
        state: the server's state before the round.
        population: the clients that may be queried.
        number: the round's number, from 1.
        rng: the server's stream of this round.
        query: answers one query. Its second argument is the query's stage in the round, from 0.

    Returns:
        The round's result: the next state, the draws, the survivors and the figures.

    Raises:
        Exception: every exception of `algorithm.round` and of `query` passes through.
    """
    turn = algorithm.round(state, population, number, rng)
    stage = 0
    try:
        asked = next(turn)
        # `send` raises StopIteration with the generator's result. That ends the loop.
        while True:
            asked, stage = turn.send(query(asked, stage)), stage + 1
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a generator's result is untyped here
