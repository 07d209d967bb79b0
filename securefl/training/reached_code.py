"""A digest of a caller's Python code: of everything that it reaches outside of installed packages.

A run that began with one function must not go on with another of the same name. Source text does not tell
them apart: a prompt has none, and an edited helper, a captured value or an argument of `functools.partial`
stands elsewhere. So the digest is of what Python would run: bytecode, the globals that it names, captured
values, defaults, and the contents of other objects as `copy` takes them apart. Nothing is pickled.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import secrets
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any, Final

import torch

UNKNOWN: Final = "unknown"
"""The beginning of the digest of code that cannot be read in full. No two of them are equal."""
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)
_WRAPPED: Final = (staticmethod, classmethod, functools._lru_cache_wrapper)
_CODE: Final = ("code", "consts", "names", "varnames", "freevars", "cellvars", "exceptiontable", "flags")
_CODE_COUNTS: Final = ("argcount", "posonlyargcount", "kwonlyargcount")
_NO_CODE: Final = ("__dict__", "__weakref__", "__module__", "_abc_impl", "__firstlineno__")
"""Attributes of a class that say where it stands, or that Python fills as it is used."""
_PYTHON: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))


def code_digest(*code: Any) -> str:
    """SHA-256 of these functions, classes and objects, with all that they reach.

    What an installed package has under a name counts by this name. If a part cannot be read, such as a lock,
    an open file or a module of `torch.jit`, the digest begins with `UNKNOWN` and equals no other one.
    """
    try:
        return _Reached().digest(code).hex()
    # A person's own objects may raise any error as they are taken apart.
    except Exception as error:
        return f"{UNKNOWN} {secrets.token_hex(8)}: {error}"


class _Reached:
    """Digests of objects. A part that holds itself counts, inside itself, by its depth."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the object, so that no other one gets its id
        self._above: list[int] = []

    def digest(self, thing: Any) -> bytes:
        at = id(thing)
        if at in self._above:
            return f"above {self._above.index(at)}".encode()
        if at not in self._known:
            self._above.append(at)
            found = hashlib.sha256()
            for part in self._parts(thing):
                found.update(hashlib.sha256(part).digest())
            self._above.pop()
            self._known[at] = thing, found.digest()
        return self._known[at][1]

    def _all(self, things: Iterable[Any]) -> Iterator[bytes]:
        yield from map(self.digest, things)

    def _parts(self, thing: Any) -> Iterator[bytes]:
        kind = type(thing)
        yield f"{kind.__module__}.{kind.__qualname__}".encode()
        if kind in _PLAIN:
            yield repr(thing).encode()
        elif name := _installed_name(thing):
            yield name.encode()
        elif kind in (tuple, list):
            yield from self._all(thing)
        elif kind in (dict, MappingProxyType):
            yield from self._all([*thing, *thing.values()])
        elif kind in (set, frozenset):
            yield from sorted(self._all(thing))
        elif isinstance(thing, torch.Tensor):
            yield f"{thing.dtype} {tuple(thing.shape)}".encode()
            # As bytes: numpy has no bfloat16.
            yield thing.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        elif kind is CodeType:
            yield from self._all(getattr(thing, f"co_{name}") for name in (*_CODE, *_CODE_COUNTS))
        elif kind is FunctionType:
            yield from self._all((thing.__code__, thing.__defaults__, thing.__kwdefaults__, _seen(thing)))
        elif isinstance(thing, _WRAPPED):
            yield self.digest(thing.__wrapped__)
        elif kind is functools.cached_property:
            yield self.digest(thing.func)
        elif kind is property:
            yield from self._all((thing.fget, thing.fset, thing.fdel))
        elif isinstance(thing, type):
            own = {name: value for name, value in vars(thing).items() if name not in _NO_CODE}
            yield from self._all((thing.__qualname__, thing.__bases__, own))
        else:
            made = thing.__reduce_ex__(4)
            if isinstance(made, str):  # the name of a constant, such as a type of numbers
                if not _installed(kind.__module__):
                    raise TypeError(f"cannot read {made}")
                yield made.encode()
            else:
                yield from self._all(
                    part if i < 3 or part is None else [*part] for i, part in enumerate(made)
                )


def _seen(function: FunctionType) -> dict[str, Any]:
    """What a function's code sees by name: globals, modules that it imports, and captured values."""
    found = dict[str, Any]()
    for step in _steps(function.__code__):
        if step.opname == "IMPORT_NAME" and not _installed(step.argval):
            with suppress(ImportError):
                found[step.argval] = import_module(step.argval)
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in function.__globals__:
            found[step.argval] = function.__globals__[step.argval]
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found |= {name: cell.cell_contents for name, cell in cells}
    names = {step.argval for step in _steps(function.__code__) if isinstance(step.argval, str)}
    return {name: _of_module(found[name], names) for name in sorted(found)}


def _steps(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _steps(inner)


def _of_module(value: Any, names: set[str]) -> Any:
    """Of a module that is not installed, what code with these names can see; any other value as it is."""
    if not isinstance(value, ModuleType):
        return value
    if _installed(value.__name__):
        return value.__name__
    inside = sorted(names & vars(value).keys())
    return {name: _of_module(vars(value)[name], names - {name}) for name in inside}


def _installed_name(thing: Any) -> str:
    """`module:name` of what an installed package has under this name; empty for anything else."""
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not _installed(module):
        return ""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is thing else ""


def _installed(module: str) -> bool:
    """Whether a module is of Python, of this package or of an installed one."""
    top = module.partition(".")[0]
    if top in ("__main__", __name__.partition(".")[0]):
        return top != "__main__"
    if (file := getattr(sys.modules.get(module), "__file__", None)) is None:
        return top in sys.stdlib_module_names
    return file.startswith(_PYTHON) or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)
