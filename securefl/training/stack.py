"""Several models of one shape side by side, so that one product computes a layer of all of them.

Models are stacks of dense layers with ReLU between them (`models.MLP`). Slot k of every tensor is model k's:
its records, its parameters, its slopes. Nothing flows between slots.

    (slots, rows, inputs) x (slots, inputs, outputs)  ->  (slots, rows, outputs)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from securefl.rounds import Float32s
from securefl.training.fit import Fit
from securefl.training.heads import Activation
from securefl.training.local import Penalty
from securefl.training.losses import Loss
from securefl.training.models import MLP
from securefl.training.tensors import as_tensor

Product = Callable[..., Tensor]
"""(x (slots, rows, inputs), weight (slots, outputs, inputs), bias or none) -> (slots, rows, outputs)."""
_LINE = 16
"""Floats in 64 bytes. Slots begin at multiples of it, since kernels may change with alignment."""


def stackable(model: nn.Module) -> bool:
    """Whether models like this one can stand side by side: dense layers with ReLU between, all trained.

    Other models may keep state between batches, which slots would share. Convolutions gain nothing on a CPU.
    """
    return type(model) is MLP and all(parameter.requires_grad for parameter in model.parameters())


@dataclass(frozen=True, kw_only=True)
class Tail:
    """What comes behind the last hidden layer.

    activation: what the head's input passes first. penalty: joins each record's loss. under_head: whether the
    head stays as it is.
    """

    loss: Loss
    activation: Activation | None = None
    penalty: Penalty | None = None
    under_head: bool = False


def tail_of(fit: Fit) -> Tail:
    """The tail of this training. A penalty is none of private training's."""
    return Tail(
        loss=fit.problem.loss,
        activation=fit.activation,
        penalty=fit.penalty if fit.problem.private is None else None,
        under_head=fit.under_head,
    )


@dataclass(frozen=True)
class Back:
    """One backward pass: each record's loss, and for every trained layer its input and its slope.

    losses: (slots, rows). layers: pairs of input (slots, rows, inputs) and slope (slots, rows, outputs), the
    gradient of the weighted losses with respect to the layer's output.
    """

    losses: Tensor
    layers: Sequence[tuple[Tensor, Tensor]]


class Stack:
    """Models with these vectors (d,) in the first slots; further slots hold zeros.

    values: their trained parameters, (slots, trained), a view that an optimizer moves. product: how a layer
    is computed, `stacked` where no record's result may depend on its place.
    """

    def __init__(
        self,
        model: MLP,
        vectors: Sequence[Float32s],
        tail: Tail,
        *,
        slots: int,
        product: Product | None = None,
    ) -> None:
        self._tail = tail
        self._product = product or _dense
        dense = [layer for layer in model.children() if isinstance(layer, nn.Linear)]
        sizes = [(layer.out_features, layer.in_features) for layer in dense]
        starts = [0]
        for outputs, inputs in sizes:
            starts.append(starts[-1] + outputs * (inputs + 1))
        self._slots = slots
        self._whole = _aligned(slots, starts[-1], torch.float32)
        self._whole[len(vectors) :] = 0
        read: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        for slot, vector in zip(self._whole, vectors, strict=False):
            # Mostly all are views of one broadcast, which is read-only: a tensor of it is a copy.
            memory = (vector.__array_interface__["data"][0], vector.strides)
            if memory not in read:
                read[memory] = as_tensor(vector)
            slot.copy_(read[memory])
        self._places = list(zip(sizes, pairwise(starts), strict=True))
        self._layers = [_views(self._whole, *place) for place in self._places]
        self._trained = len(dense) - tail.under_head
        self.values = self._whole[:, : starts[self._trained]]
        self._outputs = dense[-1].out_features

    def zeros(self, dtype: torch.dtype) -> Tensor:
        """Zeros in the form of the values, every slot at the same alignment."""
        return _aligned(self._slots, self.values.shape[1], dtype).zero_()

    def finite(self) -> Tensor:
        """Which slots' values are all finite, (slots,)."""
        # A sum is finite only if all of its values are, and takes a fortieth of the time.
        sums = torch.isfinite(self.values.sum(1))
        return sums if sums.all() else torch.isfinite(self.values).all(1)

    def known(self, y: Tensor) -> Tensor:
        """Which targets the models have an output for, (slots, rows)."""
        if self._tail.loss == "mse":
            return torch.ones(y.shape[:2], dtype=torch.bool)
        return (y >= 0) & (y < self._outputs)

    def vector(self, slot: int) -> Float32s:
        """A slot's whole model (d,). It is a view, which holds the memory of all slots."""
        vector: Float32s = self._whole[slot].numpy()
        return vector

    def views(self, of: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Weights (slots, outputs, inputs) and biases (slots, outputs) of the trained layers in `of`."""
        return [_views(of, *place) for place in self._places[: self._trained]]

    def descend(self, back: Back, rate: float) -> None:
        """One step of plain SGD, w <- w - rate * gradient, of all slots."""
        # In one product with the weights: gradients on their own would be written and read once more.
        for (given, slope), (weight, bias) in zip(back.layers, self._layers[: self._trained], strict=True):
            weight.baddbmm_(slope.transpose(1, 2), given, alpha=-rate)
            bias.sub_(slope.sum(1), alpha=rate)

    def back(self, x: Tensor, y: Tensor, weights: Tensor) -> Back:
        """A pass of all slots forward and backward.

        x: (slots, rows, inputs). y: (slots, rows) labels, or (slots, rows, targets). weights: (slots, rows),
        of the records' losses in what is minimised. A row without weight holds no record and is zero in x.
        Its factors and its loss are 0.
        """
        inputs = [x]
        *hidden, (weight, bias) = self._layers
        for w, b in hidden:
            inputs.append(self._product(inputs[-1], w, b).relu_())
        body = inputs[-1]
        features = self._features(body)
        slope, losses = _LOSSES[self._tail.loss](self._product(features.detach(), weight, bias), y, weights)
        layers = [] if self._tail.under_head else [(features.detach(), slope)]
        if hidden:
            slope, extra = self._through(
                body, features, self._product(slope, weight.transpose(1, 2)), y, weights
            )
            losses = losses + extra
        for at in range(len(hidden) - 1, -1, -1):
            slope = torch.ops.aten.threshold_backward(slope, inputs[at + 1], 0)  # that of ReLU
            layers.append((inputs[at], slope))
            if at:
                slope = self._product(slope, hidden[at][0].transpose(1, 2))
        empty = weights == 0
        if empty.any():
            # Set to 0, not multiplied: at a row of zeros a model may overflow, and zero times nan is nan.
            losses = losses.masked_fill(empty, 0)
            kept = (~empty).int().neg_()[:, :, None]
            layers = [
                # the records themselves are zero there already
                (given if given is x else _where(kept, given), _where(kept, slope))
                for given, slope in layers
            ]
        return Back(losses, layers[::-1])

    def _features(self, body: Tensor) -> Tensor:
        """The head's input."""
        activation = self._tail.activation
        if activation is None and self._tail.penalty is None:
            return body
        body.requires_grad_()
        with torch.enable_grad():
            flat = body.flatten(0, 1)
            return (flat if activation is None else activation(flat)).view_as(body)

    def _through(
        self, body: Tensor, features: Tensor, slope: Tensor, y: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """From the slope of the head's input to that of the body's output, and the penalty's losses."""
        if features is body:
            return slope, torch.zeros(())
        extra, parts = torch.zeros(()), [features]
        slopes = [slope]
        if self._tail.penalty is not None:
            with torch.enable_grad():
                extra = self._tail.penalty(features.flatten(0, 1), y.flatten()).view(weights.shape)
            parts.append(extra)
            slopes.append(weights)
        (found,) = torch.autograd.grad(parts, body, slopes)
        body.requires_grad_(False)
        return found, extra.detach()


def _aligned(slots: int, size: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(slots, -(-size // _LINE) * _LINE, dtype=dtype)[:, :size]


def _dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))


def _where(kept: Tensor, of: Tensor) -> Tensor:
    """Zeros but where `kept` has all bits set: (slots, rows, 1) int32, and (slots, rows, values)."""
    # Bit by bit, which is five times faster than `masked_fill` and makes a zero of nan too.
    return of.view(torch.int32).bitwise_and(kept).view(of.dtype)


def _views(of: Tensor, size: tuple[int, int], place: tuple[int, int]) -> tuple[Tensor, Tensor]:
    outputs, inputs = size
    start, end = place
    middle = start + outputs * inputs
    return of[:, start:middle].view(len(of), outputs, inputs), of[:, middle:end]


def _cross_entropy(outputs: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The slope of the weighted losses, and the losses."""
    # `log_softmax` takes more than twice the time for rows as short as these.
    shifted, label = outputs - outputs.amax(2, keepdim=True), y[:, :, None]
    slope = shifted.exp()
    whole = slope.sum(2, keepdim=True)
    slope.div_(whole).scatter_add_(2, label, torch.full(label.shape, -1.0))
    return slope.mul_(weights[:, :, None]), (whole.log_() - shifted.gather(2, label))[:, :, 0]


def _mse(outputs: Tensor, y: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The slope of the weighted losses, and the losses."""
    apart = outputs - y
    losses = apart.square().mean(2)
    return apart.mul_(weights[:, :, None] * (2 / y.shape[2])), losses


_LOSSES = {"cross_entropy": _cross_entropy, "mse": _mse}
