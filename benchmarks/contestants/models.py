"""The models in plain torch, layer for layer those of securefl, and a client's training as in tutorials."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from contestants.turns import Cell, Work

Records = tuple[Tensor, Tensor]


class LeNet5(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, outputs)

    def forward(self, x: Tensor) -> Tensor:
        # Channels last and pooling first, as securefl has them: the layout is no framework's merit.
        x = x.to(memory_format=torch.channels_last)
        x = torch.relu(max_pool2d(self.conv1(x), 2))
        x = torch.relu(max_pool2d(self.conv2(x), 2))
        x = torch.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc3(torch.relu(self.fc2(x)))
        return logits


def mlp(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def built(cell: Cell, work: Work) -> nn.Module:
    """The cell's model with its first values, on one thread."""
    torch.set_num_threads(1)
    inputs, outputs = int(np.prod(work.x.shape[1:])), int(work.y.max()) + 1
    model = LeNet5(outputs) if cell.kind == "lenet5" else mlp([inputs, *(cell.hidden or ()), outputs])
    vector_to_parameters(torch.from_numpy(work.initial.copy()), model.parameters())
    return model


def vector(model: nn.Module) -> NDArray[np.float32]:
    flat: NDArray[np.float32] = parameters_to_vector(model.parameters()).detach().numpy().copy()
    return flat


def records(cell: Cell, work: Work) -> list[Records]:
    """Every client's records as tensors, made once."""
    both = (work.client(number, cell) for number in range(cell.clients))
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in both]


def train(model: nn.Module, own: Records, cell: Cell) -> None:
    """A client's training, in place, on batches that are shuffled anew in each epoch."""
    x, y = own
    optimizer = torch.optim.SGD(model.parameters(), lr=cell.rate)
    for _ in range(cell.epochs):
        for batch in torch.randperm(len(x)).split(cell.batch):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
