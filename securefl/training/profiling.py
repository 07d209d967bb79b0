"""Data profiles: the mean and variance of a layer's output over records (FedProf v2, section 3.1).

A dense layer's pre-activation (n, q) is used unchanged (Proposition 1). A convolution's output (n, q, h, w)
is summed over height and width (footnote 3 and Proposition 2), which leaves one number a channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.core.errors import ConfigError, DataError
from securefl.core.streams import stream
from securefl.data.in_memory import array_of
from securefl.dp.moments import MeanVariance
from securefl.training.chunks import per_record_outputs
from securefl.training.devices import as_tensor, computed, device_of, full_precision, in_mode
from securefl.training.heads import named_layer
from securefl.training.row_wise import RowHook


def profile(model: nn.Module, layer: str, x: NDArray[Any], batch: int = 1024) -> MeanVariance:
    """Compute the profile of records at a layer, in evaluation mode and one pass.

    >>> from securefl.training import ModelConfig, profile
    >>> import numpy as np
    >>> model = ModelConfig(kind="mlp", hidden=(5,)).build((3,), 2, seed=0)
    >>> found = profile(model, "fc1", np.ones((4, 3), np.float32))
    >>> found.mean.shape, found.count
    ((5,), 4)

    The mode of every module is restored, and no hook stays. One record has variance 0.

    Args:
        model: A model from records (n, *shape) to outputs.
        layer: The name of a module of it with output (n, q) or (n, q, height, width).
        x: Records, shape (n, *shape), n >= 1, of numpy or torch.
        batch: Records that are computed at a time. The profile does not depend on it, except for rounding.

    Returns:
        A `MeanVariance` with mean and population variance, float64 (q,), and the number of records.

    Raises:
        ConfigError: The model has no such layer, or its output has neither shape.
        DataError: There are no records, or an output is not finite.
    """
    return computed(model, partial(_profile, model, layer, x, batch))


def outputs(model: nn.Module, layer: str, x: NDArray[Any]) -> NDArray[np.float64]:
    """Compute each record's output at a layer, of which a profile is the mean and variance.

    >>> from securefl.training import ModelConfig, outputs
    >>> import numpy as np
    >>> model = ModelConfig(kind="mlp", hidden=(5,)).build((3,), 2, seed=0)
    >>> outputs(model, "fc1", np.ones((4, 3), np.float32)).shape
    (4, 5)

    Args:
        model: A model from records (n, *shape) to outputs.
        layer: The name of a module of it with output (n, q) or (n, q, height, width).
        x: Records, shape (n, *shape), n >= 1.

    Returns:
        float64 (n, q). A record's output does not depend on other records (`chunks`). It may be infinite or
        nan if the record is not finite.

    Raises:
        ConfigError: The model has no such layer, its output has neither shape, or the model mixes records.
        DataError: There are no records.
    """
    if not len(x):
        raise DataError("Expected at least one record, got none.")
    with _reading(model, layer) as read:
        return np.asarray(
            per_record_outputs(
                model, ("outputs", layer), lambda rows: read(rows).double(), _inputs(model, x)
            ).numpy()
        )


def _inputs(model: nn.Module, x: Any) -> Tensor:
    """Records of numpy or torch as a model reads them. Raises DataError for what is no array of numbers."""
    found = array_of(x, "records")
    if found.dtype.kind not in "biuf":
        raise DataError(f"Expected records as numbers, got an array of {found.dtype}. Cast it.")
    rows = as_tensor(found)
    floats = [own.dtype for own in model.parameters() if own.is_floating_point()]
    return rows.to(floats[0]) if floats and rows.is_floating_point() else rows


def _profile(model: nn.Module, layer: str, x: NDArray[Any], batch: int) -> MeanVariance:
    """The profile, with means and sums of squared deviations merged batch by batch in float64.

    Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983), eq. 2.1: deviations are
    taken from a mean, so nothing cancels if the mean is large compared with the standard deviation.
    """
    inputs, device = _inputs(model, x), device_of(model)
    count, mean, squares = 0, torch.zeros((), device=device), torch.zeros((), device=device)
    with (
        _reading(model, layer) as read,
        in_mode(model, training=False),
        torch.inference_mode(),
        full_precision(device),
    ):
        for at in range(0, len(inputs), batch):
            part = read(inputs[at : at + batch].to(device)).double()
            n, own = len(part), part.mean(0)
            apart, total = own - mean, count + n
            mean = mean + apart * (n / total)
            squares = squares + (part - own).square_().sum(0) + apart.square() * (count * n / total)
            count = total
    if not count:
        raise DataError("Expected at least one record to make a profile of, got none.")
    return MeanVariance(mean.cpu().numpy(), (squares / count).cpu().numpy(), count)


@contextmanager
def _reading(model: nn.Module, layer: str) -> Iterator[Callable[[Tensor], Tensor]]:
    """A context with the function from records (n, *shape) to the layer's outputs (n, q)."""
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

    # A hook and not a truncated model, since the forward may be any code with the layer anywhere in it.
    with named_layer(model, layer).register_forward_hook(RowHook(note)):
        yield read


def probe_profile(
    model: nn.Module,
    layer: str,
    shape: tuple[int, ...],
    seed: int,
    samples: int = 256,
    *,
    characters: int | None = None,
) -> MeanVariance:
    """Compute the profile of a broadcast model on random inputs, from which parties make a public anchor.

    >>> from securefl.training import ModelConfig, probe_profile
    >>> model = ModelConfig(kind="mlp", hidden=(5,)).build((3,), 2, seed=0)
    >>> probe_profile(model, "fc1", (3,), seed=7).count
    256

    The profile depends on the model, which all parties have, and on a public seed. It depends on no data, so
    every party can compute it. Its last bits may differ between machines. That does no harm, since no
    divergence depends on the anchor.

    Args:
        model: A model from records (n, *shape) to outputs.
        layer: The name of a module of it, as for `profile`.
        shape: The shape of a record.
        seed: The public seed of the inputs.
        samples: The number of inputs.
        characters: None for inputs uniform in [0, 1]^shape. For a model that reads text, the size of its
            vocabulary: inputs are then uniform codes.

    Raises:
        ConfigError: As for `profile`.
        DataError: As for `profile`.
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
    # In float64, so that the sum over height and width adds no rounding to that of the outputs.
    return output if output.ndim == 2 else output.double().sum((2, 3))
