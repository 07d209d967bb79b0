"""The two ways of private training, by layers and alone, sum the same gradients of the packaged models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.tiny_dpsgd import config, keyed
from torch import Tensor, nn

from securefl.training import ModelConfig, to_vector
from securefl.training.dpsgd import train_privately
from securefl.training.private_layers import make_private
from securefl.training.row_wise import outside

IMAGE = (1, 28, 28)
PACKAGED: dict[str, tuple[ModelConfig, tuple[int, ...]]] = {
    "mlp": (ModelConfig(kind="mlp"), (20,)),
    "lenet5": (ModelConfig(kind="lenet5"), IMAGE),
    "fedlog_cnn": (ModelConfig(kind="fedlog_cnn"), IMAGE),
    "fedcor_cnn": (ModelConfig(kind="fedcor_cnn"), IMAGE),
    "adds_cnn": (ModelConfig(kind="adds_cnn", width=0.25), IMAGE),
    "char_lstm": (ModelConfig(kind="char_lstm", width=0.25), (6,)),
    "shufflenet_v2": (ModelConfig(kind="shufflenet_v2", width=0.25), (3, 32, 32)),
}
CLASSES, RECORDS = 10, 5


class OwnForward(nn.Module):
    """A packaged model behind a forward that no list knows, so its records pass one by one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


def moved(model: nn.Module, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """What one step without noise adds to the model's values."""
    before = to_vector(model).astype(np.float64)
    step = replace(config(sampling_rate=1.0, steps=1, learning_rate=1.0), noise_multiplier=1e-30)
    train_privately(model, x, y, step, "cross_entropy", keyed())
    return to_vector(model) - before


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "shufflenet_v2")) for name in PACKAGED],
)
def test_packaged_models_learn_the_same_by_layers_and_alone(name: str) -> None:
    kind, shape = PACKAGED[name]
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(RECORDS, *shape)).astype(np.float32)
    x: NDArray[Any] = rng.integers(0, CLASSES, (RECORDS, *shape)) if kind.reads_text else drawn
    y = rng.integers(0, CLASSES, RECORDS)
    listed, _ = make_private(kind.build(shape, CLASSES, 0))
    alone = OwnForward(make_private(kind.build(shape, CLASSES, 0))[0])
    assert outside(alone.train())
    one = moved(listed, x, y)
    other = moved(alone, x, y)
    assert np.linalg.norm(one) > 0.05
    assert np.linalg.norm(one - other) < 1e-4 * np.linalg.norm(one)
