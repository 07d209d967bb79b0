"""Record-level private training against bare Opacus, on one thread, in one run.

    python benchmarks/dpsgd.py

Prints samples per second of CPU time and their ratios to bare Opacus (medians of interleaved rounds of 10
steps, a client's set-up among ours).
Bare Opacus is GradSampleModule and DPOptimizer with a mean loss; its ghost clipping is shown too. Everyone
gets batches of exactly that size; ours also draws them, by a Poisson rate of 1. Bare Opacus reads LeNet-5's
channels-last input wrongly (its second convolution's gradients are not the model's); its time stands.
"Alone" is one client, and "side by side" is ten of them in one wave, as a run trains dense models. They share
their records, which is a little kinder to caches than records of ten clients are.
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

from securefl.algorithm.clients import ClientContext
from securefl.dp.noise import Source
from securefl.training import LocalTraining, ModelConfig, single_thread
from securefl.training.cohorts import Batched
from securefl.training.dpsgd import train_privately
from securefl.training.fit import Fit
from securefl.training.fitting import one_by_one
from securefl.training.private_steps import DPSGD
from securefl.training.task import Problem

STEPS, ROUNDS, COHORT = 10, 15, 10
Run = Callable[[], object]


def model(kind: Any) -> nn.Module:
    return ModelConfig(kind=kind).build((1, 28, 28), 10, 0)


def config(batch: int) -> DPSGD:
    return DPSGD(
        clip_norm=1.0,
        noise_multiplier=1.0,
        sampling_rate=1.0,
        expected_batch=batch,
        steps=STEPS,
        optimizer="sgd",
        learning_rate=0.01,
    )


def bare(made: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Run:
    wrapped = GradSampleModule(made)
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


def alone(made: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Run:
    source, settings = Source(), config(len(x))
    return lambda: train_privately(made, x.numpy(), y.numpy(), settings, "cross_entropy", source)


def side_by_side(kind: str, x: torch.Tensor, y: torch.Tensor) -> Run:
    """A wave of COHORT clients, which all have these records."""
    problem = Problem(
        model=ModelConfig(kind=kind),  # type: ignore[arg-type]
        local=LocalTraining(optimizer="sgd", learning_rate=0.01, steps=STEPS, batch_size=len(x)),
        kind="classification",
        shape=(1, 28, 28),
        outputs=10,
        clients=COHORT,
        records=COHORT * len(x),
        server_x=x.numpy(),
        server_y=y.numpy(),
        seed=0,
        private=config(len(x)),
    )
    rng, start = np.random.default_rng(0), problem.initial
    data: Any = {"x": x.numpy(), "y": y.numpy(), "broadcast": start, "public": {}, "rng": rng}
    jobs = [ClientContext(client=client, round=1, source=Source(), **data) for client in range(COHORT)]
    trainer = Batched(one_by_one, COHORT)
    return lambda: trainer([Fit(problem=problem, start=start, context=context) for context in jobs])


def timed(run: Run) -> float:
    began = process_time()
    run()
    return process_time() - began


def throughput() -> None:
    print(f"{'samples/s':>22}{'alone':>34}{'side by side':>33}")
    ratios = ("", "over hooks", "over ghost")
    print("model   batch" + "".join(f"{name:>11}" for name in ("hooks", "ghost", *ratios, *ratios)))
    for kind in ("mlp", "lenet5"):
        for batch in (32, 64, 256):
            generator = torch.Generator().manual_seed(0)
            x = torch.randn(batch, 1, 28, 28, generator=generator)
            y = torch.randint(10, (batch,), generator=generator)
            runs = [(bare(model(kind), x, y), 1), (ghost(kind, x, y), 1), (alone(model(kind), x, y), 1)]
            if kind == "mlp":  # convolutions do not stand side by side
                runs.append((side_by_side(kind, x, y), COHORT))
            times = [[timed(run) / clients for run, clients in runs] for _ in range(ROUNDS + 1)][1:]
            rates = [f"{batch * STEPS / median(column):>11.0f}" for column in zip(*times, strict=True)]
            line = rates[:2]
            for own, rate in enumerate(rates[2:], start=2):
                over = [median(row[peer] / row[own] for row in times) for peer in (0, 1)]
                line += [rate, *(f"{ratio:>11.2f}" for ratio in over)]
            print(f"{kind:<8}{batch:>5}" + "".join(line), flush=True)


# Opacus' hooks fire on the first layer, whose input wants no gradient
warnings.filterwarnings("ignore", "Full backward hook is firing")

if __name__ == "__main__":
    single_thread()
    throughput()
