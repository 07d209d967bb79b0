"""Local training of a client's model on plain arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from securefl.core.errors import ConfigError, DataError
from securefl.training.devices import device_of, full_precision, in_mode
from securefl.training.heads import with_features
from securefl.training.losses import Loss, criterion_of, records
from securefl.training.vector import SGD, Adam, views_of


class Penalty(Protocol):
    """What joins the mean loss in training: a number a record, from the head's input and the target."""

    def __call__(self, features: Tensor, targets: Tensor) -> Tensor:
        """(n, width) and (n,) -> (n,), each record's by itself."""
        ...


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains in one round. The optimizer's state starts anew in every call.

    optimizer: "sgd" or "adam" (betas 0.9 and 0.999).
    learning_rate: in round 0.
    epochs, steps: passes over the data, or mini-batches (as many passes as they need). Exactly one is set.
    batch_size: records in a mini-batch. The last one of a pass may have fewer.
    momentum: of SGD. weight_decay: weight of |w|^2 / 2 in the loss, in either optimizer.
    decay: factor on the learning rate, in each round, or at each milestone if there are milestones.
    milestones: rounds, as in FedCor's halving at rounds 150 and 300.
    proximal: FedProx's mu; (mu / 2) |w - w_global|^2 joins the loss (Li et al., MLSys 2020, eq. 2).
    update_bound: largest L2 norm of a client's update. A longer update is scaled down before it leaves.
        Client-level noise is scaled to this norm (McMahan et al., ICLR 2018, algorithm 1). None leaves
        updates as they are.

    Raises ValueError for values out of range.
    """

    optimizer: Literal["sgd", "adam"]
    learning_rate: float
    epochs: int | None = None
    steps: int | None = None
    batch_size: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay: float = 1.0
    milestones: tuple[int, ...] = ()
    proximal: float = 0.0
    update_bound: float | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"Expected one of epochs and steps, got epochs={self.epochs}, steps={self.steps}."
            )
        self._require("learning_rate", self.learning_rate > 0 and isfinite(self.learning_rate), "> 0, finite")
        self._require("epochs", self.epochs is None or self.epochs >= 1, ">= 1")
        self._require("steps", self.steps is None or self.steps >= 1, ">= 1")
        self._require("batch_size", self.batch_size >= 1, ">= 1")
        self._require("momentum", 0 <= self.momentum < 1, "in [0, 1)")
        self._require("weight_decay", self.weight_decay >= 0 and isfinite(self.weight_decay), ">= 0, finite")
        self._require("decay", 0 < self.decay <= 1, "in (0, 1]")
        self._require("milestones", min(self.milestones, default=0) >= 0, ">= 0")
        self._require("proximal", self.proximal >= 0 and isfinite(self.proximal), ">= 0, finite")
        bounded = self.update_bound is None or 2**-10 <= self.update_bound <= 2**10
        self._require("update_bound", bounded, "from 2^-10 to 2^10")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError(
                f"Expected no momentum with optimizer 'adam', got {self.momentum}. Leave it out."
            )

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ValueError(f"Expected {name} {expected}, got {getattr(self, name)}.")

    def rate(self, round_number: int) -> float:
        """Learning rate in round `round_number`, counted from 0."""
        if not self.milestones:
            return self.learning_rate * float(self.decay**round_number)
        passed = sum(round_number >= milestone for milestone in self.milestones)
        return self.learning_rate * float(self.decay**passed)

    @property
    def plain(self) -> bool:
        """Whether a step is w <- w - rate * gradient of the loss, and nothing else."""
        return self.optimizer == "sgd" and not (self.momentum or self.weight_decay or self.proximal)

    def batches(self, n: int) -> int:
        """How many mini-batches a client with n records trains on in a round."""
        return self.steps or (self.epochs or 0) * -(-n // self.batch_size)


def train(
    model: nn.Module,
    x: NDArray[Any],
    y: NDArray[Any],
    config: LocalTraining,
    loss: Loss,
    rng: np.random.Generator,
    round_number: int,
    *,
    penalty: Penalty | None = None,
    before: Callable[[], None] | None = None,
) -> None:
    """Train the model's parameters that require a gradient, in place, on mini-batches shuffled by `rng`.

    x: (n, *shape). y: int64 labels (n,) for "cross_entropy", float32 (n, targets) for "mse".
    penalty: its mean over a mini-batch joins the mean loss.
    before: is called before each mini-batch.
    `w_global` of the proximal term is the model before training. Without records nothing happens, not even to
    batch norm. In a mini-batch of one record batch norm uses its running statistics and leaves them alone,
    since one record has no variance. The mode of every module is restored.

    Raises DataError for arrays that do not fit, and when loss or model stop being finite. The model then
    holds the diverged values.
    """
    device = device_of(model)
    inputs, targets = records(x, y, loss, device)
    if not len(inputs):
        return
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigError("Expected a parameter to train, got a model that is all frozen. Leave one free.")
    values = _joined(trained)
    start = values.clone() if config.proximal else None
    optimizer = optimizer_of(config, round_number)
    minimised = _minimised(model, loss, penalty)
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    total = torch.zeros((), device=device)
    with in_mode(model, training=True), views_of(values, trained), full_precision(device):
        for batch, wanted in _batches(inputs, targets, config, rng):
            if before is not None:
                before()
            for norm in norms:
                norm.train(len(batch) > 1)
            value = minimised(batch, wanted)
            total += value.detach()
            # autograd.grad, not backward(): no .grad is kept, and a parameter without influence counts as 0
            slopes = torch.autograd.grad(value, trained, allow_unused=True, materialize_grads=True)
            gradient = _joined(slopes)
            if config.weight_decay:
                gradient.add_(values, alpha=config.weight_decay)
            if start is not None:
                gradient.add_(values - start, alpha=config.proximal)
            optimizer.step(values, gradient)
    _require_finite(total, values, model, optimizer.rate)


def _minimised(model: nn.Module, loss: Loss, penalty: Penalty | None) -> Callable[[Tensor, Tensor], Tensor]:
    """(inputs, targets) -> what training minimises."""
    criterion = criterion_of(loss)
    if penalty is None:
        return lambda batch, wanted: criterion(model(batch), wanted)

    def penalised(batch: Tensor, wanted: Tensor) -> Tensor:
        outputs, features = with_features(model, batch)
        return criterion(outputs, wanted) + penalty(features, wanted).mean()

    return penalised


def _batches(
    inputs: Tensor, targets: Tensor, config: LocalTraining, rng: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Mini-batches of freshly shuffled passes."""
    # gathered once a pass, which is faster than once a mini-batch
    size = config.batch_size
    for shuffled in passes(len(inputs), config, rng):
        order = torch.from_numpy(shuffled).to(inputs.device)
        yield from zip(torch.split(inputs[order], size), torch.split(targets[order], size), strict=True)


def passes(n: int, config: LocalTraining, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """The records of each pass in their shuffled order. The last pass may be cut short."""
    left = config.batches(n)
    while left > 0:
        order = rng.permutation(n)[: left * config.batch_size]
        left -= -(-len(order) // config.batch_size)
        yield order


def optimizer_of(config: LocalTraining, round_number: int) -> SGD | Adam:
    rate = config.rate(round_number)
    match config.optimizer:
        case "sgd":
            return SGD(rate=rate, momentum=config.momentum)
        case "adam":
            return Adam(rate=rate)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _require_finite(total: Tensor, values: Tensor, model: nn.Module, rate: float) -> None:
    entries = [total, values, *(buffer for buffer in model.buffers() if buffer.is_floating_point())]
    if not all(bool(torch.isfinite(entry).all()) for entry in entries):
        raise diverged(rate)


def diverged(rate: float) -> DataError:
    """The error of a training whose loss or model stopped being finite."""
    return DataError(
        f"Expected a finite loss and model after training at learning rate {rate:g}, got a training that "
        "diverged. Lower the learning rate, or look for records that are not finite."
    )
