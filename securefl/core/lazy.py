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


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the search for reference cycles. For imports: it takes a fifth of their time, and finds nothing.

    What a module's import makes stays as long as the process. Python would look through all of it again
    whenever it has grown by a quarter.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


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
            with without_collection():
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
