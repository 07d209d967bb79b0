"""Record-level private training against plain SGD and against bare Opacus, on one thread, in one run.

    python benchmarks/dpsgd.py

Prints samples per second of CPU time and their ratios to bare Opacus (medians of interleaved rounds of 10
steps, a client's set-up among ours), and the milliseconds that this set-up takes in a round, as training of
one empty step beyond a step in the loop.
Bare Opacus is GradSampleModule and DPOptimizer with a mean loss; its ghost clipping is shown too. Everyone
gets batches of exactly that size; ours also draws them, by a Poisson rate of 1. Bare Opacus reads LeNet-5's
channels-last input wrongly (its second convolution's gradients are not the model's); its time stands.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn
from torch.nn.functional import cross_entropy

from securefl.dp.noise import Source
from securefl.training import LocalTraining, ModelConfig, single_thread, train
from securefl.training.dpsgd import train_privately
from securefl.training.dpsgd_config import DPSGD

STEPS, ROUNDS = 10, 15
Run = Callable[[], object]


def model(kind: Any) -> nn.Module:
    return ModelConfig(kind=kind).build((1, 28, 28), 10, 0)


def config(batch: int, steps: int) -> DPSGD:
    return DPSGD(
        clip_norm=1.0,
        noise_multiplier=1.0,
        sampling_rate=1.0,
        expected_batch=batch,
        steps=steps,
        optimizer="sgd",
        learning_rate=0.01,
    )


def bare(kind: str, x: torch.Tensor, y: torch.Tensor) -> Run:
    wrapped = GradSampleModule(model(kind))
    settings: Any = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": len(x)}
    optimizer = DPOptimizer(torch.optim.SGD(wrapped.parameters(), lr=0.01), **settings)

    def run() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            cross_entropy(wrapped(x), y).backward()
            optimizer.step()

    return run


def ghost(kind: str, x: torch.Tensor, y: torch.Tensor) -> Run:
    wrapped = GradSampleModuleFastGradientClipping(model(kind), max_grad_norm=1.0, use_ghost_clipping=True)
    settings: Any = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": len(x)}
    optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(wrapped.parameters(), lr=0.01), **settings)
    criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def run() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            criterion(wrapped(x), y).backward()
            optimizer.step()

    return run


def plain(kind: str, x: torch.Tensor, y: torch.Tensor) -> Run:
    made, rng = model(kind), np.random.default_rng(0)
    settings = LocalTraining(optimizer="sgd", learning_rate=0.01, steps=STEPS, batch_size=len(x))
    return lambda: train(made, x.numpy(), y.numpy(), settings, "cross_entropy", rng, 0)


def ours(kind: str, x: torch.Tensor, y: torch.Tensor, steps: int = STEPS) -> Run:
    made, source, settings = model(kind), Source(), config(max(1, len(x)), steps)
    return lambda: train_privately(made, x.numpy(), y.numpy(), settings, "cross_entropy", source)


def timed(run: Run) -> float:
    began = process_time()
    run()
    return process_time() - began


def throughput() -> None:
    print("model   batch   samples/s: plain   opacus    ghost     ours   over opacus   over ghost   of plain")
    for kind in ("mlp", "lenet5"):
        for batch in (32, 64, 256):
            generator = torch.Generator().manual_seed(0)
            x = torch.randn(batch, 1, 28, 28, generator=generator)
            y = torch.randint(10, (batch,), generator=generator)
            runs = [make(kind, x, y) for make in (plain, bare, ghost, ours)]
            times = [[timed(run) for run in runs] for _ in range(ROUNDS + 1)][1:]
            rates = [batch * STEPS / median(column) for column in zip(*times, strict=True)]
            over = [median(row[k] / row[3] for row in times) for k in (1, 2, 0)]
            print(
                f"{kind:<8}{batch:>5}"
                + " " * 10
                + "".join(f"{rate:>9.0f}" for rate in rates)
                + f"{over[0]:>13.2f}{over[1]:>13.2f}{over[2]:>11.2f}"
            )


def set_up() -> None:
    print("set-up of a client in a round, ms (a first call apart)")
    x, y = torch.zeros(0, 1, 28, 28), torch.zeros(0, dtype=torch.int64)
    for kind in ("mlp", "lenet5"):
        single, many = ours(kind, x, y, 1), ours(kind, x, y, 51)
        first, made = timed(single), []
        for _ in range(20):
            one, all_of_them = timed(single), timed(many)
            made.append(one - (all_of_them - one) / 50)
        print(f"{kind:<8}{1e3 * median(made):>8.2f}   first call {1e3 * first:.2f}")


def main() -> None:
    single_thread()
    # Opacus' hooks fire on the first layer, whose input wants no gradient
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    throughput()
    set_up()


if __name__ == "__main__":
    main()
