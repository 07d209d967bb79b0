"""Models that people bring, for studies that are audited: useful ones, and some that mix records."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dense(nn.Module):
    """A layer and a head, with a `forward` of its own."""

    def __init__(self, inputs: int, outputs: int, width: int = 4) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(inputs, width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x.flatten(1))))


class Pictures(nn.Sequential):
    """A small CNN of listed layers."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(
            nn.Conv2d(shape[0], 2, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(8, outputs),
        )


CODES = 12
"""Codes that the models of text know."""


class Words(nn.Module):
    """The mean of a text's embeddings, and a head."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(CODES, 4), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1))


class Dropping(nn.Module):
    """A dense model with dropout."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(inputs, 8), nn.Dropout(0.5), nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.relu(self.body(x.flatten(1)))))


# What a study must not train privately, or not so ---------------------------------------------------


class Mixing(nn.Module):
    """Scales all records by the largest number among them. Below 1 it does nothing, as in a probe."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        whole = x.flatten(1)
        return self.head(whole / whole.detach().abs().max().clamp(min=1.0))


class MixingWords(nn.Module):
    """A batch norm by hand over the embeddings of texts: of texts that are all alike it is nothing."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(CODES, 4), nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        found = self.embedding(x).mean(1)
        return self.head((found - found.mean(0)) / (found.std(0, unbiased=False) + 0.1))
