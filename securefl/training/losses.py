"""The losses cross-entropy and mean squared error, and checks of the arrays that each takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from securefl.core.errors import DataError
from securefl.training.devices import CPU, as_tensor

Loss = Literal["cross_entropy", "mse"]
"""A loss by name: cross-entropy of int64 labels (n,), or squared error of float32 targets (n, targets)."""


def criterion_of(loss: Loss) -> Callable[[Tensor, Tensor], Tensor]:
    """The function (outputs, targets) -> mean loss."""
    match loss:
        case "cross_entropy":
            return cross_entropy
        case "mse":
            return mse_loss


def losses_of(outputs: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """Each record's loss (n,). A label without an output of the model gives nan."""
    match loss:
        case "cross_entropy":
            # torch raises if any record has an unknown label, and so would reveal that record. nan drops it
            # alone.
            known = (y >= 0) & (y < outputs.shape[1])
            losses = cross_entropy(outputs, torch.where(known, y, 0), reduction="none")
            return torch.where(known, losses, torch.nan)
        case "mse":
            return mse_loss(outputs, y, reduction="none").mean(1)


def records(
    x: NDArray[Any], y: NDArray[Any], loss: Loss, device: torch.device = CPU
) -> tuple[Tensor, Tensor]:
    """Records and targets as tensors on the device. Raises DataError as `require_records` does."""
    require_records(x, y, loss)
    return as_tensor(x).to(device), as_tensor(y).to(device)


def require_records(x: NDArray[Any], y: NDArray[Any], loss: Loss) -> None:
    """Raises DataError if the lengths of records and targets, or the targets' type, do not fit."""
    if len(x) != len(y):
        raise DataError(f"Expected one target a record, got {len(x)} records and {len(y)} targets.")
    match loss:
        case "cross_entropy":
            fits, expected = y.ndim == 1 and y.dtype == np.int64, "int64 labels of shape (n,)"
        case "mse":
            fits, expected = y.ndim == 2 and y.dtype == np.float32, "float32 targets of shape (n, targets)"
    if not fits:
        raise DataError(f"Expected {expected} for loss {loss!r}, got {y.dtype} of shape {y.shape}.")
