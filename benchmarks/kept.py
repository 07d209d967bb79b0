"""Where benchmarks keep their figures: `--write` on the command line writes benchmarks/results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from securefl.report.tables import write_csv
from securefl.storage import files

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
ASKED = "--write" in sys.argv


def keep(name: str, found: dict[str, Any] | pd.DataFrame, *about: str, command: str = "") -> None:
    """Write the figures of benchmarks/NAME.py with their command, as JSON or as CSV, where that was asked.

    about: further lines of the head of a CSV. command: another one than that of the name.
    """
    command = f"python benchmarks/{command or f'{name}.py'} --write"
    if ASKED and isinstance(found, pd.DataFrame):
        write_csv(RESULTS / f"{name}.csv", found, [command, *about])
    elif ASKED:
        text = json.dumps({"command": command, **found}, indent=1)
        files.write(RESULTS / f"{name}.json", text + "\n")


def read(name: str) -> pd.DataFrame:
    """A table of results."""
    return pd.read_csv(RESULTS / name, comment="#")
