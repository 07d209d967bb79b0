"""The importance of each hidden unit for a client's records, as a share of the largest in its layer.

| word | convolutions with batch norm | other layers |
|---|---|---|
| `slim` | abs(gamma) of the batch norm (Liu et al. 2017) | mean abs(activation) |
| `activation` | mean abs(activation) | mean abs(activation) |
| `lrp` | relevance (Eqs. 10 and 11) | relevance |

An activation is the input of the next layer. Relevance is propagated from the outputs of the true classes
down to the units, by the z+ rule: each unit gets its share of the positive contributions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear

from securefl.algorithm import Floats
from securefl.protocols.adds.supernet import Layer, Supernet
from securefl.training.devices import in_mode

Criterion = Literal["slim", "activation", "lrp"]
_STABLE: Final = 1e-9


def importance(
    criterion: Criterion, supernet: Supernet, model: nn.Module, x: Tensor, y: Tensor
) -> Sequence[Floats]:
    """The importance of each sampled layer's units, float64 (C,), at most 1, from records x and classes y."""
    with in_mode(model, training=False):
        found = _relevance(supernet, model, x, y) if criterion == "lrp" else _activity(supernet, model, x)
    for layer in supernet.sampled:
        if criterion == "slim" and layer.norm:
            norm = model.get_submodule(layer.norm)
            assert isinstance(norm.weight, Tensor)
            found[layer.name] = norm.weight.detach().abs()
    return [_scaled(found[layer.name]) for layer in supernet.sampled]


def _scaled(units: Tensor) -> Floats:
    """The units' values over their largest, since their own scale is arbitrary against a temperature.

    All are 1 if no unit is active, or if a value is not finite.
    """
    values: Floats = units.double().cpu().numpy()
    most = values.max()
    return values / most if most > 0 and np.isfinite(values).all() else np.ones_like(values)


def _activity(supernet: Supernet, model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    with torch.no_grad(), _noted(supernet, model) as (read, _):
        model(x)
    pairs = zip(supernet.layers, supernet.layers[1:], strict=False)
    return {own.name: _by_unit(own, read[then.name].abs()) for own, then in pairs if own.first is not None}


def _by_unit(layer: Layer, values: Tensor) -> Tensor:
    """The mean over records and places, (C,), of the next layer's input."""
    return values.reshape(len(values), layer.units, -1).mean((0, 2))


def _relevance(supernet: Supernet, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    with torch.enable_grad(), _noted(supernet, model) as (read, passed):
        outputs = model(x)
        relevance = torch.zeros_like(outputs).scatter(1, y[:, None], 1.0)
        found: dict[str, Tensor] = {}
        for layer in reversed(supernet.layers):
            if layer.front is None:
                break
            given, before = read[layer.name], passed[layer.front.name]
            below = _shared_out(model.get_submodule(layer.name), given.detach(), relevance)
            # Pooling and ReLU pass relevance on to the places that they selected: their slope there is 1.
            slope = torch.autograd.grad(
                given, before, below / _stabilised(given.detach()), retain_graph=True
            )[0]
            relevance = (before * slope).detach()
            found[layer.front.name] = _by_unit(layer.front, relevance)
    return found


def _shared_out(module: nn.Module, given: Tensor, relevance: Tensor) -> Tensor:
    """The relevance of inputs from that of outputs: R_i = sum_j (a_i w_ij)+ / sum_i (a_i w_ij)+ R_j."""

    def through(values: Tensor, weight: Tensor) -> Tensor:
        if isinstance(module, nn.Conv2d):
            return conv2d(values, weight, None, module.stride, module.padding, module.dilation, module.groups)
        return linear(values, weight)

    assert isinstance(module.weight, Tensor)
    weight = module.weight.detach()
    up, down = given.clamp_min(0).requires_grad_(), given.clamp_max(0).requires_grad_()
    positive = through(up, weight.clamp_min(0)) + through(down, weight.clamp_max(0))
    slopes = torch.autograd.grad(positive, (up, down), relevance / (positive.detach() + _STABLE))
    return (up * slopes[0] + down * slopes[1]).detach()


def _stabilised(values: Tensor) -> Tensor:
    """The values moved away from 0, so that a division is finite."""
    return values + torch.where(values < 0, -_STABLE, _STABLE)


@contextmanager
def _noted(supernet: Supernet, model: nn.Module) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """The input of each layer and the output of its gate, by the layer's name."""
    read: dict[str, Tensor] = {}
    passed: dict[str, Tensor] = {}

    def before(name: str, _module: nn.Module, given: Any) -> None:
        read[name] = given[0]

    def behind(name: str, _module: nn.Module, _given: Any, came: Tensor) -> None:
        passed[name] = came

    with ExitStack() as hooks:
        for layer in supernet.layers:
            name, own, gate = layer.name, model.get_submodule(layer.name), model.get_submodule(layer.gate)
            hooks.enter_context(own.register_forward_pre_hook(partial(before, name)))
            hooks.enter_context(gate.register_forward_hook(partial(behind, name)))
        yield read, passed
