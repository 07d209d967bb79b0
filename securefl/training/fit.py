"""One client's local training (`Fit`): its start vector, its records, and its result.

A trainer may run a wave of fits one by one, side by side, or in other processes. A fit draws from its own
client's streams alone, so its result depends neither on the order nor on the process.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.queries import Float32s, Value, ValueSpec
from securefl.core.errors import DataError
from securefl.dp.noise import Source
from securefl.training.heads import Activation, activated, frozen, last_dense, places
from securefl.training.local import Envelope, Penalty, train, train_near
from securefl.training.task import Problem
from securefl.training.vector import to_vector

Fitted = Float32s | DataError
"""The trained model or its update as a vector (d,), or the error that the training raised."""
Trainer = Callable[[Sequence["Fit"]], Sequence[Fitted]]
"""A function that runs a wave of fits. It returns their results in the same order.

Reading a result may copy it from memory of the whole wave. A caller that reads each client's result when it
needs it has one of them in memory, and reads it from the processor's cache.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """A local training that has not begun.

    Attributes:
        problem: The model and its training, with or without record-level privacy.
        start: The model before training, float32 (d,). With an envelope, it stands here twice, (2d,).
        context: The client's records, round and streams.
        under_head: Whether the head, the last dense layer, is not trained.
        activation: A function of the head's input.
        penalty: Added to the mean loss. Private training minimises the mean loss alone.
        head_first: A training of the head alone, on the features of the body in `start`. It runs before this
            one, which starts under the trained head. It has the same streams as this one.
        envelope: Trains a personal model near a moving one. The result has both, (2d,), the personal first.
            Private training has none.
        update: Whether the result is the update, the trained model minus the start, in place of the model.
    """

    problem: Problem
    start: Float32s
    context: ClientContext
    under_head: bool = False
    activation: Activation | None = None
    penalty: Penalty | None = None
    head_first: Fit | None = None
    envelope: Envelope | None = None
    update: bool = False

    def under(self, head: Float32s) -> Fit:
        """This training, starting under these values of the head, weights first."""
        start, model = self.start.copy(), self.problem.layers
        start[places(model, [last_dense(model)])] = head
        return replace(self, start=start, head_first=None)


@runtime_checkable
class Fits(Protocol):
    """A contribution (`Contribution`) whose value is computed from a local training.

    A trainer runs the training that `fit` returns. `value` then computes the contribution from its result.
    """

    @property
    def spec(self) -> ValueSpec: ...

    def compute(self, context: ClientContext) -> Value: ...

    def fit(self, context: ClientContext) -> Fit | None:
        """The training that this value needs, or None if it needs none."""
        ...

    def value(self, context: ClientContext, fitted: Fitted | None) -> Value:
        """The value, from the result of `fit`. Raises DataError if the client abstains."""
        ...


def one_by_one(fits: Sequence[Fit]) -> list[Fitted]:
    """The trainer that runs the fits one after the other."""
    return [fitted(fit) for fit in fits]


def fitted(fit: Fit) -> Fitted:
    """Run this training. A DataError of the training is returned, not raised.

    The sampling and noise of private training come from `context.source` or the operating system. They do not
    come from `context.rng`, whose seed is public. If the GPU's memory runs out and the hardware falls back,
    the training starts again on the CPU.
    """
    if fit.problem.hardware.gpu is None:
        return _fitted(fit)
    again = _again(fit)
    try:
        return _fitted(fit)
    except RuntimeError as error:
        fit.problem.hardware.leave(error)
    # Outside of the handler, since the error keeps the tensors of the failed attempt alive.
    return _fitted(again)


def _again(fit: Fit) -> Fit:
    """A copy of the fit with its own streams, from which the first attempt does not draw."""
    # The copy repeats the noise of the first attempt, from which nothing left the client. So a round that is
    # cut off and run again draws the same values as this one.
    context, head = fit.context, fit.head_first
    source = None if context.source is None else context.source.restarted()
    own = replace(context, rng=copy.deepcopy(context.rng), source=source)
    if head is not None:
        # Both trainings draw from one stream, so the copies must share one too: noise is never drawn twice.
        head = replace(head, context=replace(head.context, rng=own.rng, source=own.source))
    return replace(fit, context=own, head_first=head)


def _fitted(fit: Fit) -> Fitted:
    if fit.head_first is not None:
        came = _fitted(fit.head_first)
        return came if isinstance(came, DataError) else _fitted(fit.under(came))
    problem, context = fit.problem, fit.context
    start = fit.start if fit.envelope is None else fit.start[: len(fit.start) // 2]
    try:
        # A start of another length, such as a forged broadcast, raises a DataError for its client alone.
        model = problem.module(start)
        head = [last_dense(model)] if fit.under_head else []
        with _drawing(fit), activated(model, fit.activation), frozen(*head):
            if problem.private is not None:
                from securefl.training.dpsgd import train_privately  # Opacus takes two seconds to import

                source = context.source or Source()
                train_privately(model, context.x, context.y, problem.private, problem.loss, source)
            else:
                how = (problem.local, problem.loss, context.rng, context.round - 1)
                if fit.envelope is not None:
                    moving = train_near(model, context.x, context.y, *how, fit.envelope)
                    return np.concatenate([to_vector(model), to_vector(moving)])
                # A copy: a penalty may remember the mini-batches that it saw, and a fit may run twice.
                train(model, context.x, context.y, *how, penalty=copy.copy(fit.penalty))
    except DataError as error:
        return error
    if not fit.update:
        return to_vector(model)
    # Both are float32. Their difference is exact if they are within a factor of two of each other. Otherwise
    # its relative error is at most 2^-24.
    with np.errstate(over="ignore"):  # a grid refuses infinite values
        return to_vector(model) - fit.start


@contextmanager
def _drawing(fit: Fit) -> Iterator[None]:
    """A context in which dropout draws from the client's own stream, independent of earlier trainings."""
    if not fit.problem.model.draws:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(fit.context.rng.integers(2**63)))
        yield


def usable(problem: Problem, context: ClientContext) -> ClientContext:
    """The client's context `context` without the records that are not finite or have no known label."""
    fits = readable(problem, context.x)
    if problem.kind == "classification":
        fits &= (context.y >= 0) & (context.y < problem.outputs)
    else:
        fits &= np.isfinite(context.y).all(axis=1)
    return replace(context, x=context.x[fits], y=context.y[fits])


def readable(problem: Problem, x: NDArray[Any]) -> NDArray[np.bool_]:
    """A mask of the records (n, *shape) that the model can read: finite, and of known characters."""
    inner = tuple(range(1, x.ndim))
    fits = np.isfinite(x).all(axis=inner)
    if problem.kind == "classification" and problem.model.reads_text:
        # A model of text has one output for each character that it reads.
        fits &= ((x >= 0) & (x < problem.outputs)).all(axis=inner)
    return np.asarray(fits)


def with_training(spec: ValueSpec, problem: Problem) -> ValueSpec:
    """The spec `spec` of a value that is computed from the locally trained model alone."""
    if problem.private is None:
        return spec
    # With DP-SGD the trained model is the output of a mechanism. By post-processing, a value computed from it
    # alone has the cost of the training and no other.
    return replace(spec, depends_on="model", training=problem.private.event)
