"""The product's source files, read and parsed once a process."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def sources() -> Mapping[str, str]:
    """The text of each module of the product, by its path inside the repository."""
    found = [path for room in ("securefl", "protocols") for path in sorted((ROOT / room).rglob("*.py"))]
    assert len(found) > 150, "the modules were not found"
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in found}


@cache
def tree(source: str) -> ast.Module:
    """The syntax tree of a text."""
    return ast.parse(source)


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """All nodes of its syntax tree: several rules look at each of a quarter of a million."""
    return tuple(ast.walk(tree(source)))
