"""The part of a model that is averaged: its contributions, and the step that follows from their totals.

If a value is constant, each client sends it once. Later rounds ask the clients that were absent.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import (
    Answers,
    ByCount,
    ClientContext,
    ClientState,
    CohortQuery,
    Contribution,
    Device,
    Evaluation,
    Float32s,
    Floats,
    Population,
    State,
    Sum,
    Total,
    Value,
    ValueSpec,
)
from securefl.errors import ConfigError, DataError, SecureFLError
from securefl.protocols.contributions import (
    UNSAMPLED,
    Sampling,
    bounded,
    is_protected,
    training_job,
    update_sends,
)
from securefl.protocols.local_accuracy import TRAINED, kept_trained, local_accuracy
from securefl.training import Learnt, Problem, evaluate
from securefl.training.jobs import TrainingJob, TrainingResult, kept_values
from securefl.training.learnt import common
from securefl.training.run_jobs import FromTraining

NOBODY: Final = Answers(survivors=(), totals={}, per_client={})
ReadsState = Literal["none", "repeated", "unbound"]
Gathering = Generator[CohortQuery, Answers, tuple[Floats | None, Answers]]
"""A generator of queries. It ends in the step, or None if no sum was opened, and in the first answers."""


class ServerUpdate(Protocol):
    """How the server makes the next model from the aggregated step, float64 (d,).

    It may keep moments in the state. Raises nothing.

    >>> import numpy as np
    >>> from securefl.algorithm.clients import State
    >>> from securefl.protocols.averaging import Replace, ServerUpdate
    >>> server: ServerUpdate = Replace()
    >>> server.apply(State(np.zeros(2, np.float32)), np.array([0.5, -0.5])).broadcast
    array([ 0.5, -0.5], dtype=float32)
    """

    def apply(self, state: State, step: Floats) -> State:
        """Return the next state.

        Args:
            state: with the shared part, float32 (d,), and what the update keeps.
            step: the aggregated step, float64 (d,).
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerContext:
    """The inputs of the server in one round of a part.

    population: the clients that may be queried. number: the round's, from 1. rng: the server's stream of this
    round. contributions: those of the part.
    """

    population: Population
    number: int
    rng: np.random.Generator
    contributions: Sequence[Contribution]


@dataclass(frozen=True, eq=False)
class Part:
    """The part of the models that is averaged, by default the whole model, the same of all clients.

    `initial` is the part before round 1, (d,). The broadcast and the step have its length.
    `contributions` are its contributions, for cohorts that are drawn as `sampling` says.

    Raises nothing when it is made.

    >>> import numpy as np
    >>> from securefl.protocols.averaging import Part
    >>> class Doubled(Part):
    ...     def split(self, context, trained):
    ...         return 2 * trained, None
    >>> Doubled(None).split(None, np.ones(1, np.float32))
    (array([2.], dtype=float32), None)
    """

    problem: Problem
    reads_state: ClassVar[ReadsState] = "none"
    """As in `ValueSpec`: "none" if `fit` and `value` read nothing that a client keeps. They then get none."""
    keeps_trained: ClassVar[bool] = False
    """Whether each client keeps the model that it trained, which `Problem.tested_at` may name."""
    tests_trained: ClassVar[bool] = False
    """Whether local accuracy is then of that model, although all clients have one in common."""

    @property
    def charged(self) -> Problem:
        """The problem whose private training the ledger counts."""
        return self.problem

    @property
    def initial(self) -> Float32s:
        """float32 (d,): the part before round 1."""
        return self.problem.initial

    @property
    def memory(self) -> Mapping[str, NDArray[Any]]:
        """Return what the server keeps beside the part, before round 1.

        Returns:
            Arrays of any type and shape, by name. By default none.
        """
        return {}

    def spec(self, sampling: Sampling) -> ValueSpec:
        """The spec of a client's update."""
        spec = update_sends(self.charged, sampling)  # of a study's own code it is "unknown" what it reads
        return spec if self.reads_state == "none" else replace(spec, reads_state=self.reads_state)

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        return (Update(self, sampling),)

    def fit(self, context: ClientContext) -> TrainingJob:
        """The local training of a client, from what was broadcast and what it keeps."""
        return training_job(self.problem, context, context.broadcast)

    def split(self, context: ClientContext, trained: Float32s) -> tuple[Float32s, ClientState | None]:
        """Split a trained model into what is shared and what its client keeps.

        Args:
            context: the client's inputs.
            trained: the whole model, float32 (m,), as `fit` trained it.

        Returns:
            The shared values, float32 (d,), and the client's new state. None: the state stays.
        """
        return trained, None

    def before(self, broadcast: Float32s) -> Float32s:
        """Return the shared values that the update counts from.

        Args:
            broadcast: the query's broadcast, float32 (d,).

        Returns:
            float32 (d,). By default the broadcast.
        """
        return broadcast

    def value(self, context: ClientContext, trained: TrainingResult) -> Value:
        """The client's update, and its new state, from the result of `fit`."""
        before = self.before(context.broadcast)
        if isinstance(trained, DataError):  # the client keeps its state of before
            return bounded(self.problem, before, trained)
        shared, kept = self._parted(context, trained, len(before))
        return replace(bounded(self.problem, before, shared), new_state=kept)

    def _parted(
        self, context: ClientContext, trained: Float32s, count: int
    ) -> tuple[Float32s, ClientState | None]:
        """What `split` returns, if it is `count` numbers and a client's state or None.

        Otherwise it raises ConfigError, or DataError if the run must not end by a client's records.
        """
        cause: Exception | None = None
        try:
            match self.split(context, trained):
                case (shared, None | Mapping() as kept):
                    numbers = np.asarray(shared)
                    if numbers.shape == (count,) and numbers.dtype.kind in "iuf":
                        return numbers, kept
                    told = f"shape {numbers.shape} of type {numbers.dtype}"
                case (_, kept):
                    told = f"{type(kept).__name__} for the state"
                case found:
                    told = f"{type(found).__name__} instead of the two"
        except (SecureFLError, MemoryError):
            raise
        except Exception as error:  # a person's own code: it can raise any error
            told, cause = f"{type(error).__name__}: {error}", error
        kind = DataError if is_protected(self.problem) else ConfigError
        raise kind(
            f"Expected `split` of {type(self).__qualname__} to return {count:,} numbers, and the client's "
            f"state or None, got {told}. Mend it."
        ) from cause

    def advance(
        self, server: ServerUpdate, state: State, query: CohortQuery, here: ServerContext
    ) -> Generator[CohortQuery, Answers, tuple[State, Answers]]:
        """Yield the queries of a round. It ends in the next state, and in the answers that count."""
        step, answers = yield from self.gather(query, here)
        return (state if step is None else stepped(self, server, state, step)), answers

    def statistics(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of averaged running statistics of batch norm in the part.

        Returns:
            Those of all statistics, and those of the variances among them, int64 each.
        """
        return self.problem.averaged

    def gather(self, query: CohortQuery, here: ServerContext) -> Gathering:
        """Yield the queries for the part's sums. `query` is the round's query without sums.

        Clients train when they answer the first query. It carries the loop's own numbers too.
        """
        return gather_mean(query, here.contributions[0])

    def common(self, shared: Float32s) -> Float32s | None:
        """Return the whole model that all clients have in common.

        Args:
            shared: the shared values, float32 (d,).

        Returns:
            float32 (m,). None if clients share no whole model.
        """
        return shared

    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation:
        """Measure the models for an observer of a study.

        Args:
            shared: the shared values, float32 (d,).
            devices: the observer's view of each client.

        Returns:
            Accuracy and loss of the common model on the server's records, and the `figures`.

        Raises:
            ConfigError: the clients share no whole model.
        """
        return replace(self.problem.evaluate(self._of_all(shared)), figures=self.figures(shared, devices))

    def figures(self, shared: Float32s, devices: Sequence[Device]) -> dict[str, Floats]:
        """Return an observer's numbers of all clients.

        Args:
            shared: the shared values, float32 (d,).
            devices: the observer's view of each client.

        Returns:
            By name, float64 (N,), nan for a client without one. Empty without held-out records.

        Raises:
            ConfigError: the clients share no whole model.
        """
        problem, model = self.problem, self._of_all(shared)
        return local_accuracy(
            devices,
            lambda client, kept, x, y: evaluate(
                problem.to_read(kept_values(kept, TRAINED, model)), x, y, problem.kind
            ),
        )

    def learnt(self, shared: Float32s, client: int | None, kept: ClientState) -> Learnt:
        """Return the model that a user exports (see `training.learnt.Exportable`).

        Args:
            shared: the shared values, float32 (d,).
            client: the client whose model it is. None is the common one.
            kept: that client's state.

        Raises:
            ConfigError: clients share no whole model, or a client is named although all have the same one.
        """
        return common(self.problem, self._of_all(shared), client)

    def _of_all(self, shared: Float32s) -> Float32s:
        if (model := self.common(shared)) is None:
            raise ConfigError("Expected a client, got none: clients share no whole model. Name a client.")
        return model


@dataclass(frozen=True, eq=False)
class Whole(Part):
    """The whole model, the same of all clients. A client keeps what it trained if that is tested."""

    tests_trained = True

    def split(self, context: ClientContext, trained: Float32s) -> tuple[Float32s, ClientState | None]:
        return trained, kept_trained(self.problem, trained) or None


@dataclass(frozen=True, eq=False)
class Update(FromTraining):
    """A client's update of a part. Of the whole model it is w_k - w after training from the broadcast w."""

    part: Part
    sampling: Sampling = UNSAMPLED

    @cached_property
    def spec(self) -> ValueSpec:
        return self.part.spec(self.sampling)

    def fit(self, context: ClientContext) -> TrainingJob:
        return self.part.fit(context)

    def value(self, context: ClientContext, trained: TrainingResult) -> Value:
        return self.part.value(context, trained)


def gather_mean(query: CohortQuery, contribution: Contribution, size: int | None = None) -> Gathering:
    """Yield one query for a sum of this size, by default the broadcast's. It ends in the step of that sum."""
    answers = yield replace(query, sums=(Sum(contribution.spec, size or len(query.broadcast)),))
    if not answers.survivors:
        return None, answers
    return step_of(query, answers.totals[contribution.spec.name]), answers


def step_of(query: CohortQuery, total: Total) -> Floats:
    """The aggregated step: the mean over the survivors (partial), or the weighted sum (full).

    Full aggregation is w + sum over the selected of (n_k / n)(w_k - w). An absent client counts with the old
    model.
    """
    if isinstance(query.weights, ByCount) or total.weight == 0:
        return total.value
    return total.value / total.weight


def stepped(part: Part, server: ServerUpdate, state: State, step: Floats) -> State:
    """The state after the server's update. Running statistics of norms move by their own mean instead.

    They are no weights: an optimiser's step, or a grid's rounding, could make a variance negative.
    """
    averaged, variances = part.statistics()
    if not len(averaged):
        return server.apply(state, step)
    weights = step.copy()
    weights[averaged] = 0
    after = server.apply(state, weights)
    broadcast = after.broadcast.copy()
    broadcast[averaged] = state.broadcast[averaged] + step[averaged]
    broadcast[variances] = np.maximum(broadcast[variances], 0)
    return State(broadcast, after.memory)


Counted = NDArray[np.float64]
"""1 for each client whose value is in the sum, else 0, (N,)."""


def absent(counted: Counted, population: Population) -> tuple[int, ...]:
    """The clients whose values are not in the sum yet."""
    # The difference of two sums of a constant value over two sets of clients would be one client's value.
    return tuple(k for k in population.everyone() if not counted[k])


def including(counted: Counted, survivors: Sequence[int]) -> Counted:
    """`counted` with these clients, whose values were added now."""
    found: Counted = counted + np.isin(np.arange(len(counted)), survivors)
    return found
