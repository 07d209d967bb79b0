"""One client's local training (`TrainingJob`): its start vector, its records, and its result.

A trainer may run a wave of fits one by one, side by side, or in other processes. A fit draws from its own
client's streams alone, so its result depends neither on the order nor on the process. `run_jobs` runs one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.clients import ClientContext, Contribution
from securefl.algorithm.queries import ClientState, Float32s, Value, ValueSpec
from securefl.core.errors import DataError
from securefl.data.dataset import finite_rows, labelled

if TYPE_CHECKING:
    from torch import nn

    from securefl.training.heads import Differentiable
    from securefl.training.local import Envelope, Pull
    from securefl.training.stack import Stack
    from securefl.training.task import Problem

Values = TypeVar("Values", bound=NDArray[Any])
TrainingResult = Float32s | DataError
"""The trained model as a vector (d,), or the error that the training raised."""
Trainer = Callable[[Sequence["TrainingJob"]], Sequence[TrainingResult]]
"""A function that runs a wave of fits. It returns their results in the same order."""


class HookSteps(Protocol):
    """The steps of a hook, for the trainings of several clients (slots).

    seen: the records x and y on which each client trains.
    """

    seen: Sequence[tuple[NDArray[Any], NDArray[Any]]]

    def draw(self, slot: int) -> None:
        """Draw what the slot's next mini-batch needs, from its client's stream."""
        ...

    def before(self) -> None:
        """The steps before a mini-batch of all slots."""
        ...

    def result(self, slot: int, model: Float32s) -> Float32s:
        """The slot's model (d,) with the hook's values behind it. Raises DataError if its steps diverged."""
        ...


class Hook(Protocol):
    """What a training does beside its steps, such as to train masks. It holds records back.

    Trainings whose hooks are equal can run side by side. values: how many its results have behind the model.
    """

    @property
    def values(self) -> int: ...

    def alone(self, job: TrainingJob, model: nn.Module) -> AbstractContextManager[HookSteps]:
        """The steps of one training of this model. Raises DataError if they cannot begin."""
        ...

    def together(self, jobs: Sequence[TrainingJob], stack: Stack) -> HookSteps:
        """The steps of the trainings in the first slots. Each has two records or more, with known labels."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingJob:
    """A local training that has not begun.

    Attributes:
        problem: The model and its training, with or without record-level privacy.
        start: The model before training, float32 (d,). With an envelope, it stands here twice, (2d,).
        context: The client's records, round and streams.
        under_head: The number of dense layers, from the last, that are not trained: the head.
        activation: A function of the head's input.
        penalty: Added to the mean loss. A training works on a copy, which may remember the mini-batches that
            it saw. Private training minimises the mean loss alone.
        head_first: A training of the head alone, for which `on_features` puts the features of the body in
            `start` in the place of records. It runs before this one, which starts under the trained head. It
            has the same streams as this one.
        turns: How often the two trainings run, in turns. Each begins where the one before it ended, with a
            new optimizer.
        envelope: Trains a personal model near a moving one. The result has both, (2d,), the personal first.
            Private training has none.
        hook: What the training does beside its steps. Behind the trained model, the result has its values.

    If each client keeps the running statistics of norms (`Problem.norms`), the result ends in them, (b,).
    """

    problem: Problem
    start: Float32s
    context: ClientContext
    under_head: int = 0
    activation: Differentiable | None = None
    penalty: Pull | None = None
    head_first: TrainingJob | None = None
    turns: int = 1
    envelope: Envelope | None = None
    hook: Hook | None = None

    @property
    def model(self) -> Float32s:
        """The model before training, (d,)."""
        return self.start if self.envelope is None else self.start[: len(self.start) // 2]

    def on_features(self, features: NDArray[np.floating[Any]]) -> TrainingJob:
        """The training of the head that comes first, on these features (n, width) of its records."""
        assert self.head_first is not None
        x = features.astype(np.float32)
        return replace(self.head_first, context=replace(self.head_first.context, x=x))

    def under(self, head: Float32s) -> TrainingJob:
        """This training, starting under these values of the head's layers, each with its weights first."""
        start = self.start.copy()
        start[self.problem.last(self.under_head or 1)] = head
        return replace(self, start=start, head_first=None)

    def after(self, trained: Float32s) -> TrainingJob:
        """The turns that are left behind a turn with this result, (d,)."""
        assert self.head_first is not None
        head = replace(self.head_first, start=trained[self.problem.last(self.under_head or 1)])
        return replace(self, start=trained, head_first=head, turns=self.turns - 1)


@runtime_checkable
class TrainedContribution(Contribution, Protocol):
    """A contribution (`Contribution`) whose value is computed from a local training.

    A trainer runs the training that `fit` returns. `value` then computes the contribution from its result.
    """

    def fit(self, context: ClientContext) -> TrainingJob | None:
        """The training that this value needs, or None if it needs none."""
        ...

    def value(self, context: ClientContext, trained: TrainingResult | None) -> Value:
        """The value, from the result of `fit`. Raises DataError if the client abstains."""
        ...


def kept_values(kept: ClientState, name: str, initial: Values) -> Values:
    """A copy of the values that a client keeps under this name, or of `initial` if it has none.

    Raises DataError if they are damaged: of another type or shape than `initial`, or not finite.
    """
    own = kept.get(name)
    if own is None:
        return initial.copy()
    if own.dtype != initial.dtype or own.shape != initial.shape or not np.isfinite(own).all():
        raise DataError(
            f"Expected the client state {name!r} to be {len(initial)} finite values of {initial.dtype}, got "
            f"{own.dtype} of shape {own.shape}: it is damaged, or of another model. Restore the client's "
            "file from a copy, or begin a new run."
        )
    return cast(Values, own.copy())


def usable(problem: Problem, context: ClientContext) -> ClientContext:
    """The client's context `context` without the records that are not finite or have no known label."""
    fits = readable(problem, context.x) & labelled(context.y, problem.kind, problem.outputs)
    return replace(context, x=context.x[fits], y=context.y[fits])


def readable(problem: Problem, x: NDArray[Any]) -> NDArray[np.bool_]:
    """A mask of the records (n, *shape) that the model can read: finite, and of known codes."""
    fits = finite_rows(x)
    if (codes := problem.codes) is not None:
        fits &= ((x >= 0) & (x < codes)).all(axis=tuple(range(1, x.ndim)))
    return fits


def with_model(spec: ValueSpec, problem: Problem) -> ValueSpec:
    """The spec `spec` of a value for which a client runs the model.

    Code of a study's own may keep state from pass to pass, so that it counts as reading some. So do norms
    whose running statistics the client keeps.
    """
    if len(problem.initial_norms):
        return replace(spec, reads_state="unbound")
    if not problem.own_code or spec.reads_state == "unbound":
        return spec
    return replace(spec, reads_state="unknown")


def with_training(spec: ValueSpec, problem: Problem) -> ValueSpec:
    """The spec `spec` of a value that is computed from the locally trained model alone."""
    spec = with_model(spec, problem)
    if problem.private is None:
        return spec
    # With DP-SGD the trained model is the output of a mechanism. By post-processing, a value computed from it
    # alone has the cost of the training and no other.
    return replace(spec, depends_on="model", training=problem.private.event)
