"""Small problems whose models are supernets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from securefl.algorithm.clients import ClientContext
from securefl.protocols.adds.supernet import Supernet
from securefl.training import LocalTraining, ModelConfig, load_vector
from securefl.training.task import Problem

LOCAL = LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=2, batch_size=8)
CNN = ModelConfig(kind="adds_cnn", width=0.0625)
MLP = ModelConfig(kind="mlp", hidden=(12, 6))


def problem(model: ModelConfig = CNN, size: int = 8, **changes: Any) -> Problem:
    """Random images of ten classes; the server has 20 of them."""
    rng = np.random.default_rng(1)
    made = Problem(
        model=model,
        local=LOCAL,
        kind="classification",
        shape=(1, size, size),
        outputs=10,
        clients=4,
        records=160,
        server_x=rng.random((20, 1, size, size), np.float32),
        server_y=rng.integers(0, 10, 20),
        seed=3,
    )
    return replace(made, **changes)


def supernet(model: ModelConfig = CNN, **changes: Any) -> Supernet:
    return Supernet(problem(model, **changes))


def sliced(net: Supernet, vector: Any, units: Any) -> nn.Module:
    """The subnet of these values (d,) as a model of its own, with fewer units."""
    model = net.problem.model.build(net.problem.shape, net.problem.outputs, net.problem.seed)
    load_vector(model, vector)
    return net.slice(model, units)


def context(
    net: Supernet, records: int = 40, client: int = 0, classes: int = 10, **changes: Any
) -> ClientContext:
    """Images in which each class has a bright row of its own; the first class is 3 * client."""
    rng = np.random.default_rng(7 + client)
    y = (rng.integers(0, classes, records) + 3 * client) % 10
    x = rng.random((records, *net.problem.shape), np.float32) * np.float32(0.3)
    x[np.arange(records), 0, y % x.shape[2]] += np.float32(0.7)
    made = ClientContext(
        client=client,
        round=1,
        x=x,
        y=y,
        broadcast=net.problem.initial,
        public={},
        rng=np.random.default_rng([11, client]),
    )
    return replace(made, **changes)
