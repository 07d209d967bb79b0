"""The files of this checkout that git tracks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def listed() -> list[str]:
    """All tracked files that are there."""
    said = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in said.splitlines() if os.path.lexists(ROOT / name)]


def copied(home: Path) -> Path:
    """Copy them to this folder, so that nothing is built in the checkout and nothing else helps."""
    for name in listed():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, home / name, follow_symlinks=False)
    return home
