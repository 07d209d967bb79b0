"""One client's local training: what it starts from, its records, and what came of it.

Whoever has a wave of them at hand may run them one by one, many at once or in other processes: a fit draws
from its own client's streams alone, so neither order nor place matters.
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
from securefl.training.heads import Activation, activated, frozen, last_dense
from securefl.training.local import Penalty, train
from securefl.training.task import Problem
from securefl.training.vector import to_vector

Fitted = Float32s | DataError
"""The trained model as a vector (d,), or why there is none.

It may be a view of the models of a whole wave: whoever keeps it copies it.
"""
Trainer = Callable[[Sequence["Fit"]], list[Fitted]]
"""Runs a wave of fits. Returns what came of each, in their order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """A local training that has not begun.

    Attributes:
        problem: the model and how it is trained; whether with record-level privacy, too.
        start: the model before, float32 (d,).
        job: the client's records, round and streams.
        under_head: whether the head, the last dense layer, stays as it is.
        activation: what the head's input passes first.
        penalty: joins the mean loss. Private training minimises the mean loss alone.
    """

    problem: Problem
    start: Float32s
    context: ClientContext
    under_head: bool = False
    activation: Activation | None = None
    penalty: Penalty | None = None


@runtime_checkable
class Fits(Protocol):
    """An Offer whose value follows from local training. It says what to train, and goes on from there."""

    @property
    def spec(self) -> ValueSpec: ...

    def compute(self, context: ClientContext) -> Value: ...

    def fit(self, context: ClientContext) -> Fit | None:
        """The training behind this value. None if there is none to do."""
        ...

    def value(self, context: ClientContext, fitted: Fitted | None) -> Value:
        """The value, from what came of `fit`. Raises DataError if the client abstains."""
        ...


def one_by_one(fits: Sequence[Fit]) -> list[Fitted]:
    """The trainer that runs each fit by itself, one after the other."""
    return [fitted(fit) for fit in fits]


def fitted(fit: Fit) -> Fitted:
    """What comes of this training.

    The sampling and noise of private training come from `context.source`, or the operating system, never from
    `context.rng`, whose seed is public. If the GPU's memory runs out, the training begins anew on the CPU
    where the hardware allows that.
    """
    if fit.problem.hardware.gpu is None:
        return _fitted(fit)
    again = _again(fit)
    try:
        return _fitted(fit)
    except RuntimeError as error:
        fit.problem.hardware.leave(error)
    # behind the handler: the error keeps the failed attempt's tensors alive
    return _fitted(again)


def _again(fit: Fit) -> Fit:
    """The same fit with streams of its own, which the first attempt does not draw from."""
    # The same noise as in the first attempt, of which nothing left: a round that is cut off and played again
    # draws as this one did.
    context = fit.context
    source = None if context.source is None else context.source.restarted()
    return replace(fit, context=replace(context, rng=copy.deepcopy(context.rng), source=source))


def _fitted(fit: Fit) -> Fitted:
    problem, context = fit.problem, fit.context
    try:
        # A start of another length, such as of a broadcast that a server made up, costs its client alone.
        model = problem.module(fit.start)
        head = [last_dense(model)] if fit.under_head else []
        with _drawing(fit), activated(model, fit.activation), frozen(*head):
            if problem.private is not None:
                from securefl.training.dpsgd import train_privately  # Opacus takes two seconds to import

                source = context.source or Source()
                train_privately(model, context.x, context.y, problem.private, problem.loss, source)
            else:
                train(
                    model,
                    context.x,
                    context.y,
                    problem.local,
                    problem.loss,
                    context.rng,
                    context.round - 1,
                    penalty=fit.penalty,
                )
    except DataError as error:
        return error
    return to_vector(model)


@contextmanager
def _drawing(fit: Fit) -> Iterator[None]:
    """Let dropout draw from the client's own stream, whoever trained before in this process."""
    if not fit.problem.model.draws:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(fit.context.rng.integers(2**63)))
        yield


def usable(problem: Problem, context: ClientContext) -> ClientContext:
    """The job without non-finite records and records without a label. These take no part."""
    fits = readable(problem, context.x)
    if problem.kind == "classification":
        fits &= (context.y >= 0) & (context.y < problem.outputs)
    else:
        fits &= np.isfinite(context.y).all(axis=1)
    return replace(context, x=context.x[fits], y=context.y[fits])


def readable(problem: Problem, x: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of the records (n, *shape) the model can read, each by itself: finite, of known characters."""
    inner = tuple(range(1, x.ndim))
    fits = np.isfinite(x).all(axis=inner)
    if problem.kind == "classification" and problem.model.reads_text:
        # a model of text puts out a number for each character that it reads
        fits &= ((x >= 0) & (x < problem.outputs)).all(axis=inner)
    return np.asarray(fits)


def with_training(spec: ValueSpec, problem: Problem) -> ValueSpec:
    """`spec` for a value computed only from the locally trained model."""
    if problem.private is None:
        return spec
    # With DP-SGD the model is a mechanism's output. A value computed from it alone reads no records any more,
    # so that its release costs the training's event and nothing of its own.
    return replace(spec, depends_on="model", training=problem.private.event)
