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
def loading(module: str) -> Iterator[None]:
    """Pause searches for reference cycles while a module loads; nothing is paused if it is loaded.

    The searches take a quarter of the time of an import, and find nothing: what an import makes stays as long
    as the process. Behind it the new objects count as old ones, which only a full search looks through.
    """
    if module in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        # Frozen and thawed, an object is among the oldest. Objects that the caller froze must stay frozen.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def lazy(face: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a face.

    Args:
        face: the module's own name.
        homes: the module that each public name lives in.
    """

    def get(name: str) -> object:
        if name in homes:
            with loading(homes[name]):
                found: object = getattr(import_module(homes[name]), name)
            setattr(sys.modules[face], name, found)
            return found
        raise AttributeError(f"module {face!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[face]), *homes})

    return get, names
