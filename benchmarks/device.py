"""The CPU beside the GPU of this machine, in one run; without a GPU it says "not measured".

    python benchmarks/device.py

Milliseconds of wall time (medians of interleaved repeats, one thread on the CPU): a client's local training,
five private steps, evaluation and features on 10,000 records. What moves between the two is in the time.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from securefl.dp.noise import Source
from securefl.training import LocalTraining, ModelConfig, evaluate, single_thread, to_vector, train
from securefl.training.chunks import body_features
from securefl.training.devices import CPU, Cuda
from securefl.training.dpsgd import train_privately
from securefl.training.private_steps import DPSGD

REPEATS = 7
LOCAL = LocalTraining(optimizer="sgd", learning_rate=0.05, epochs=1, batch_size=32)
PRIVATE = DPSGD(
    clip_norm=1.0,
    noise_multiplier=1.0,
    sampling_rate=0.1,
    expected_batch=60,
    steps=5,
    optimizer="sgd",
    learning_rate=0.05,
)
KINDS: tuple[Any, ...] = ("mlp", "lenet5")


def works(model: nn.Module) -> dict[str, Callable[[], object]]:
    rng = np.random.default_rng(0)
    x, y = rng.random((10_000, 1, 28, 28), dtype=np.float32), rng.integers(10, size=10_000)
    mine, labels = x[:600], y[:600]
    return {
        "training, 600 records": lambda: train(model, mine, labels, LOCAL, "cross_entropy", rng, 0),
        "5 private steps": lambda: train_privately(model, mine, labels, PRIVATE, "cross_entropy", Source()),
        "evaluation": lambda: evaluate(model, x, y, "classification"),
        "features": lambda: body_features(model, x),
    }


def milliseconds(model: nn.Module, work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    to_vector(model)  # a GPU works on behind a call that returned; reading the model waits for it
    return 1e3 * (perf_counter() - began)


def main() -> None:
    single_thread()
    gpu = Cuda()
    if (fault := gpu.fault()) is not None:
        print(f"not measured: no GPU here{f' ({fault})' if fault else ''}")
        return
    print(f"{gpu.name()}, torch {torch.__version__}")
    print(f"{'':32} {'CPU ms':>8} {'GPU ms':>8} {'CPU / GPU':>10}")
    for kind in KINDS:
        models = [ModelConfig(kind=kind).build((1, 28, 28), 10, 0).to(device) for device in (CPU, gpu.device)]
        for name in works(models[0]):
            own = [works(model)[name] for model in models]
            for work in own:
                work()
            taken = [[milliseconds(*pair) for pair in zip(models, own, strict=True)] for _ in range(REPEATS)]
            cpu, other = (median(column) for column in zip(*taken, strict=True))
            print(f"{f'{kind}, {name}':32} {cpu:8.1f} {other:8.1f} {cpu / other:10.2f}")


if __name__ == "__main__":
    main()
