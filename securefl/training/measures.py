"""Measures of a model's outputs beside its accuracy: AUC, F1, confusion and calibration, or R2 and RMSE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from securefl.algorithm.queries import Floats
from securefl.data.dataset import Task
from securefl.training import evaluation

BINS = 10
"""Groups of equal width, by the probability of the predicted class, for calibration."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """How well outputs fit targets. A measure that the task does not have, or that is not defined, is nan.

    accuracy: as `evaluate` has it. auc: the area under the ROC curve of each class against all others, mean
    over the classes that occur; of several labels, mean over those that some records have and some have not.
    f1: the mean of the classes' F1, or of those of the labels that occur. ece: the expected calibration error
    (Guo et al., ICML 2017), over `BINS` bins. r2: the coefficient of determination, mean over targets. rmse:
    the root of the mean squared error, in units of the targets.
    confusion: the number of records by class (rows) and predicted class (columns); empty for other tasks.
    reliability: for each bin with records, the mean probability of the predicted class, the share of records
    whose class is right, and the number of records.
    """

    accuracy: float = nan
    auc: float = nan
    f1: float = nan
    ece: float = nan
    r2: float = nan
    rmse: float = nan
    confusion: Sequence[Sequence[int]] = ()
    reliability: Sequence[tuple[float, float, int]] = ()


def measured(outputs: Floats, targets: NDArray[Any], task: Task) -> Measures:
    """The measures of outputs (n, k) for int64 classes (n,), or float targets (n, k), n >= 1.

    For classes, the softmax of the outputs is their probabilities. All measures of outputs that are not
    finite are nan.
    """
    if not np.isfinite(outputs).all():
        return Measures()
    match task:
        case "classification":
            return _of_classes(outputs, targets)
        case "multi-label":
            return _of_labels(outputs, targets > 0.5)
        case "regression":
            return _of_numbers(outputs, targets)


def accuracy_of(outputs: Floats, targets: NDArray[Any], task: Task) -> float:
    """The accuracy alone, for one of many clients: the other measures take a hundred times longer."""
    if not np.isfinite(outputs).all():
        return nan
    return evaluation.accuracy_of(torch.as_tensor(outputs), torch.as_tensor(targets), task)


def worst_decile(accuracies: Sequence[float]) -> float:
    """The mean over the tenth of the clients, at least one, whose accuracy is lowest. nan without clients."""
    if not len(accuracies):
        return nan
    return float(np.sort(np.asarray(accuracies))[: ceil(len(accuracies) / 10)].mean())


def _of_classes(outputs: Floats, targets: NDArray[Any]) -> Measures:
    from scipy.special import softmax

    share = softmax(outputs, axis=1)
    predicted = outputs.argmax(axis=1)
    right, confidence = predicted == targets, share.max(axis=1)
    classes, count = np.unique(targets), outputs.shape[1]
    reliability = _reliability(right, confidence)
    confusion = np.bincount(targets * count + predicted, minlength=count * count).reshape(count, count)
    # Twice the hits of a class, over its records and those that were said to be of it.
    f1 = 2 * confusion.diagonal() / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1), 1)
    return Measures(
        accuracy=accuracy_of(outputs, targets, "classification"),
        auc=_area(share, targets, classes),
        f1=float(f1[classes].mean()),
        ece=float(sum(abs(said - held) * records for said, held, records in reliability) / len(right)),
        confusion=confusion.tolist(),
        reliability=reliability,
    )


def _of_labels(outputs: Floats, targets: NDArray[np.bool_]) -> Measures:
    predicted = outputs > 0
    both = (targets & predicted).sum(0)
    occurs, told_apart = targets.any(0), targets.any(0) & ~targets.all(0)
    f1 = 2 * both / np.maximum(targets.sum(0) + predicted.sum(0), 1)
    areas = [_above(outputs[:, k], targets[:, k]) for k in np.flatnonzero(told_apart)]
    return Measures(
        accuracy=accuracy_of(outputs, targets, "multi-label"),
        auc=float(np.mean(areas)) if areas else nan,
        f1=float(f1[occurs].mean()) if occurs.any() else nan,
    )


def _area(share: Floats, targets: NDArray[Any], classes: NDArray[Any]) -> float:
    if len(classes) < 2:
        return nan  # no record to be ranked below the others
    if share.shape[1] == 2:
        return _above(share[:, 1], targets == 1)
    return float(np.mean([_above(share[:, k], targets == k) for k in classes]))


def _above(scores: Floats, own: NDArray[np.bool_]) -> float:
    """Of all pairs of an own record and another: the share whose own one scores higher. Equals are half.

    It is the area under the ROC curve (Mann and Whitney). scikit-learn's would be the only reason to load
    that library in most runs.
    """
    from scipy.stats import rankdata

    ranks, mine = rankdata(scores), int(own.sum())
    return float((ranks[own].sum() - mine * (mine + 1) / 2) / (mine * (len(own) - mine)))


def _reliability(right: NDArray[np.bool_], confidence: Floats) -> list[tuple[float, float, int]]:
    places = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence)
    counts = np.bincount(places, minlength=BINS)
    held, said = np.bincount(places, right, BINS), np.bincount(places, confidence, BINS)
    return [
        (float(said[place] / counts[place]), float(held[place] / counts[place]), int(counts[place]))
        for place in np.flatnonzero(counts)
    ]


def _of_numbers(outputs: Floats, targets: NDArray[Any]) -> Measures:
    from sklearn.metrics import r2_score, root_mean_squared_error

    return Measures(
        accuracy=accuracy_of(outputs, targets, "regression"),
        r2=float(r2_score(targets, outputs)) if len(targets) > 1 else nan,
        rmse=float(root_mean_squared_error(targets, outputs)),
    )
