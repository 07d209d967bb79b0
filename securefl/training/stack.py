"""Several dense models of one shape side by side, so that one matrix product computes a layer of all of them.

Models are stacks of dense layers with ReLU between them (`models.MLP`). Slot k of every tensor belongs to
model k: its records, parameters and slopes. No value of one slot depends on another slot.

    (slots, rows, inputs) x (slots, inputs, outputs)  ->  (slots, rows, outputs)

All parameters are in one flat tensor (`Layout`): layer after layer, and in each layer slot after slot.

    [weights of layer 1, slot 0 | slot 1 | ...] [biases of layer 1, slot 0 | ...] [weights of layer 2, ...

One product then covers all slots, and an optimizer updates all of them in one operation. Zeros follow the
outputs and inputs of a layer, so that all rows of a product begin at the same alignment (`products`). Their
activations and slopes are zero, so they stay zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from securefl.algorithm.queries import Float32s
from securefl.training.heads import Differentiable, ShiftedLinear
from securefl.training.local import Pull
from securefl.training.losses import Loss
from securefl.training.models import MLP
from securefl.training.products import narrow, widened, widened_by


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The computation after the last hidden layer.

    activation: a function of the head's input. penalty: added to each record's loss. under_head: the
    number of layers, from the last, that are not trained.
    """

    loss: Loss
    activation: Differentiable | None = None
    penalty: Pull | None = None
    under_head: int = 0


@dataclass(frozen=True)
class Back:
    """The results of one backward pass: each record's loss, and the input and slope of every trained layer.

    losses: (slots, rows). layers: pairs of input (slots, rows, inputs) and slope (slots, rows, outputs), the
    gradient of the weighted losses with respect to the layer's output. Both are `widened`.
    """

    losses: Tensor
    layers: Sequence[tuple[Tensor, Tensor]]


class Stack:
    """Models with these vectors (d,) in the first slots. No result of further slots counts.

    values: all trained parameters in the layout `layout`. An optimizer updates them.
    """

    def __init__(self, model: MLP, vectors: Sequence[Float32s], tail: Tail, *, slots: int) -> None:
        self._tail, self.slots = tail, slots
        dense = [layer for layer in model.children() if isinstance(layer, nn.Linear)]
        sizes = tuple((layer.out_features, layer.in_features) for layer in dense)
        self._shifted = isinstance(dense[-1], ShiftedLinear)
        if self._shifted:
            sizes += ((dense[-1].in_features, 0),)
        self.layout, whole = Layout(slots, sizes[: len(sizes) - tail.under_head]), Layout(slots, sizes)
        placed = whole.place(vectors)
        self._layers, self.values = whole.layers(placed), placed[: self.layout.length]
        # As arrays, since torch takes longer to make views than to copy such short vectors.
        self._arrays: list[NDArray[np.float32]] = [
            part.numpy() for layer in self._layers for part in layer.parts()
        ]
        self._masks: Sequence[Tensor] = ()
        self._gradient: tuple[Tensor, list[Layer]] | None = None

    def finite(self) -> Tensor:
        """A mask of the slots whose values are all finite, (slots,)."""
        # If the sum is finite, all values are. It takes a fortieth of the time.
        if torch.isfinite(self.values.sum()):
            return torch.ones(self.slots, dtype=torch.bool)
        return torch.isfinite(self.layout.rows(self.values)).all(1)

    def known(self, y: Tensor) -> Tensor:
        """A mask of the targets for which the models have an output, (slots, rows)."""
        if self._tail.loss != "cross_entropy":
            return torch.ones(y.shape[:2], dtype=torch.bool)
        return (y >= 0) & (y < self._layers[-1 - self._shifted].outputs)

    def vector(self, slot: int) -> Float32s:
        """A copy of this slot's whole model (d,)."""
        return np.concatenate([part[slot].ravel() for part in self._arrays])

    def multiply(self, masks: Sequence[Tensor]) -> None:
        """Multiply the units of each hidden layer, behind its ReLU, by these of the first slots, from now on.

        masks: (slots, units) of each hidden layer, not negative. Further slots pass nothing.
        """
        if not self._masks:
            self._masks = [
                layer.bias.new_zeros(self.slots, 1, layer.bias.shape[1]) for layer in self._layers[:-1]
            ]
        for own, mask in zip(self._masks, masks, strict=True):
            own[: len(mask), 0, : mask.shape[1]] = mask

    def descend(self, back: Back, rate: float) -> None:
        """One step of plain SGD, w <- w - rate * gradient, of all slots."""
        for (given, slope), layer in zip(back.layers, self._layers, strict=False):
            # One operation, since separate gradients would be written and read once more.
            layer.weight.baddbmm_(slope.transpose(1, 2), given, alpha=-rate)
            layer.bias.sub_(slope.sum(1), alpha=rate)

    def gradient(self, back: Back) -> Tensor:
        """The gradients of all slots in the layout of `values`. The next call overwrites them."""
        if self._gradient is None:
            made = torch.zeros_like(self.values)
            self._gradient = made, self.layout.layers(made)
        made, layers = self._gradient
        for (given, slope), layer in zip(back.layers, layers, strict=True):
            torch.bmm(slope.transpose(1, 2), given, out=layer.weight)
            torch.sum(slope, 1, out=layer.bias)
        return made

    def features(self, x: Tensor, layers: int = 1) -> Tensor:
        """The input of the head (slots, rows, values), from records (slots, rows, width), `widened`.

        layers: the number of layers, from the last, that are the head.
        """
        head = len(self._layers) - self._shifted - layers
        for layer in self._layers[:head]:
            x = layer.forward(x).relu_()
        return narrow(x, self._layers[head].inputs)

    def back(self, x: Tensor, y: Tensor, weights: Tensor, there: Tensor | None = None) -> Back:
        """Compute a forward and a backward pass of all slots.

        Args:
            x: (slots, rows, width), `widened`.
            y: (slots, rows) labels, or (slots, rows, targets).
            weights: (slots, rows), the weights of the records' losses in the minimised sum.
            there: (slots, rows, 1), 1 for a row with a record. It is 0 for the other rows, where x, y and the
                weight must be 0 too. Their factors are 0, and their losses finite unless the slot diverged.
                None if all rows have records.
        """
        *hidden, head = self._layers[: len(self._layers) - self._shifted]
        inputs = [x]
        for at, layer in enumerate(hidden):
            body = layer.forward(inputs[-1]).relu_()
            if self._masks:
                body.mul_(self._masks[at])
            # Set rows without a record to zero in every layer. Otherwise they could overflow, and zero times
            # infinity is nan. Before that they equal the biases, which are finite unless the slot diverged.
            inputs.append(body if there is None else body.mul_(there))
        body = narrow(inputs[-1], head.inputs)
        given, activation = inputs[-1], self._tail.activation
        if activation is not None:
            given = widened(_where(there, activation(body.flatten(0, 1)).view_as(body)))
        read = narrow(given, head.inputs)
        if self._shifted:
            given = given + self._layers[-1].bias[:, None]
        losses, slope = _LOSSES[self._tail.loss](narrow(head.forward(given), head.outputs), y, weights)
        slope = widened(slope)
        layers = [(given, slope)]
        if hidden or self._shifted:
            slope = head.back(slope)
        if self._shifted:
            layers.insert(0, (given[..., :0], slope))
        if hidden:
            if self._tail.penalty is not None:
                extra, slopes = self._tail.penalty(read, y, weights)
                slope, losses = slope + widened(slopes), losses + extra
            if activation is not None:
                slopes = narrow(slope, head.inputs).flatten(0, 1)
                slope = widened(activation.back(body.flatten(0, 1), slopes).view_as(body))
        for at in range(len(hidden) - 1, -1, -1):
            if self._masks:
                slope = slope * self._masks[at]
            slope = torch.ops.aten.threshold_backward(slope, inputs[at + 1], 0)  # that of ReLU
            layers.append((inputs[at], slope))
            if at:
                slope = hidden[at].back(slope)
        return Back(losses, layers[self._tail.under_head :][::-1])


def _where(there: Tensor | None, of: Tensor) -> Tensor:
    """(slots, rows, values), with zeros in rows without a record."""
    return of if there is None else of.masked_fill(there == 0, 0.0)  # nan too


def _cross_entropy(outputs: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The losses (slots, rows), and the slope of the weighted losses."""
    # `log_softmax` takes more than twice the time for such short rows.
    slope, label = outputs - outputs.amax(2, keepdim=True), y[:, :, None]
    own = slope.gather(2, label)
    whole = slope.exp_().sum(2, keepdim=True)
    slope.div_(whole).scatter_add_(2, label, torch.full_like(own, -1.0)).mul_(weights[:, :, None])
    return (whole.log_() - own)[:, :, 0], slope


def _mse(outputs: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The losses (slots, rows), and the slope of the weighted losses."""
    # A row without a record has weight 0 and no loss: the square of the head's bias may be infinite.
    slope, each = (outputs - y).mul_((weights > 0)[:, :, None]), 1 / y.shape[2]
    losses = slope.square().sum(2).mul_(each)  # `mean` takes twice the time for such short rows
    return losses, slope.mul_(weights[:, :, None] * (2 * each))


def _binary(outputs: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The losses (slots, rows), and the slope of the weighted losses."""
    each = 1 / y.shape[2]
    losses = binary_cross_entropy_with_logits(outputs, y, reduction="none").sum(2).mul_(each)
    return losses, outputs.sigmoid().sub_(y).mul_(weights[:, :, None] * each)


_LOSSES = {"cross_entropy": _cross_entropy, "mse": _mse, "binary_cross_entropy": _binary}


# One flat tensor -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layer:
    """A dense layer of all models: weight (slots, high, wide), bias (slots, high), with the added zeros.

    outputs, inputs: their numbers without the zeros.
    """

    weight: Tensor
    bias: Tensor
    outputs: int
    inputs: int

    def forward(self, x: Tensor) -> Tensor:
        """(slots, rows, wide) -> (slots, rows, high)."""
        return torch.baddbmm(self.bias[:, None], x, self.weight.transpose(1, 2))

    def back(self, slope: Tensor) -> Tensor:
        """The slope of the inputs, from the slope of the outputs."""
        return torch.bmm(slope, self.weight)

    def parts(self) -> list[Tensor]:
        """The weights and biases of all slots without the zeros, in the model's order."""
        return [self.weight[:, : self.outputs, : self.inputs], self.bias[:, : self.outputs]]


@dataclass(frozen=True)
class Layout:
    """The positions of the layers in the flat tensor. sizes: (outputs, inputs) of each layer."""

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
        """A flat tensor with these models (d,) in the first slots, and zeros in the others: undoes `rows`."""
        made, at = torch.empty(self.length), 0
        for layer, size in zip(self.layers(made), self.sizes, strict=True):
            if len(vectors) < self.slots or size != _even(size):
                layer.weight.zero_()
                layer.bias.zero_()
            for part in layer.parts():
                end = at + part[0].numel()
                for own, vector in zip(part.numpy(), vectors, strict=False):
                    own[...] = vector[at:end].reshape(own.shape)
                at = end
        return made

    def rows(self, of: Tensor) -> Tensor:
        """A copy of all slots' models in the order of `to_vector`, (slots, d), from a flat tensor."""
        parts = (part for layer in self.layers(of) for part in layer.parts())
        return torch.cat([part.flatten(1) for part in parts], 1)


def _even(size: tuple[int, int]) -> tuple[int, int]:
    """The numbers of outputs and inputs with the added zeros."""
    outputs, inputs = size
    return outputs + widened_by(outputs), inputs + widened_by(inputs)
