"""Private steps of brought models: record by record under vmap, by layers, and by Opacus' hooks.

    python benchmarks/brought_models.py [--write]

Prints milliseconds of CPU time of a private step, on one thread, and their ratios to bare Opacus (medians of
interleaved rounds of 10 steps). `--write` keeps them in benchmarks/results/brought_models.csv. "alone" is the
model in a forward of its own: each record passes in a batch of one. "layers" is the same model as a
Sequential of listed layers, where there is one. "hooks" is bare Opacus with a mean loss, which is how brought
models were computed before, without padding and float64 sums. Ours draw their batches too, by a Poisson rate
of 1. Attention in Opacus is its own DPMultiheadAttention.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from dpsgd import STEPS, Run, alone, bare, timed
from opacus.layers import DPMultiheadAttention
from torch import Tensor, nn

from securefl.report.tables import write_csv
from securefl.training import single_thread
from securefl.training.isolation import scheme_of

ROUNDS, CLASSES, WIDTH, PLACES = 7, 10, 32, 16


class OwnForward(nn.Module):
    """These layers behind a forward that no list knows."""

    def __init__(self, layers: nn.Sequential) -> None:
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
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Any:
        values = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        values = self.norm_after(values + self.narrow(torch.relu(self.wide(values))))
        return self.last(values.mean(1))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, CLASSES),
    )


def contestants(name: str, x: Tensor, y: Tensor) -> dict[str, Run]:
    """By way, what runs STEPS steps of this model."""
    if name == "transformer":
        own = Transformer(nn.MultiheadAttention(WIDTH, 4, batch_first=True))
        peer = Transformer(DPMultiheadAttention(WIDTH, 4, batch_first=True))
        assert scheme_of(own).alone
        return {"hooks": bare(peer, x, y), "alone": alone(own, x, y)}
    make = {"mlp": mlp, "cnn": cnn}[name]
    behind, listed = OwnForward(make()), make()
    assert scheme_of(behind).alone
    assert not scheme_of(listed).alone
    return {"hooks": bare(make(), x, y), "alone": alone(behind, x, y), "layers": alone(listed, x, y)}


def rows() -> list[dict[str, object]]:
    found = []
    shapes: dict[str, tuple[int, ...]] = {"mlp": (784,), "cnn": (1, 28, 28), "transformer": (PLACES, WIDTH)}
    for name, shape in shapes.items():
        for batch in (64, 256):
            torch.manual_seed(0)
            x, y = torch.randn(batch, *shape), torch.randint(CLASSES, (batch,))
            runs = contestants(name, x, y)
            times = [{way: timed(run) for way, run in runs.items()} for _ in range(ROUNDS + 1)][1:]
            row: dict[str, object] = {"model": name, "batch": batch}
            for way in ("hooks", "alone", "layers"):
                seconds = median(one.get(way, 0.0) for one in times)
                row[f"{way}_ms"] = f"{1e3 * seconds / STEPS:.2f}" if way in runs else ""
            for way in ("alone", "layers"):
                own_ratio = median(one["hooks"] / one[way] for one in times) if way in runs else None
                row[f"{way}_over_hooks"] = "" if own_ratio is None else f"{own_ratio:.2f}"
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            found.append(row)
    return found


if __name__ == "__main__":
    single_thread()
    found = pd.DataFrame(rows(), dtype=object)
    if "--write" in sys.argv:
        write_csv(Path(__file__).parent / "results" / "brought_models.csv", found)
