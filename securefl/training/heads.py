"""Body and linear head of a model: the features before the last dense layer, their bounds, and a new head.

A public linear map may project the features to fewer numbers, and an activation may bound them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, pad

from securefl.core.errors import ConfigError
from securefl.core.reading import near
from securefl.core.streams import stream
from securefl.training.products import dense
from securefl.training.row_wise import RowHook
from securefl.training.vector import positions


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A public linear map of features (n, `features`) to `width` numbers.

    kind: "none" is the identity. "leading" takes the first `width` features, for features in an order of
        importance. "random" is a Gaussian matrix from the public `seed`, which keeps lengths on average.

    Raises ConfigError if the width is out of range, or less than `features` with kind "none".
    """

    kind: Literal["none", "leading", "random"]
    features: int
    width: int
    seed: int = 0

    def words(self) -> dict[str, int | str]:
        """Every field by its key in a model's file."""
        return {"kind": self.kind, "features": self.features, "width": self.width, "seed": self.seed}

    def __post_init__(self) -> None:
        if not 1 <= self.width <= self.features or (self.kind == "none" and self.width < self.features):
            raise ConfigError(
                f"Expected width from 1 to {self.features}, the number of features, and projection "
                f'"leading" or "random" below it; got width {self.width} with projection "{self.kind}".'
            )

    def __call__(self, features: Tensor) -> Tensor:
        """Project features (n, `features`) to (n, `width`). For noised values, call it in a chunk."""
        # The last bits of a matrix product depend on the number of rows: one record more could change all.
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


class Differentiable(Protocol):
    """An activation under which clients train: (n, width) -> (n, width), each row on its own."""

    def __call__(self, features: Tensor) -> Tensor: ...

    def back(self, features: Tensor, slope: Tensor) -> Tensor:
        """The slope of the features, from the slope of the result."""
        ...


_EPSILON: Final = 1e-12
"""Rows shorter than this are divided by it, not by their length."""


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """An activation that bounds features, (n, width) -> (n, width). A model's file can name it.

    kind: "unit-l2" scales each row to the norm `bound`, except a row of zeros. "bounded" clips each entry to
        [-bound, bound]. "clip-l2" divides rows by `bound` and scales rows longer than 1 to length 1.
    projection: applied to the features first. Zeros after the projected ones keep the width.
    """

    kind: Literal["unit-l2", "bounded", "clip-l2"]
    bound: float = 1.0
    projection: Projection | None = None

    def words(self) -> dict[str, Any]:
        """Every field by its key in a model's file."""
        projection = None if self.projection is None else self.projection.words()
        return {"kind": self.kind, "bound": self.bound, "projection": projection}

    def __call__(self, features: Tensor) -> Tensor:
        if self.projection is None:
            return self._bounded(features)
        found = self._bounded(self.projection(features).to(features.dtype))
        return pad(found, (0, features.shape[1] - found.shape[1]))

    def back(self, features: Tensor, slope: Tensor) -> Tensor:
        """The slope of features (n, width), from the slope of the result, without a projection."""
        assert self.projection is None
        if self.kind == "bounded":
            return slope.where(features.abs() <= self.bound, 0.0)
        # The result is factor * features / max(|features|, least).
        factor, least = (self.bound, _EPSILON) if self.kind == "unit-l2" else (1.0, self.bound)
        lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True)
        along = (features * slope).sum(1, keepdim=True).div_(lengths).div_(lengths)
        along = along.where(lengths > least, 0.0)  # a short row is divided by a constant
        return slope.addcmul(features, along, value=-1).mul_(factor / lengths.clamp_min(least))

    def _bounded(self, features: Tensor) -> Tensor:
        match self.kind:
            case "unit-l2":
                unit = normalize(features, dim=1, eps=_EPSILON)
                return unit if self.bound == 1 else self.bound * unit
            case "bounded":
                return features.clamp(-self.bound, self.bound)
            case "clip-l2":
                scaled = features / self.bound
                lengths: Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
                return scaled / lengths.clamp(min=1.0)


def last_dense(model: nn.Module) -> nn.Linear:
    """The head: the last dense layer. Raises ConfigError if the model has no dense layer."""
    (head,) = last_layers(model, 1)
    return head


def output_layer(model: nn.Module, outputs: int, *, biased: bool = True) -> nn.Linear:
    """The head, if it is trained and has the model's outputs and, where `biased`, a bias.

    Raises ConfigError for another last dense layer.
    """
    head = last_dense(model)
    if head.out_features != outputs or (biased and head.bias is None):
        wanted = f"{outputs} outputs{' and a bias' if biased else ''}"
        raise ConfigError(
            f"Expected a model whose last dense layer has {wanted}, got one with {head.out_features} outputs "
            f"and {'no' if head.bias is None else 'a'} bias. The last one is the one that the model lists "
            "last: list the head behind the body, or take another model."
        )
    if not all(parameter.requires_grad for parameter in head.parameters()):
        raise ConfigError(
            "Expected a model whose last dense layer is trained, got one with frozen values there. Leave it "
            "free, or take a protocol that treats all layers alike, such as fedavg."
        )
    return head


def last_layers(model: nn.Module, count: int) -> Sequence[nn.Linear]:
    """The last `count` dense layers. Raises ConfigError if the model has fewer."""
    dense = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not 1 <= count <= len(dense):
        raise ConfigError(
            f"Expected a model with at least {count} dense layers, got {len(dense)}. Take another model."
        )
    return dense[-count:]


def places(model: nn.Module, modules: Sequence[nn.Module]) -> NDArray[np.int64]:
    """The positions of these modules' values in the model's vector (see `to_vector`), int64."""
    return positions(model, entries(model, modules))


def entries(model: nn.Module, modules: Sequence[nn.Module]) -> frozenset[str]:
    """The names of these modules' values in the model's state dict."""
    # By address, since a tensor's name in the state dict of a part differs from its name in the whole
    # model's.
    own = {entry.data_ptr() for module in modules for entry in module.state_dict().values()}
    return frozenset(name for name, entry in model.state_dict().items() if entry.data_ptr() in own)


@contextmanager
def activated(model: nn.Module, activation: Activation | None) -> Iterator[None]:
    """A context in which `activation`, unless it is None, is applied to the head's input."""
    if activation is None:
        yield
        return
    with last_dense(model).register_forward_pre_hook(RowHook(lambda _, inputs: (activation(inputs[0]),))):
        yield


def with_features(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The model's outputs and the input of its head, after `activated` if that context is open."""
    given: list[Tensor] = []
    with last_dense(model).register_forward_pre_hook(lambda _, inputs: given.append(inputs[0])):
        return model(x), given[0]


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """A context in which the parameters of these modules are not trained."""
    # Only parameters that were trainable become so again: a caller may have frozen others for longer.
    free = [entry for module in modules for entry in module.parameters() if entry.requires_grad]
    for parameter in free:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in free:
            parameter.requires_grad_(True)


TrainedNames = str | tuple[str, ...] | None
"""The names of what is trained, as in [model] `train`. None is all that the model leaves free."""


def train_only(model: nn.Module, train: TrainedNames) -> nn.Module:
    """Freeze all parameters, in place, but those that these names say and that were trainable.

    train: names of parameters or of modules, such as "fc2.bias" or "encoder.layers". "head" is the last dense
    layer, unless the model has a module of that name. None freezes nothing.

    Raises ConfigError for a name that fits no parameter, and if none would be trained.
    """
    if train is None:
        return model
    names = (train,) if isinstance(train, str) else train
    if not names:
        raise ConfigError("[model] `train`: Expected a name, got an empty list. Leave it out to train all.")
    named = dict(model.named_parameters(remove_duplicate=False))
    wanted: set[str] = set()
    for name in names:
        found = {key for key in named if f"{key}.".startswith(f"{name}.")}
        if not found and name == "head":
            found = set(entries(model, [last_dense(model)]))
        if not found:
            parts = {".".join(key.split(".")[:end]) for key in named for end in range(1, key.count(".") + 2)}
            raise ConfigError(
                f'[model] `train`: Expected names of parameters or layers of the model, or "head", got '
                f"{name!r}{near(name, sorted(parts))}. The first are {', '.join([*named][:4])}."
            )
        wanted |= found
    trained = {id(named[name]) for name in wanted}  # of a tied tensor, by either name
    for parameter in named.values():
        if id(parameter) not in trained:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in named.values()):
        raise ConfigError(
            f"[model] `train`: Expected a parameter to train, got {', '.join(names)}, of which "
            "the model itself freezes all. Name one that it leaves free, or leave `train` out."
        )
    return model


def named_layer(model: nn.Module, layer: str) -> nn.Module:
    """The module named `layer`. Raises ConfigError with the nearest names if there is none."""
    modules: dict[str, nn.Module] = {name: module for name, module in model.named_modules() if name}
    if layer in modules:
        return modules[layer]
    near = get_close_matches(layer, modules, n=3, cutoff=0.0)
    raise ConfigError(
        f"Expected the name of a layer of the model, got {layer!r}; the nearest names are {', '.join(near)}."
    )


def bound_features(model: nn.Module, features: Bounded | None) -> None:
    """Apply `features`, unless it is None, to the input of the model's head by a hook that stays.

    Raises ConfigError if the head does not read as many features as the projection.
    """
    if features is None:
        return
    head, projection = last_dense(model), features.projection
    if projection is not None and projection.features != head.in_features:
        raise ConfigError(
            f"Expected a model whose head reads {projection.features} features, got {head.in_features}."
        )

    def bounded(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (features(inputs[0]),)

    head.register_forward_pre_hook(bounded)


class ShiftedLinear(nn.Linear):
    """A dense layer that adds a trained vector, `shift`, to its inputs: W (x + e) + b."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None)
        self.weight, self.bias = layer.weight, layer.bias
        self.shift = nn.Parameter(torch.zeros(layer.in_features))

    def forward(self, input: Tensor) -> Tensor:
        return linear(input + self.shift, self.weight, self.bias)


def shifted(model: nn.Module) -> nn.Module:
    """The model, its head a `ShiftedLinear`, so that its vector ends in the shift.

    Raises ConfigError if the model's last values are not those of its head.
    """
    head = last_dense(model)
    name = next(name for name, module in model.named_modules() if module is head)
    if [*model.state_dict()][-2:] != [f"{name}.weight", f"{name}.bias"] or not name:
        raise ConfigError(
            "Expected a model that ends in a dense layer with a bias, got the last values "
            f"{[*model.state_dict()][-2:]}: FedDBE adds to the inputs of the last. Take another model."
        )
    model.set_submodule(name, ShiftedLinear(head))
    return model
