"""One client's training in one round, in the clear or with record-level privacy, as the problem says."""

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

    objective: as for `train`; private training minimises the mean loss alone. Its sampling and noise come
    from `job.source`, or the operating system, never from `job.rng`.
    """
    if problem.private is not None:
        from securefl.training.dpsgd import train_privately  # Opacus takes two seconds to import

        train_privately(model, job.x, job.y, problem.private, problem.loss, job.source or Source())
        return
    train(model, job.x, job.y, problem.local, problem.loss, job.rng, job.round - 1, objective=objective)


def usable(problem: Problem, job: Job) -> Job:
    """The job without records that are not finite or have no label: they take no part."""
    fits = np.isfinite(job.x).all(axis=tuple(range(1, job.x.ndim)))
    if problem.kind == "classification":
        fits &= (job.y >= 0) & (job.y < problem.outputs)
    else:
        fits &= np.isfinite(job.y).all(axis=1)
    return replace(job, x=job.x[fits], y=job.y[fits])


def with_training(sends: Sends, problem: Problem) -> Sends:
    """What clients of this problem send where it comes of their trained model alone."""
    if problem.private is None:
        return sends
    return replace(sends, reads="nothing", training=problem.private.event)
