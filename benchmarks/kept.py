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


def keep(name: str, found: dict[str, Any] | pd.DataFrame) -> None:
    """Write the figures of benchmarks/NAME.py with its command, as JSON or as CSV, where that was asked.

    Figures of other names that the JSON has are kept.
    """
    command = f"python benchmarks/{name}.py --write"
    if ASKED and isinstance(found, pd.DataFrame):
        write_csv(RESULTS / f"{name}.csv", found, [command])
    elif ASKED:
        path = RESULTS / f"{name}.json"
        older = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        files.write(path, json.dumps({"command": command, **older, **found}, indent=1) + "\n")


def read(name: str) -> pd.DataFrame:
    """A table of results."""
    return pd.read_csv(RESULTS / name, comment="#")
