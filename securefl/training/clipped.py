"""Clipping of per-record gradients: the numbers whose norm is taken are the numbers that are added.

The server chooses weights, and so the magnitude of activations and slopes. In float32 their squares can
vanish or overflow while their products do not: a slope of 1e-24 at an activation of 1e19 would pass with a
norm of 0. So gradients are float32 (`wide`), and then everything is float64: squares, norms, scales and
products. Every number that occurs lies between 1e-250 and 1e250, and float64 keeps it to 2^-53 of itself.

A caller may have set torch to flush denormals to zero. Those of float32 are then zeros from `wide` on, for
the norm and for the sum. No denormals of float64 occur.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

SLACK: Final = 1e-5
"""Norms are clipped to (1 - SLACK) C, for the rounding of sums in float64.

A sum of n clipped gradients has errors of n additions, each of at most 2^-53 n C. One more record changes
all of them, by at most 2 n^2 2^-53 C: less than SLACK C for 200,000 records of a step. A norm's own error is
below 1e-9.
"""
_ENTRIES: Final = 2**14
"""The entries of each record's gradient that are held in float64 at a time: 8 MB of 64 records."""


def wide(of: Tensor) -> Tensor:
    """These values in float64, rounded to float32 before if they are of another type."""
    return of.float().double()


@dataclass(frozen=True)
class Outer:
    """Each record's gradient of a dense layer as factors: slope (..., outputs) and input (..., inputs).

    Both are `wide`. `of` makes them. weight, bias: whether each is trained.
    """

    input: Tensor
    slope: Tensor
    weight: bool = True
    bias: bool = True

    @classmethod
    def of(cls, given: Tensor, slope: Tensor, *trained: bool) -> Outer:
        return cls(wide(given), wide(slope), *trained)

    def squares(self) -> Tensor:
        """Squared norms (...,)."""
        # |slope x input|^2 = |slope|^2 |input|^2. A bias counts as one more input that is always 1.
        factor = _squares(self.input) + float(self.bias) if self.weight else float(self.bias)
        return _squares(self.slope) * factor

    def first(self, count: int) -> Outer:
        """The gradients of the first records."""
        return replace(self, input=self.input[:count], slope=self.slope[:count])

    def drop(self, at: Tensor) -> None:
        """Set the gradients of the records in a mask to zero: nan, times a scale of zero, would be nan."""
        self.input[at], self.slope[at] = 0, 0

    def scaled(self, scale: Tensor) -> Outer:
        """The gradients times `scale` (...,)."""
        return Outer(self.input, self.slope * scale[..., None])

    def add(self, scale: Tensor, *totals: Tensor | None) -> None:
        """Add the gradients times `scale` to those of weight and bias, where there are any."""
        (weight, bias), clipped = totals, self.scaled(scale)
        if weight is not None:
            weight.addmm_(clipped.slope.T, clipped.input)
        if bias is not None:
            bias.add_(clipped.slope.sum(0))


@dataclass(frozen=True)
class Whole:
    """Each record's gradient of one parameter: (rows, *shape)."""

    gradients: Tensor

    def first(self, count: int) -> Whole:
        """The gradients of the first records."""
        return Whole(self.gradients[:count])

    def drop(self, at: Tensor) -> None:
        """As of `Outer`."""
        self.gradients[at] = 0

    def squares(self) -> Tensor:
        """Squared norms (rows,)."""
        found = self.gradients.new_zeros(len(self.gradients), dtype=torch.float64)
        for _, block in self._blocks():
            found += _squares(block)
        return found

    def add(self, scale: Tensor, total: Tensor) -> None:
        """Add the gradients times `scale` to `total`, float64."""
        for at, block in self._blocks():
            total.view(-1)[at : at + block.shape[1]].addmv_(block.T, scale)

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Some entries of all rows at a time, `wide`. All entries in float64 would be large.

        How many does not depend on the rows: a record's norm has the same bits in every batch.
        """
        flat = self.gradients[:, None].flatten(1).float()  # a parameter may have no dimension
        held = flat.new_empty((len(flat), min(_ENTRIES, flat.shape[1])), dtype=torch.float64)
        for at in range(0, flat.shape[1], _ENTRIES):
            part = flat[:, at : at + _ENTRIES]
            yield at, held[:, : part.shape[1]].copy_(part)


def _squares(of: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(of, dim=-1)
    return norms.square()


def clip(parts: Sequence[Outer | Whole], losses: Tensor, clip_norm: float) -> Tensor:
    """Compute the factors that clip records to `clip_norm`. The gradients of unusable records become zero.

    Args:
        parts: the parts of the records' gradients.
        losses: the records' losses (...,). A record is unusable if its loss or norm is not finite.
        clip_norm: C, from 1e-30 to 1e30 (`DPSGD`). Beyond, products of C and gradients could leave the
            range of float64.

    Returns:
        The factors (...,), at most 1, and 0 for an unusable record.

    Raises nothing.
    """
    norms = torch.stack([part.squares() for part in parts]).sum(0).sqrt()
    scale = (clip_norm * (1 - SLACK) / norms).clamp_(max=1)
    if not (usable := torch.isfinite(norms) & torch.isfinite(losses)).all():
        for part in parts:
            part.drop(~usable)
        scale[~usable] = 0
    return scale
