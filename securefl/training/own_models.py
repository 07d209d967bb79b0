"""Models of people: any function or class that makes an `nn.Module`.

What is asked for by name is given: `shape` (of a record), `inputs` (how many numbers that is) and `outputs`,
beside the study's [model.options]. A function that takes two other arguments is given shape and outputs.

A model is tried on made-up records before a study trusts it. A study keeps one module for all clients of a
process, and sends what its state dict has in floats. So a model must be the same whenever it is built, and
must hold nothing that moves besides what is trained and the statistics of batch norm.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from math import prod
from typing import Any, Final, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from securefl.core.errors import ConfigError
from securefl.core.reading import near
from securefl.storage.own_code import CodePlace, importable, names_code
from securefl.training.devices import in_mode
from securefl.training.heads import named_layer
from securefl.training.models import MLP, MOST_PARAMETERS, Kind, ModelConfig


@dataclass(frozen=True, kw_only=True)
class OwnModelSection:
    """The section [model] for a model that is not packaged.

    kind: `module:name`, an entry point's name, or None if a caller in Python brings the model. options: given
    to it by name. profiled_layer: name of a layer. The default is the first dense layer, or else the last
    convolution.
    """

    kind: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    profiled_layer: str | None = None


def model_points() -> dict[str, EntryPoint]:
    """The models of installed packages, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def section_of(table: Any, *, brought: bool) -> tuple[type[Any], Any]:
    """The dataclass that reads this section [model], and what it reads of it.

    brought: whether a caller in Python brings the model. What chooses a packaged one is left out then.
    """
    if not isinstance(table, dict):
        return ModelConfig, table
    if brought:
        kept = {key: value for key, value in table.items() if key not in ("kind", "hidden", "width")}
        return OwnModelSection, kept
    kind = table.get("kind")
    if not isinstance(kind, str) or kind in get_args(Kind):
        return ModelConfig, table
    if not names_code(kind) and kind not in (points := model_points()):
        known = [*get_args(Kind), *points]
        raise ConfigError(
            f"[model] `kind`: Expected one of {', '.join(map(repr, known))}, or a class or function as "
            f"`module:name`, got {kind!r}{near(kind, known)}."
        )
    return OwnModelSection, table


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnModel:
    """An `Architecture` that is made by somebody's factory. `resolved` tries it.

    factory: makes the module. name: for errors. place: where its code is, for what it imports when it is
    called. Other fields: see `Architecture`.
    """

    factory: Callable[..., nn.Module]
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    profiled_layer: str | None = None
    place: CodePlace | None = None
    reads_text: bool = False
    draws: bool = False
    hidden: tuple[int, ...] | None = None

    @property
    def layer(self) -> str:
        """Name of the profiled layer. Raises ConfigError if there is none to be found."""
        if self.profiled_layer is None:
            raise ConfigError(
                f"Expected a dense layer or a convolution in {self.name} to profile, got none. Name a layer "
                "that puts out (n, q) or (n, q, height, width) by `profiled_layer` under [model]."
            )
        return self.profiled_layer

    def blank(self, shape: tuple[int, ...]) -> Tensor:
        """One record of zeros, (1, *shape)."""
        return torch.zeros((1, *shape), dtype=torch.int64 if self.reads_text else torch.float32)

    def shorter(self) -> OwnModel:
        """Raises ConfigError: nobody knows which of its layers could be left out."""
        raise ConfigError(
            f"Expected a packaged model of kind 'mlp' for bodies of two lengths, got {self.name}. Leave "
            "`shorter` out, or take that kind."
        )

    def build(self, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
        """The model for records of `shape`, initialised from `seed` (0 <= seed < 2^64) alone.

        torch's generator is left as it was. Raises ConfigError if the factory fails or makes no module.
        """
        # As in `ModelConfig.build`: layers draw from torch's CPU generator, so that one is lent out.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self.made(shape, outputs)

    def made(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """What the factory makes, drawn from torch's generator as it stands."""
        if isinstance(self.factory, nn.Module):
            return copy.deepcopy(self.factory)
        given, named = self._arguments(shape, outputs)
        try:
            with self._imports():
                model = self.factory(*given, **named)
        # The factory is the study's own code: it may fail in any way, and end the process as scripts do.
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"Expected {self.name} to make a model for records of shape {shape} and {outputs} outputs, "
                f"got {type(error).__name__}: {error}. Mend it, or its [model.options]."
            ) from error
        if not isinstance(model, nn.Module):
            raise ConfigError(f"Expected {self.name} to return an nn.Module, got {type(model).__name__}.")
        return model

    def _imports(self) -> AbstractContextManager[None]:
        return nullcontext() if self.place is None else importable(self.place)

    def _arguments(self, shape: tuple[int, ...], outputs: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the factory is called with, by place and by name."""
        known: dict[str, Any] = {"shape": shape, "inputs": prod(shape), "outputs": outputs}
        try:
            parameters = inspect.signature(self.factory).parameters
        except (TypeError, ValueError):  # a function of C says nothing of what it takes
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
        """The same once it was tried, with what was found of it: profiled layer, and whether it draws.

        Raises ConfigError for a model that a study cannot use (see `tried`).
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self._require_size(shape, outputs)
            first = self.build(shape, outputs, seed)
            require_same(self.name, first, self.build(shape, outputs, seed))
            found: Found = tried(self.name, first, self.blank(shape), outputs, self.profiled_layer)
        layers = [layer for layer in first.children() if isinstance(layer, nn.Linear)]
        hidden = tuple(layer.out_features for layer in layers[:-1]) if type(first) is MLP else None
        return replace(self, profiled_layer=found.layer, draws=found.draws, hidden=hidden)

    def _require_size(self, shape: tuple[int, ...], outputs: int) -> None:
        """Raises ConfigError for too many parameters, before they take memory where that can be known."""
        try:
            with torch.device("meta"):
                count = sum(entry.numel() for entry in self.made(shape, outputs).parameters())
        # Without values a factory or its layers may fail in any way. The model is then counted once it is
        # made, and what fails there too is told there.
        except Exception:
            return
        require_size(self.name, count)


# A model is tried ------------------------------------------------------------------------------------


_ROWS: Final = 2


@dataclass(frozen=True)
class Found:
    """layer: the profiled layer's name, None if there is none. draws: whether training draws at random."""

    layer: str | None
    draws: bool


def require_size(name: str, count: int) -> None:
    """Raises ConfigError for a model of too many parameters."""
    if count > MOST_PARAMETERS:
        raise ConfigError(
            f"Expected {name} to have at most {MOST_PARAMETERS:,} parameters, got {count:,}. Make it smaller."
        )


def require_same(name: str, first: nn.Module, second: nn.Module) -> None:
    """Raises ConfigError unless two models that were built from one seed are alike and apart."""
    if first is second:
        raise ConfigError(
            f"Expected {name} to make a new module each time, got the same one twice. Make it inside, or "
            "hand over the module itself."
        )
    _require_plain(name, first)
    own, other = first.state_dict(), second.state_dict()
    if own.keys() != other.keys() or any(not _same(own[key], other[key]) for key in own):
        raise ConfigError(
            f"Expected {name} to make the same model from the same seed, got two. Let it draw from torch's "
            "generator alone, without a seed of its own or a clock."
        )


def _require_plain(name: str, model: nn.Module) -> None:
    named = list(model.named_parameters(remove_duplicate=False))
    for key, parameter in named:
        if isinstance(parameter, UninitializedParameter):
            raise ConfigError(f"Expected sizes in {name}, got the lazy parameter {key}. Say its size.")
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise ConfigError(
                f"Expected parameters of float32 on the CPU in {name}, got {key} of {parameter.dtype} on "
                f"{parameter.device}. The study moves the model itself, by [runtime] device."
            )
    require_size(name, sum(parameter.numel() for parameter in model.parameters()))
    if not any(parameter.requires_grad for _, parameter in named):
        raise ConfigError(f"Expected a parameter to train in {name}, got none. Leave one free.")
    first: dict[int, str] = {}
    for key, parameter in named:
        if (other := first.setdefault(id(parameter), key)) != key:
            raise ConfigError(
                f"Expected parameters of their own in {name}, got one that is both {other} and {key}. Give "
                "each layer its own."
            )
    for key, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.momentum is None:
            raise ConfigError(
                f"Expected a momentum in batch norm {key} of {name}, got None. Its statistics would hang on "
                "how many batches a process has seen, of whichever clients. Give it one, such as 0.1."
            )
    fixed = {key for owner, module in model.named_modules() if _keeps(module) for key in _keys(owner, module)}
    for key, entry in model.state_dict().items():
        if key not in fixed and key not in dict(named) and entry.is_floating_point():
            raise ConfigError(
                f"Expected no buffer beside the parameters of {name}, got {key}, which would be averaged and "
                "noised with them. Register it with persistent=False if it is a constant."
            )


def tried(name: str, model: nn.Module, blank: Tensor, outputs: int, layer: str | None) -> Found:
    """What a model does with a record of zeros, `blank` (1, *shape), and with two others, in both modes.

    layer: the profiled layer, or None to find one. Raises ConfigError for a wrong output, a layer that does
    not exist, buffers that move, and for results that do not repeat. It draws from torch's generator.
    """
    rows = _varied(blank)
    with _still(name, model):
        with in_mode(model, training=False):
            _require_outputs(name, _passed(name, model, blank), 1, outputs)
            before = torch.get_rng_state()
            values = _passed(name, model, rows)
            _require_outputs(name, values, _ROWS, outputs)
            again = _passed(name, model, rows)
            if not torch.equal(before, torch.get_rng_state()) or not _same(values, again):
                raise ConfigError(
                    f"Expected {name} to give the same outputs again in evaluation mode, got others. Draw at "
                    "random in training mode alone, as nn.Dropout does."
                )
        with in_mode(model, training=True):
            draws = _draws(name, model, rows)
    if layer is not None:
        named_layer(model, layer)
    return Found(layer=layer or _profiled(model), draws=draws)


def _varied(blank: Tensor) -> Tensor:
    """Records (2, *shape) like `blank` with numbers from 0 to 1, or with the codes 0 and 1."""
    # Of zeros a running mean or maximum stays zero, and what moves would not be seen.
    entries = torch.arange(_ROWS * blank.numel())
    values = entries / (len(entries) - 1) if blank.is_floating_point() else entries % 2
    return values.to(blank.dtype).reshape(_ROWS, *blank.shape[1:])


def _draws(name: str, model: nn.Module, rows: Tensor) -> bool:
    before = torch.get_rng_state()
    values = _passed(name, model, rows)
    draws = not torch.equal(before, torch.get_rng_state())
    if not values.requires_grad:
        raise ConfigError(
            f"Expected outputs of {name} that follow from its parameters, got ones that do not."
        )
    torch.set_rng_state(before)
    if not _same(values, _passed(name, model, rows)):
        raise ConfigError(
            f"Expected {name} to draw from torch's generator alone in training, got other outputs from one "
            "state of it. Leave out other generators, and what is kept from one pass to the next."
        )
    return draws


def _passed(name: str, model: nn.Module, rows: Tensor) -> Tensor:
    try:
        found: object = model(rows)
    except Exception as error:  # the model is the caller's code, and may fail in any way
        raise ConfigError(
            f"Expected {name} to take records of shape {tuple(rows.shape[1:])}, got {type(error).__name__}: "
            f"{error}. Mend the model, or its [model.options]."
        ) from error
    if not isinstance(found, Tensor):
        raise ConfigError(f"Expected {name} to put out a tensor, got {type(found).__name__}.")
    return found


def _require_outputs(name: str, values: Tensor, rows: int, outputs: int) -> None:
    if values.shape != (rows, outputs) or values.dtype != torch.float32:
        raise ConfigError(
            f"Expected {name} to put out {outputs} numbers for each record, of shape {(rows, outputs)} and "
            f"float32 for {rows} records, got shape {tuple(values.shape)} of {values.dtype}. Mend its last "
            "layer."
        )


@contextmanager
def _still(name: str, model: nn.Module) -> Iterator[None]:
    """Raises ConfigError at the end if a pass moved anything but the statistics of norms."""
    fixed = {key for owner, module in model.named_modules() if _keeps(module) for key in _keys(owner, module)}
    entries = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    before = {key: entry.detach().clone() for key, entry in entries.items() if key not in fixed}
    yield
    after = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    moved = [key for key, entry in after.items() if key not in fixed and not _unmoved(entry, before.get(key))]
    if moved or len(after) < len(before):
        raise ConfigError(
            f"Expected nothing to move in {name} but parameters in training and the statistics of batch "
            f"norm, got {moved[0] if moved else 'an entry'} that a pass changes. Clients would see each "
            "other's by it: do without it."
        )


def _unmoved(entry: Tensor, before: Tensor | None) -> bool:
    return before is not None and _same(entry.detach(), before)


def _keeps(module: nn.Module) -> bool:
    """Whether a layer's statistics may move, as the study averages them."""
    return isinstance(module, _BatchNorm | _InstanceNorm)


def _keys(owner: str, module: nn.Module) -> Iterator[str]:
    for key, _ in module.named_buffers(recurse=False):
        yield f"{owner}.{key}" if owner else key


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # nan differs from itself
    return bool(torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)))


def _profiled(model: nn.Module) -> str | None:
    """The first dense layer, as FedProf profiles it, or else the last convolution."""
    dense: list[str] = [
        name for name, module in model.named_modules() if name and isinstance(module, nn.Linear)
    ]
    if dense:
        return dense[0]
    last: str | None = None
    for name, module in model.named_modules():
        if name and isinstance(module, nn.Conv2d):
            last = str(name)
    return last


def require_layers(name: str, model: nn.Module, blank: Tensor) -> None:
    """Raises ConfigError for a parameter used outside of its layer: private training would skip it."""
    called: set[nn.Module] = set()
    handles = [module.register_forward_hook(lambda own, *_: called.add(own)) for module in model.modules()]
    try:
        with in_mode(model, training=False):
            values = _passed(name, model, blank.expand(_ROWS, *blank.shape[1:]).clone())
    finally:
        for handle in handles:
            handle.remove()
    free = {key: entry for key, entry in model.named_parameters() if entry.requires_grad}
    slopes = torch.autograd.grad(values.sum(), list(free.values()), allow_unused=True)
    for key, slope in zip(free, slopes, strict=True):
        layer = key.rpartition(".")[0]
        if slope is not None and model.get_submodule(layer) not in called:
            raise ConfigError(
                f"Expected {key} to be used by calling its layer {layer!r}, got another use of it."
            )


GROUP: Final = "securefl.models"
"""The entry points that `kind` can name."""
