"""Gradients record by record, clipped and summed in one backward pass.

Only gradients with respect to the layers' outputs are propagated. With a layer's input they give each
record's gradient of its parameters; for a dense layer that is an outer product, whose norm needs no product
(Goodfellow, arXiv 1510.01799), and the clipped sum of them is one matrix product (the book-keeping of Bu et
al., ICML 2023). Other layers' gradients per record come from a sampler, which is Opacus'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.functional import cross_entropy, mse_loss

from securefl.errors import ConfigError
from securefl.training.losses import Loss

Sampler = Callable[[nn.Module, Tensor, Tensor], dict[nn.Parameter, Tensor]]
"""(layer, input (n, ...), gradient of its output (n, ...)) -> gradients (n, *shape) of its parameters."""

SLACK: Final = 1e-5
"""Norms are clipped to (1 - SLACK) C: a float32 norm is off by less, so that C itself is never exceeded."""
_AT_ONCE: Final = 128


@dataclass(frozen=True)
class _Use:
    """A call of a layer: its input, and the place of its output in the graph, before anything in place."""

    layer: nn.Module
    input: Tensor
    version: int
    output: GradientEdge

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.layer.parameters() if parameter.requires_grad]

    def checked_input(self, records: int) -> Tensor:
        if len(self.input) != records or self.input._version != self.version:
            raise ConfigError(
                f"Expected layer {self.layer} to take one row a record ({records}) that nothing changes in "
                f"place, its input has {len(self.input)} rows; train it without record-level privacy, or "
                "freeze it."
            )
        return self.input


@dataclass(frozen=True)
class _Dense:
    """Records' gradients of a dense layer, as factors: slope (n, outputs) and input (n, inputs)."""

    layer: nn.Linear
    input: Tensor
    slope: Tensor

    def squares(self) -> Tensor:
        """Squared norms (n,)."""
        factor = torch.full((), float(_trains(self.layer.bias)))
        if self.layer.weight.requires_grad:
            factor = factor + self.input.square().sum(1)
        return self.slope.square().sum(1) * factor

    def add(self, scale: Tensor, sums: dict[Tensor, Tensor]) -> None:
        scaled = self.slope * scale[:, None]
        if self.layer.weight.requires_grad:
            sums[self.layer.weight].addmm_(scaled.T, self.input)
        if _trains(self.layer.bias):
            sums[self.layer.bias].add_(scaled.sum(0))


@dataclass(frozen=True)
class _Explicit:
    """Records' gradients (n, *shape) of one parameter."""

    parameter: nn.Parameter
    gradients: Tensor

    def squares(self) -> Tensor:
        """Squared norms (n,)."""
        norms: Tensor = torch.linalg.vector_norm(self.gradients.flatten(1), dim=1)
        return norms.square()

    def add(self, scale: Tensor, sums: dict[Tensor, Tensor]) -> None:
        sums[self.parameter].view(-1).addmv_(self.gradients.flatten(1).T, scale)


def _trains(parameter: Tensor | None) -> bool:
    return parameter is not None and parameter.requires_grad


class ClippedSum:
    """(x, y) -> the sum over records of min(1, C / |g|) g, flat (d,), in the order of `trained`.

    Made by `clipped_sums`. A record whose loss, or whose gradient's norm, is not finite contributes exactly
    nothing: the sum is bit by bit the one without it.
    """

    def __init__(
        self,
        model: nn.Module,
        trained: Sequence[nn.Parameter],
        clip_norm: float,
        loss: Loss,
        sampler: Sampler,
    ) -> None:
        self._model, self._trained, self._loss, self._sampler = model, trained, loss, sampler
        self._bound = clip_norm * (1 - SLACK)
        self.uses: list[_Use] = []

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """x: (n, *shape), y: (n,) or (n, targets); n = 0 is fine."""
        total = torch.zeros(sum(parameter.numel() for parameter in self._trained))
        parts = torch.split(total, [parameter.numel() for parameter in self._trained])
        sums: dict[Tensor, Tensor] = {
            p: part.view_as(p) for p, part in zip(self._trained, parts, strict=True)
        }
        usable = [
            self._add(batch, wanted, sums)
            for batch, wanted in zip(torch.split(x, _AT_ONCE), torch.split(y, _AT_ONCE), strict=True)
            if len(batch)
        ]
        if all(bool(part.all()) for part in usable):
            return total
        # zeroing them is not enough: the other records' last bits depend on how many share a product
        kept = torch.cat(usable)
        return self(x[kept], y[kept])

    def _add(self, x: Tensor, y: Tensor, sums: dict[Tensor, Tensor]) -> Tensor:
        """Add the records' clipped gradients; says which of them were usable, (n,) bool."""
        self.uses.clear()
        losses = _losses(self._model(x), y, self._loss)
        edges = [use.output for use in self.uses]
        slopes = torch.autograd.grad(losses.sum(), edges, allow_unused=True) if edges else ()
        with torch.no_grad():
            parts = self._parts(slopes, len(x))
            if not parts:
                raise ConfigError("Expected the loss to depend on a trained layer's output, on none it does.")
            norms = torch.stack([part.squares() for part in parts]).sum(0).sqrt()
            scale = (self._bound / norms).clamp_(max=1)
            for part in parts:
                part.add(scale, sums)
            return torch.isfinite(norms) & torch.isfinite(losses)

    def _parts(self, slopes: Sequence[Tensor | None], records: int) -> list[_Dense | _Explicit]:
        """A parameter's gradients must be one part, so that its uses add up before the norm is taken."""
        times = Counter(parameter for use in self.uses for parameter in use.parameters())
        dense, explicit = list[_Dense](), dict[nn.Parameter, Tensor]()
        for use, slope in zip(self.uses, slopes, strict=True):
            taken = use.checked_input(records)
            if slope is None:  # the loss does not depend on it
                continue
            alone = all(times[parameter] == 1 for parameter in use.parameters())
            if type(use.layer) is nn.Linear and taken.ndim == 2 and alone:
                dense.append(_Dense(use.layer, taken, slope))
                continue
            for parameter, found in self._sampler(use.layer, taken, slope).items():
                if parameter.requires_grad:
                    explicit[parameter] = explicit[parameter] + found if parameter in explicit else found
        return [*dense, *(_Explicit(parameter, found) for parameter, found in explicit.items())]


def _losses(outputs: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """Each record's loss (n,); a label that the model has no output for makes it nan."""
    match loss:
        case "cross_entropy":
            known = (y >= 0) & (y < outputs.shape[1])
            losses = cross_entropy(outputs, torch.where(known, y, 0), reduction="none")
            return torch.where(known, losses, torch.nan)
        case "mse":
            return mse_loss(outputs, y, reduction="none").mean(1)


@contextmanager
def clipped_sums(
    model: nn.Module,
    layers: Sequence[nn.Module],
    trained: Sequence[nn.Parameter],
    clip_norm: float,
    loss: Loss,
    sampler: Sampler,
) -> Iterator[ClippedSum]:
    """A `ClippedSum` that watches `layers`, which hold all of `trained`; nothing is left on the model."""
    made = ClippedSum(model, trained, clip_norm, loss, sampler)

    def note(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or not isinstance(output, Tensor):
            raise ConfigError(
                f"Expected layer {layer} to take one tensor and return one; freeze it, or train without "
                "record-level privacy."
            )
        taken = inputs[0].detach()
        made.uses.append(_Use(layer, taken, taken._version, get_gradient_edge(output)))

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield made
    finally:
        for handle in handles:
            handle.remove()
