"""The task of both runs: digits of five sites, a small network, and training by plain PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

COUNTS = (300, 310, 320, 328, 336)
"""The records of each site. A site weighs by their number."""
SITES = tuple(f"client-{k:04}" for k in range(len(COUNTS)))
ROUNDS, EPOCHS, RATE = 3, 5, 0.5
Vector = np.ndarray[Any, np.dtype[np.float32]]


def write_records(folder: Path) -> None:
    """Give each site a file of its own records. In a deployment it has one already."""
    from sklearn.datasets import load_digits

    folder.mkdir(parents=True)
    x, y = load_digits(return_X_y=True)
    for name, count, end in zip(SITES, COUNTS, np.cumsum(COUNTS), strict=True):
        own = slice(end - count, end)
        np.savez(folder / f"{name}.npz", x=(x[own] / 16).astype(np.float32), y=y[own].astype(np.int64))


def start() -> Vector:
    """The initial model, float32 (d,): the same in every process."""
    shapes = [one.shape for one in _network().parameters()]
    rng = np.random.default_rng(1)
    parts = [rng.normal(scale=shape[-1] ** -0.5, size=shape) for shape in shapes]
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def trained(model: Vector, records: Path) -> tuple[Vector, float, int]:
    """Train on all records of a site. Returns the new model, the loss before, and the number of records."""
    with np.load(records, allow_pickle=False) as own:
        x, y = torch.from_numpy(own["x"]), torch.from_numpy(own["y"])
    net = _network()
    nn.utils.vector_to_parameters(torch.from_numpy(model.astype(np.float32)), net.parameters())
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=RATE), []
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return nn.utils.parameters_to_vector(net.parameters()).detach().numpy(), losses[0], len(y)


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
