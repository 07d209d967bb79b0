"""A distribution from outside the package: a folder with its modules and its entry points, on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from securefl.mechanisms import registry as mechanisms


@contextmanager
def installed(folder: Path, modules: Mapping[str, str], points: Mapping[str, str]) -> Iterator[None]:
    """Install a distribution until the block ends, as an installer would.

    Args:
        folder: an empty folder, or one to be made.
        modules: the text of each module by its path, such as "mine.py".
        points: the lines of each group of entry points, such as "securefl.sums": "zero-sum = mine:ZeroSum".
    """
    for path, text in modules.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    about = folder / "outside-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n", encoding="utf-8")
    (about / "RECORD").write_text("".join(f"{path},,\n" for path in modules), encoding="utf-8")
    top = sorted({Path(path).parts[0].removesuffix(".py") for path in modules})
    (about / "top_level.txt").write_text("\n".join(top) + "\n", encoding="utf-8")
    lines = "\n".join(f"[{group}]\n{line}" for group, line in points.items())
    (about / "entry_points.txt").write_text(lines + "\n", encoding="utf-8")
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        mechanisms._from_outside.cache_clear()
        yield
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]
    mechanisms._from_outside.cache_clear()
