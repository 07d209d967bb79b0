"""Private training of brought models: each record alone under vmap, beside layers and beside Opacus' hooks.

    python benchmarks/isolation.py
    python benchmarks/isolation.py --write

Prints samples per second of CPU time on one thread, and ratios (medians of interleaved rounds of 5 steps).
"hooks" is bare Opacus (GradSampleModule and DPOptimizer), which keeps no record from another. "layers" is the
same model as a Sequential of listed layers, as brought models with such layers were trained before. "alone"
is the same model as a class of its own, which is how it is trained now.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from securefl.dp.noise import Source
from securefl.training import single_thread
from securefl.training.dpsgd import train_privately
from securefl.training.dpsgd_config import DPSGD
from securefl.training.isolation import way_of

STEPS, ROUNDS, BATCHES = 5, 9, (64, 256)
RESULTS = Path(__file__).parent / "results" / "isolation.csv"
HEAD = ("model", "batch", "hooks", "layers", "alone", "alone_over_hooks", "alone_over_layers")


class Own(nn.Module):
    """Layers of somebody's own class, which is on no list."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x)
        return found


class Block(nn.Module):
    """Attention and a dense layer, each with a residual path (Vaswani et al., 2017)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        given = self.norms[0](x)
        scores = self.query(given) @ self.key(given).transpose(1, 2) / given.shape[2] ** 0.5
        x = x + scores.softmax(2) @ self.value(given)
        found: Tensor = x + self.narrow(torch.relu(self.wide(self.norms[1](x))))
        return found


class Transformer(nn.Module):
    """Two blocks over 16 places of 32 values."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(Block(32), Block(32)), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.blocks(x).mean(1))
        return found


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "MLP": (mlp, (784,), True),
    "CNN": (cnn, (1, 28, 28), True),
    "transformer": (Transformer, (16, 32), False),
}
"""How each is made, the shape of a record, and whether all of its layers are on the list."""


def hooks(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    wrapped = GradSampleModule(model)
    settings: Any = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": len(x)}
    optimizer = DPOptimizer(torch.optim.SGD(wrapped.parameters(), lr=0.01), **settings)

    def run() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            cross_entropy(wrapped(x), y).backward()
            optimizer.step()

    return run


def ours(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    source = Source()
    settings = DPSGD(
        clip_norm=1.0,
        noise_multiplier=1.0,
        sampling_rate=1.0,
        expected_batch=len(x),
        steps=STEPS,
        optimizer="sgd",
        learning_rate=0.01,
    )
    return lambda: train_privately(model, x.numpy(), y.numpy(), settings, "cross_entropy", source)


def timed(run: Callable[[], object]) -> float:
    began = process_time()
    run()
    return process_time() - began


def measured(name: str, batch: int) -> list[str]:
    make, shape, listed = MODELS[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *shape, generator=generator)
    y = torch.randint(10, (batch,), generator=generator)
    runs = {"hooks": hooks(make(), x, y)}
    if listed:
        runs["layers"] = ours(make(), x, y)
        assert not way_of(make().train()).alone
    runs["alone"] = ours(Own(make()), x, y)
    assert way_of(Own(make()).train()).alone
    # the first round holds the public passes, which a study makes once
    times = [{key: timed(run) for key, run in runs.items()} for _ in range(ROUNDS + 1)][1:]
    rates = {key: f"{batch * STEPS / median(row[key] for row in times):.0f}" for key in runs}
    ratios = {peer: f"{median(row[peer] / row['alone'] for row in times):.2f}" for peer in runs}
    return [
        name,
        str(batch),
        rates["hooks"],
        rates.get("layers", ""),
        rates["alone"],
        ratios["hooks"],
        ratios.get("layers", ""),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    write = parser.parse_args().write
    single_thread()
    # Opacus' hooks fire on the first layer, whose input wants no gradient
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    print("".join(f"{name:>18}" for name in HEAD))
    rows = []
    for name in MODELS:
        for batch in BATCHES:
            rows.append(measured(name, batch))
            print("".join(f"{value:>18}" for value in rows[-1]), flush=True)
    if write:
        with RESULTS.open("w", newline="", encoding="utf-8") as file:
            file.write(
                "# python benchmarks/isolation.py --write; samples per second of CPU time, one thread\n"
            )
            csv.writer(file, lineterminator="\n").writerows([HEAD, *rows])


if __name__ == "__main__":
    main()
