"""The bodies of FedLog's clients: public and frozen, or trained on their records under the broadcast head.

Each feature of a body that was trained on the records moves with every record. The theorem of the paper holds
phi fixed, and says nothing of such a statistic (specification of DP, 2.12). `reads` says which kind a body
is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from dp_accounting import DpEvent
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from securefl.algorithm import Device, Evaluation, Job
from securefl.core.errors import DataError
from securefl.protocols.fedlog.head import solve
from securefl.rounds import Floats, Kept
from securefl.training import Objective, evaluate, pooled, to_vector
from securefl.training.bodies import Bodies
from securefl.training.client import train_on, usable
from securefl.training.heads import Activation, activated, frozen, last_dense, with_head
from securefl.training.task import Problem


class Body(Protocol):
    """A body turns a client's records into features.

    `introductions`: the number of exchanges in which clients answer before there is a head. `training`: the
    cost of each training, if it is accounted. `once`: the body is never trained, so its features never
    change.
    """

    @property
    def reads(self) -> Literal["records", "trained"]: ...

    @property
    def introductions(self) -> int: ...

    @property
    def training(self) -> DpEvent | None: ...

    @property
    def once(self) -> bool: ...

    def prepare(self, job: Job) -> tuple[nn.Module, Kept | None]:
        """The client's model, with its body ready for this round's statistic, and the state that it keeps."""
        ...

    def evaluate(self, head: Floats, devices: Sequence[Device]) -> Evaluation: ...


@dataclass(frozen=True, eq=False)
class Public:
    """The body that the public seed makes, the same for all and never trained."""

    problem: Problem
    activation: Activation | None
    reads: Literal["records", "trained"] = "records"
    introductions: int = 0
    training: DpEvent | None = None
    once: bool = True

    def prepare(self, job: Job) -> tuple[nn.Module, Kept | None]:
        return self.problem.module(self.problem.initial), None

    def evaluate(self, head: Floats, devices: Sequence[Device]) -> Evaluation:
        model = self.problem.module(self.problem.initial)
        with_head(model, head)
        with activated(model, self.activation):
            return evaluate(model, self.problem.server_x, self.problem.server_y, self.problem.kind)


@dataclass(frozen=True, eq=False)
class Trained:
    """Bodies that clients train under the frozen head and keep.

    If the problem says that training is private, a body is the output of a private mechanism. Given that
    body, the statistic is like that of a public body, and the two costs compose. compact, apart: alpha and
    beta of FedLog-C (Eq. 15). With both 0 it is FedLog.
    """

    bodies: Bodies
    activation: Activation | None
    compact: float = 0.0
    apart: float = 0.0
    introductions: int = 1
    once: bool = False

    @property
    def reads(self) -> Literal["records", "trained"]:
        return "trained" if self.training is None else "records"

    @property
    def training(self) -> DpEvent | None:
        private = self.bodies.problem.private
        return None if private is None else private.event

    def prepare(self, job: Job) -> tuple[nn.Module, Kept | None]:
        problem = self.bodies.of(job.client)
        model = problem.module(np.asarray(job.kept.get("model", problem.initial)))
        if job.introduction or not job.broadcast.size:  # there is no head to train under
            return model, None
        width = last_dense(model).in_features
        if job.broadcast.size != problem.outputs * (1 + width):
            raise DataError(
                f"Expected a broadcast statistic of {problem.outputs} x {1 + width} values, got "
                f"{job.broadcast.size}."
            )
        statistic = job.broadcast.astype(np.float64).reshape(problem.outputs, -1)
        with_head(model, solve(statistic))
        # with the new head and the old body: what a client keeps if its training diverges
        before = to_vector(model)
        try:
            with activated(model, self.activation), frozen(last_dense(model)):
                train_on(problem, model, usable(problem, job), self._objective(statistic))
        except DataError:  # to fall silent would tell of the records: the body stays as it was
            model = problem.module(before)
        return model, {"model": to_vector(model)}

    def _objective(self, statistic: Floats) -> Objective | None:
        if not (self.compact or self.apart):
            return None
        return clustering(class_means(statistic), self.compact, self.apart)

    def evaluate(self, head: Floats, devices: Sequence[Device]) -> Evaluation:
        return pooled(
            [
                (len(device.x), self._evaluated(client, head, device))
                for client, device in enumerate(devices)
                if len(device.x)
            ]
        )

    def _evaluated(self, client: int, head: Floats, device: Device) -> Evaluation:
        problem = self.bodies.of(client)
        model = problem.module(np.asarray(device.kept.get("model", problem.initial)))
        with_head(model, head)
        with activated(model, self.activation):
            return evaluate(model, device.x, device.y, problem.kind)


# FedLog-C ---------------------------------------------------------------------------------------


def class_means(statistic: Floats) -> Floats:
    """Phi_y / Phi_y0 without the constant, (C, width). It is nan for a class with a count below 1.

    If noise made a count small, zero or negative, the quotient is not the mean of its class.
    """
    counts = statistic[:, :1]
    return np.where(counts >= 1, statistic[:, 1:] / np.maximum(counts, 1), np.nan)


def clustering(means: Floats, compact: float, apart: float) -> Objective:
    """Cross-entropy + alpha |phi - mean of its class|^2 - beta |phi - mean|^2 of each other class (Eq. 15).

    The repulsion is unbounded below, so that of each class is capped at 1. Classes without a mean take no
    part.
    """
    there = torch.from_numpy(np.isfinite(means).all(axis=1))
    centres = torch.from_numpy(np.nan_to_num(means)).float()

    def objective(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        logits, phi = _with_features(model, x)
        distances = (phi[:, None, :] - centres[None]).square().sum(2) * there
        own = distances.gather(1, y[:, None])[:, 0]
        others = (apart * distances).clamp(max=1.0).scatter(1, y[:, None], 0.0).sum(1)
        return cross_entropy(logits, y) + (compact * own - others).mean()

    return objective


def _with_features(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The model's outputs, and the input of its head. Hooks run in order, so the activation's runs first."""
    given: list[Tensor] = []
    handle = last_dense(model).register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    try:
        outputs = model(x)
    finally:
        handle.remove()
    return outputs, given[0]
