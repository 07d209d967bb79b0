"""A model as a body and a linear head: the features in front of the last dense layer, and a new head.

Features may pass a public linear map to fewer numbers, and an activation that bounds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from securefl.core.errors import ConfigError
from securefl.core.streams import stream
from securefl.training.products import dense
from securefl.training.row_wise import RowHook
from securefl.training.vector import to_vector


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A public linear map of features (n, `features`) to `width` numbers.

    kind "none": the identity. "leading": the first `width` features, for features that come in an order of
    importance. "random": a Gaussian matrix from the public `seed`, which keeps lengths on average.
    """

    kind: Literal["none", "leading", "random"]
    features: int
    width: int
    seed: int = 0

    def words(self) -> dict[str, int | str]:
        """Every field by its word in a model's file."""
        return {"kind": self.kind, "features": self.features, "width": self.width, "seed": self.seed}

    def __post_init__(self) -> None:
        if not 1 <= self.width <= self.features or (self.kind == "none" and self.width < self.features):
            raise ConfigError(
                f"Expected width from 1 to {self.features}, the number of features, and projection "
                f'"leading" or "random" below it; got width {self.width} with projection "{self.kind}".'
            )

    def __call__(self, features: Tensor) -> Tensor:
        """Features (n, `features`) as (n, `width`). It belongs into a chunk of a fixed number of rows."""
        # A product of matrices has other last bits for other numbers of rows: one record more would move all.
        if self.kind == "none":
            return features
        if self.kind == "leading":
            return features[:, : self.width]
        return dense(features.double(), self._matrix.to(features.device))

    @cached_property
    def _matrix(self) -> Tensor:
        drawn = stream(self.seed, "projection", self.features, self.width)
        matrix = drawn.standard_normal((self.features, self.width)) / np.sqrt(self.width)
        return torch.from_numpy(np.ascontiguousarray(matrix.T))


Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """An activation that bounds features, (n, width) -> (n, width), in a form that a file can name.

    kind "unit-l2": each row is scaled to the norm `bound`; a row of zeros stays. "bounded": each entry is
    clipped to [-bound, bound]. "clip-l2": rows are divided by `bound`, and those longer than 1 are scaled
    to 1.
    projection: before that, features are projected. Zeros behind the projected ones keep their number.
    """

    kind: Literal["unit-l2", "bounded", "clip-l2"]
    bound: float = 1.0
    projection: Projection | None = None

    def words(self) -> dict[str, Any]:
        """Every field by its word in a model's file."""
        projection = None if self.projection is None else self.projection.words()
        return {"kind": self.kind, "bound": self.bound, "projection": projection}

    def __call__(self, features: Tensor) -> Tensor:
        if self.projection is None:
            return self._bounded(features)
        found = self._bounded(self.projection(features).to(features.dtype))
        return pad(found, (0, features.shape[1] - found.shape[1]))

    def _bounded(self, features: Tensor) -> Tensor:
        match self.kind:
            case "unit-l2":
                unit = normalize(features, dim=1)
                return unit if self.bound == 1 else self.bound * unit
            case "bounded":
                return features.clamp(-self.bound, self.bound)
            case "clip-l2":
                scaled = features / self.bound
                lengths: Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
                return scaled / lengths.clamp(min=1.0)


def last_dense(model: nn.Module) -> nn.Linear:
    """The head. Raises ConfigError for a model without a dense layer."""
    (head,) = last_layers(model, 1)
    return head


def last_layers(model: nn.Module, count: int) -> Sequence[nn.Linear]:
    """The last `count` dense layers. Raises ConfigError where the model has fewer."""
    dense = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not 1 <= count <= len(dense):
        raise ConfigError(
            f"Expected a model with at least {count} dense layers, got {len(dense)}. Take another model."
        )
    return dense[-count:]


def places(model: nn.Module, modules: Sequence[nn.Module]) -> NDArray[np.int64]:
    """Where the values of these modules are in the model's vector (see `to_vector`)."""
    own = entries(model, modules)
    found, at = [], 0
    for name, entry in model.state_dict().items():
        if entry.is_floating_point():
            if name in own:
                found.append(np.arange(at, at + entry.numel()))
            at += entry.numel()
    return np.concatenate(found)


def entries(model: nn.Module, modules: Sequence[nn.Module]) -> frozenset[str]:
    """The names that the values of these modules have in the model's state dict."""
    # by address: the same tensor has another name in the state dict of a part than in that of the whole
    own = {entry.data_ptr() for module in modules for entry in module.state_dict().values()}
    return frozenset(name for name, entry in model.state_dict().items() if entry.data_ptr() in own)


@contextmanager
def activated(model: nn.Module, activation: Activation | None) -> Iterator[None]:
    """Let the head's input pass `activation` first, if there is one, while the context lasts."""
    if activation is None:
        yield
        return
    handle = last_dense(model).register_forward_pre_hook(RowHook(lambda _, inputs: (activation(inputs[0]),)))
    try:
        yield
    finally:
        handle.remove()


def with_features(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The model's outputs, and the input of its head. Hooks run in order, so an activation's runs first."""
    given: list[Tensor] = []
    handle = last_dense(model).register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    try:
        outputs = model(x)
    finally:
        handle.remove()
    return outputs, given[0]


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """Keep the parameters of these modules from being trained while the context lasts."""
    # only those that were free are freed again: a caller may have frozen others for longer
    free = [entry for module in modules for entry in module.parameters() if entry.requires_grad]
    for parameter in free:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in free:
            parameter.requires_grad_(True)


def with_head(model: nn.Module, head: NDArray[np.float64]) -> NDArray[np.float32]:
    """Replace the head of `model` by (outputs, 1 + width), bias first, and return the model's vector."""
    dense = last_dense(model)
    with torch.no_grad():
        # column 0 belongs to the constant feature, which a dense layer calls its bias
        dense.weight.copy_(torch.from_numpy(head[:, 1:]))
        dense.bias.copy_(torch.from_numpy(head[:, 0]))
    return to_vector(model)


def named_layer(model: nn.Module, layer: str) -> nn.Module:
    """The module of that name. Without one it raises ConfigError with the nearest names."""
    modules: dict[str, nn.Module] = {name: module for name, module in model.named_modules() if name}
    if layer in modules:
        return modules[layer]
    near = get_close_matches(layer, modules, n=3, cutoff=0.0)
    raise ConfigError(
        f"Expected the name of a layer of the model, got {layer!r}; the nearest names are {', '.join(near)}."
    )
