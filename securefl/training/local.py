"""Local training of a client's model by SGD or Adam, on plain arrays and without differential privacy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from securefl.core.errors import ConfigError, DataError
from securefl.core.ranges import Count, Decay, Fraction, Passes, Positive, Range, Ranged, Weight
from securefl.training.devices import device_of, full_precision, in_mode, norms
from securefl.training.heads import with_features
from securefl.training.losses import TrainingLoss, criterion_of, records
from securefl.training.vector import optimizer_of, views_of

BOUND: Final = "update_bound"
"""The public array with the round's bound, where a bound of updates adapts, and its column in tables."""
BOUNDS: Final = Range("[2^-10, 2^10]")
"""The range of bounds of updates."""
Bound = Annotated[float, BOUNDS]


class Penalty(Protocol):
    """A term that training adds to the mean loss: a number a record, from the head's input and the target.

    >>> from securefl.training import Penalty
    >>> def shrink(features, targets):  # a Penalty
    ...     return 0.01 * features.square().sum(1)

    Raises nothing.
    """

    def __call__(self, features: Tensor, targets: Tensor) -> Tensor:
        """The penalty (n,) of features (n, width) and targets (n,). A record's value depends on it alone."""
        ...


class Pull(Protocol):
    """A penalty with its slope, for the mini-batches of several clients (slots), without autograd."""

    def __call__(self, features: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The penalty of each record, (slots, rows), and the slope of their weighted sum in the features.

        features: (slots, rows, width). targets: (slots, rows). weights: (slots, rows), which are 0 for a row
        without a record. A slot's values do not depend on other slots.
        """
        ...


def penalty_of(pull: Pull) -> Penalty:
    """A training's own copy of `pull`, as the penalty of a client that trains alone."""
    own = copy.copy(pull)

    def penalty(features: Tensor, targets: Tensor) -> Tensor:
        there = features.detach()
        found, slopes = own(there[None], targets[None], there.new_full((1, len(there)), 1 / len(there)))
        # The mean of the records' values is minimised. The second term is 0, and its slope is the pull's.
        return found[0] + len(there) * (slopes[0] * (features - there)).sum(1)

    return penalty


@dataclass(frozen=True, kw_only=True)
class LocalTraining(Ranged):
    """The settings of a client's training in one round. Each call starts with a new optimizer state.

    >>> from securefl.training import LocalTraining
    >>> config = LocalTraining(optimizer="sgd", learning_rate=0.1, decay=0.5, epochs=2, batch_size=16)
    >>> config.rate(1), config.batches(40)
    (0.05, 6)

    Args:
        optimizer: "sgd" or "adam" (with betas 0.9 and 0.999).
        learning_rate: The learning rate in round 0.
        epochs, steps: Passes over the data, or mini-batches (with as many passes as they need). Exactly one
            of the two is set.
        batch_size: Records in a mini-batch. The last one of a pass may have fewer.
        momentum: The momentum of SGD.
        weight_decay: Weight of |w|^2 / 2 in the loss, for both optimizers.
        decay: Factor on the learning rate in each round or, if there are milestones, at each milestone.
        milestones: Rounds, as in FedCor's halving at rounds 150 and 300.
        proximal: FedProx's mu. (mu / 2) |w - w_global|^2 is added to the loss (Li et al., MLSys 2020, eq. 2).
        update_bound: Largest L2 norm of a client's update. The client scales a longer update down before it
            sends it. Client-level noise is scaled to this norm (McMahan et al., ICLR 2018, algorithm 1). None
            leaves updates unchanged.
        bound_quantile: The share of updates within their bound. The bound begins at `update_bound`, and each
            round moves it towards the norm that this share is within (Andrew et al., NeurIPS 2021). None
            leaves it as it is.
        buffers_bound: Largest L2 norm of the step of a client's running statistics of batch norm, which then
            are a sum of their own beside bounded updates, with its own noise and charge.

    Raises:
        ValueError: A value is out of range, not exactly one of `epochs` and `steps` is set, "adam" has a
            momentum, or there is another bound's setting and no `update_bound`.
    """

    optimizer: Literal["sgd", "adam"]
    learning_rate: Positive
    epochs: Passes | None = None
    steps: Annotated[int, Range("[1, 10^6]")] | None = None
    batch_size: Count
    momentum: Decay = 0.0
    weight_decay: Weight = 0.0
    decay: Fraction = 1.0
    milestones: tuple[Annotated[int, Range("[0, inf)")], ...] = ()
    proximal: Weight = 0.0
    update_bound: Bound | None = None
    bound_quantile: Annotated[float, Range("(0, 1)")] | None = None
    buffers_bound: Bound | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"Expected one of epochs and steps, got epochs={self.epochs}, steps={self.steps}."
            )
        if self.optimizer == "adam" and self.momentum:
            raise ValueError(
                f"Expected no momentum with optimizer 'adam', got {self.momentum}. Leave it out."
            )

        for name in ("buffers_bound", "bound_quantile"):
            if getattr(self, name) is not None and self.update_bound is None:
                raise ValueError(
                    f"Expected `update_bound` beside `{name}`, got none: weights without a bound have no "
                    "epsilon. Set both, or neither."
                )

    def rate(self, round_number: int) -> float:
        """The learning rate in round `round_number`, counted from 0."""
        if not self.milestones:
            return self.learning_rate * float(self.decay**round_number)
        passed = sum(round_number >= milestone for milestone in self.milestones)
        return self.learning_rate * float(self.decay**passed)

    @property
    def plain(self) -> bool:
        """Whether a step is w <- w - rate * gradient of the loss, and nothing else."""
        return self.optimizer == "sgd" and not (self.momentum or self.weight_decay or self.proximal)

    def batches(self, n: int) -> int:
        """The number of mini-batches on which a client with n records trains in a round."""
        return self.steps or (self.epochs or 0) * -(-n // self.batch_size)


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """A personal model near a moving one: pFedMe's local loop (Dinh et al., NeurIPS 2020, algorithm 1).

    On each mini-batch, `steps` steps of the optimizer reduce the mean loss + `weight` / 2 |theta - w|^2 in
    the personal model theta. So theta nears the proximal point of w. Then w <- w - rate weight (w - theta),
    a gradient step on the Moreau envelope of the loss. Both start at the same values.

    steps: K. weight: lambda. rate: eta.
    """

    steps: int
    weight: float
    rate: float

    def move(self, moving: Tensor, personal: Tensor) -> None:
        """Move w in place."""
        moving.add_(personal - moving, alpha=self.rate * self.weight)


def train(
    model: nn.Module,
    x: NDArray[Any],
    y: NDArray[Any],
    config: LocalTraining,
    loss: TrainingLoss,
    rng: np.random.Generator,
    round_number: int,
    *,
    penalty: Penalty | None = None,
    before: Callable[[], None] | None = None,
) -> None:
    """Train the model's parameters that require a gradient, in place, on mini-batches shuffled by `rng`.

    >>> from securefl.training import LocalTraining, ModelConfig, to_vector, train
    >>> import numpy as np
    >>> model, rng = ModelConfig(kind="mlp", hidden=()).build((3,), 2, seed=0), np.random.default_rng(0)
    >>> before = to_vector(model)
    >>> config = LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=1, batch_size=2)
    >>> train(model, np.ones((4, 3), np.float32), np.zeros(4, np.int64), config, "cross_entropy", rng, 0)
    >>> bool((to_vector(model) != before).all())
    True

    Without records, nothing changes. In a mini-batch of one record, batch norm uses its running statistics
    and does not update them, since one record has no variance. The mode of every module is restored.

    Args:
        model: A model from records to outputs. Its values before training are `w_global` of the proximal
            term.
        x: Records, shape (n, *shape). n may be 0.
        y: int64 labels (n,) for "cross_entropy", float32 targets (n, targets) for "mse".
        config: The settings of the training.
        loss: The name of the loss.
        rng: Draws the order of the records.
        round_number: The round, counted from 0. It decides the learning rate.
        penalty: Its mean over a mini-batch is added to the mean loss.
        before: A function that is called before each mini-batch. ADDS takes a step of its search there.

    Raises:
        ConfigError: No parameter requires a gradient.
        DataError: The arrays do not fit, or the loss or the model is no longer finite. The model then has the
            diverged values.
    """
    descend(model, x, y, config, loss, rng, round_number, penalty=penalty, before=before)


def descend(
    model: nn.Module,
    x: NDArray[Any],
    y: NDArray[Any],
    config: LocalTraining,
    loss: TrainingLoss,
    rng: np.random.Generator,
    round_number: int,
    *,
    penalty: Penalty | None = None,
    before: Callable[[], None] | None = None,
    envelope: Envelope | None = None,
) -> Tensor | None:
    """Train as `train` says. Returns the point that the model is near: with an envelope, the moving model.

    It has the values of the trained parameters. None without records, or if the training has no such point.
    `config.proximal` does not count beside an envelope's weight.
    """
    device = device_of(model)
    inputs, targets = records(x, y, loss, device)
    if not len(inputs):
        return None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigError("Expected a parameter to train, got a model that is all frozen. Leave one free.")
    values = _joined(trained)
    pull = envelope.weight if envelope is not None else config.proximal
    near = values.clone() if pull else None
    optimizer, criterion = optimizer_of(config, config.rate(round_number), near, pull), criterion_of(loss)
    moving = [norm for norm in norms(model, frozen=False).values() if isinstance(norm, _BatchNorm)]
    total = torch.zeros((), device=device)
    with in_mode(model, training=True), views_of(values, trained), full_precision(device):
        for batch, wanted in _batches(inputs, targets, config, rng):
            if before is not None:
                before()
            for norm in moving:
                norm.train(len(batch) > 1)
            for _ in range(1 if envelope is None else envelope.steps):
                if penalty is None:
                    value = criterion(model(batch), wanted)
                else:
                    outputs, features = with_features(model, batch)
                    value = criterion(outputs, wanted) + penalty(features, wanted).mean()
                total += value.detach()
                # Unlike `backward()`, `autograd.grad` leaves no .grad behind. A parameter that the loss does
                # not depend on has gradient 0.
                slopes = torch.autograd.grad(value, trained, allow_unused=True, materialize_grads=True)
                optimizer.step(values, _joined(slopes))
            if envelope is not None and near is not None:
                envelope.move(near, values)
    _require_finite(total, values, model, optimizer.rate)
    return near


def _batches(
    inputs: Tensor, targets: Tensor, config: LocalTraining, rng: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """The mini-batches of passes that `rng` shuffles."""
    # Gathering once a pass is faster than once a mini-batch.
    size = config.batch_size
    for shuffled in passes(len(inputs), config, rng):
        order = torch.from_numpy(shuffled).to(inputs.device)
        yield from zip(torch.split(inputs[order], size), torch.split(targets[order], size), strict=True)


def passes(n: int, config: LocalTraining, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """The positions of the records of each pass, shuffled. The last pass may be shorter."""
    left = config.batches(n)
    while left > 0:
        order = rng.permutation(n)[: left * config.batch_size]
        left -= -(-len(order) // config.batch_size)
        yield order


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    # The gradient of an `Embedding` may be sparse.
    dense = (tensor.to_dense() if tensor.is_sparse else tensor for tensor in tensors)
    return torch.cat([tensor.detach().reshape(-1) for tensor in dense])


def _require_finite(total: Tensor, values: Tensor, model: nn.Module, rate: float) -> None:
    entries = [total, values, *(buffer for buffer in model.buffers() if buffer.is_floating_point())]
    if not all(bool(torch.isfinite(entry).all()) for entry in entries):
        raise diverged(rate)


def diverged(rate: float) -> DataError:
    """The error of a training whose loss or model is no longer finite."""
    return DataError(
        f"Expected a finite loss and model after training at learning rate {rate:g}, got a training that "
        "diverged. Lower the learning rate, bring all targets of a regression to one scale near 1 (a `range` "
        "for their columns, public constants for arrays), or look for records that are not finite."
    )
