"""A model as one vector, the form in which a round sums and sends it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.core.errors import DataError
from securefl.training.devices import device_of
from securefl.training.tensors import as_tensor


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
