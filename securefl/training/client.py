"""One client's training in one round. The problem says whether it has record-level privacy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import nn

from securefl.algorithm import Job
from securefl.dp.noise import Source
from securefl.rounds import Sends
from securefl.training.local import Objective, train
from securefl.training.task import Problem


def train_on(problem: Problem, model: nn.Module, job: Job, objective: Objective | None = None) -> None:
    """Train the model's free parameters, in place, on the job's records.

    objective: as for `train`. Private training ignores it and minimises the mean loss. Its sampling and noise
    come from `job.source`, or the operating system, never from `job.rng`, whose seed is public.
    """
    if problem.private is not None:
        from securefl.training.dpsgd import train_privately  # Opacus takes two seconds to import

        train_privately(model, job.x, job.y, problem.private, problem.loss, job.source or Source())
        return
    train(model, job.x, job.y, problem.local, problem.loss, job.rng, job.round - 1, objective=objective)


def usable(problem: Problem, job: Job) -> Job:
    """The job without non-finite records and records without a label. These take no part."""
    fits = np.isfinite(job.x).all(axis=tuple(range(1, job.x.ndim)))
    if problem.kind == "classification":
        fits &= (job.y >= 0) & (job.y < problem.outputs)
    else:
        fits &= np.isfinite(job.y).all(axis=1)
    return replace(job, x=job.x[fits], y=job.y[fits])


def with_training(sends: Sends, problem: Problem) -> Sends:
    """`sends` for a value computed only from the locally trained model."""
    if problem.private is None:
        return sends
    # With DP-SGD the model is a mechanism's output. A value computed from it alone reads no records any more,
    # so that its release costs the training's event and nothing of its own.
    return replace(sends, reads="nothing", training=problem.private.event)
