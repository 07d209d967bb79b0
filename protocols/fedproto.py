"""FedProto (Tan et al. 2022): class means of features are averaged, and each client keeps its whole model.

A client trains its model on the mean cross-entropy plus lambda times the squared distance of each record's
features to the prototype of its class. It sends FedLog's statistic, the sums of (1, phi) of each class. The
server divides: a class's prototype is the mean of phi over its records, those of all clients together. A
record gets the class of the nearest prototype. Bodies may differ between clients, features may not.

A class that no client holds has no prototype. It is never predicted, and its records are not pulled. If the
clients that hold a class are absent in a round, its prototype stays.

Differences from the paper:

- Eq. 6 divides the weighted mean of a class once more by the number of clients that hold it, and the authors'
  code takes the plain mean of the clients' means. Here it is the mean over all records of the class.
- The distance is that of each record's features, |phi - c|^2, and its mean over a batch is in the loss. Eq. 7
  has the distance of the client's own class mean. The authors' code takes the mean over the features too, so
  their lambda is that of here times the number of features. Before a class has a prototype, its records have
  no term.
- Class means are those of the trained body in evaluation mode. In the authors' code they are collected during
  the last epoch of training.
- Counts travel within the statistic, where noise covers them. In hidden sums without noise each client sends
  them once, apart (`class_counts`). The server sends no counts.
- Sums of features are on a grid, which moves prototypes by up to 5e-4; with the preset "paper" by 8e-6.
- `clip` bounds features, which the paper leaves as they are. Noise needs it, or `client_bound`.

The statistic's sensitivity per record holds for a body that was not trained on the records. Here bodies are
trained, so epsilon per record is infinite whatever the noise. Per client it is finite with `client_bound`.

Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang and C. Zhang: FedProto: Federated Prototype Learning across
Heterogeneous Clients. AAAI 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from securefl.algorithm import Algorithm, Float32s, Floats, State, Unit
from securefl.core.ranges import Probability, Ranged, Weight
from securefl.errors import DataError
from securefl.protocols.class_sums import ClassSums, Clipping, Statistic, class_means
from securefl.protocols.contributions import ClientBound, require_classes
from securefl.protocols.own_bodies import OwnBodies
from securefl.training import Problem
from securefl.training.heads import output_layer
from securefl.training.task import Bodies

_NEVER: Final = -1e30
"""The score of a class without a prototype: below that of any distance."""
_BOUNDED_BY: Mapping[Unit, str] = {"client": "`client_bound` in its arm, and noise"}


@dataclass(frozen=True, kw_only=True)
class FedProto(Ranged):
    """Options of FedProto.

    lamda: lambda, the weight of the squared distance of features to the prototype of their class.
    clip: how features are bounded, in training, sums and predictions, as in FedLog.
    client_bound: the largest norm of a client's whole statistic. A longer one is scaled down. It is left out
        where counts travel apart, in hidden sums without noise.
    shorter: share of the clients whose body lacks its first hidden dense layer.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"clip": {"kind": "none", "digits": 16}},
    }
    lamda: Weight = 1.0
    clip: Clipping = field(default_factory=lambda: Clipping(kind="none"))
    client_bound: ClientBound = None
    shorter: Probability = 0.0

    def build(self, problem: Problem) -> Algorithm:
        require_classes(problem, "FedProto")
        # A study may have [dpsgd] for its other arms. Private training has no term for prototypes.
        bodies = Bodies(replace(problem, private=None), self.shorter)
        bodies.of(0)  # raises the error of a body that cannot be shortened
        width = output_layer(problem.layers, problem.outputs).in_features
        own = OwnModels(bodies, self.clip.activation(), width, self.lamda)
        statistic = Statistic(
            own, self.clip, problem.outputs, width, problem.clients, self.client_bound, _BOUNDED_BY
        )
        return Prototypes(problem, statistic.counts_apart(problem, own.centres), own)


# Prototypes --------------------------------------------------------------------------------------


def prototypes(statistic: Floats, before: Float32s) -> Float32s:
    """The prototypes of summed statistics (C, 1 + width), as they are broadcast, float32 (C, 1 + width).

    Column 0 is 1 if the class has a prototype, and 0 if not. A class whose count is below 1 keeps the row of
    `before`.
    """
    means = class_means(statistic)
    known = np.asarray(np.isfinite(means).all(axis=1))
    rows = np.column_stack([np.ones(len(means)), np.where(known[:, None], means, 0.0)])
    return np.where(known[:, None], rows, before).astype(np.float32)


def nearest(sent: Float32s) -> Floats:
    """The linear head (C, 1 + width), bias first, whose largest score is that of the nearest prototype.

    A score is -|phi - c|^2 + |phi|^2 = 2 phi . c - |c|^2. A class without a prototype never has the largest.
    """
    there, centres = sent[:, 0] == 1, sent[:, 1:].astype(np.float64)
    bias = np.where(there, -np.sum(centres**2, axis=1), _NEVER)
    return np.column_stack([bias, np.where(there[:, None], 2 * centres, 0.0)])


@dataclass(frozen=True, kw_only=True)
class Pull:
    """lambda |phi - prototype of its class|^2 of each record, 0 for a class without a prototype.

    sent: the prototypes as they were broadcast, float32 (classes, 1 + width), as bytes.
    """

    sent: bytes
    classes: int
    lamda: float

    def __call__(self, features: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._rows.to(features.device)[targets]
        apart, factor = features - rows[..., 1:], self.lamda * rows[..., 0]
        return factor * apart.square().sum(2), apart * (2 * weights * factor)[..., None]

    @cached_property
    def _rows(self) -> Tensor:
        return torch.from_numpy(np.frombuffer(self.sent, np.float32).reshape(self.classes, -1).copy())


# The models --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OwnModels(OwnBodies):
    """The clients' whole models, trained under the prototypes and kept. All have `width` features."""

    width: int
    lamda: float

    def rows(self, sent: Float32s) -> Float32s:
        """Prototypes as they were broadcast, (C, 1 + width). Raises DataError for other arrays."""
        classes = self.bodies.problem.outputs
        if sent.size != classes * (1 + self.width) or not np.isfinite(sent).all():
            raise DataError(
                f"Expected finite prototypes of {classes} x {1 + self.width} values, got {sent.size} "
                "values, or some that are not finite: the client abstains."
            )
        rows = sent.reshape(classes, -1)
        if not np.isin(rows[:, 0], (0.0, 1.0)).all():
            raise DataError(
                f"Expected 0 or 1 before each prototype, got {rows[:, 0].tolist()}: the client abstains. "
                "Send what `prototypes` returns."
            )
        return rows

    def centres(self, sent: Float32s) -> Floats:
        """The prototypes of a broadcast, (C, width), nan for a class without one."""
        if not sent.size:
            return np.full((self.bodies.problem.outputs, self.width), np.nan)
        rows = self.rows(sent).astype(np.float64)
        return np.where(rows[:, :1] == 1, rows[:, 1:], np.nan)

    def penalty(self, broadcast: Float32s) -> Pull | None:
        if not (broadcast.size and self.lamda):
            return None
        sent = self.rows(broadcast).tobytes()
        return Pull(sent=sent, classes=self.bodies.problem.outputs, lamda=self.lamda)


# The server --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prototypes(ClassSums):
    """The server's rounds: all clients train and send their statistics, and the class means go down."""

    own: OwnModels

    def learn(self, state: State, total: Floats, survivors: int) -> State:
        before = state.broadcast if state.broadcast.size else np.zeros(total.size, np.float32)
        shape = (self.problem.outputs, -1)
        return State(prototypes(total.reshape(shape), before.reshape(shape)).ravel(), state.memory)

    def head(self, sent: Float32s) -> Floats | None:
        """The head of the nearest prototype, or None before there are any."""
        return nearest(self.own.rows(sent)) if sent.size else None
