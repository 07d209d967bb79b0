"""Measures beside accuracy, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, roc_auc_score
from support.every import every

from securefl.training import ModelConfig, evaluate
from securefl.training.evaluation import constant_accuracy, outputs_on
from securefl.training.measures import BINS, Measures, measured, worst_decile


def logits(probabilities: list[list[float]]) -> np.ndarray:
    return np.log(np.array(probabilities))


def test_two_classes_by_hand() -> None:
    # Class 1 gets 0.9, 0.6, 0.4, 0.3. Of the four pairs of a 1 and a 0, three are ranked right.
    outputs = logits([[0.1, 0.9], [0.4, 0.6], [0.6, 0.4], [0.7, 0.3]])
    found = measured(outputs, np.array([1, 0, 1, 0]), "classification")
    assert (found.accuracy, found.auc) == (0.5, 0.75)
    assert found.confusion == [[1, 1], [1, 1]]
    assert found.f1 == pytest.approx(0.5)
    # Confidences 0.9, 0.6, 0.6, 0.7 in the bins up to 0.9 (right), 0.6 (both wrong) and 0.7 (right).
    assert found.ece == pytest.approx((0.1 + 2 * 0.6 + 0.3) / 4)
    assert sum(count for _, _, count in found.reliability) == 4
    assert math.isnan(found.r2)
    assert math.isnan(found.rmse)


@every("kinds", [2, 5])
def test_measures_are_those_of_scikit_learn(kinds: int) -> None:
    rng = np.random.default_rng(kinds)
    outputs = rng.normal(size=(300, kinds)).round(1)  # with equal scores
    y = rng.integers(0, kinds - (kinds > 2), 300)  # of five classes the last one has no record
    found, share = measured(outputs, y, "classification"), softmax(outputs, axis=1)
    areas = [roc_auc_score(y == k, share[:, k]) for k in ([1] if kinds == 2 else np.unique(y))]
    assert found.auc == pytest.approx(np.mean(areas))
    labels = {"labels": np.unique(y), "average": "macro"}
    assert found.f1 == pytest.approx(f1_score(y, outputs.argmax(axis=1), **labels))
    assert np.array_equal(
        found.confusion, confusion_matrix(y, outputs.argmax(axis=1), labels=np.arange(kinds))
    )
    right = outputs.argmax(axis=1) == y
    held, said = calibration_curve(right, share.max(axis=1), n_bins=BINS)
    assert np.allclose([own[:2] for own in found.reliability], np.transpose([said, held]), rtol=1e-12)


def test_one_class_has_no_area() -> None:
    assert math.isnan(measured(np.zeros((3, 2)), np.zeros(3, np.int64), "classification").auc)


@every("bad", [math.nan, math.inf])
def test_a_diverged_model_has_no_measure(bad: float) -> None:
    assert repr(measured(np.array([[bad, 0.0]]), np.array([0]), "classification")) == repr(Measures())


def test_regression_by_hand() -> None:
    y, found = np.array([[0.0], [1.0], [2.0]]), np.array([[0.0], [1.0], [1.0]])
    measures = measured(found, y, "regression")
    assert measures.r2 == pytest.approx(1 - 1 / 2)
    assert measures.rmse == pytest.approx(math.sqrt(1 / 3))
    assert measures.confusion == ()
    assert math.isnan(measures.auc)


def test_several_labels_are_measured_as_scikit_learn_does() -> None:
    rng = np.random.default_rng(0)
    outputs, y = rng.normal(size=(90, 4)), rng.integers(0, 2, (90, 4)).astype(np.float32)
    y[:, 3] = 0  # a label that no record has
    found = measured(outputs, y, "multi-label")
    assert found.accuracy == accuracy_score(y, outputs > 0)
    assert found.auc == pytest.approx(roc_auc_score(y[:, :3], outputs[:, :3]))
    assert found.f1 == pytest.approx(f1_score(y[:, :3], outputs[:, :3] > 0, average="macro"))
    assert found.confusion == ()
    assert constant_accuracy(np.array([[0, 1], [0, 1], [1, 1]]), "multi-label") == pytest.approx(2 / 3)


@every("task", ["classification", "regression", "multi-label"])
def test_accuracy_is_that_of_evaluate(task: str) -> None:
    rng = np.random.default_rng(0)
    model = ModelConfig(kind="mlp", hidden=(4,)).build((3,), 2, seed=0)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    y = rng.integers(2, size=300) if task == "classification" else rng.random((300, 2), np.float32)
    y = y.round() if task == "multi-label" else y
    found = measured(outputs_on(model, x, y, task), y, task)  # type: ignore[arg-type]
    assert found.accuracy == evaluate(model, x, y, task).accuracy  # type: ignore[arg-type]


def test_the_worst_tenth() -> None:
    assert worst_decile([k / 100 for k in range(25)]) == pytest.approx(0.01)  # three of 25
    assert worst_decile([0.7, 0.2]) == 0.2
    assert math.isnan(worst_decile([]))
