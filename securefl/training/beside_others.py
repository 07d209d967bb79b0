"""Private training beside another client, in the form of `train_privately`, for the audits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray
from torch import nn

from securefl.algorithm import Job
from securefl.core.errors import ConfigError, DataError
from securefl.dp.noise import Source
from securefl.rounds import Float32s
from securefl.training.dpsgd_config import DPSGD
from securefl.training.fit import Fit
from securefl.training.local import LocalTraining
from securefl.training.losses import Loss
from securefl.training.models import ModelConfig
from securefl.training.private_cohorts import SLOTS, fit_privately
from securefl.training.task import Problem
from securefl.training.vector import load_vector


def train_beside_another(
    model: nn.Module, x: NDArray[Any], y: NDArray[Any], config: DPSGD, loss: Loss, source: Source
) -> DpEvent:
    """As `train_privately`, in the second slot. A client with the same records is in the first one.

    model: dense layers with ReLU between. A layer without a bias is given one of 0, and its change is lost.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    problem = _problem(layers, config, loss, x, y)
    start = np.concatenate([part for layer in layers for part in _parts(layer)])
    job = Job(client=0, round=1, x=x, y=y, broadcast=start, public={}, rng=np.random.default_rng(0))
    own = Fit(problem=problem, start=start, job=replace(job, source=source))
    _, came = fit_privately([replace(own, job=job), own], SLOTS)
    if isinstance(came, DataError):
        raise came
    load_vector(model, _without_new_biases(layers, came))
    return config.event


def _problem(layers: list[nn.Linear], config: DPSGD, loss: Loss, x: NDArray[Any], y: NDArray[Any]) -> Problem:
    if not layers:
        raise ConfigError("Expected a model of dense layers, got one without any.")
    return Problem(
        model=ModelConfig(kind="mlp", hidden=tuple(layer.out_features for layer in layers[:-1])),
        local=LocalTraining(optimizer="sgd", learning_rate=config.learning_rate, epochs=1, batch_size=1),
        kind="classification" if loss == "cross_entropy" else "regression",
        shape=(layers[0].in_features,),
        outputs=layers[-1].out_features,
        clients=2,
        records=2 * len(x),
        server_x=x,
        server_y=y,
        seed=0,
        private=config,
    )


def _parts(layer: nn.Linear) -> tuple[Float32s, Float32s]:
    """Weight and bias, flat."""
    bias = layer.bias.detach().numpy() if layer.bias is not None else np.zeros(layer.out_features, np.float32)
    return layer.weight.detach().numpy().ravel(), bias


def _without_new_biases(layers: list[nn.Linear], vector: Float32s) -> Float32s:
    kept, at = [], 0
    for layer in layers:
        weight, bias = (len(part) for part in _parts(layer))
        kept.append(vector[at : at + weight + (bias if layer.bias is not None else 0)])
        at += weight + bias
    return np.concatenate(kept)
