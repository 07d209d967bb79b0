"""Profiles of a data set: the mean and variance of a layer's output (FedProf v2, section 3.1).

A dense layer's pre-activation (n, q) is taken as it is (Proposition 1). A convolution's output (n, q, h, w)
is summed over its map (footnote 3 and Proposition 2), which leaves one number a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.core.errors import ConfigError, DataError
from securefl.core.streams import stream
from securefl.dp.moments import MeanVariance
from securefl.training.chunks import apart
from securefl.training.devices import as_tensor, computed, device_of, full_precision, in_mode
from securefl.training.heads import named_layer
from securefl.training.row_wise import RowHook


@dataclass
class Moments:
    """Mean and sum of squared deviations per element, merged batch by batch in float64.

    Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983), eq. 2.1: deviations
    are always taken from a mean, so nothing cancels when the mean is large beside the spread.
    """

    count: int = 0
    mean: Tensor | None = None
    squares: Tensor | None = None

    def add(self, batch: Tensor) -> None:
        """Take in a batch of shape (n, q), n >= 1."""
        batch = batch.double()
        n, mean = len(batch), batch.mean(0)
        squares = (batch - mean).square_().sum(0)
        if self.mean is None or self.squares is None:
            self.count, self.mean, self.squares = n, mean, squares
            return
        total, apart = self.count + n, mean - self.mean
        self.mean = self.mean + apart * (n / total)
        self.squares = self.squares + squares + apart.square() * (self.count * n / total)
        self.count = total

    def profile(self) -> MeanVariance:
        """The mean and the population variance of all that was added."""
        if self.mean is None or self.squares is None:
            raise DataError("Expected at least one record to make a profile of, got none.")
        return MeanVariance(self.mean.cpu().numpy(), (self.squares / self.count).cpu().numpy(), self.count)


def profile(model: nn.Module, layer: str, x: NDArray[Any], batch: int = 1024) -> MeanVariance:
    """Profile of records x (n, *shape) at the module named `layer`, in evaluation mode and one pass.

    The result does not depend on `batch` (beyond rounding). The mode of every module is restored, and
    no hook is left behind. One record has variance 0.

    Raises ConfigError if the model has no such layer, or its output has neither shape. Raises DataError
    without records and for outputs that are not finite.
    """

    def read() -> MeanVariance:
        moments = Moments()
        for part in _passed(model, layer, x, batch):
            moments.add(part)
        return moments.profile()

    return computed(model, read)


def outputs(model: nn.Module, layer: str, x: NDArray[Any]) -> NDArray[np.float64]:
    """Each record's output at `layer`, from which a profile is made: (n, q) for n >= 1 records.

    A record's output does not depend on the records beside it (`chunks`). The output of a non-finite record
    may be non-finite. Raises ConfigError as `profile` does and for a model that mixes records, and DataError
    without records.
    """
    if not len(x):
        raise DataError("Expected at least one record, got none.")
    with _reading(model, layer) as read:
        return np.asarray(apart(model, lambda rows: read(rows).double(), as_tensor(x)).numpy())


def _passed(model: nn.Module, layer: str, x: NDArray[Any], batch: int) -> list[Tensor]:
    """The layer's outputs, a tensor of shape (n, q) for each batch."""
    inputs, device = as_tensor(x), device_of(model)
    with (
        _reading(model, layer) as read,
        in_mode(model, training=False),
        torch.inference_mode(),
        full_precision(device),
    ):
        return [read(inputs[at : at + batch].to(device)) for at in range(0, len(inputs), batch)]


@contextmanager
def _reading(model: nn.Module, layer: str) -> Iterator[Callable[[Tensor], Tensor]]:
    """From records (n, *shape) to the layer's outputs (n, q), by a pass through the model."""
    parts: list[Tensor] = []

    def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
        parts.append(_fused(layer, output))

    def read(rows: Tensor) -> Tensor:
        parts.clear()
        model(rows)
        if (passed := sum(map(len, parts))) != len(rows):
            raise ConfigError(
                f"Expected layer {layer!r} to run once a record, got {passed} runs for {len(rows)} records. "
                "Profile a layer that every forward pass uses once."
            )
        return torch.cat(parts)

    # a hook, not a cut model: the forward may be any code, and the layer anywhere in it
    handle = named_layer(model, layer).register_forward_hook(RowHook(note))
    try:
        yield read
    finally:
        handle.remove()


def probe_profile(
    model: nn.Module,
    layer: str,
    shape: tuple[int, ...],
    seed: int,
    samples: int = 256,
    *,
    characters: int | None = None,
) -> MeanVariance:
    """Profile of a broadcast model on inputs uniform in [0, 1]^shape, of which a public anchor is made.

    characters: for a model that reads text, the size of its vocabulary. Inputs are then uniform codes.
    It depends on the model, which all parties have, and on a public seed. It depends on no data, so every
    party can compute it. Between machines it may differ in the last bits. No divergence changes with the
    anchor, so that does no harm.
    """
    rng = stream(seed, "probe-anchor")
    if characters is None:
        return profile(model, layer, rng.random((samples, *shape), dtype="float32"))
    return profile(model, layer, rng.integers(characters, size=(samples, *shape)))


def _fused(layer: str, output: Any) -> Tensor:
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if not isinstance(output, Tensor) or output.ndim not in (2, 4):
        raise ConfigError(
            f"Expected layer {layer!r} to put out (n, q) or (n, q, height, width), got {shape}. "
            "Name a dense layer or a convolution."
        )
    # in float64, so that a map's sum does not round more than its outputs did
    return output if output.ndim == 2 else output.double().sum((2, 3))
