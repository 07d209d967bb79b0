"""Record-level private training, step by step: its public figures, and the one loop of its noised steps.

None of the figures is read off the data. A step draws each client's records from the client's source, asks
for the sum of their clipped gradients, adds noise from the same source, and moves the model. `dpsgd` sums for
one client's model, `cohorts` for several clients' models side by side. This module needs no Opacus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final, Literal

import numpy as np
import torch
from dp_accounting import DpEvent
from torch import Tensor

from securefl.accounting.events import steps_event
from securefl.core.abstaining import Abstains, Reason
from securefl.core.errors import DataError
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.training.products import UNIT, check_rows
from securefl.training.vector import SGD, Adam

Records = tuple[Tensor, Tensor]
"""One client's inputs (n, *shape) and targets (n,) or (n, targets). n may be 0."""
ClippedSums = Callable[[Sequence[Records]], Tensor]
"""Each client's drawn records -> its sum of clipped gradients, a row each: (rows, d) float64.

There may be more rows than clients. These stand for nobody.
"""

_MOST: Final = 256
_HELD: Final = 16 * 2**20
"""Bytes of gradients that a chunk may take."""


def usual_chunk(expected_batch: float) -> int:
    """The largest multiple of 32 rows up to the public expected batch, at least 32 and at most 256.

    A chunk costs a pass of its own, and its empty rows cost as much as full ones. Gradients per record of a
    convolution take a chunk's memory.
    """
    return max(UNIT, int(min(expected_batch, _MOST)) // UNIT * UNIT)


def lone_rows(chunk: int, values: int) -> int:
    """The rows of a chunk of which every record's gradient is held, of a model with so many trained values.

    It is `chunk`, or less where that would take more than 16 MB: a multiple of 32, and at least that.
    """
    return min(chunk, max(UNIT, _HELD // (4 * max(1, values)) // UNIT * UNIT))


@dataclass(frozen=True, kw_only=True)
class DPSGD:
    """How a client trains privately in one round (DP-SGD: Abadi et al., CCS 2016, algorithm 1).

    clip_norm: C, the L2 norm that no record's gradient exceeds.
    noise_multiplier: z; the noise on the sum of clipped gradients has deviation z C in every coordinate.
    sampling_rate: q in (0, 1]; each record enters each step with this probability, on its own.
    expected_batch: the divisor of the noised sum, such as q times a declared nominal size of a client. Under
        add-or-remove adjacency the real size is private. q and this number are public configuration, and
        neither may be worked out from the records.
    steps: noised steps in the round. Each one counts, even with an empty batch.
    chunk: the public number of rows whose gradients are computed at a time, a multiple of 32. Batches are
        filled up to a multiple of it, so that no record's gradient depends on how many others were drawn. By
        default it is worked out from expected_batch (`usual_chunk`). Memory grows with it.
    optimizer: "sgd" or "adam" (betas 0.9 and 0.999), on the noised gradient.
    learning_rate: of every step. momentum: of SGD.
    weight_decay: weight of |w|^2 / 2. proximal: FedProx's mu, weight of |w - w_global|^2 / 2. Both read no
        records, join the gradient behind the noise and cost nothing.

    Raises ValueError for values out of range.
    """

    clip_norm: float
    noise_multiplier: float
    sampling_rate: float
    expected_batch: float
    steps: int
    optimizer: Literal["sgd", "adam"]
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    chunk: int = None  # type: ignore[assignment]  # a number as soon as the object is made

    def __post_init__(self) -> None:
        for name in ("clip_norm", "noise_multiplier", "expected_batch", "learning_rate"):
            value = getattr(self, name)
            self._require(name, value > 0 and isfinite(value), "> 0, finite")
        self._require("sampling_rate", 0 < self.sampling_rate <= 1, "in (0, 1]")
        self._require("steps", self.steps >= 1, ">= 1")
        self._require("momentum", 0 <= self.momentum < 1, "in [0, 1)")
        for name in ("weight_decay", "proximal"):
            value = getattr(self, name)
            self._require(name, value >= 0 and isfinite(value), ">= 0, finite")
        if self.chunk is None:
            object.__setattr__(self, "chunk", usual_chunk(self.expected_batch))
        check_rows(self.chunk)
        # Adam would ignore it without a word, and the report would say that it was used.
        if self.optimizer == "adam" and self.momentum:
            raise ValueError(
                f"Expected no momentum with optimizer 'adam', got {self.momentum}. Leave it out."
            )

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ValueError(f"Expected {name} {expected}, got {getattr(self, name)}.")

    @property
    def event(self) -> DpEvent:
        """The cost of a round, known before it: Poisson-sampled Gaussians, to add or remove one record."""
        return steps_event(self.sampling_rate, self.noise_multiplier, self.steps)


def diverged(rate: float) -> DataError:
    """The error of a private training whose model stopped being finite."""
    return Abstains(
        Reason.DIVERGED,
        f"Expected a finite model after private training at learning rate {rate:g}, got one that diverged. "
        "Lower the learning rate, or raise expected_batch.",
    )


def private_steps(
    values: Tensor,
    config: DPSGD,
    records: Sequence[Records],
    sources: Sequence[Source],
    clipped_sums: ClippedSums,
    flat: Callable[[Tensor], Tensor],
) -> None:
    """Move the trained values of all models by `config.steps` noised steps, in place.

    Args:
        values: float32, flat.
        records: all records of each client, on the device of `values`.
        sources: where each client's sampling and noise come from.
        clipped_sums: no record moves its client's row by more than the clipping norm.
        flat: brings rows like those of `clipped_sums` into the form of `values`.
    """
    start = values.clone() if config.proximal else None
    optimizer = optimizer_of(config)
    for _ in range(config.steps):
        noised = clipped_sums(
            [_drawn(own, config, source) for own, source in zip(records, sources, strict=True)]
        )
        for row, source in zip(noised, sources, strict=False):
            noise = _noise(len(row), source).to(row.device)
            row.add_(noise, alpha=config.noise_multiplier * config.clip_norm)
        # divided by the public number: the number of drawn records is private
        gradient = flat(noised.div_(config.expected_batch).float())
        if config.weight_decay:
            gradient.add_(values, alpha=config.weight_decay)
        if start is not None:
            gradient.add_(values - start, alpha=config.proximal)
        optimizer.step(values, gradient)


def _drawn(records: Records, config: DPSGD, source: Source) -> Records:
    """The records of one step."""
    x, y = records
    chosen = poisson(len(x), config.sampling_rate, source).to(x.device)
    return x[chosen], y[chosen]


def _noise(length: int, source: Source) -> Tensor:
    return torch.from_numpy(source.normal(length))


def poisson(n: int, rate: float, source: Source) -> Tensor:
    """Which of n records are in a step. Each is with probability floor(q 2^64) / 2^64, independently."""
    # A stream of its own: the noise would otherwise begin at a place of the stream that depends on n.
    words = Source(SecretKey(source.words(4).tobytes())).words(n)
    drawn = words < np.uint64(int(rate * 2**64)) if rate < 1 else np.ones(n, np.bool_)
    return torch.from_numpy(np.flatnonzero(drawn))


def optimizer_of(config: DPSGD) -> SGD | Adam:
    match config.optimizer:
        case "sgd":
            return SGD(rate=config.learning_rate, momentum=config.momentum)
        case "adam":
            return Adam(rate=config.learning_rate)
