"""Record isolation for any torch model: passes in which each record is a batch of one under `vmap`.

The model gets batches of *one* under `torch.func.vmap`, so its code has no access to another record. Its
layers need not be known. `vmap` alone does not isolate records, so a pass refuses the following:

- An autograd function with its own `vmap` rule, and operators that are not torch's: their rules see the whole
  chunk. `generate_vmap_rule = True` is permitted.
- A tensor from outside the pass, unless the model held it before, or a public pass used it and no pass
  changed it. Otherwise a list could carry a tensor of one chunk into the pass of the next chunk.
- Any other change that a pass makes: to attributes, buffers, globals or generators (`state_of`).
- Random draws by functions without a rule in `draws`. Those with a rule read each record's own tape.
- Values that leave the tensors: Python code that branches on a record's values, and printing.

A refusal must not reveal a record. Under `vmap` the Python code of a pass cannot depend on values, so a model
is refused in its first public pass already.

State that a pass keeps would let the records of one chunk influence those of the next. So `state_of` records
everything that is reachable from the model's layers before and after a pass, and `moved` compares the two.
Names stand beside the values, so a refusal names the changed object. The comparison is not a proof: a C
extension may keep state that Python cannot see. If a pass uses a tensor of an earlier pass, it is refused
there.
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
    """The findings of the public pass: the number of random values of a record, and the model's constants.

    constants: tensors that no layer holds, such as a table in a module's globals, by identity. The reference
    here keeps them alive, so no other tensor can get the same identity.
    """

    length: Length = field(default_factory=Length)
    constants: dict[int, Tensor] = field(default_factory=dict)


class Watch(TorchFunctionMode):
    """A context around one pass of the model that checks every call of a torch function.

    public: whether this is a public pass, which records the model's constants.
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
        if "memory_format" in kwargs:  # a single record has no rows to lay out, and its values do not change
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
        # A tensor that vmap does not wrap holds no record's values: vmap lets no such value out.
        if self._public and not is_functorch_wrapped_tensor(one):
            self._found.constants[id(one)] = one
            return
        raise ConfigError(
            f"Expected tensors that are made in this pass or held by the model, got another of shape "
            f"{tuple(one.shape)} in `{_named(func)}`. The records of the next pass would see it: "
            "keep nothing, and register constants as buffers (persistent=False)."
        )


def _require_known(func: Callable[..., Any], args: Sequence[Any]) -> None:
    if func is custom_function_call:
        own = args[0]
        if not own.generate_vmap_rule and own.vmap is not torch.autograd.Function.vmap:
            raise ConfigError(
                f"Expected autograd functions without a vmap rule of their own, got {own.__name__}. Such a "
                "rule sees all records of a chunk. Set generate_vmap_rule = True instead."
            )
    elif isinstance(func, HigherOrderOperator):
        raise ConfigError(
            f"Expected functions of torch on tensors, got the operator {func._name!r}. Remove it."
        )
    elif isinstance(func, OpOverload | OpOverloadPacket):
        _require_aten(str(func))
    elif func is Tensor.__repr__ or func is Tensor.__format__:
        raise ConfigError(
            "Expected a model that prints no tensors, got one that does: the text holds the values of all "
            "records of a chunk. Print their shapes."
        )


def _require_aten(name: str) -> None:
    space = name.replace("::", ".").partition(".")[0]
    if space not in ("aten", "prim", "prims"):
        raise ConfigError(
            f"Expected operators of torch itself, got {name}. A registered operator may see all records of "
            "a chunk. Compose it of torch's functions."
        )


class _AtenAlone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that refuses operators of other packages, also if a layer calls them indirectly."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        _require_aten(str(func))
        return func(*args, **(kwargs or {}))


def _opened(func: FunctionType) -> FunctionType | None:
    """A copy of a function of `torch.nn.functional` whose inner calls `Watch` sees. None for other functions.

    Attention, for example, draws its dropout inside. torch's function passes itself to the `Watch` as one
    call before it begins. The copy skips that step, so each inner function passes itself to the `Watch`
    instead.
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

    found: the findings of public passes.
    """

    def __init__(self, model: nn.Module, found: Isolation) -> None:
        self.model, self.found = model, found

    def mapped(self, call: Call, columns: Sequence[Tensor], tape: Tape | None, *, public: bool) -> Any:
        """Compute `call` for each row of the columns in one pass: results of shape (rows, ...).

        call: takes a function `watched` and then one row of each column. It must run the model inside
            `watched(tensors)`, where `tensors` are the tensors that it passes to the model.

        Raises ConfigError if the model keeps state or if `vmap` cannot follow it. Other exceptions of the
        model pass through.
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
            raise ConfigError(
                "Expected a model that draws as many values in every pass, got one that draws fewer."
            )
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
                f"Expected nothing that a pass changes, got {place}. The records of the next pass would see "
                "it: keep nothing between passes."
            )


@contextmanager
def _slow_ways_unsaid() -> Iterator[None]:
    """Silence torch's warning that it computes a function record by record. Here that is intended."""
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
    """All wrapped tensors of passes in this process. Outside of a pass, some object keeps each of them."""
    there = gc.get_objects()
    # `type`, since `isinstance` reads `__class__` of foreign objects, and some of these warn then. Each type
    # is looked at once: a process has a million objects, of some thousands of types.
    kinds = {id(kind): kind for kind in map(type, there)}
    tensors = {number for number, kind in kinds.items() if issubclass(kind, Tensor)}
    chosen = map(tensors.__contains__, map(id, map(type, there)))
    return [one for one in itertools.compress(there, chosen) if is_functorch_wrapped_tensor(one)]


def require_none_kept(before: Sequence[Tensor]) -> None:
    """Raises ConfigError if any object keeps a tensor of an ended pass that is not among `before`."""
    there = {id(one) for one in before}

    def new() -> list[Tensor]:
        return [one for one in wrapped_now() if id(one) not in there]

    if not new():
        return
    gc.collect()  # the remaining tensors may be garbage
    if kept := new():
        raise ConfigError(
            "Expected a model that keeps nothing of a pass, got one that keeps a tensor of shape "
            f"{tuple(kept[0].shape)}. Delete it when the pass ends."
        )


_DRAWS: Final = "Use dropout, torch.rand_like or torch.bernoulli."
_REASONS: Final = (
    (
        ".item()",
        "takes a value out of a tensor, or branches in Python on the values of a record (item, float, if, "
        "while)",
        "Compute with tensors alone, and use torch.where.",
    ),
    ("data pointer", "takes values out of a tensor (numpy, tolist)", "Compute with tensors alone."),
    ("storage of BatchedTensor", "reads the memory of a tensor", "Compute with tensors alone."),
    ("`data`", "takes `.data` of a tensor", "Use `.detach()`."),
    ("dynamic shape", "makes shapes that depend on values (nonzero, a mask as index)", "Use torch.where."),
    ("random", "draws by a function that the secret source cannot replace", _DRAWS),
    ("rrelu", "draws by a function that the secret source cannot replace", _DRAWS),
    ("setup_context", "has an autograd function without setup_context", "Split its forward."),
    ("generate_vmap_rule", "has an autograd function without a vmap rule", "Set it to True."),
    ("inplace arithmetic", "changes a tensor in place by the values of a record", "Make a new tensor."),
    ("in-place operation", "changes a kept tensor in place, such as a buffer", "Make a new tensor."),
    ("inplace operation", "changes in place a tensor that its gradient needs", "Make a new tensor."),
    ("the broadcast shape", "has a layer that torch cannot follow record by record", "Take another layer."),
    ("vmap", "calls a function that torch cannot follow record by record", "Take other functions."),
    ("Batching rule", "calls a function that torch cannot follow record by record", "Take other functions."),
)  # fmt: skip
"""Words of torch's error, their meaning, and the remedy."""


def _reason(error: Exception) -> str | None:
    text = str(error)
    for words, meaning, remedy in _REASONS:
        if words in text:
            return (
                f"Expected a model that computes each record on its own, got one that {meaning}: "
                f"{text.strip().partition(chr(10))[0][:160]}. {remedy}"
            )
    return None


# State that a model's code keeps between two passes --------------------------------------------------


State = Mapping[str, object]
"""The state that `state_of` finds, by its place, in a form that can be compared."""

_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), np.generic, torch.Size, torch.dtype)
_FOREIGN: Final = ("torch", "numpy", "securefl", "builtins", "typing", "collections", "math", "functools")
"""Packages whose functions are not searched for state: they keep none of a model."""
_LAYERS_OWN: Final = ("_parameters", "_buffers", "_modules")
_DEEPEST: Final = 12


def _of_numpy() -> tuple[object, ...]:
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - a pass may draw from it
    return _digest(state["state"]["key"].tobytes()), state["state"]["pos"], state["has_gauss"], state["gauss"]


def state_of(model: nn.Module) -> State:
    """The state that the model's layers and their code keep now, with the generators of torch and numpy."""
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
    """The first place whose state differs between the two, or None."""
    for place in {**before, **after}:
        if place not in before or place not in after or before[place] != after[place]:
            return place
    return None


def tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """The tensors that layers hold as attributes, without parameters and buffers."""
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
    """The state of a value and everything below it, by place. A value met before counts by its identity."""
    if isinstance(value, _PLAIN):
        return {place: (type(value).__name__, repr(value))}
    if id(value) in seen or depth > _DEEPEST:
        return {place: id(value)}
    # Keep the value alive during the walk: after its deletion another object could get the same identity.
    seen[id(value)] = value
    found: dict[str, object] = {place: (type(value).__qualname__, id(value))}
    for key, below in _parts(value):
        found |= _walked(f"{place}{key}", below, seen, depth + 1)
    return found


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value with their places: entries, attributes and slots, or a digest of its content."""
    match value:
        case Tensor():
            yield " (its version)", _version(value)
            if not torch._C._functorch.is_functorch_wrapped_tensor(value) and value.device.type != "meta":
                yield " (its values)", _digest(_raw(value))
        case np.ndarray():
            yield " (its values)", _digest(value.tobytes()) if value.dtype != object else repr(value)
        case nn.Module():
            return  # `state_of` walks its attributes if it is a layer of the model
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
    """The state of a random generator, such as Python's module `random` and its generators."""
    for name in ("getstate", "get_state"):
        if callable(read := getattr(value, name, None)):
            try:
                yield " (its state)", repr(read())
            except Exception:  # a foreign object's method of this name may need arguments
                return
            return


def _function(value: FunctionType) -> Iterator[tuple[str, Any]]:
    """The objects that a function's code can reach beside its arguments: closure, defaults, globals."""
    if _foreign(value.__module__):
        return
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        try:
            yield f" closes over {name!r}", cell.cell_contents
        except ValueError:  # the cell is still empty
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
