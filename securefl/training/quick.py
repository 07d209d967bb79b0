"""Dense layers without gradients, by oneDNN.

torch multiplies float32 matrices on a CPU by MKL. MKL chooses a kernel by who made the processor, and
oneDNN by its instructions: on a processor of AMD with AVX-512, MKL takes twice the time.

oneDNN's function leaves much to its caller: it ignores strides of a bias, autocast and derivatives. So only
this package's own layers come here, as they were made (`reader`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from securefl.training.models import MLP
from securefl.training.row_wise import outside

ONEDNN: Final = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
"""Whether this build of torch has oneDNN."""
LEAST: Final = 2**12
"""The least number of weights of a layer for which oneDNN takes less time than MKL."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias, without a gradient: x (rows, inputs), weight (outputs, inputs), bias (outputs,).

    All are float32 on a CPU, and have numbers. The bias is contiguous.
    """
    if not ONEDNN:
        return linear(x, weight, bias)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


def reader(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model's outputs for rows, without gradients: by `product`, or by the model itself.

    By `product` only if the model is the packaged stack of dense layers, without hooks, replaced functions or
    values of other kinds, on a CPU and outside autocast.
    """
    if type(model) is not MLP or outside(model) is not None or torch.is_autocast_enabled("cpu"):
        return model
    return partial(model.through, call=_called) if all(map(_usual, model.parameters())) else model


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
