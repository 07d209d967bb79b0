"""A GPU beside the CPU, from the same state. `pytest -m gpu`; without a GPU everything here is skipped.

Tolerances. A float32 product over n numbers, summed in another order, differs by about sqrt(n) 2^-24 of its
terms: 2e-6 for 784 pixels. A few steps of SGD at rate 0.1 pass that on and do not multiply it, so 2e-5 is
allowed, and 1e-4 for a loss, a sum over outputs. Adam divides a gradient by its own size: where that is
near 0 the last bits decide the direction, and such a weight may differ by its whole way, rate times steps
in each direction. So 99 % of the weights have to be near, and all within that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from support.every import every
from torch import nn

from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.training import LocalTraining, ModelConfig, evaluate, outputs, record_losses, to_vector, train
from securefl.training.audits import keeps_apart
from securefl.training.chunks import body_features
from securefl.training.devices import CPU, Cuda, seeded
from securefl.training.dpsgd import train_privately
from securefl.training.private_steps import DPSGD

GPU = Cuda()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPU.fault() is not None, reason="no GPU here, or `-m gpu` was not asked for"),
]
RATE, STEPS = 0.1, 5
NEAR = 2e-5
rng = np.random.default_rng(0)
X, Y = rng.random((150, 1, 28, 28), dtype=np.float32), rng.integers(10, size=150)


def model(kind: Literal["mlp", "lenet5"], device: torch.device) -> nn.Module:
    return ModelConfig(kind=kind).build((1, 28, 28), 10, 0).to(device)


def trained(kind: Literal["mlp", "lenet5"], device: torch.device, optimizer: Any) -> Any:
    made = model(kind, device)
    rate = RATE if optimizer == "sgd" else 0.001
    config = LocalTraining(optimizer=optimizer, learning_rate=rate, steps=STEPS, batch_size=32)
    train(made, X, Y, config, "cross_entropy", np.random.default_rng(1), 0)
    return to_vector(made)


@every("kind", ["mlp", "lenet5"])
def test_training_agrees(kind: Literal["mlp", "lenet5"]) -> None:
    here, there = (trained(kind, device, "sgd") for device in (CPU, GPU.device))
    np.testing.assert_allclose(there, here, rtol=0, atol=NEAR)


@every("kind", ["mlp", "lenet5"])
def test_training_by_adam_agrees(kind: Literal["mlp", "lenet5"]) -> None:
    here, there = (trained(kind, device, "adam") for device in (CPU, GPU.device))
    apart = np.abs(there - here)
    assert np.mean(apart <= NEAR) >= 0.99
    assert apart.max() <= 2 * 0.001 * STEPS


@every("kind", ["mlp", "lenet5"])
def test_private_training_agrees_under_the_same_noise(kind: Literal["mlp", "lenet5"]) -> None:
    config = DPSGD(
        clip_norm=1.0,
        noise_multiplier=1.0,
        sampling_rate=0.3,
        expected_batch=45,
        steps=STEPS,
        optimizer="sgd",
        learning_rate=RATE,
    )

    def privately(device: torch.device) -> Any:
        made = model(kind, device)
        train_privately(made, X, Y, config, "cross_entropy", Source(SecretKey(bytes(32))))
        return to_vector(made)

    np.testing.assert_allclose(privately(GPU.device), privately(CPU), rtol=0, atol=NEAR)


READS: dict[str, Callable[[nn.Module], Any]] = {
    "losses": lambda made: record_losses(made, X, Y, "cross_entropy"),
    "profile": lambda made: outputs(made, "fc1", X),
    "features": lambda made: body_features(made, X),
    "evaluation": lambda made: list(vars(evaluate(made, X, Y, "classification")).values()),
}


@every("kind", ["mlp", "lenet5"])
@every("read", READS)
def test_what_is_read_agrees(kind: Literal["mlp", "lenet5"], read: str) -> None:
    here, there = (READS[read](model(kind, device)) for device in (CPU, GPU.device))
    np.testing.assert_allclose(there, here, rtol=0, atol=1e-4)


def test_a_gpu_that_repeats_itself() -> None:
    first, second = (trained("lenet5", GPU.device, "sgd") for _ in range(2))
    assert np.array_equal(first, second)


def test_dropout_draws_from_the_seed_and_leaves_the_generators_as_they_were() -> None:
    layer, ones = nn.Dropout(0.5), torch.ones(1000, device=GPU.device)
    before = torch.cuda.get_rng_state(), torch.get_rng_state()
    drawn = []
    for seed in (5, 5, 6):
        with seeded(seed, GPU.device):
            drawn.append(layer(ones))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert all(map(torch.equal, before, (torch.cuda.get_rng_state(), torch.get_rng_state())))


@every("kind", ["mlp", "lenet5"])
def test_a_records_losses_do_not_depend_on_the_others(kind: Literal["mlp", "lenet5"]) -> None:
    made = model(kind, GPU.device)
    whole = record_losses(made, X, Y, "cross_entropy")
    for n in (1, 31, 64, 65, 149):
        assert np.array_equal(record_losses(made, X[-n:], Y[-n:], "cross_entropy"), whole[-n:])


def test_it_keeps_records_on_kinks_apart(tmp_path: Path) -> None:
    assert keeps_apart(GPU, home=tmp_path)
