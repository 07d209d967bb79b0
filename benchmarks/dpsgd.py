"""Record-level private training against bare Opacus, on one thread, in one run.

    python benchmarks/dpsgd.py [--write]

Prints milliseconds of CPU time of a step of one client, and ratios to bare Opacus (medians of interleaved
rounds of 10 steps, a client's set-up among ours). `--write` keeps them in benchmarks/results/dpsgd.csv.
Bare Opacus is GradSampleModule and DPOptimizer with a mean loss; its ghost clipping is shown too. Everyone
gets batches of exactly that size; ours also draws them, by a Poisson rate of 1. Bare Opacus reads LeNet-5's
channels-last input wrongly (its second convolution's gradients are not the model's); its time stands.
"Alone" is one client, and "side by side" is ten of them in one wave, as a run trains dense models. They share
their records, which is a little kinder to caches than records of ten clients are.

A brought model is "alone" in a forward of its own: each record passes in a batch of one, under vmap. "layers"
is the same model as a Sequential of listed layers. Attention in Opacus is its own DPMultiheadAttention.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
import torch
from kept import keep
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
from opacus.layers import DPMultiheadAttention
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn

from securefl.algorithm.clients import ClientContext
from securefl.dp.noise import Source
from securefl.training import LocalTraining, ModelConfig, single_thread
from securefl.training.cohorts import Batched
from securefl.training.dpsgd import train_privately
from securefl.training.jobs import TrainingJob
from securefl.training.private_steps import DPSGD
from securefl.training.row_wise import outside
from securefl.training.run_jobs import one_by_one
from securefl.training.task import Problem

STEPS, ROUNDS, COHORT, BATCHES, WIDTH = 10, 15, 10, (32, 64, 256), 32
Run = Callable[[], object]


class OwnForward(nn.Module):
    """These layers behind a forward that no list knows."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


class Transformer(nn.Module):
    """One block: attention over places, a feed-forward part, norms and residuals."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.norm, self.norm_after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Any:
        values = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        values = self.norm_after(values + self.narrow(torch.relu(self.wide(values))))
        return self.last(values.mean(1))


def model(kind: Any) -> nn.Module:
    return ModelConfig(kind=kind).build((1, 28, 28), 10, 0)


def listed(kind: str) -> nn.Module:
    """The model as a Sequential of listed layers."""
    widths, layers = (784, 64, 32, 10), [nn.Flatten()]
    if kind == "cnn":
        widths = (400, 120, 10)
        layers = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


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


def opacus(made: nn.Module, x: Tensor, y: Tensor, *, ghost: bool = False) -> Run:
    """Bare Opacus, by its hooks or by ghost clipping."""
    wrapped: Any
    optimizer: Any
    if ghost:
        wrapped = GradSampleModuleFastGradientClipping(made, max_grad_norm=1.0, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping
    else:
        wrapped, optimizer = GradSampleModule(made), DPOptimizer
    plain = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    optimizer = optimizer(plain, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=len(x))
    criterion: Any = nn.CrossEntropyLoss()
    if ghost:
        criterion = DPLossFastGradientClipping(wrapped, optimizer, criterion)

    def run() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            criterion(wrapped(x), y).backward()
            optimizer.step()

    return run


def alone(made: nn.Module, x: Tensor, y: Tensor) -> Run:
    source, settings = Source(), config(len(x))
    return lambda: train_privately(made, x.numpy(), y.numpy(), settings, "cross_entropy", source)


def side_by_side(kind: str, x: Tensor, y: Tensor) -> Run:
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
    return lambda: trainer([TrainingJob(problem=problem, start=start, context=context) for context in jobs])


def packaged(kind: str, x: Tensor, y: Tensor) -> dict[str, Run]:
    """By way, what runs STEPS steps of a packaged model."""
    runs = {
        "hooks": opacus(model(kind), x, y),
        "ghost": opacus(model(kind), x, y, ghost=True),
        "alone": alone(model(kind), x, y),
    }
    # Convolutions do not stand side by side.
    return runs | ({"side by side": side_by_side(kind, x, y)} if kind == "mlp" else {})


def brought(kind: str, x: Tensor, y: Tensor) -> dict[str, Run]:
    """The same of a model that a person brings. layers: as a Sequential of listed layers."""
    if kind == "transformer":
        kinds = nn.MultiheadAttention, DPMultiheadAttention
        own, peer = (Transformer(attention(WIDTH, 4, batch_first=True)) for attention in kinds)
    else:
        own, peer = OwnForward(listed(kind)), listed(kind)
    assert outside(own)
    runs = {"hooks": opacus(peer, x, y), "alone": alone(own, x, y)}
    return runs if kind == "transformer" else runs | {"layers": alone(listed(kind), x, y)}


def measured(model: str, runs: Mapping[str, Run], batch: int) -> dict[str, Any]:
    """Milliseconds of a step for one client by each way, and ratios to Opacus' ways in the same round."""
    rounds = [{way: timed(run) for way, run in runs.items()} for _ in range(ROUNDS + 1)]
    times = pd.DataFrame(rounds[1:])
    if "side by side" in runs:
        times["side by side"] /= COHORT
    row = {"model": model, "batch": batch}
    row |= (1e3 / STEPS * times.median()).round(3).add_suffix(" ms").to_dict()
    for peer in runs.keys() & {"hooks", "ghost"}:
        for way in runs.keys() - {"hooks", "ghost"}:
            row[f"{way} over {peer}"] = round(float((times[peer] / times[way]).median()), 2)
    print(row, flush=True)
    return row


def timed(run: Run) -> float:
    began = process_time()
    run()
    return process_time() - began


def main() -> None:
    single_thread()
    torch.manual_seed(0)
    found = []
    for batch in BATCHES:
        y = torch.randint(10, (batch,))
        for whose, kinds in ((packaged, ("mlp", "lenet5")), (brought, ("mlp", "cnn", "transformer"))):
            for kind in kinds:
                x = torch.randn(batch, *((16, WIDTH) if kind == "transformer" else (1, 28, 28)))
                found.append(measured(f"{whose.__name__} {kind}", whose(kind, x, y), batch))
    keep("dpsgd", pd.DataFrame(found))


# Opacus' hooks fire on the first layer, whose input wants no gradient
warnings.filterwarnings("ignore", "Full backward hook is firing")

if __name__ == "__main__":
    main()
