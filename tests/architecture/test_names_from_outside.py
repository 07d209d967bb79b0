"""Programs beside the package import names that are there. Types are checked of none, and tests run few."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("examples", "benchmarks", "tools")


def imported(source: str) -> set[tuple[str, str]]:
    """(module, name) of whatever is imported from the package."""
    return {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "securefl"
        for alias in node.names
    }


def there(module: str, name: str) -> bool:
    found = import_module(module)
    return hasattr(found, name) or (hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None)


def test_names_that_programs_import_are_there() -> None:
    found = {
        (path.name, *pair)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for pair in imported(path.read_text(encoding="utf-8"))
    }
    assert found
    assert [each for each in sorted(found) if not there(*each[1:])] == []
