"""Per-record gradients, clipped and summed chunk by chunk.

Batches are computed in chunks of a fixed number of rows (`chunks`), so a record's clipped gradient has the
same bits in every batch. Norms, products and sums are in float64 (`clipped`). The error of a sum is 1e-16 of
it for each record, so one more record moves it by its own gradient.

`dpsgd` computes the gradients of models of listed layers, `isolation` those of all other models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from securefl.training.clipped import clip
from securefl.training.devices import one_thread
from securefl.training.draws import DrawCount, RecordRandomness
from securefl.training.isolation import without_raising
from securefl.training.products import padded

Part = tuple[Sequence[Tensor | None], Any]
"""The records' gradient of weight and bias of a dense layer, an `Outer`, or of one parameter, a `Whole`."""
Gradients = Callable[[Tensor, Tensor, RecordRandomness | None], tuple[Sequence[Part], Tensor]]
"""(inputs, targets, random values) of a chunk -> its rows' gradients and losses (rows,)."""


@dataclass(frozen=True)
class ClippedSum:
    """(x, y) -> the sum over records of min(1, C / |g|) g, flat (d,) float64, in the order of `trained`.

    A record counts as zero if the model raises an error for it, or if its loss or gradient norm is not
    finite.

    rows: the rows of a chunk. length: the number of random values that a record's pass draws.
    """

    gradients: Gradients
    trained: Sequence[nn.Parameter]
    clip_norm: float
    rows: int
    length: DrawCount

    def __call__(self, x: Tensor, y: Tensor, tape: RecordRandomness | None = None) -> Tensor:
        """x: (n, *shape), y: (n,) or (n, targets), n >= 0. tape: None if the model draws nothing."""
        lengths = [parameter.numel() for parameter in self.trained]
        total = torch.zeros(sum(lengths), dtype=torch.float64, device=x.device)
        parts = zip(self.trained, torch.split(total, lengths), strict=True)
        sums = {parameter: part.view_as(parameter) for parameter, part in parts}
        with one_thread():
            for at in range(0, len(x), self.rows):
                chunk = slice(at, at + self.rows)
                self._add(x[chunk], y[chunk], None if tape is None else tape[chunk], sums)
        return total

    def _add(self, x: Tensor, y: Tensor, tape: RecordRandomness | None, sums: Mapping[Any, Tensor]) -> None:
        """Add the clipped gradients of one chunk's records to the sums of trained parameters."""

        def compute(*columns: Tensor) -> tuple[Sequence[Part], Tensor]:
            x, y, *drawn = (padded(column, self.rows) for column in columns)
            return self.gradients(x, y, RecordRandomness(*drawn) if drawn else None)

        drawn = () if tape is None else (tape.uniform, tape.normal)
        (parts, losses), bad = without_raising(compute, (x, y, *drawn))
        with torch.no_grad():
            held, losses = [own.first(len(x)) for _, own in parts], losses[: len(x)].clone()
            if bad:
                losses[bad] = torch.nan
            scale = clip(held, losses, self.clip_norm)
            for (parameters, _), own in zip(parts, held, strict=True):
                own.add(scale, *map(sums.get, parameters))
