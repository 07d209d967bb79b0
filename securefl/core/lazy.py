"""Lazy faces: a package's public names, each imported when it is first used.

    __getattr__, __dir__, __all__ = lazy(__name__, __file__)

An eager face would load a homomorphic library or an accountant for a caller of its neighbour.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

RETIRED: dict[str, str] = {}
"""Names that left a face, and the module and name that have what they meant, each for one release."""


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


def lazy(face: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a face, whose names stand in the stub beside it.

    A type checker reads the stub too. Each line is `from MODULE import NAME as NAME`.

    Args:
        face: the module's own name.
        file: its path. The stub has the same one, with the ending .pyi.

    Returns:
        The three, for the module to bind.

    Raises:
        OSError: there is no stub.
    """
    homes = {}
    with open(f"{file.rpartition('.')[0]}.pyi", encoding="utf-8") as stub:
        for line in stub:
            # Without `ast` or `re`, whose import takes longer than all else here.
            if line.startswith("from "):
                _, home, _, name, *_ = line.split()
                homes[name] = home

    def get(name: str) -> object:
        if (home := homes.get(name)) is not None:
            with loading(home):
                found: object = getattr(import_module(home), name)
            setattr(sys.modules[face], name, found)
            return found
        if (place := RETIRED.get(f"{face}.{name}")) is not None:
            told = f"{face}.{name} is {place} now. The next release has it there alone."
            warnings.warn(told, DeprecationWarning, stacklevel=2)
            home, _, there = place.rpartition(".")
            return getattr(import_module(home), there)
        raise AttributeError(f"module {face!r} has no attribute {name!r}")

    return get, lambda: sorted({*vars(sys.modules[face]), *homes}), sorted(homes)
