"""DP-SGD: the public parameters of record-level private training (`DPSGD`), and the loop of its noised steps.

No parameter is computed from the records. A step samples each client's records by the client's source, calls
for the sum of their clipped gradients, adds noise from the same source, and updates the model. `dpsgd`
computes the sum for one client's model, `cohorts` for several clients' models side by side. This module needs
no Opacus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import numpy as np
import torch
from dp_accounting import DpEvent
from torch import Tensor

from securefl.accounting.events import steps_event
from securefl.core.abstaining import Abstains, Reason
from securefl.core.errors import DataError
from securefl.core.keys import SecretKey
from securefl.core.ranges import Decay, Fraction, Positive, Range, Ranged, Weight
from securefl.dp.noise import Source
from securefl.training.products import UNIT, check_rows
from securefl.training.vector import optimizer_of

Records = tuple[Tensor, Tensor]
"""One client's inputs (n, *shape) and targets (n,) or (n, targets). n may be 0."""
ClippedSums = Callable[[Sequence[Records]], Tensor]
"""Each client's drawn records -> its sum of clipped gradients, one row a client: (rows, d) float64.

If there are more rows than clients, the last rows belong to no client.
"""

_MOST: Final = 256
_HELD: Final = 16 * 2**20
"""The most bytes of gradients of a chunk."""


def usual_chunk(expected_batch: float) -> int:
    """The largest multiple of 32 rows up to the public expected batch, at least 32 and at most 256.

    Each chunk costs one pass, and empty rows cost as much as full ones. The per-record gradients of a
    convolution need memory for a whole chunk.
    """
    return max(UNIT, int(min(expected_batch, _MOST)) // UNIT * UNIT)


def lone_rows(chunk: int, values: int) -> int:
    """The rows of a chunk if every record's gradient is held, for a model with `values` trained values.

    It is `chunk`, or less if the gradients would take more than 16 MB: a multiple of 32, and at least 32.
    """
    return min(chunk, max(UNIT, _HELD // (4 * max(1, values)) // UNIT * UNIT))


@dataclass(frozen=True, kw_only=True)
class DPSGD(Ranged):
    """A client's private training in one round (DP-SGD: Abadi et al., CCS 2016, algorithm 1).

    >>> from securefl.training import DPSGD
    >>> DPSGD(clip_norm=1.0, noise_multiplier=1.1, sampling_rate=0.1, expected_batch=60, steps=10,
    ...     optimizer="sgd", learning_rate=0.5).chunk
    32

    Args:
        clip_norm: C, the largest L2 norm of a record's clipped gradient, from 1e-30 to 1e30.
        noise_multiplier: z. The noise on the sum of clipped gradients has deviation z C in every coordinate.
        sampling_rate: q in (0, 1]. Each record enters each step with this probability, independently.
        expected_batch: The divisor of the noised sum, such as q times a declared nominal size of a client.
            Under add-or-remove adjacency the real size is private. q and this number are public
            configuration, and must not be computed from the records.
        steps: Noised steps in the round. Each one is charged, even with an empty batch.
        chunk: The public number of rows whose gradients are computed at a time, a multiple of 32. Batches are
            padded to a multiple of it, so no record's gradient depends on the number of drawn records. The
            default is computed from `expected_batch` (`usual_chunk`). Memory grows with it.
        optimizer: "sgd" or "adam" (betas 0.9 and 0.999), on the noised gradient.
        learning_rate: The learning rate of every step.
        momentum: Of SGD.
        weight_decay: Weight of |w|^2 / 2.
        proximal: FedProx's mu, the weight of |w - w_global|^2 / 2. It and `weight_decay` read no records, are
            added to the gradient after the noise, and have no privacy cost.

    Raises:
        ValueError: A value is out of range, or "adam" has a momentum.
    """

    clip_norm: Annotated[float, Range("[1e-30, 1e30]")]
    noise_multiplier: Positive
    sampling_rate: Fraction
    expected_batch: Positive
    steps: Annotated[int, Range("[1, 10^6]")]
    optimizer: Literal["sgd", "adam"]
    learning_rate: Positive
    momentum: Decay = 0.0
    weight_decay: Weight = 0.0
    proximal: Weight = 0.0
    chunk: int = None  # type: ignore[assignment]  # a number as soon as the object is made

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk is None:
            object.__setattr__(self, "chunk", usual_chunk(self.expected_batch))
        check_rows(self.chunk)
        # Adam would ignore the momentum silently, and the report would state it as used.
        if self.optimizer == "adam" and self.momentum:
            raise ValueError(
                f"Expected no momentum with optimizer 'adam', got {self.momentum}. Leave it out."
            )

    @property
    def event(self) -> DpEvent:
        """The privacy cost of a round, known before it: Poisson-sampled Gaussians, under add-or-remove."""
        return steps_event(self.sampling_rate, self.noise_multiplier, self.steps)


def diverged(rate: float) -> DataError:
    """The error of a private training whose model is no longer finite."""
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
    """Update the trained values of all models by `config.steps` noised steps, in place.

    Args:
        values: float32, flat.
        records: All records of each client, on the device of `values`.
        sources: Each client's source of sampling and noise.
        clipped_sums: Computes each client's row. One record must not change it by more than the clipping
            norm.
        flat: Converts rows like those of `clipped_sums` into the layout of `values`.
    """
    near = values.clone() if config.proximal else None
    optimizer = optimizer_of(config, config.learning_rate, near, config.proximal)
    for _ in range(config.steps):
        noised = clipped_sums(
            [_drawn(own, config, source) for own, source in zip(records, sources, strict=True)]
        )
        for row, source in zip(noised, sources, strict=False):
            noise = torch.from_numpy(source.normal(len(row))).to(row.device)
            row.add_(noise, alpha=config.noise_multiplier * config.clip_norm)
        # The divisor is the public number, since the number of drawn records is private.
        optimizer.step(values, flat(noised.div_(config.expected_batch).float()))


def _drawn(records: Records, config: DPSGD, source: Source) -> Records:
    """Draw the records of one step."""
    x, y = records
    chosen = poisson(len(x), config.sampling_rate, source).to(x.device)
    return x[chosen], y[chosen]


def poisson(n: int, rate: float, source: Source) -> Tensor:
    """The positions of a step's records: each of n with probability floor(q 2^64) / 2^64, independently."""
    # A separate stream, since otherwise the start of the noise in the stream would depend on n.
    words = Source(SecretKey(source.words(4).tobytes())).words(n)
    drawn = words < np.uint64(int(rate * 2**64)) if rate < 1 else np.ones(n, np.bool_)
    return torch.from_numpy(np.flatnonzero(drawn))
