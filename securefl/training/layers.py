"""Where several models' dense layers stand in one flat tensor: layer after layer, each layer slot after slot.

    [weights of layer 1, slot 0 | slot 1 | ...] [biases of layer 1, slot 0 | ...] [weights of layer 2, ...

A product over all slots is then taken at once, and an optimizer moves all of them in one operation. Zeros
stand behind the outputs and inputs of a layer, so that all rows of a product begin at the same alignment
(`products`). What flows through them is zero, their slopes are, and so they stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from securefl.rounds import Float32s
from securefl.training.products import widened_by
from securefl.training.tensors import as_tensor


@dataclass(frozen=True, eq=False)
class Layer:
    """A dense layer of all models: weight (slots, high, wide), bias (slots, high), with the zeros.

    outputs, inputs: how many there are without the zeros.
    """

    weight: Tensor
    bias: Tensor
    outputs: int
    inputs: int

    def forward(self, x: Tensor) -> Tensor:
        """(slots, rows, wide) -> (slots, rows, high)."""
        return torch.baddbmm(self.bias[:, None], x, self.weight.transpose(1, 2))

    def back(self, slope: Tensor) -> Tensor:
        """The slope of the inputs, from that of the outputs."""
        return torch.bmm(slope, self.weight)

    def parts(self, slots: slice) -> list[Tensor]:
        """These slots' weights and biases without the zeros, in the model's order."""
        return [self.weight[slots, : self.outputs, : self.inputs], self.bias[slots, : self.outputs]]


@dataclass(frozen=True)
class Layout:
    """Where the layers stand. sizes: (outputs, inputs) of each layer."""

    slots: int
    sizes: tuple[tuple[int, int], ...]

    @property
    def length(self) -> int:
        """The length of the flat tensor."""
        return sum(self.slots * high * (wide + 1) for high, wide in map(_even, self.sizes))

    def layers(self, of: Tensor) -> list[Layer]:
        """The layers in a flat tensor, as views."""
        made, at = [], 0
        for size in self.sizes:
            high, wide = _even(size)
            middle, end = at + self.slots * high * wide, at + self.slots * high * (wide + 1)
            weight, bias = of[at:middle].view(self.slots, high, wide), of[middle:end].view(self.slots, high)
            made.append(Layer(weight, bias, *size))
            at = end
        return made

    def place(self, vectors: Sequence[Float32s]) -> Tensor:
        """Models (d,) in the first slots of a flat tensor, and zeros in the others."""
        made = torch.empty(self.length)
        layers = self.layers(made)
        for layer, size in zip(layers, self.sizes, strict=True):
            first = len(vectors) if size == _even(size) else 0
            layer.weight[first:] = 0
            layer.bias[first:] = 0
        # Mostly all are views of one broadcast, which is read-only: a tensor of it is a copy.
        memories = {(vector.__array_interface__["data"][0], vector.strides) for vector in vectors}
        alike = len(memories) == 1
        for slot, vector in enumerate(islice(vectors, 1 if alike else None)):
            slots = slice(0, len(vectors)) if alike else slice(slot, slot + 1)
            parts = [part for layer in layers for part in layer.parts(slots)]
            for part, own in zip(parts, _cut(as_tensor(vector), parts), strict=True):
                part.copy_(own.view(part.shape[1:]))
        return made

    def rows(self, of: Tensor, slots: slice = slice(None)) -> Tensor:
        """These slots' models in their own order, (slots, d), from a flat tensor. It is a copy."""
        parts = (part for layer in self.layers(of) for part in layer.parts(slots))
        return torch.cat([part.flatten(1) for part in parts], 1)

    def flat(self, rows: Tensor) -> Tensor:
        """Back from the `rows` of all slots."""
        made = rows.new_zeros(self.length)
        parts = [part for layer in self.layers(made) for part in layer.parts(slice(None))]
        for part, own in zip(parts, _cut(rows, parts), strict=True):
            part.copy_(own.view(part.shape))
        return made


def _even(size: tuple[int, int]) -> tuple[int, int]:
    """Outputs and inputs with the zeros behind them."""
    outputs, inputs = size
    return outputs + widened_by(outputs), inputs + widened_by(inputs)


def _cut(of: Tensor, parts: Sequence[Tensor]) -> Sequence[Tensor]:
    """A model's values (..., d) in pieces as long as one slot's of these parts."""
    return torch.split(of, [part[0].numel() for part in parts], dim=-1)
