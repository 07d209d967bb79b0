"""A model of a few weights, and records for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from securefl.training import ModelConfig

Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


def small_model() -> nn.Module:
    return ModelConfig(kind="mlp", hidden=(6,)).build((4,), 3, 0)


def small_data(n: int = 30, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 4)).astype(np.float32), rng.integers(3, size=n)
