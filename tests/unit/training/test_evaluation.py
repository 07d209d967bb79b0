from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.every import every
from support.tiny_dpsgd import seeded
from torch import nn

from securefl.core.errors import DataError
from securefl.data.dataset import Task
from securefl.training import evaluate, mean_loss, relative_accuracy


def identity(n: int) -> nn.Linear:
    model = nn.Linear(n, n)
    with torch.no_grad():
        model.weight.copy_(torch.eye(n))
        model.bias.zero_()
    return model


def test_classification_accuracy_and_loss_by_hand() -> None:
    x = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], np.float32)
    y = np.array([0, 1, 1])
    found = evaluate(identity(2), x, y, "classification")
    losses = [math.log1p(math.exp(-2)), math.log1p(math.exp(-1)), math.log1p(math.exp(3))]
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.loss == pytest.approx(sum(losses) / 3, rel=1e-6)
    assert mean_loss(identity(2), x, y) == pytest.approx(found.loss)


def test_regression_accuracy_and_loss_by_hand() -> None:
    yhat = np.array([[0.5, 0.2], [0.1, 0.8]], np.float32)
    y = np.array([[0.25, 0.2], [0.2, 1.0]], np.float32)
    found = evaluate(identity(2), yhat, y, "regression")
    assert found.accuracy == pytest.approx((0.5 + 1.0 + 0.5 + 0.8) / 4, abs=1e-6)
    assert found.loss == pytest.approx((0.25**2 + 0 + 0.1**2 + 0.2**2) / 4, rel=1e-5)
    assert mean_loss(identity(2), yhat, y, "mse") == pytest.approx(found.loss)


@every(
    ("yhat", "y", "expected"),
    [
        (0.0, 0.0, 1.0),  # exact, though the maximum is 0
        (-0.5, 0.0, 0.0),  # maximum 0, not exact
        (-0.5, -0.25, 0.0),  # maximum negative
        (0.3, 0.0, 0.0),
        (0.0, 0.3, 0.0),
        (-0.3, 0.3, -1.0),  # the formula as written
    ],
)
def test_relative_accuracy_is_guarded_where_the_maximum_is_not_positive(
    yhat: float, y: float, expected: float
) -> None:
    assert relative_accuracy(torch.tensor([[yhat]]), torch.tensor([[y]])) == pytest.approx(expected)


def test_evaluation_uses_running_statistics_changes_nothing_and_restores_each_modules_mode() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = np.random.default_rng(0).normal(5, 2, (40, 2)).astype(np.float32)
    y = np.zeros(40, np.int64)
    found = evaluate(model.train(), x, y, "classification")
    assert all(module.training for module in model.modules())
    model[0].eval()
    assert evaluate(model, x, y, "classification") == found
    assert [module.training for module in model.modules()] == [True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_more_records_than_a_batch_count_equally() -> None:
    x = np.eye(2, dtype=np.float32)[np.arange(257) % 2]
    y = (np.arange(257) % 2).astype(np.int64)
    y[-1] = 1 - y[-1]
    assert evaluate(identity(2), x, y, "classification").accuracy == pytest.approx(256 / 257)


def test_no_records_and_losses_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DataError, match="at least one record"):
        evaluate(identity(2), np.empty((0, 2), np.float32), np.empty(0, np.int64), "classification")
    x = np.array([[np.nan, 0.0]], np.float32)
    with pytest.raises(DataError, match="finite loss"):
        mean_loss(identity(2), x, np.array([0]))


@every(
    ("x", "y", "task"),
    [
        (np.zeros((3, 2), np.float32), np.zeros(2, np.int64), "classification"),
        (np.zeros((3, 2), np.float32), np.zeros(3, np.float32), "classification"),
        (np.zeros((3, 2), np.float32), np.zeros(3, np.float32), "regression"),
        (np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float64), "regression"),
    ],
)
def test_targets_that_do_not_fit_are_refused(x: np.ndarray, y: np.ndarray, task: str) -> None:
    with pytest.raises(DataError, match="Expected"):
        evaluate(identity(2), x, y, task)  # type: ignore[arg-type]  # a Literal, spelt by the parametrisation


def test_read_only_records_are_taken_without_a_warning() -> None:
    x, y = np.eye(2, dtype=np.float32), np.array([0, 1])
    x.flags.writeable = y.flags.writeable = False
    assert evaluate(identity(2), x, y, "classification").accuracy == 1.0


class Coded(nn.Module):
    """A model of codes: it raises for a code beyond its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.embedding(x).mean(1))
        return found


@settings(max_examples=30)
@given(
    bad=st.lists(st.sampled_from(["", "", "value", "label"]), min_size=1, max_size=12),
    form=st.sampled_from(["classes", "targets", "codes"]),
    odd=st.sampled_from([np.nan, np.inf, -np.inf]),
)
def test_an_unusable_record_counts_as_zero(bad: list[str], form: str, odd: float) -> None:
    """It is not correct, and adds nothing to the sum of losses: both are over all records."""
    rng, n = np.random.default_rng(0), len(bad)
    model = seeded(Coded if form == "codes" else lambda: nn.Linear(4, 3))
    x = rng.integers(0, 5, (n, 6)) if form == "codes" else rng.normal(size=(n, 4)).astype(np.float32)
    y = rng.random((n, 3)).astype(np.float32) if form == "targets" else np.arange(n) % 3
    for row, what in enumerate(bad):
        if what == "value":
            x[row, 1] = 99 if form == "codes" else odd
        elif what == "label":
            y[row] = odd if form == "targets" else (-1, 3)[row % 2]
    task: Task = "regression" if form == "targets" else "classification"
    found, fits = evaluate(model, x, y, task), np.array([not what for what in bad])
    if not fits.any():
        assert (found.accuracy, found.loss) == (0.0, 0.0)
        return
    own = evaluate(model, x[fits], y[fits], task)
    assert found.accuracy * n == pytest.approx(own.accuracy * fits.sum())
    assert found.loss * n == pytest.approx(own.loss * fits.sum())
