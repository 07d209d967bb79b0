"""A plain loop in torch: what a researcher writes who needs nothing but the averaged model."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from contestants.models import built, records, train, vector
from contestants.turns import Cell, Turns, Work

PACKAGES = ("torch",)


def play(cell: Cell, work: Work, turns: Turns) -> NDArray[np.float32]:
    model, clients = built(cell, work), records(cell, work)
    rng = np.random.default_rng(1)
    shared = {name: value.clone() for name, value in model.state_dict().items()}
    turns.begin()
    for _ in range(cell.rounds):
        total = {name: torch.zeros_like(value) for name, value in shared.items()}
        for chosen in rng.choice(cell.clients, cell.cohort, replace=False):
            model.load_state_dict(shared)
            train(model, clients[chosen], cell)
            for name, value in model.state_dict().items():
                total[name] += value
        shared = {name: value / cell.cohort for name, value in total.items()}
        turns.next()
    model.load_state_dict(shared)
    return vector(model)
