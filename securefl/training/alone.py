"""Passes of a model over records that cannot see each other, whatever the model computes.

The model is given batches of *one* under `torch.func.vmap`: in its code there is no other record to look at.
It need not be made of known layers. `vmap` alone is no isolation, so these are refused:

- An autograd function with a `vmap` of its own, and operators that are not torch's. Their rules see the whole
  chunk. `generate_vmap_rule = True` is fine.
- A tensor that was not made in this pass, unless the model held it before, or it was met in the public pass
  and no pass changed it. Otherwise what one chunk leaves in a list would be in the next one's pass.
- Whatever else a pass changes: attributes, buffers, globals, generators (`state_of`).
- Draws that the package does not know. Those it knows come from each record's own tape (`draws`).
- Values that leave the tensors: Python that decides by a record's values, and printing.

A refusal must not tell of the records. What a pass does in Python cannot depend on values, so a model is
refused in its first public pass.

A pass that keeps something hands it to the next one, and with it what the records of one chunk do to those
of another. So what can be reached from a model's layers is compared before and after a pass. Names are kept
beside the values, so that a refusal can name what moved. It is a comparison and no proof: a C extension may
keep what Python does not see. Tensors of a former pass are caught where they are used.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch.autograd_function import custom_function_call
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.func import vmap
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from securefl.core.errors import ConfigError
from securefl.training.draws import RULES, Length, Taken, Tape
from securefl.training.products import dense

Call = Callable[..., Any]
"""One record's pass: columns without rows -> tensors without rows."""

_OPENED: Final[dict[FunctionType, FunctionType]] = {}
_ASKS: Final = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@dataclass
class Isolation:
    """What the public pass found of a model: how much a record draws, and constants that it uses.

    constants: tensors that no layer holds, such as a table in a module's globals, by identity. They are kept
    alive here, so that no other tensor takes their place.
    """

    length: Length = field(default_factory=Length)
    constants: dict[int, Tensor] = field(default_factory=dict)


class Watch(TorchFunctionMode):
    """A context around one pass of the model, in which every function of torch is looked at.

    public: whether this is a public pass, in which constants are written down.
    """

    def __init__(self, found: Isolation, taken: Taken, known: Iterable[Tensor], *, public: bool) -> None:
        super().__init__()
        self._found, self._taken, self._public = found, taken, public
        self._known = {id(one): one for one in known}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        _require_known(func, args)
        for one in _tensors((args, given)):
            self._require_own(one, func)
        made = self._called(func, args, given)
        for one in _tensors(made):
            self._known[id(one)] = one
        return made

    def _called(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if "memory_format" in kwargs:  # a record alone has no rows to lay out; its values stay
            kwargs = {key: value for key, value in kwargs.items() if key != "memory_format"}
        if func is linear:
            return dense(*args, **kwargs)
        if (rule := RULES.get(func)) is not None:
            return rule(self._taken, *args, **kwargs)
        if isinstance(func, FunctionType) and (opened := _opened(func)) is not None:
            with self:
                return opened(*args, **kwargs)
        return func(*args, **kwargs)

    def _require_own(self, one: Tensor, func: Callable[..., Any]) -> None:
        if id(one) in self._known or self._found.constants.get(id(one)) is one:
            return
        # A plain tensor has no record's values in it: vmap lets none out.
        if self._public and not is_functorch_wrapped_tensor(one):
            self._found.constants[id(one)] = one
            return
        raise ConfigError(
            f"Expected tensors that are made in this pass or held by the model, got another of shape "
            f"{tuple(one.shape)} in `{_named(func)}`. What one pass keeps would be seen by the records of "
            "the next: "
            "keep nothing, and register constants as buffers (persistent=False)."
        )


def _require_known(func: Callable[..., Any], args: Sequence[Any]) -> None:
    if func is custom_function_call:
        own = args[0]
        if not own.generate_vmap_rule and own.vmap is not torch.autograd.Function.vmap:
            raise ConfigError(
                f"Expected autograd functions without a vmap rule of their own, got {own.__name__}. Such a "
                "rule sees "
                "all records of a chunk. Set generate_vmap_rule = True in its place."
            )
    elif isinstance(func, HigherOrderOperator):
        raise ConfigError(
            f"Expected functions of torch on tensors, got the operator {func._name!r}. Do without it."
        )
    elif isinstance(func, OpOverload | OpOverloadPacket):
        _require_aten(str(func))
    elif func is Tensor.__repr__ or func is Tensor.__format__:
        raise ConfigError(
            "Expected a model that prints no tensors, got one that does: the text holds the values of all "
            "records of "
            "a chunk. Print their shapes."
        )


def _require_aten(name: str) -> None:
    space = name.replace("::", ".").partition(".")[0]
    if space not in ("aten", "prim", "prims"):
        raise ConfigError(
            f"Expected operators of torch itself, got {name}. A registered operator may see all records of "
            "a chunk. "
            "Compose it of torch's functions."
        )


class _AtenAlone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that refuses operators of others, wherever they are called from."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        _require_aten(str(func))
        return func(*args, **(kwargs or {}))


def _opened(func: FunctionType) -> FunctionType | None:
    """A function of `torch.nn.functional` whose inside the watch sees too. None for functions of others.

    Attention, for example, draws its dropout inside. torch's function hands itself over to the watch before
    it begins. Its copy leaves that out, and the functions within hand themselves over.
    """
    if func.__module__ not in ("torch.nn.functional", "torch.functional"):
        return None
    if not set(_ASKS) & set(func.__code__.co_names):
        return None
    if func not in _OPENED:
        names = {**func.__globals__, **dict.fromkeys(_ASKS, lambda *_: False)}
        made = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
        made.__kwdefaults__ = func.__kwdefaults__
        _OPENED[func] = made
    return _OPENED[func]


def _named(func: Callable[..., Any]) -> str:
    return str(getattr(func, "__name__", func))


def _tensors(of: Any) -> Iterable[Tensor]:
    match of:
        case Tensor():
            yield of
        case dict():
            for one in of.values():
                yield from _tensors(one)
        case list() | tuple():
            for one in of:
                yield from _tensors(one)


# Passes -----------------------------------------------------------------------------------------------


class Alone:
    """Passes of one model in which each record is alone.

    found: what public passes found; see `explored`.
    """

    def __init__(self, model: nn.Module, found: Isolation) -> None:
        self.model, self.found = model, found

    def mapped(self, call: Call, columns: Sequence[Tensor], tape: Tape | None, *, public: bool) -> Any:
        """The results of `call` for each row of the columns, (rows, ...), from one pass.

        call: is given a function `watched` and then one row of each column. It must run the model inside of
        `watched(tensors)`, whose argument are the tensors that it gives to the model.
        Raises ConfigError for a model that keeps something, or does what `vmap` cannot follow, and whatever
        else the model raises.
        """
        empty = columns[0].new_zeros((len(columns[0]), 0))
        uniform, normal = (empty, empty) if tape is None else (tape.uniform, tape.normal)
        before = state_of(self.model)
        constants = {at: (one._version, one.clone()) for at, one in self.found.constants.items()}
        held = [*self.model.parameters(), *self.model.buffers(), *tensors_of(self.model)]
        used: list[Length] = []

        def one(uniform: Tensor, normal: Tensor, *row: Tensor) -> Any:
            taken = Taken(None if tape is None else Tape(uniform, normal))

            def watched(given: Iterable[Tensor]) -> Watch:
                return Watch(self.found, taken, [*held, *given], public=public)

            found = call(watched, *row)
            used.append(taken.length)
            return found

        with self._of_torch(public), _slow_ways_unsaid():
            try:
                result = vmap(one, randomness="error")(uniform, normal, *columns)
            except ConfigError:
                raise
            except Exception as error:
                if (reason := _reason(error)) is None:
                    raise
                raise ConfigError(f"{reason}") from error
        self._require_still(before, constants)
        if public and tape is None:
            self.found.length = used[-1]
        elif used[-1] != self.found.length:
            raise ConfigError("Expected a model that draws as much in every pass, got one that draws less.")
        return result

    @staticmethod
    def _of_torch(public: bool) -> AbstractContextManager[object]:
        return _AtenAlone() if public else nullcontext()  # type: ignore[no-untyped-call]

    def _require_still(self, before: Any, constants: Mapping[int, tuple[int, Tensor]]) -> None:
        place = moved(before, state_of(self.model))
        for at, (version, values) in constants.items():
            if self.found.constants[at]._version != version or not _same(self.found.constants[at], values):
                place = f"a tensor of shape {tuple(values.shape)} outside of the model"
        if place is not None:
            raise ConfigError(
                f"Expected nothing that a pass changes, got {place}. What a pass keeps is seen by the "
                "records of the "
                "next one: keep nothing between passes."
            )


@contextmanager
def _slow_ways_unsaid() -> Iterator[None]:
    """torch warns where it computes a function record by record. That is what is wanted here."""
    before = torch._C._debug_only_are_vmap_fallback_warnings_enabled()  # type: ignore[attr-defined]
    torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._functorch._set_vmap_fallback_warning_enabled(before)  # type: ignore[attr-defined]


def _same(one: Tensor, other: Tensor) -> bool:
    return (
        torch.equal(one.nan_to_num(), other.nan_to_num())
        if one.is_floating_point()
        else torch.equal(one, other)
    )


def wrapped_now() -> list[Tensor]:
    """The tensors of passes that there are now: outside of a pass, those that somebody keeps."""
    # by type: `isinstance` asks objects of anybody's for their class, and some answer with a warning
    there = [one for one in gc.get_objects() if issubclass(type(one), Tensor)]
    return [one for one in there if is_functorch_wrapped_tensor(one)]


def require_none_kept(before: Sequence[Tensor]) -> None:
    """Raises ConfigError if a tensor of a pass that has ended is kept, wherever it is, and was not before."""
    there = {id(one) for one in before}

    def new() -> list[Tensor]:
        return [one for one in wrapped_now() if id(one) not in there]

    if not new():
        return
    gc.collect()  # what is left may be garbage
    if kept := new():
        raise ConfigError(
            "Expected a model that keeps nothing of a pass, got one that keeps a tensor of shape "
            f"{tuple(kept[0].shape)}. "
            "Let it go when the pass ends."
        )


_DRAWS: Final = "Use dropout, torch.rand_like or torch.bernoulli."
_REASONS: Final = (
    (
        ".item()",
        "takes a value out of a tensor, or decides in Python by the values of a record (item, float, if, "
        "while)",
        "Compute with tensors alone, and use torch.where.",
    ),
    ("data pointer", "takes values out of a tensor (numpy, tolist)", "Compute with tensors alone."),
    ("storage of BatchedTensor", "reads the memory of a tensor", "Compute with tensors alone."),
    ("`data`", "takes `.data` of a tensor", "Use `.detach()`."),
    ("dynamic shape", "makes shapes that depend on values (nonzero, a mask as index)", "Use torch.where."),
    ("random", "draws in a way that the secret source does not know", _DRAWS),
    ("rrelu", "draws in a way that the secret source does not know", _DRAWS),
    ("setup_context", "has an autograd function without setup_context", "Split its forward."),
    ("generate_vmap_rule", "has an autograd function that says no rule", "Set it to True."),
    ("inplace arithmetic", "changes a tensor in place by the values of a record", "Make a new tensor."),
    ("in-place operation", "changes in place what no pass may, such as a buffer", "Make a new tensor."),
    ("inplace operation", "changes in place what its gradient needs", "Make a new tensor."),
    ("the broadcast shape", "has a layer that torch cannot follow record by record", "Take another layer."),
    ("vmap", "does what torch cannot follow record by record", "Take other functions."),
    ("Batching rule", "does what torch cannot follow record by record", "Take other functions."),
)  # fmt: skip
"""What torch says, what that means, and what to do."""


def _reason(error: Exception) -> str | None:
    text = str(error)
    for words, meaning, remedy in _REASONS:
        if words in text:
            return (
                f"Expected a model that computes each record by itself, got one that {meaning}: "
                f"{text.strip().partition(chr(10))[0][:160]}. {remedy}"
            )
    return None


# What a model's code keeps between two passes --------------------------------------------------------


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
