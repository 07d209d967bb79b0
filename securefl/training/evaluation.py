"""Accuracy and loss of a model in evaluation mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.algorithm.clients import Evaluation
from securefl.core.errors import DataError
from securefl.training.devices import computed, device_of, full_precision, in_mode
from securefl.training.losses import Loss, criterion_of, records

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Measure:
    """What "accuracy" is: words behind "it is", words for an axis, and its least value. The most is 1."""

    words: str
    axis: str
    least: float


MEASURES: Mapping[Task, Measure] = {
    "classification": Measure(
        "the share of test records whose class is right", "accuracy (share, 0 to 1)", 0.0
    ),
    "regression": Measure(
        "the mean of 1 − |y − ŷ| / max(y, ŷ) over test records and targets, which are scaled to [0, 1] "
        "(FedProf's accuracy of a regression)",
        "accuracy, mean of 1 − |y − ŷ| / max(y, ŷ)",
        -inf,
    ),
}
"""`evaluate` computes it so."""

# No result of these batches is noised, so their last bits may depend on the batch. Noised losses come from
# `record_losses`.
_AT_ONCE = 256


def evaluate(model: nn.Module, x: NDArray[Any], y: NDArray[Any], task: Task) -> Evaluation:
    """Accuracy and mean loss in evaluation mode; the mode of every module is restored.

    "classification": x (n, *shape), y int64 (n,); share of arg max, and cross-entropy.
    "regression": y float32 (n, targets); `relative_accuracy`, and mean squared error.
    The loss of a diverged model may be infinite or NaN. Raises DataError for arrays that do not fit
    and without records.
    """
    loss: Loss = "cross_entropy" if task == "classification" else "mse"
    outputs, targets = _outputs(model, x, y, loss)
    if task == "classification":
        accuracy = float((outputs.argmax(1) == targets).double().mean())
    else:
        accuracy = relative_accuracy(outputs, targets)
    return Evaluation(accuracy=accuracy, loss=float(criterion_of(loss)(outputs, targets)))


def mean_loss(model: nn.Module, x: NDArray[Any], y: NDArray[Any], loss: Loss = "cross_entropy") -> float:
    """Mean loss over the records in evaluation mode. Selection by loss asks a client for it.

    Raises DataError for arrays that do not fit, without records, and for a loss that is not finite.
    """
    outputs, targets = _outputs(model, x, y, loss)
    value = float(criterion_of(loss)(outputs, targets))
    if not isfinite(value):
        raise DataError(
            f"Expected a finite loss, got {value}. Look for NaN in the records or a diverged model."
        )
    return value


def relative_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """FedProf's accuracy on GasTurbine: mean of 1 - |y - yhat| / max(yhat, y) over records and targets.

    Targets are scaled to [0, 1]. Where max(yhat, y) is not positive the ratio has no meaning; the term
    is 1 if the prediction is exact and 0 otherwise.
    """
    outputs, targets = outputs.double(), targets.double()
    largest = torch.maximum(outputs, targets)
    ratio = (targets - outputs).abs() / torch.where(largest > 0, largest, 1.0)
    terms = torch.where(largest > 0, 1 - ratio, (outputs == targets).double())
    return float(terms.mean())


def constant_accuracy(y: NDArray[Any], task: Task) -> float:
    """The accuracy of one constant answer to all of these targets: their most frequent class, or their mean.

    y: int64 (n,), or float32 (n, targets), of one record or more. A model that is no better has learnt
    nothing of its inputs.
    """
    if task == "classification":
        known = y[y >= 0]  # an unusable record has no label
        return float(np.bincount(known, minlength=1).max() / len(y))
    targets = torch.as_tensor(y).double()
    return relative_accuracy(targets.mean(dim=0).expand_as(targets), targets)


def _outputs(model: nn.Module, x: NDArray[Any], y: NDArray[Any], loss: Loss) -> tuple[Tensor, Tensor]:
    inputs, targets = records(x, y, loss)
    if not len(inputs):
        raise DataError("Expected at least one record to evaluate on, got none.")

    def read() -> Tensor:
        device = device_of(model)
        with in_mode(model, training=False), torch.inference_mode(), full_precision(device):
            return torch.cat([model(batch.to(device)) for batch in torch.split(inputs, _AT_ONCE)]).cpu()

    return computed(model, read), targets


def pooled(evaluations: Sequence[tuple[int, Evaluation]]) -> Evaluation:
    """Accuracy and loss of several clients' own models together. Each counts by its number of records."""
    counts = [count for count, _ in evaluations]
    return Evaluation(
        accuracy=float(np.average([e.accuracy for _, e in evaluations], weights=counts)),
        loss=float(np.average([e.loss for _, e in evaluations], weights=counts)),
        personal=True,
    )
