"""The ten longest functions, and the modules that are too long.

    python tools/longest.py [REVISION]

Reads the working tree, or what git has at a revision. A function's lines count from its `def` to its end,
docstring included. A test holds the modules (tests/architecture/test_one_home.py).
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("securefl", "protocols")
MOST_LINES = 600
"""A module holds one idea that a reader wants whole, mostly 150 to 500 lines. A longer one needs a reason."""
_SHOWN = 10


def sources() -> dict[str, str]:
    """The text of every module in the working tree, by its path. `securefl/protocols` is a link: once."""
    found = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in found}


def sources_at(revision: str) -> dict[str, str]:
    """The same, of what git has at a revision."""
    packed = subprocess.run(
        ["git", "archive", revision, *ROOMS], cwd=ROOT, capture_output=True, check=True
    ).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            if member.name.endswith(".py") and (content := archive.extractfile(member)) is not None:
                found[member.name] = content.read().decode()
    return found


def functions(texts: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """The lines of every function, and where it is."""
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield node.end_lineno - node.lineno + 1, f"{path}:{node.lineno} {node.name}"


def long_modules(texts: Mapping[str, str]) -> list[tuple[int, str]]:
    """The modules of more lines than a reader keeps in mind, the longest first."""
    sizes = ((len(text.splitlines()), path) for path, text in texts.items())
    return sorted((size for size in sizes if size[0] > MOST_LINES), reverse=True)


def main() -> None:
    texts = sources_at(sys.argv[1]) if len(sys.argv) > 1 else sources()
    print(f"The {_SHOWN} longest functions:")
    for lines, where in sorted(functions(texts), reverse=True)[:_SHOWN]:
        print(f"{lines:5} {where}")
    print(f"Modules over {MOST_LINES} lines:")
    for lines, where in long_modules(texts):
        print(f"{lines:5} {where}")


if __name__ == "__main__":
    main()
