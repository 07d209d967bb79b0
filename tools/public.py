"""The public surface: every name of every face, with its signature.

    python tools/public.py [--write]    # tests/architecture/public.txt: is it so, or write it

A name is public if it stands in `__all__` of a face. All else is private, whatever its spelling.
"""

from __future__ import annotations

import importlib
import inspect
import re
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_origin

import made

ROOT = Path(__file__).parents[1]
TEXT = ROOT / "tests" / "architecture" / "public.txt"
SYSTEMS = ("averaging", "personal", "fedlog", "heads", "fedprof", "fedcor", "fltrust", "adds")
"""The systems whose parts others import, below `securefl.protocols`."""
FACES = (
    "securefl",
    "securefl.algorithm",
    "securefl.mechanisms",
    "securefl.sums",
    "securefl.linear",
    "securefl.accounting",
    "securefl.dp",
    "securefl.secagg",
    "securefl.matching",
    "securefl.training",
    "securefl.data",
    "securefl.published",
    "securefl.deployment",
    "securefl.flower",
    "securefl.errors",
    *(f"securefl.protocols.{name}" for name in SYSTEMS),
)
"""All modules that others may import from."""


def names(face: str) -> list[str]:
    """The public names of a face."""
    return list(importlib.import_module(face).__all__)


def found(face: str, name: str) -> object:
    return getattr(importlib.import_module(face), name)


def headline(face: str) -> str:
    return (importlib.import_module(face).__doc__ or "").strip().splitlines()[0]


def signature(face: str, name: str) -> str:
    """A name as it is called: parameters with types and defaults; of a constant its type, of words these."""
    own = found(face, name)
    if get_origin(own) is Literal:
        return f"{name} = {str(own).removeprefix('typing.')}"
    if getattr(own, "_is_protocol", False):  # Python shows the constructor that it has not
        return f"{name}: Protocol"
    if not callable(own):
        return f"{name}: {type(own).__name__}"
    with suppress(TypeError, ValueError):  # an alias of a type
        name += re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(own)))
    return name


def documented(face: str, name: str) -> str:
    """The docstring of a class or function; empty for a constant or an alias, which has none of its own."""
    own = found(face, name)
    return (inspect.getdoc(own) or "") if inspect.isclass(own) or inspect.isfunction(own) else ""


def listing() -> str:
    """Every public name with its signature, a line each."""
    lines = [f"{face}.{signature(face, name)}" for face in FACES for name in sorted(names(face))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    made.main({TEXT: listing()})
