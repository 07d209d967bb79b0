"""Lazy faces: a package's public names, each imported when it is first used.

    __getattr__, __dir__ = lazy(__name__, {"Ledger": "securefl.accounting.ledger"})

An eager face would load a homomorphic library or an accountant for a caller of its neighbour.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module

_NEVER = 2**30
"""Searches of the middle generation between two full ones."""


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Pause full searches for reference cycles, which take a fifth of the time of imports and find nothing.

    What the import of a module makes stays as long as the process. Python would look through all of it again
    whenever it has grown by a quarter. Searches among newer objects go on, or all would be new at the end.
    """
    usual = gc.get_threshold()
    gc.set_threshold(*usual[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def lazy(
    face: str, homes: Mapping[str, str], renamed: Mapping[str, str] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a face.

    Args:
        face: the module's own name.
        homes: the module that each public name lives in.
        renamed: the new name of each name that the face had before. It gives the same object, and warns.
    """
    older = renamed or {}

    def get(name: str) -> object:
        if name in homes:
            with without_full_collections():
                found: object = getattr(import_module(homes[name]), name)
            setattr(sys.modules[face], name, found)
            return found
        if name in older:
            import warnings

            said = f"{face}.{name} has a new name: import `{older[name]}` in its place."
            warnings.warn(said, DeprecationWarning, stacklevel=2)
            return get(older[name])
        raise AttributeError(f"module {face!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[face]), *homes})

    return get, names
