"""Evaluation of a model: accuracy and mean loss, for classification and regression."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.algorithm.clients import Evaluation
from securefl.algorithm.queries import Floats
from securefl.core.errors import DataError
from securefl.data.dataset import Task, finite_rows, labelled
from securefl.training.devices import computed, device_of, full_precision, in_mode
from securefl.training.isolation import without_raising
from securefl.training.losses import (
    LOSS_OF,
    Loss,
    TrainingLoss,
    criterion_of,
    name_of,
    records,
    require_records,
)

# The last bits may depend on the batch, since no noise is added to these results. For noised losses use
# `record_losses`.
_AT_ONCE = 256
_ANY = 2**62
"""More classes than any model has: a label is known before the model's number of outputs is."""


def evaluate(model: nn.Module, x: NDArray[Any], y: NDArray[Any], task: Task) -> Evaluation:
    """Compute a model's accuracy and mean loss in evaluation mode. The mode of every module is restored.

    An unusable record counts as zero: it is not correct, and adds nothing to the sum of losses. A record is
    unusable if it is not finite, has no label of one of the model's outputs, or if the model raises an error
    for it alone, such as for a code beyond an embedding.

    >>> from securefl.training import ModelConfig, evaluate
    >>> import numpy as np
    >>> model = ModelConfig(kind="mlp", hidden=()).build((3,), 2, seed=0)
    >>> y = np.array([0, 1, 1, 0])
    >>> 0 <= evaluate(model, np.zeros((4, 3), np.float32), y, "classification").accuracy <= 1
    True

    Args:
        model: A model from records (n, *shape) to outputs.
        x: Records, shape (n, *shape), n >= 1.
        y: int64 labels (n,) for "classification", float32 targets (n, targets) for the others.
        task: Gives `accuracy_of` and the loss of `LOSS_OF`.

    Returns:
        An `Evaluation`. The loss of a diverged model may be infinite or NaN.

    Raises:
        DataError: The arrays do not fit, or there are no records.
    """
    loss = LOSS_OF[task]
    require_records(x, y, loss)
    fits = finite_rows(x) & labelled(y, task, _ANY)
    if len(x) and not fits.any():
        return Evaluation(accuracy=0.0, loss=0.0)
    outputs, targets, raised = _outputs(model, x[fits], y[fits], loss)
    known = (
        targets < outputs.shape[1] if task == "classification" else torch.ones(len(targets), dtype=torch.bool)
    )
    known[raised] = False
    share = int(known.sum()) / len(x)
    if not share:
        return Evaluation(accuracy=0.0, loss=0.0)
    outputs, targets = outputs[known], targets[known]
    accuracy = accuracy_of(outputs, targets, task)
    return Evaluation(accuracy=share * accuracy, loss=share * float(criterion_of(loss)(outputs, targets)))


def mean_loss(
    model: nn.Module, x: NDArray[Any], y: NDArray[Any], loss: TrainingLoss = "cross_entropy"
) -> float:
    """Compute the mean loss over the records in evaluation mode. Selection by loss queries it from clients.

    >>> from securefl.training import ModelConfig, mean_loss
    >>> import numpy as np
    >>> model = ModelConfig(kind="mlp", hidden=()).build((3,), 2, seed=0)
    >>> mean_loss(model, np.zeros((4, 3), np.float32), np.array([0, 1, 1, 0])) > 0
    True

    Args:
        model: A model from records (n, *shape) to outputs.
        x: Records, shape (n, *shape), n >= 1.
        y: int64 labels (n,) for "cross_entropy", float32 targets (n, targets) for the others.
        loss: The loss. Of a declared one, the loss of the same targets is computed, without weights.

    Raises:
        DataError: The arrays do not fit, there are no records, or the loss is not finite.
    """
    outputs, targets, _ = _outputs(model, x, y, name_of(loss))
    value = float(criterion_of(name_of(loss))(outputs, targets))
    if not isfinite(value):
        raise DataError(
            f"Expected a finite loss, got {value}. Look for NaN in the records or a diverged model."
        )
    return value


def accuracy_of(outputs: Tensor, targets: Tensor, task: Task) -> float:
    """The accuracy of outputs (n, k), n >= 1.

    Args:
        outputs: Of the model, shape (n, k).
        targets: int64 labels (n,) for "classification", float32 targets (n, k) for the others.
        task: "classification" gives the share of records whose arg max is the label. "multi-label" gives the
            share of records of which all labels are right, as scikit-learn's `accuracy_score` does; a record
            is said to have a label if its output is above 0. "regression" gives `relative_accuracy`.

    Raises:
        RuntimeError: The two shapes do not fit (torch raises it).
    """
    match task:
        case "classification":
            right = outputs.argmax(1) == targets
        case "multi-label":
            right = ((outputs > 0) == (targets > 0.5)).all(1)
        case "regression":
            return relative_accuracy(outputs, targets)
    return float(right.double().mean())


def relative_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """FedProf's accuracy on GasTurbine: mean of 1 - |y - yhat| / max(yhat, y) over records and targets.

    >>> from securefl.training import relative_accuracy
    >>> import torch
    >>> relative_accuracy(torch.tensor([[0.5], [0.4]]), torch.tensor([[0.5], [0.8]]))
    0.75

    If max(yhat, y) is not positive, the ratio has no meaning. The term is then 1 if the prediction is exact,
    and 0 otherwise.

    Args:
        outputs: Predictions yhat, shape (n, targets).
        targets: Targets y, shape (n, targets), scaled to [0, 1].

    Raises:
        RuntimeError: The two shapes differ (torch raises it).
    """
    outputs, targets = outputs.double(), targets.double()
    largest = torch.maximum(outputs, targets)
    ratio = (targets - outputs).abs() / torch.where(largest > 0, largest, 1.0)
    terms = torch.where(largest > 0, 1 - ratio, (outputs == targets).double())
    return float(terms.mean())


def constant_accuracy(y: NDArray[Any], task: Task) -> float:
    """The accuracy of the best constant prediction: the most frequent class, labels, or mean of the targets.

    y: int64 (n,), or float32 (n, targets), n >= 1. A model that is no better has learnt nothing from its
    inputs.
    """
    if task == "classification":
        known = y[y >= 0]  # an unusable record has no label
        return float(np.bincount(known, minlength=1).max() / len(y))
    if task == "multi-label":
        return float(np.unique(y, axis=0, return_counts=True)[1].max() / len(y))
    targets = torch.as_tensor(y).double()
    return relative_accuracy(targets.mean(dim=0).expand_as(targets), targets)


def outputs_on(model: nn.Module, x: NDArray[Any], y: NDArray[Any], task: Task) -> Floats:
    """A model's outputs (n, k), float64, for n >= 1 records in evaluation mode. Errors as of `evaluate`.

    They are nan for a record that the model raises an error for.
    """
    found, *_ = _outputs(model, x, y, LOSS_OF[task])
    return found.double().numpy()


def _outputs(
    model: nn.Module, x: NDArray[Any], y: NDArray[Any], loss: Loss
) -> tuple[Tensor, Tensor, list[int]]:
    """Outputs and targets, and the places of the records that the model raises for. Their outputs are nan."""
    inputs, targets = records(x, y, loss)
    if not len(inputs):
        raise DataError("Expected at least one record to evaluate on, got none.")

    def of(rows: Tensor) -> Tensor:
        device = device_of(model)
        with in_mode(model, training=False), torch.inference_mode(), full_precision(device):
            return torch.cat([model(batch.to(device)) for batch in torch.split(rows, _AT_ONCE)]).cpu()

    found, raised = without_raising(lambda rows: computed(model, lambda: of(rows)), [inputs])
    if raised:
        found = found.clone()
        found[raised] = torch.nan
    return found, targets, raised


def pooled(evaluations: Sequence[tuple[int, Evaluation]]) -> Evaluation:
    """Average the evaluations of several clients' own models, weighted by their numbers of records.

    >>> from securefl.algorithm import Evaluation
    >>> from securefl.training import pooled
    >>> pooled([(1, Evaluation(accuracy=0.5, loss=2.0)), (3, Evaluation(accuracy=0.9, loss=1.0))]).accuracy
    0.8

    Args:
        evaluations: A number of records and an `Evaluation` for each client.

    Returns:
        An `Evaluation` that is marked as personal. Its accuracy and loss are nan if there are no records.

    Raises nothing.
    """
    counts = [count for count, _ in evaluations]
    if not sum(counts):
        return Evaluation(accuracy=nan, loss=nan, personal=True)
    return Evaluation(
        accuracy=float(np.average([e.accuracy for _, e in evaluations], weights=counts)),
        loss=float(np.average([e.loss for _, e in evaluations], weights=counts)),
        personal=True,
    )
