"""The bodies of FedLog's clients: public and frozen, or trained on their records under the broadcast head.

`depends_on` says which kind a body is, and `own_bodies` what follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import nan
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from securefl.algorithm import ClientContext, ClientState, Device, Evaluation, Float32s, Floats, Schedule
from securefl.errors import DataError
from securefl.protocols.class_sums import class_means
from securefl.protocols.fedlog.head import PAPER, Prior, solve
from securefl.protocols.own_bodies import OwnBodies
from securefl.training import Learnt, Problem
from securefl.training.heads import Bounded, activated, last_dense
from securefl.training.jobs import TrainingResult
from securefl.training.learnt import common


@dataclass(frozen=True, eq=False)
class Public:
    """The body that follows from the public seed. All clients have the same one, and it is never trained."""

    problem: Problem
    activation: Bounded | None
    depends_on: ClassVar[Literal["records"]] = "records"
    schedule = Schedule(once=True)
    training = None

    @property
    def reads_state(self) -> Literal["unknown", "none"]:
        return "unknown" if self.problem.own_code else "none"

    def fit(self, context: ClientContext) -> None:
        return None

    def prepared(
        self, context: ClientContext, trained: TrainingResult | None
    ) -> tuple[nn.Module, ClientState | None]:
        return self.problem.module(self.problem.initial), None

    def evaluate(self, head: Floats | None, devices: Sequence[Device]) -> Evaluation:
        with activated(self.problem.layers, self.activation):
            return self.problem.evaluate(self.problem.under_head(self.problem.initial, head))

    def learnt(self, head: Floats | None, client: int | None, kept: ClientState) -> Learnt:
        vector = self.problem.under_head(self.problem.initial, head)
        return common(self.problem, vector, client, self.activation)


@dataclass(frozen=True, eq=False)
class Trained(OwnBodies):
    """Bodies that clients train under the frozen head and keep.

    compact, apart: alpha and beta of FedLog-C (Eq. 15). With both 0 it is FedLog.
    prior: the prior that the server solves under.
    """

    compact: float = 0.0
    apart: float = 0.0
    prior: Prior = PAPER
    under_head = 1
    schedule = Schedule(initial=1)

    def start(self, context: ClientContext) -> Float32s:
        """The client's model before training: its own body under the broadcast head, or under its own.

        Only an initial query leaves the body as it is. If it did so whenever there is no head, a server could
        ask for one statistic in two sums over two cohorts.
        """
        problem, own, sent = self.bodies.of(context.client), super().start(context), context.broadcast
        if not sent.size:
            return own
        _require_size(sent, problem.outputs, last_dense(problem.layers).in_features)
        return problem.under_head(own, head_of(sent.tobytes(), problem.outputs, self.prior))

    def penalty(self, broadcast: Float32s) -> Clustering | None:
        if not (self.compact or self.apart) or not broadcast.size:
            return None
        return Clustering(
            statistic=broadcast.tobytes(),
            classes=self.bodies.problem.outputs,
            compact=self.compact,
            apart=self.apart,
        )


def _require_size(sent: Float32s, classes: int, width: int) -> None:
    if sent.size != classes * (1 + width):
        raise DataError(f"Expected a broadcast statistic of {classes} x {1 + width} values, got {sent.size}.")


def _statistic(sent: bytes, classes: int) -> Floats:
    """A broadcast statistic as (classes, 1 + width)."""
    return np.frombuffer(sent, np.float32).astype(np.float64).reshape(classes, -1)


def means_of(classes: int, width: int, sent: Float32s) -> Floats:
    """The class means (C, width) of a broadcast statistic, nan for a class without one.

    Raises DataError for a broadcast of another size.
    """
    if not sent.size:
        return np.full((classes, width), nan)
    _require_size(sent, classes, width)
    return class_means(_statistic(sent.tobytes(), classes))


@lru_cache(maxsize=1)
def head_of(sent: bytes, classes: int, prior: Prior) -> Floats:
    """The head of a broadcast statistic. A server and all clients in a process need the same one."""
    return solve(_statistic(sent, classes), prior)


# FedLog-C ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Clustering:
    """FedLog-C's penalty of each record (Eq. 15).

    It is alpha |phi - mean of its class|^2 less beta |phi - mean|^2 of each other class. The second part is
    unbounded, so that of each class is capped at 1. Classes without a mean are left out.

    statistic: as it was broadcast, float32 (classes, 1 + width).
    compact, apart: alpha and beta.
    """

    statistic: bytes
    classes: int
    compact: float
    apart: float

    def __call__(self, features: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        there, centres = (part.to(features.device) for part in self._centres)
        apart = features[:, :, None] - centres
        distances, own = apart.square().sum(3) * there, targets[..., None]
        others = (self.apart * distances).clamp(max=1.0).scatter(2, own, 0.0).sum(2)
        factors = torch.where(self.apart * distances <= 1, -self.apart, 0.0).scatter(2, own, self.compact)
        slopes = (apart * (2 * weights[..., None] * factors * there)[..., None]).sum(2)
        return self.compact * distances.gather(2, own)[..., 0] - others, slopes

    @cached_property
    def _centres(self) -> tuple[Tensor, Tensor]:
        """Whether each class has a mean (C,), and the means (C, width)."""
        means = class_means(_statistic(self.statistic, self.classes))
        return torch.from_numpy(np.isfinite(means).all(axis=1)), torch.from_numpy(
            np.nan_to_num(means)
        ).float()
