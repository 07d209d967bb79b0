"""Tests stand where their subject does, and need no other test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import mutants

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests").rglob("*.py"))
TESTS = {path.stem for path in FILES if path.stem.startswith("test_")}
SUSPECT = TESTS | {"conftest", "sys"}
UNIT = ROOT / "tests" / "unit"
HOME = ROOT / "securefl"


def imported(tree: ast.AST) -> Iterator[str]:
    """Each part of what is imported: `from a.b import c` gives a, b and c."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found = [alias.name for alias in node.names]
            found += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from (part for one in found for part in one.split("."))


def violations(source: str) -> list[str]:
    if not SUSPECT & {*re.findall(r"\w+", source)}:
        return []
    tree = ast.parse(source)
    found = [f"imports {part}" for part in imported(tree) if part in TESTS or part == "conftest"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path":
            found.append("names sys.path")
        # code that a test hands to another process
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "sys.path" in node.value:
            found.append("names sys.path in a text")
    return found


def test_no_test_needs_another() -> None:
    # The one that starts programs does for them what Python does: their folder comes first on the path.
    apart = (Path(__file__), ROOT / "tests" / "support" / "started.py")
    others = [path for path in FILES if path not in apart]
    assert [
        (str(path.relative_to(ROOT)), bad)
        for path in others
        if (bad := violations(path.read_text(encoding="utf-8")))
    ] == []


def test_needing_another_is_found() -> None:
    needing = (
        "import test_rules",
        "from test_rules import ROOT",
        "from unit.core import test_wire",
        "from tests.unit.core.test_wire import release",
        "def inside():\n    from .test_rules import ROOT",
        "import conftest",
        "import sys\nsys.path.insert(0, 'benchmarks')",
        "CODE = 'import sys; sys.path[:0] = sys.argv[2:]'",
    )
    assert [source for source in needing if not violations(source)] == []


def test_every_folder_is_a_room() -> None:
    folders = [path.relative_to(UNIT) for path in UNIT.rglob("*") if any(path.glob("*.py"))]
    assert len(folders) > 10
    for folder in folders:
        assert (HOME / folder / "__init__.py").exists(), f"securefl has no room {folder}"


def test_every_listed_mutant_can_be_planted_and_its_tests_are_there() -> None:
    """What `make mutants-list` finds before it runs a test, at once where code moves."""
    lost = []
    for one in mutants.listed([]):
        try:
            one.planted((ROOT / one.file).read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError) as error:
            lost.append((one.name, str(error)))
        for test in one.tests:
            file, _, name = test.partition("::")
            named = {part.partition("[")[0] for part in name.split("::")} - {""}
            if not (ROOT / file).exists() or named - {*re.findall(r"\w+", (ROOT / file).read_text("utf-8"))}:
                lost.append((one.name, test))
    assert lost == []
