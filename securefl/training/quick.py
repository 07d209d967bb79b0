"""The packaged dense model without gradients, by oneDNN."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from securefl.training.products import product
from securefl.training.row_wise import outside

LEAST: Final = 2**12
"""The least number of weights of a layer for which oneDNN takes less time than MKL."""


def reader(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model's outputs for rows, without gradients: by `product`, or by the model itself.

    By `product` only if the model is the packaged stack of dense layers, without hooks, replaced functions or
    values of other kinds, on a CPU and outside autocast.
    """
    # The packaged stack alone has this, of the listed models.
    through = getattr(type(model), "through", None)
    if through is None or outside(model) is not None or torch.is_autocast_enabled("cpu"):
        return model
    return partial(through, model, call=_called) if all(map(_usual, model.parameters())) else model


def _called(layer: nn.Module, x: Tensor) -> Tensor:
    if type(layer) is nn.Linear and layer.weight.numel() >= LEAST and x.shape[1:] == (layer.in_features,):
        rows = x.contiguous()
        if _usual(rows):
            return product(rows, layer.weight, layer.bias)
    found: Tensor = layer(x)
    return found


def _usual(part: Tensor) -> bool:
    kind = part.dtype is torch.float32 and part.is_cpu and part.layout is torch.strided
    return type(part) in (Tensor, nn.Parameter) and kind and part.is_contiguous() and part.numel() > 0
