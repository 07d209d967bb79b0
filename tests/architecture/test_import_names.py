"""The systems have one import name: nothing says `protocols` where it means `securefl.protocols`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHORT = re.compile(r"(?<!securefl )\b(?:import|from) protocols\b|[\"'=]\s*protocols(?:\.\w+)+[:\"']")
LEFT = (
    "CHANGELOG.md",
    "protocols/__init__.py",
    "tests/architecture/test_import_names.py",
    "tests/e2e/test_wheel.py",
)
"""They say what the name was, or whose it may be."""


def texts() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if name.endswith((".py", ".ipynb", ".toml", ".md"))]


def test_nothing_uses_the_short_name() -> None:
    found = [
        f"{name}: {line.strip()}"
        for name in texts()
        if name not in LEFT and (ROOT / name).is_file()
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if SHORT.search(line)
    ]
    assert found == []


def test_the_short_name_is_found_and_the_long_one_is_not() -> None:
    short = ("import protocols", "from protocols.fedavg import FedAvg", 'fedavg = "protocols.fedavg:FedAvg"')
    long = ("import securefl.protocols", "from securefl.protocols.fedavg import FedAvg")
    assert [line for line in (*short, *long) if SHORT.search(line)] == list(short)


def test_the_short_name_does_not_import() -> None:
    command = [sys.executable, "-c", "import protocols"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Expected `import securefl.protocols`" in done.stderr
