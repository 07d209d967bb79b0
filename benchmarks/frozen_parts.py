"""LoRA, a head alone and the whole model under client-level epsilon, from one pretrained body.

    python benchmarks/frozen_parts.py [--write]

A body is trained on the digits 0 to 4, which are taken as public. 150 clients have the digits 5 to 9. FedAvg
clips updates to norm 1 and adds noise to their sum. Each model starts from the same body under a new head.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from brought_kinds import LoRA
from kept import keep
from sklearn.datasets import load_digits
from torch import Tensor, nn

from securefl.study.config import Brought, parse
from securefl.study.run import run_arm
from securefl.study.world import build

CLIENTS, ROUNDS, SEEDS, EPSILONS = 150, 8, range(8), ("1.0", "4.0")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 32), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.second(self.first(x).relu()).relu())
        return found


def pretrained(x: Tensor, y: Tensor) -> Net:
    """The net, trained on public records, under a new head."""
    torch.manual_seed(0)
    net = Net()
    steps = torch.optim.Adam(net.parameters(), lr=0.003)
    for _ in range(300):
        steps.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        steps.step()
    net.head = nn.Linear(32, 5)
    return net


def with_lora(net: Net) -> Net:
    net.first, net.second = LoRA(net.first, 2), LoRA(net.second, 2)  # type: ignore[assignment]
    return net


MODELS: dict[str, tuple[str, Callable[[Net], Net]]] = {
    "the whole model": ("", lambda net: net),
    "LoRA of rank 2, and the head": ("", with_lora),
    "the head alone": ('train = "head"', lambda net: net),
}


def text(model: str, epsilon: str, seed: int) -> str:
    return f"""
[study]
name = "frozen parts"
rounds = {ROUNDS}
seeds = [{seed}]
evaluate_every = {ROUNDS}
[data]
classes = 5
public_num_examples = 5
clients = {CLIENTS}
partition = {{ kind = "iid" }}
[model]
{model}
[local]
optimizer = "sgd"
learning_rate = 0.3
epochs = 3
batch_size = 8
update_bound = 1.0
[privacy]
sum = "clear"
scores = "clear"
unit = "client"
adjacency = "zero-out"
noise = "central"
epsilon = {epsilon}
budget = {epsilon}
non_private = []
delta = 1e-3
adversaries = ["others"]
min_cohort_size = 2
min_honest = 1
max_client_weight = 0.5
[[arm]]
name = "FedAvg"
protocol = "fedavg"
fraction = 1.0
aggregation = "partial"
"""


def accuracy(name: str, epsilon: str, seed: int, x: Any, y: Any) -> tuple[int, float]:
    """The number of trained values, and the accuracy after the last round."""
    public, (word, change) = y < 5, MODELS[name]

    net = pretrained(torch.from_numpy(x[public]), torch.from_numpy(y[public]))

    def made() -> Net:
        return change(deepcopy(net))

    brought = Brought(data=(x[~public], y[~public] - 5), model=made)
    study = parse(text(word, epsilon, seed), home=Path.cwd(), brought=brought)
    world = build(study, seed)
    with tempfile.TemporaryDirectory() as folder:
        run = run_arm(study, study.arms[0], world, Path(folder), lambda record: None)
    return len(world.problem.initial), float(run.records[-1]["accuracy"])


def table() -> pd.DataFrame:
    digits, rows = load_digits(), []
    x, y = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
    for name, epsilon, seed in product(MODELS, EPSILONS, SEEDS):
        values, found = accuracy(name, epsilon, seed, x, y)
        rows.append((name, values, epsilon, seed, round(found, 4)))
        print(*rows[-1], sep=" | ", flush=True)
    return pd.DataFrame(rows, columns=["model", "values", "epsilon", "seed", "accuracy"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep("frozen_parts", table())
