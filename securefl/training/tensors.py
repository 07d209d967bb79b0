"""Arrays as tensors, and models put into a mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


def as_tensor(array: NDArray[Any]) -> Tensor:
    """The array as a tensor that must only be read. It is copied only if it is read-only or strided."""
    # torch shares memory with numpy and warns of arrays that it must not write to
    flags = array.flags
    return torch.from_numpy(array if flags.c_contiguous and flags.writeable else np.array(array, order="C"))


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put the model into training or evaluation mode; afterwards every module has its own mode back."""
    before = [(module, module.training) for module in model.modules()]
    # Attributes of modules take long to set, and a model that is only read is in its mode already.
    if any(mode is not training for _, mode in before):
        model.train(training)
    try:
        yield
    finally:
        for module, mode in before:
            if module.training is not mode:
                module.training = mode
