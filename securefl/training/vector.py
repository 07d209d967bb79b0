"""A model as one vector, the form in which a round sums and sends it, and in which an optimizer moves it.

SGD and Adam make the same updates as torch.optim (a test compares them), in a handful of operations whatever
the number of layers. On the GasTurbine MLP, on one thread, a training step takes about 1.3 times less than
with torch's fused optimizers, and up to 1.9 times less than with its others. From LeNet-5 on there is no
difference. An object is the state of one `train`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from securefl.core.errors import DataError
from securefl.training.devices import Hardware, as_tensor, computed, device_of


def size(model: nn.Module) -> int:
    """Length d of the model's vector."""
    return sum(entry.numel() for entry in _entries(model))


def to_vector(model: nn.Module) -> NDArray[np.float32]:
    """A new float32 vector (d,) of all floating entries of the state dict, in its order.

    These are the parameters and the running statistics of batch norm. Integers are left out. Batch norm's
    count of batches is one, and matters only to a norm without a momentum, which own models may not have.
    """
    # batch norm's statistics go along: a model without them would not evaluate as it was trained
    parts = [entry.reshape(-1).to(torch.float32) for entry in _entries(model)]
    vector: NDArray[np.float32] = torch.cat(parts).cpu().numpy() if parts else np.empty(0, np.float32)
    return vector


def load_vector(model: nn.Module, vector: NDArray[Any]) -> None:
    """Write a vector (d,), as `to_vector` makes it, into the model.

    Raises DataError if the length is not the model's. The model is unchanged then.
    """
    entries = _entries(model)
    expected = sum(entry.numel() for entry in entries)
    if vector.shape != (expected,):
        raise DataError(
            f"Expected a vector of shape ({expected},) for this model, got {vector.shape}. "
            "Both sides must build the model from one configuration."
        )
    # moved once, not once an entry
    whole = as_tensor(vector).to(device_of(model))
    parts = torch.split(whole, [entry.numel() for entry in entries])
    for entry, part in zip(entries, parts, strict=True):
        # the entries of a state dict are the model's own tensors, not copies
        entry.copy_(part.view_as(entry))


def _entries(model: nn.Module) -> list[Tensor]:
    return [entry for entry in model.state_dict().values() if entry.is_floating_point()]


@contextmanager
def views_of(values: Tensor, parameters: list[nn.Parameter]) -> Iterator[None]:
    """Let the parameters be views of `values`, so that one update moves them all. Then separate them."""
    vector_to_parameters(values, parameters)
    try:
        yield
    finally:
        # Views would be aligned differently from a model that was loaded, which can change the last bits of
        # what it computes.
        for parameter in parameters:
            parameter.data = parameter.data.clone()


# Values loaded into a module -------------------------------------------------------------------------


def loaded(model: nn.Module, vector: NDArray[np.float32], hardware: Hardware) -> nn.Module:
    """The module with these values (d,), on this hardware. Errors as for `load_vector`."""
    if device_of(model).type != hardware.device.type:
        model.to(hardware.device)  # the run left its GPU
    computed(model, lambda: load_vector(model, vector))
    return model


class Loaded:
    """A module that nobody trains. Equal vectors in a row are loaded once: a wave reads one broadcast."""

    def __init__(self, model: nn.Module, hardware: Hardware) -> None:
        self._model, self._hardware = model, hardware
        self._newest: tuple[Any, ...] | None = None

    def __call__(self, vector: NDArray[np.float32]) -> nn.Module:
        # The values, not the array: somebody may have written to it since.
        asked = vector.shape, vector.dtype, vector.tobytes()
        if asked != self._newest or device_of(self._model).type != self._hardware.device.type:
            self._newest = None
            loaded(self._model, vector, self._hardware)
            self._newest = asked
        return self._model


# What moves it ---------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class SGD:
    """w <- w - rate * v,  v <- momentum * v + g,  starting from v = g."""

    rate: float
    momentum: float
    velocity: Tensor | None = field(default=None, init=False)

    def step(self, values: Tensor, gradient: Tensor) -> None:
        if self.momentum:
            if self.velocity is None:
                self.velocity = gradient.clone()
            else:
                torch.add(gradient, self.velocity, alpha=self.momentum, out=self.velocity)
            gradient = self.velocity
        values.sub_(gradient, alpha=self.rate)


@dataclass(kw_only=True)
class Adam:
    """Kingma and Ba (ICLR 2015), algorithm 1, with betas 0.9 and 0.999 and epsilon 1e-8."""

    rate: float
    steps: int = field(default=0, init=False)
    first: Tensor | None = field(default=None, init=False)
    second: Tensor | None = field(default=None, init=False)

    def step(self, values: Tensor, gradient: Tensor) -> None:
        if self.first is None or self.second is None:
            self.first, self.second = gradient.new_zeros(gradient.shape), gradient.new_zeros(gradient.shape)
        self.steps += 1
        self.first.lerp_(gradient, 0.1)
        self.second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        # Roots of zeros and of subnormal numbers take MKL up to forty times as long. A root as small as that
        # of the least normal number leaves no bit beside epsilon.
        scale = (self.second / (1 - 0.999**self.steps)).clamp_min_(torch.finfo(self.second.dtype).tiny)
        scale.sqrt_().add_(1e-8)
        values.addcdiv_(self.first, scale, value=-self.rate / (1 - 0.9**self.steps))
