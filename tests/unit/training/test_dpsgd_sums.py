"""A step of private training: the sum of clipped gradients, and what the optimizer does with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from support.tiny_dpsgd import Silent, config, images, seeded, summed, trained
from support.tiny_training import Arrays, small_data, small_model
from torch import nn
from torch.nn.functional import cross_entropy

from securefl.training import ModelConfig, load_vector, to_vector
from securefl.training.clipped import SLACK
from securefl.training.dpsgd import train_privately


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_the_clipped_sum_is_that_of_opacus() -> None:
    model = seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)))
    data = images((3, 8, 8), 12)
    wrapped = GradSampleModule(copy.deepcopy(model))
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=0.7,
        expected_batch_size=1,
    )
    cross_entropy(wrapped(torch.from_numpy(data[0])), torch.from_numpy(data[1])).backward()
    optimizer.step()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in optimizer.params]).numpy()
    np.testing.assert_allclose(summed(model, *data, clip_norm=0.7), expected, atol=1e-4)


SCALES = (1e-3, 1.0, 30.0, 1e4, 1e8)
BEYOND = (1e19, 1e25, 1e37)
"""Scales at which squares overflow in float32."""


def largest_move(
    model: nn.Module, make: Callable[[float], Arrays], scales: Sequence[float] = SCALES
) -> float:
    """How far one record, of several scales, moves the sum at most."""
    moves = [np.linalg.norm(summed(model, *make(scale), clip_norm=1.0)) for scale in scales]
    return float(max(moves))


CLIPPED: dict[str, tuple[Callable[[], nn.Module], Callable[[float], Arrays]]] = {
    "dense": (small_model, lambda scale: (np.full((1, 4), scale, np.float32), np.array([0]))),
    "lenet5": (
        lambda: ModelConfig(kind="lenet5").build((1, 28, 28), 10, 0),
        lambda scale: (scale * images((1, 28, 28), 1)[0], np.array([3])),
    ),
}


@pytest.mark.parametrize("kind", CLIPPED)
def test_no_record_moves_the_sum_by_more_than_the_clipping_norm(kind: str) -> None:
    make, record = CLIPPED[kind]
    for scales in (SCALES, BEYOND):
        assert 1 - 10 * SLACK < largest_move(make(), record, scales) <= 1


def test_a_step_by_hand() -> None:
    model = nn.Linear(2, 1, bias=False)
    load_vector(model, np.array([0.5, 0.1]))
    x, y = np.array([[3.0, 4.0], [0.01, 0.0]], np.float32), np.zeros((2, 1), np.float32)
    settings = config(clip_norm=2.0, sampling_rate=1.0, steps=1, learning_rate=0.5, expected_batch=4)
    train_privately(model, x, y, settings, "mse", Silent())
    # 2 * 1.9 * (3, 4) has norm 19 and becomes 2 * (1 - SLACK) * (0.6, 0.8); 2 * 0.005 * (0.01, 0) stays
    moved = (1 - SLACK) * np.array([1.2, 1.6]) + np.array([1e-4, 0])
    expected = np.array([0.5, 0.1]) - 0.5 / 4 * moved
    np.testing.assert_allclose(to_vector(model), expected, rtol=2e-6)


def test_the_square_loss_is_the_mean_over_a_records_targets() -> None:
    x, _ = small_data(6)
    y = np.ones((6, 3), np.float32)
    model, made = small_model(), small_model()
    loss = torch.nn.functional.mse_loss(model(torch.from_numpy(x)), torch.from_numpy(y))
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    settings = config(clip_norm=1e6, sampling_rate=1.0, steps=1, learning_rate=1.0, expected_batch=6)
    train_privately(made, x, y, settings, "mse", Silent())
    expected = np.concatenate([slope.numpy().ravel() for slope in slopes])
    np.testing.assert_allclose(to_vector(model) - to_vector(made), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ({"weight_decay": 0.3}, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.3)),
        ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.1)),
    ],
    ids=["momentum", "weight decay", "adam"],
)
def test_updates_are_those_of_torch(settings: dict[str, Any], reference: Any) -> None:
    data = small_data(8)
    whole = config(clip_norm=1e6, sampling_rate=1.0, steps=4, expected_batch=8, **settings)
    model = small_model()
    optimizer = reference(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        cross_entropy(model(torch.from_numpy(data[0])), torch.from_numpy(data[1])).backward()
        optimizer.step()
    np.testing.assert_allclose(trained(whole, data, source=Silent()), to_vector(model), rtol=1e-3, atol=1e-5)


def test_the_proximal_term_pulls_towards_the_model_that_came() -> None:
    start = to_vector(small_model())
    settings = config(steps=50, sampling_rate=1.0, expected_batch=30)
    free = trained(settings, small_data(), source=Silent())
    near = trained(
        config(steps=50, sampling_rate=1.0, expected_batch=30, proximal=2.0), small_data(), source=Silent()
    )
    assert np.linalg.norm(near - start) < 0.6 * np.linalg.norm(free - start)
