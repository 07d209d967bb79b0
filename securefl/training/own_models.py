"""Models of people: any function or class that makes an `nn.Module`.

What is asked for by name is given: `shape` (of a record), `inputs` (how many numbers that is) and `outputs`,
beside the study's [model.options]. A function that takes two other arguments is given shape and outputs.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from math import prod
from typing import Any, Final, get_args

import torch
from torch import Tensor, nn

from securefl.core.errors import ConfigError
from securefl.core.reading import near
from securefl.storage.own_code import CodePlace, importable, names_code
from securefl.training.models import MLP, Kind, ModelConfig
from securefl.training.own_model_checks import Found, require_same, require_size, tried

GROUP: Final = "securefl.models"
"""The entry points that `kind` can name."""


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
