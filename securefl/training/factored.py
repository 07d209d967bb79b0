"""A dense layer's weights in the first steps of training, as one broadcast and products of few rows."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from securefl.training.products import product

_LEAST: Final = 2**16
"""The least number of weights of a layer that is kept as a product."""


class Factored:
    """The weights of the first layer in the first steps of plain SGD from one broadcast, as a product.

    After t steps the weights of slot k are the broadcast W (high, wide) minus products of slopes and inputs.
    Both have few rows, so neither the weights of the slots nor their gradients are written:

        W_k = W - sum_s rate slope_s[k]^T x_s[k]
        x W_k^T = x W^T - sum_s (x x_s[k]^T) (rate slope_s[k])

    One product of W serves all slots and steps, and its kernel is fast at many rows. A client whose records
    exceed 1e19 diverges here, since x x_s[k]^T overflows.

    x: the inputs of these steps, (slots, steps * rows, wide), step after step.
    """

    def __init__(self, start: Tensor, x: Tensor, rows: int) -> None:
        self._start, self._x, self._rows = start, x, rows
        self._products = product(x.flatten(0, 1), start).view(*x.shape[:2], -1)
        self._moved = torch.empty_like(self._products)
        self._done = 0

    @property
    def full(self) -> bool:
        """Whether these steps are done, so that the weights are to be written."""
        return self._done == self._x.shape[1]

    def forward(self, bias: Tensor) -> Tensor:
        """The products of the next step, (slots, rows, high), as by `Layer.forward`. bias: (slots, high)."""
        done, here = self._done, slice(self._done, self._done + self._rows)
        found = self._products[:, here] + bias[:, None]
        if done:
            alike = torch.bmm(self._x[:, here], self._x[:, :done].transpose(1, 2))
            found.baddbmm_(alike, self._moved[:, :done])
        return found

    def step(self, slope: Tensor, rate: float) -> None:
        """Take a step. slope: of the products, (slots, rows, high)."""
        torch.mul(slope, -rate, out=self._moved[:, self._done : self._done + self._rows])
        self._done += self._rows

    def change(self, slot: int) -> Tensor:
        """The weights of a slot minus the broadcast, (high, wide)."""
        return product(self._moved[slot, : self._done].t(), self._x[slot, : self._done].t())

    def weights(self, slot: int) -> Tensor:
        """The weights of a slot, (high, wide)."""
        return self.change(slot).add_(self._start)

    def write(self, to: Tensor) -> None:
        """Write the weights of all slots, (slots, high, wide)."""
        moved, x = self._moved[:, : self._done], self._x[:, : self._done]
        torch.baddbmm(self._start.expand_as(to), moved.transpose(1, 2), x, out=to)


def steps_factored(rows: int, outputs: int, inputs: int) -> int:
    """The number of steps, from 0, in which `Factored` takes less time and memory than the weights would.

    rows: of a step. outputs, inputs: of the layer. What is kept has fewer numbers than the weights, and a
    product with it takes less work. In small layers, calls take longer than the work.

    >>> from securefl.training.factored import steps_factored
    >>> steps_factored(32, 64, 784), steps_factored(32, 200, 784), steps_factored(1024, 200, 784)
    (0, 5, 0)
    """
    if outputs * inputs < _LEAST:
        return 0
    return min(1 + outputs * inputs // ((outputs + inputs) * rows), inputs // rows)
