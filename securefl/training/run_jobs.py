"""Runs local trainings (`jobs.TrainingJob`) one by one, each on its hardware."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.queries import Float32s, Value, ValueSpec
from securefl.core.errors import DataError
from securefl.core.linear import LinearBounds
from securefl.dp.noise import Source
from securefl.training.chunks import body_features
from securefl.training.devices import device_of, seeded
from securefl.training.heads import activated, frozen, last_layers
from securefl.training.jobs import Hook, TrainedContribution, TrainingJob, TrainingResult
from securefl.training.local import descend, penalty_of, train
from securefl.training.vector import statistics_vector, to_vector, views_of


def one_by_one(fits: Sequence[TrainingJob]) -> list[TrainingResult]:
    """The trainer that runs the fits one after the other."""
    return [run_job(fit) for fit in fits]


def run_job(fit: TrainingJob) -> TrainingResult:
    """Run this training. A DataError of the training is returned, not raised.

    The sampling and noise of private training come from `context.source` or the operating system. They do not
    come from `context.rng`, whose seed is public. If the GPU's memory runs out and the hardware falls back,
    the training starts again on the CPU.
    """
    if fit.problem.hardware.gpu is None:
        return _run(fit)
    again = _again(fit)
    try:
        return _run(fit)
    except RuntimeError as error:
        fit.problem.hardware.leave(error)
    # Outside of the handler, since the error keeps the tensors of the failed attempt alive.
    return _run(again)


def _again(fit: TrainingJob) -> TrainingJob:
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


def _run(fit: TrainingJob) -> TrainingResult:
    if fit.head_first is None:
        return _with_statistics(fit)
    came = _turn(fit)
    while fit.turns > 1 and not isinstance(came, DataError):
        fit = fit.after(came)
        came = _turn(fit)
    return came


def _turn(fit: TrainingJob) -> TrainingResult:
    """The training of the head, and then this one under it."""
    # Such a body gives a record the same features in every pass.
    features = body_features(fit.problem.module(fit.start), fit.context.x, layers=fit.under_head or 1)
    came = _with_statistics(fit.on_features(features))
    return came if isinstance(came, DataError) else _with_statistics(fit.under(came))


def _with_statistics(fit: TrainingJob) -> TrainingResult:
    """The trained model, and the running statistics of norms that each client keeps."""
    found = _trained(fit)
    if isinstance(found, DataError) or not len(fit.problem.initial_norms):
        return found
    return np.concatenate([found, statistics_vector(fit.problem.layers)])


def _trained(fit: TrainingJob) -> TrainingResult:
    problem, context = fit.problem, fit.context
    try:
        # A start of another length, such as a forged broadcast, raises a DataError for its client alone.
        model = problem.module(fit.model)
        head = last_layers(model, fit.under_head) if fit.under_head else []
        with _drawing(fit, device_of(model)), activated(model, fit.activation):
            if problem.private is not None:
                from securefl.training.dpsgd import train_privately  # Opacus takes two seconds to import

                with frozen(*head):
                    source = context.source or Source()
                    train_privately(model, context.x, context.y, problem.private, problem.loss, source)
                return to_vector(model, statistics=True)
            how = (problem.local, problem.loss, context.rng, context.round - 1)
            if fit.envelope is not None:
                with frozen(*head):
                    near = descend(model, context.x, context.y, *how, envelope=fit.envelope)
                    free = [own for own in model.parameters() if own.requires_grad]
                personal = to_vector(model, statistics=True)
                with nullcontext() if near is None else views_of(near, free):
                    return np.concatenate([personal, to_vector(model, statistics=True)])
            if fit.hook is not None:
                return _beside(fit, fit.hook, model, how, head)
            penalty = None if fit.penalty is None else penalty_of(fit.penalty)
            with frozen(*head):
                train(model, context.x, context.y, *how, penalty=penalty)
    except DataError as error:
        return error
    return to_vector(model, statistics=True)


def _beside(
    fit: TrainingJob, hook: Hook, model: nn.Module, how: tuple[Any, ...], head: Sequence[nn.Module]
) -> TrainingResult:
    """Train with the steps of a hook."""
    with hook.alone(fit, model) as steps:

        def before() -> None:
            steps.draw(0)
            steps.before()

        with frozen(*head):
            train(model, *steps.seen[0], *how, before=before)
        return steps.result(0, to_vector(model, statistics=True))


def _drawing(fit: TrainingJob, device: torch.device) -> AbstractContextManager[None]:
    """A context in which dropout draws from the client's own stream, independent of earlier trainings."""
    if not fit.problem.model.draws:
        return nullcontext()
    return seeded(int(fit.context.rng.integers(2**63)), device)


class FromTraining:
    """A contribution whose value is computed from a local training: from what `fit` returns, by `value`."""

    def fit(self, context: ClientContext) -> TrainingJob | None:
        """The training behind the value, or None if it needs none."""
        raise NotImplementedError

    def value(self, context: ClientContext, trained: Any) -> Value:
        """The value of a training's result. Raises DataError if the client abstains."""
        raise NotImplementedError

    def compute(self, context: ClientContext) -> Value:
        fit = self.fit(context)
        return self.value(context, None if fit is None else run_job(fit))


@dataclass(frozen=True, eq=False)
class Around(FromTraining):
    """A contribution around another one: what that one declares to its client stands."""

    plain: TrainedContribution

    @property
    def spec(self) -> ValueSpec:
        return self.plain.spec

    def fit(self, context: ClientContext) -> TrainingJob | None:
        return self.plain.fit(context)

    def linear_bounds(self, broadcast: Float32s, public: Mapping[str, NDArray[Any]]) -> LinearBounds | None:
        declared = getattr(self.plain, "linear_bounds", None)
        return None if declared is None else declared(broadcast, public)

    def nothing(self, context: ClientContext) -> Value:
        return getattr(self.plain, "nothing", self.compute)(context)
