"""A user's own models: any function or class that makes an `nn.Module`, and its tests before a study.

The factory is called with `shape` (of a record), `inputs` (the number of values of a record) and `outputs`,
if its parameters have these names, and with the study's [model.options]. A factory with two other parameters
is called with shape and outputs.

`tried` tests a model on made-up records before a study uses it. A study has one module for all clients of a
process, and sends the floating entries of its state dict. So a model must have the same values whenever it is
built. Nothing in it may change but trained parameters and the statistics of batch norm.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from math import prod
from typing import Any, Final, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from securefl.core.errors import ConfigError
from securefl.core.installed import entry_points
from securefl.core.reading import near
from securefl.storage.own_code import CodePlace, names_code, running
from securefl.training.alone import same
from securefl.training.devices import CPU, in_mode, seeded
from securefl.training.exported import MOST_PARAMETERS
from securefl.training.heads import TrainedNames, named_layer
from securefl.training.models import (
    MLP,
    Architecture,
    Buffers,
    Kind,
    ModelConfig,
    Origin,
    with_choices,
)
from securefl.training.vector import overlapping


@dataclass(frozen=True, kw_only=True)
class OwnModelSection:
    """The section [model] for a model that is not packaged.

    kind: `module:name`, an entry point's name, or None if a caller in Python passes the model. options:
    passed to the factory by name. profiled_layer: the name of a layer. The default is the first dense layer,
    or the last convolution if there is no dense layer. train: as of `ModelConfig`, of what the model itself
    leaves free. buffers, weights, trained_on: as of `ModelConfig`.
    """

    kind: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    profiled_layer: str | None = None
    train: TrainedNames = None
    buffers: Buffers = "averaged"
    weights: str | None = None
    trained_on: Origin | None = None


def model_points() -> dict[str, EntryPoint]:
    """The entry points of models of installed packages, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def section_of(table: Any, *, brought: bool) -> tuple[type[Any], Any]:
    """The dataclass for this section [model], and the part of the section that it reads.

    brought: whether a caller in Python passes the model. Keys that choose a packaged model are dropped then.

    Raises ConfigError if `kind` names no model.
    """
    if not isinstance(table, dict):
        return ModelConfig, table
    kind = table.get("kind")
    if brought:
        table = {key: value for key, value in table.items() if key not in ("kind", "hidden", "width")}
    elif not isinstance(kind, str) or kind in get_args(Kind):
        return ModelConfig, table
    elif not names_code(kind) and kind not in (points := model_points()):
        known = [*get_args(Kind), *points]
        raise ConfigError(
            f"[model] `kind`: Expected one of {', '.join(map(repr, known))}, or a class or function as "
            f"`module:name`, got {kind!r}{near(kind, known)}."
        )
    return OwnModelSection, table


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnModel(Architecture):
    """An `Architecture` whose modules a user's factory makes. `resolved` tests it.

    factory: makes the module. name: its name for errors. place: the place of its code, for imports at the
    time of a call. Other fields: see `Architecture`.
    """

    factory: Callable[..., nn.Module]
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    profiled_layer: str | None = None
    train: TrainedNames = None
    buffers: Buffers = "averaged"
    weights: str | None = None
    place: CodePlace | None = None
    reads_text: bool = False
    draws: bool = False
    hidden: tuple[int, ...] | None = None

    @property
    def layer(self) -> str:
        """The name of the profiled layer. Raises ConfigError if the model has none."""
        if self.profiled_layer is None:
            raise ConfigError(
                f"Expected a dense layer or a convolution in {self.name} to profile, got none. Name a layer "
                "that puts out (n, q) or (n, q, height, width) by `profiled_layer` under [model]."
            )
        return self.profiled_layer

    def shorter(self) -> OwnModel:
        """Raises ConfigError: in an own model, no layer is known that could be left out."""
        raise ConfigError(
            f"Expected a packaged model of kind 'mlp' for bodies of two lengths, got {self.name}. Leave "
            "`shorter` out, or take that kind."
        )

    def build(self, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
        """Build the model for records of `shape`. Its values depend on `seed` (0 <= seed < 2^64) alone.

        torch's generator does not change. Raises ConfigError if the factory fails or does not return a
        module.
        """
        with seeded(seed, CPU):  # as in `ModelConfig.build`
            return with_choices(self.made(shape, outputs), self)

    def made(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The module that the factory makes, with values from torch's generator in its present state.

        Raises ConfigError if the factory fails or does not return a module.
        """
        if isinstance(self.factory, nn.Module):
            return copy.deepcopy(self.factory)
        given, named = self._arguments(shape, outputs)
        expected = f"Expected {self.name} to make a model for records of shape {shape} and {outputs} outputs"
        with running(self.place, expected, "Correct it, or its [model.options]."):
            model = self.factory(*given, **named)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"Expected {self.name} to return an nn.Module, got {type(model).__name__}.")
        return model

    def _arguments(self, shape: tuple[int, ...], outputs: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and the named arguments of the factory. Raises ConfigError if they do not fit it."""
        known: dict[str, Any] = {"shape": shape, "inputs": prod(shape), "outputs": outputs}
        try:
            parameters = inspect.signature(self.factory).parameters
        except (TypeError, ValueError):  # a function of C has no signature
            return (shape, outputs), dict(self.options)
        anything = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        for name in self.options:
            if name not in parameters and not anything:
                raise ConfigError(
                    f"[model.options] Expected a key that {self.name} takes, of "
                    f"{', '.join(parameters) or 'none'}, got `{name}`{near(name, parameters)}."
                )
        named = {name: value for name, value in known.items() if name in parameters} | dict(self.options)
        open_ = [
            one.name
            for one in parameters.values()
            if one.default is one.empty
            and one.name not in named
            and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        ]
        if len(open_) == 2 and not known.keys() & named.keys():
            return (shape, outputs), named
        if open_:
            raise ConfigError(
                f"Expected {self.name} to take shape, inputs and outputs, or some of these, got one that "
                f"needs {', '.join(open_)} too. Give it under [model.options]."
            )
        return (), named

    def resolved(self, shape: tuple[int, ...], outputs: int, seed: int) -> OwnModel:
        """Test the model, and return a copy that knows the profiled layer and whether training draws.

        Raises ConfigError if a study cannot use the model (see `tried`).
        """
        with seeded(seed, CPU):
            self._require_size(shape, outputs)
            first, second = (self.build(shape, outputs, seed) for _ in range(2))
            require_same(self.name, first, second)
            known = replace(self, reads_text=self.reads_text or _reads_codes(second, shape))
            found = tried(self.name, first, known.blank(shape), outputs, self.profiled_layer)
        layers = [layer for layer in first.children() if isinstance(layer, nn.Linear)]
        # A stack trains each layer's own values, and tied layers have none.
        plain = type(first) is MLP and len({*first.parameters()}) == len(layers) * 2
        hidden = tuple(layer.out_features for layer in layers[:-1]) if plain else None
        return replace(known, profiled_layer=found.layer, draws=found.draws, hidden=hidden)

    def _require_size(self, shape: tuple[int, ...], outputs: int) -> None:
        """Raises ConfigError if there are too many parameters, if possible before they are allocated."""
        try:
            with torch.device("meta"):
                count = sum(entry.numel() for entry in self.made(shape, outputs).parameters())
        # Without values, a factory or its layers can raise any exception. The parameters are then counted
        # after the model is made, and an exception there is reported.
        except Exception:
            return
        require_size(self.name, count)


# Tests of a model ------------------------------------------------------------------------------------


_ROWS: Final = 2
_DRAWS: Final = 8
"""Draws of parameters under which outputs lie from 0 to 1. Scores leave that range under the first draws."""


@dataclass(frozen=True)
class Found:
    """The findings of `tried`. layer: the profiled layer's name, or None. draws: whether training draws."""

    layer: str | None
    draws: bool


def require_size(name: str, count: int) -> None:
    """Raises ConfigError if a model has more than MOST_PARAMETERS parameters."""
    if count > MOST_PARAMETERS:
        raise ConfigError(
            f"Expected {name} to have at most {MOST_PARAMETERS:,} parameters, got {count:,}. Make it smaller."
        )


def require_same(name: str, first: nn.Module, second: nn.Module) -> None:
    """Raises ConfigError unless two models built from one seed are different objects with equal values."""
    if first is second:
        raise ConfigError(
            f"Expected {name} to make a new module each time, got the same one twice. Make it inside, or "
            "pass the module itself."
        )
    _require_plain(name, first)
    own, other = first.state_dict(), second.state_dict()
    if own.keys() != other.keys() or any(not same(own[key], other[key]) for key in own):
        raise ConfigError(
            f"Expected {name} to make the same model from the same seed, got two. Let it draw from torch's "
            "generator alone, without a seed of its own or a clock."
        )


def _require_plain(name: str, model: nn.Module) -> None:
    named = list(model.named_parameters())
    for key, parameter in named:
        if isinstance(parameter, UninitializedParameter):
            raise ConfigError(f"Expected sizes in {name}, got the lazy parameter {key}. Set its size.")
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ConfigError(
                f"Expected parameters of float32 on the CPU in {name}, got {key} of {parameter.dtype} on "
                f"{parameter.device}. Make the model with .float() on the CPU: sums and noise are "
                "computed in 32 bits, and the study moves the model by [runtime] device."
            )
    require_size(name, sum(parameter.numel() for parameter in model.parameters()))
    if not any(parameter.requires_grad for _, parameter in named):
        raise ConfigError(f"Expected a parameter to train in {name}, got none. Leave one free.")
    # By memory: of two parameters that share some, a frozen one would be trained by the other. One parameter
    # of two names, as of tied layers, is trained once.
    if (shared := overlapping(model)) is not None:
        raise ConfigError(
            f"Expected memory of its own for each parameter of {name}, got {' overlapping '.join(shared)}. "
            "Make it a copy: nn.Parameter(one.detach().clone()). Or give both layers one parameter: "
            "one.weight = other.weight."
        )
    for key, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.momentum is None:
            raise ConfigError(
                f"Expected a momentum in batch norm {key} of {name}, got None. Its statistics would depend "
                "on the number of batches of all clients of a process. Set one, such as 0.1."
            )


def _reads_codes(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the model takes a record of whole numbers, and none of real ones, as an `Embedding` does."""

    def takes(kind: torch.dtype) -> bool:
        # Not of zeros alone: of padding alone, attention may have no output.
        try:
            model(varied(torch.zeros((1, *shape), dtype=kind)))
        except Exception:  # the model is the caller's code: it can raise any exception
            return False
        return True

    with in_mode(model, training=False), torch.no_grad():
        return not takes(torch.float32) and takes(torch.int64)


def tried(name: str, model: nn.Module, blank: Tensor, outputs: int, layer: str | None) -> Found:
    """Test a model on a record of zeros, `blank` (1, *shape), and on two other records, in both modes.

    layer: the profiled layer, or None to find one. The test draws from torch's generator.

    Raises ConfigError if an output has a wrong shape or type, the layer does not exist, a buffer changes, or
    results do not repeat.
    """
    rows = varied(blank)
    with _still(name, model):
        with in_mode(model, training=False):
            _require_outputs(name, passed(name, model, blank), 1, outputs)
            before = torch.get_rng_state()
            values = passed(name, model, rows)
            _require_outputs(name, values, _ROWS, outputs)
            again = passed(name, model, rows)
            if not torch.equal(before, torch.get_rng_state()) or not same(values, again):
                raise ConfigError(
                    f"Expected {name} to give the same outputs again in evaluation, got two that differ. "
                    "Draw at random in training mode alone, as nn.Dropout does."
                )
        with in_mode(model, training=True):
            draws = _draws(name, model, rows)
    if layer is not None:
        named_layer(model, layer)
    return Found(layer=layer or profiled_layer(model), draws=draws)


def varied(blank: Tensor, rows: int = _ROWS) -> Tensor:
    """Records (rows, *shape) like `blank` with numbers from 0 to 1, or with the codes 0 and 1."""
    # On zeros, a running mean or maximum would stay zero, and the test would not see it change.
    entries = torch.arange(rows * blank.numel())
    values = entries / (len(entries) - 1) if blank.is_floating_point() else entries % 2
    return values.to(blank.dtype).reshape(rows, *blank.shape[1:])


def _draws(name: str, model: nn.Module, rows: Tensor) -> bool:
    before = torch.get_rng_state()
    values = passed(name, model, rows)
    draws = not torch.equal(before, torch.get_rng_state())
    if not values.requires_grad:
        raise ConfigError(f"Expected outputs of {name} that depend on its parameters, got ones that do not.")
    torch.set_rng_state(before)
    if not same(values, passed(name, model, rows)):
        raise ConfigError(
            f"Expected {name} to draw from torch's generator alone in training, got other outputs from one "
            "state of it. Remove other generators, and state that is kept from one pass to the next."
        )
    return draws


def passed(name: str, model: nn.Module, rows: Tensor) -> Tensor:
    """The model's output for records (n, *shape). Raises ConfigError if it fails or puts out no tensor."""
    try:
        found: object = model(rows)
    except Exception as error:  # the model is the caller's code: it can raise any exception
        raise ConfigError(
            f"Expected {name} to take one tensor of records of shape {tuple(rows.shape[1:])}, got "
            f"{type(error).__name__}: {error}. Correct the model, or its [model.options]."
        ) from error
    if not isinstance(found, Tensor):
        raise ConfigError(
            f"Expected {name} to put out a tensor, got {type(found).__name__}. Return the scores alone from "
            'its `forward`, such as found["logits"] or found.logits.'
        )
    return found


def puts_out_shares(model: nn.Module, rows: Tensor) -> bool:
    """Whether all outputs for these records lie from 0 to 1 whatever is trained, as behind a sigmoid.

    The values of the model's trained parameters are drawn anew.
    """
    draws = torch.Generator().manual_seed(0)
    with in_mode(model, training=False), torch.no_grad():
        for _ in range(_DRAWS):
            found = model(rows)
            if not ((found >= 0) & (found <= 1)).all():
                return False
            for entry in model.parameters():
                if entry.requires_grad:
                    entry.normal_(std=3.0, generator=draws)
    return True


def _require_outputs(name: str, values: Tensor, rows: int, outputs: int) -> None:
    if values.shape != (rows, outputs) or values.dtype != torch.float32:
        raise ConfigError(
            f"Expected {name} to put out {outputs} numbers for each record, of shape {(rows, outputs)} and "
            f"float32 for {rows} records, got shape {tuple(values.shape)} of {values.dtype}. Correct its "
            "last layer."
        )


@contextmanager
def _still(name: str, model: nn.Module) -> Iterator[None]:
    """A context that raises ConfigError at its end if a pass changed anything but the statistics of norms."""
    fixed = _statistics(model)

    def entries() -> dict[str, Tensor]:
        both = (*model.named_buffers(), *model.named_parameters())
        return {key: entry.detach() for key, entry in both if key not in fixed}

    before = {key: entry.clone() for key, entry in entries().items()}
    yield
    after = entries()
    moved = [key for key, entry in after.items() if key not in before or not same(entry, before[key])]
    if moved or len(after) < len(before):
        raise ConfigError(
            f"Expected nothing to change in {name} but parameters in training and the statistics of batch "
            f"norm, got {moved[0] if moved else 'an entry'} that a pass changes. It would carry data from "
            "one client to another: remove it."
        )


def _statistics(model: nn.Module) -> set[str]:
    """The names of the statistics of norms, which may change. The study averages them."""
    norms = [
        (name, own) for name, own in model.named_modules() if isinstance(own, _BatchNorm | _InstanceNorm)
    ]
    return {key for name, own in norms for key, _ in own.named_buffers(name, recurse=False)}


def profiled_layer(model: nn.Module) -> str | None:
    """The name of the first dense layer, as in FedProf, or of the last convolution if there is none."""
    dense, convolutions = (
        [name for name, module in model.named_modules() if name and isinstance(module, kind)]
        for kind in (nn.Linear, nn.Conv2d)
    )
    return next(iter([*dense[:1], *convolutions[-1:]]), None)


GROUP: Final = "securefl.models"
"""The entry points that `kind` can name."""
