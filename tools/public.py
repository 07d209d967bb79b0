"""The public surface: every name of every face, with its signature.

    python tools/public.py            # what tests/architecture/public.txt should say
    python tools/public.py --write    # write it, and docs/api.md

A name is public if it stands in `__all__` of a face. All else is private, whatever its spelling.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Literal, get_origin

ROOT = Path(__file__).parents[1]
TEXT = ROOT / "tests" / "architecture" / "public.txt"
PAGE = ROOT / "docs" / "api.md"
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
)
PIECES = ("averaging", "personal", "fedlog", "heads", "fedprof", "fedcor", "fltrust", "adds")
"""The systems whose parts others import, below `securefl.protocols`."""
_HEAD = """# The public names

Import from these modules alone: all else is private, and may change. `python tools/public.py --write`
makes this page from the docstrings. `help(name)` has arguments, errors and an example of each."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def faces() -> tuple[str, ...]:
    """All modules that others may import from."""
    return (*FACES, *(f"securefl.protocols.{name}" for name in PIECES))


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
    try:
        shown = str(inspect.signature(own))
    except (TypeError, ValueError):
        return name
    return name + _ADDRESS.sub("", shown)


def documented(face: str, name: str) -> str:
    """The docstring of a class or function; empty for a constant or an alias, which has none of its own."""
    own = found(face, name)
    return (inspect.getdoc(own) or "") if inspect.isclass(own) or inspect.isfunction(own) else ""


def listing() -> str:
    """Every public name with its signature, a line each."""
    lines = [f"{face}.{signature(face, name)}" for face in faces() for name in sorted(names(face))]
    return "\n".join(lines) + "\n"


def page() -> str:
    """docs/api.md: each face, and of each name the signature and the first paragraph."""
    parts = [_HEAD]
    for face in faces():
        parts += ["", f"## `{face}`", "", headline(face)]
        for name in sorted(names(face)):
            first = " ".join(documented(face, name).split("\n\n")[0].split())
            parts += ["", f"- `{signature(face, name)}`" + (f"  \n  {first}" if first else "")]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        TEXT.write_text(listing(), encoding="utf-8")
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(listing())
