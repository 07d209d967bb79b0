"""A model as a body and a linear head: features before the last dense layer, and another head on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from securefl.errors import ConfigError
from securefl.training.tensors import as_tensor, in_mode
from securefl.training.vector import to_vector

_AT_ONCE = 256


def last_dense(model: nn.Module) -> nn.Linear:
    """The head. Raises ConfigError for a model without a dense layer."""
    dense = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not dense:
        raise ConfigError("Expected a model with a dense layer as its head, it has none.")
    return dense[-1]


def body_features(model: nn.Module, x: NDArray[Any]) -> NDArray[np.float64]:
    """What reaches the head, in evaluation mode: (n, width) float64."""
    head, parts = last_dense(model), []

    def read(_module: nn.Module, inputs: Any) -> None:
        parts.append(inputs[0].detach().double().numpy())

    handle = head.register_forward_pre_hook(read)
    try:
        with in_mode(model, training=False), torch.inference_mode():
            for batch in torch.split(as_tensor(x), _AT_ONCE) if len(x) else ():
                model(batch)
    finally:
        handle.remove()
    return np.concatenate(parts) if parts else np.zeros((0, head.in_features))


def with_head(model: nn.Module, head: NDArray[np.float64]) -> NDArray[np.float32]:
    """The model's vector, its head replaced by (outputs, 1 + width): bias and weights. `model` is changed."""
    dense = last_dense(model)
    with torch.no_grad():
        dense.weight.copy_(torch.from_numpy(head[:, 1:]))
        dense.bias.copy_(torch.from_numpy(head[:, 0]))
    return to_vector(model)
