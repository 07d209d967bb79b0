"""What a model's code keeps between two passes: attributes, closures, globals, generators.

A pass that keeps something hands it to the next one, and with it what the records of one chunk do to those
of another. So what can be reached from a model's layers is compared before and after a pass. Names are kept
beside the values, so that a refusal can name what moved.

It is a comparison and no proof: a C extension may keep what Python does not see. Tensors of a former pass are
caught where they are used (`alone`).
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Set
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

State = Mapping[str, object]
"""What was found, by where it is, in a form that can be compared."""

_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), np.generic, torch.Size, torch.dtype)
_FOREIGN: Final = ("torch", "numpy", "securefl", "builtins", "typing", "collections", "math", "functools")
"""Packages whose functions are not followed: they keep nothing of a model."""
_LAYERS_OWN: Final = ("_parameters", "_buffers", "_modules")
_DEEPEST: Final = 12


def _of_numpy() -> tuple[object, ...]:
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - a pass may draw from it
    return _digest(state["state"]["key"].tobytes()), state["state"]["pos"], state["has_gauss"], state["gauss"]


def state_of(model: nn.Module) -> State:
    """What the model's layers and their code keep now."""
    found: dict[str, object] = {
        "torch's generator": _digest(torch.get_rng_state().numpy().tobytes()),
        "numpy's generator": repr(_of_numpy()),
    }
    seen: dict[int, object] = {}
    for name, layer in model.named_modules():
        place = f"layer {name!r}" if name else "the model"
        for key, value in vars(layer).items():
            if key in _LAYERS_OWN:
                found |= {
                    f"{key[1:-1]} {own!r} of {place}": (id(kept), _version(kept))
                    for own, kept in value.items()
                }
            else:
                found |= _walked(f"attribute {key!r} of {place}", value, seen, 0)
        if not _foreign(type(layer).__module__):
            found |= _walked(f"class {type(layer).__name__}", type(layer), seen, 0)
    return found


def moved(before: State, after: State) -> str | None:
    """Where something is other than before. None if all is the same."""
    for place in {**before, **after}:
        if place not in before or place not in after or before[place] != after[place]:
            return place
    return None


def tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """Tensors that layers hold as attributes, beside parameters and buffers."""
    for layer in model.modules():
        for value in vars(layer).values():
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, list | tuple):
                yield from (one for one in value if isinstance(one, Tensor))
            elif isinstance(value, dict):
                yield from (one for one in value.values() if isinstance(one, Tensor))


def _version(kept: object) -> object:
    return kept._version if isinstance(kept, Tensor) and not kept.is_inference() else None


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _foreign(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _FOREIGN


def _walked(place: str, value: Any, seen: dict[int, object], depth: int) -> dict[str, object]:
    """The values below this one, by place. What was met before is told by its identity alone."""
    if isinstance(value, _PLAIN):
        return {place: (type(value).__name__, repr(value))}
    if id(value) in seen or depth > _DEEPEST:
        return {place: id(value)}
    # kept alive while the walk lasts: another object could take the number of one that is gone
    seen[id(value)] = value
    found: dict[str, object] = {place: (type(value).__qualname__, id(value))}
    for key, below in _parts(value):
        found |= _walked(f"{place}{key}", below, seen, depth + 1)
    return found


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What lies in a value, and what it is worth."""
    match value:
        case Tensor():
            yield " (its version)", _version(value)
            if not torch._C._functorch.is_functorch_wrapped_tensor(value) and value.device.type != "meta":
                yield " (its values)", _digest(_raw(value))
        case np.ndarray():
            yield " (its values)", _digest(value.tobytes()) if value.dtype != object else repr(value)
        case nn.Module():
            return  # its own attributes are walked as those of a layer, where it is one
        case torch.Generator():
            yield " (its state)", _digest(value.get_state().numpy().tobytes())
        case np.random.Generator():
            yield " (its state)", repr(value.bit_generator.state)
        case dict() | Mapping():
            yield " (its keys)", repr([key if isinstance(key, _PLAIN) else id(key) for key in value])
            yield from (
                (f"[{key if isinstance(key, _PLAIN) else id(key)!r}]", own)
                for key, own in list(value.items())
            )
        case list() | tuple() | deque():
            yield " (its length)", len(value)
            yield from ((f"[{at}]", own) for at, own in enumerate(list(value)))
        case Set():
            yield (
                " (its entries)",
                repr(sorted(repr(own) if isinstance(own, _PLAIN) else str(id(own)) for own in value)),
            )
        case itertools.count() | itertools.repeat():
            yield " (its place)", repr(value)
        case MethodType():
            yield " (its object)", value.__self__
            yield " (its function)", value.__func__
        case FunctionType():
            yield from _function(value)
        case type():
            if not _foreign(value.__module__):
                yield from (
                    (f".{key}", own) for key, own in list(vars(value).items()) if not key.startswith("__")
                )
                yield from ((f"<{base.__name__}>", base) for base in value.__bases__)
        case staticmethod() | classmethod():
            yield "", value.__func__
        case property():
            yield from (
                (f".{key}", own) for key in ("fget", "fset") if (own := getattr(value, key)) is not None
            )
        case ModuleType():
            yield from _generator(value)
        case BuiltinFunctionType():
            return
        case _:
            yield from _generator(value)
            kept = getattr(value, "__dict__", None)
            if isinstance(kept, dict):
                yield from ((f".{key}", own) for key, own in list(kept.items()))
            for kind in type(value).__mro__:
                for slot in _slots(kind):
                    if hasattr(value, slot):
                        yield f".{slot}", getattr(value, slot)


def _raw(value: Tensor) -> bytes:
    plain = value.detach().cpu().contiguous()
    if plain.layout != torch.strided or plain.is_quantized:
        return repr(plain).encode()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    named = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(slot for slot in named if slot not in ("__dict__", "__weakref__"))


def _generator(value: Any) -> Iterator[tuple[str, Any]]:
    """The state of what draws, such as Python's module `random` and its generators."""
    for name in ("getstate", "get_state"):
        if callable(read := getattr(value, name, None)):
            try:
                yield " (its state)", repr(read())
            except Exception:  # anybody's object: it may want arguments
                return
            return


def _function(value: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function's code can reach beside its arguments: closure, defaults, and globals by name."""
    if _foreign(value.__module__):
        return
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        try:
            yield f" closes over {name!r}", cell.cell_contents
        except ValueError:  # nothing in it yet
            yield f" closes over {name!r}", None
    yield from ((f" (default {at})", own) for at, own in enumerate(value.__defaults__ or ()))
    yield from ((f" (attribute {key!r})", own) for key, own in list(vars(value).items()))
    for name in _names(value.__code__):
        if name in value.__globals__:
            yield f" uses {name!r}", value.__globals__[name]


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _names(constant)
