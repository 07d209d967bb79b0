"""Tables and plots as files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from securefl.core.legible import cell
from securefl.storage.files import replacing, write


def write_csv(path: Path, table: pd.DataFrame, comments: Sequence[str] = ()) -> None:
    """Write the table without its index. Text that a spreadsheet would run is quoted, in headings too.

    comments: lines above the table, each behind `# `.
    """
    safe = table.map(cell).rename(columns=cell)
    head = "".join(f"# {' '.join(line.split())}\n" for line in comments)
    write(path, head + safe.to_csv(index=False))


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as CSV, and with the same rows and columns as Parquet beside it if pyarrow is installed.

    Types are those of the table, and text stands as it is: no spreadsheet runs a Parquet file. Without
    pyarrow an older Parquet file is removed, which would differ from the CSV.
    """
    write_csv(path, table)
    beside = path.with_suffix(".parquet")
    if find_spec("pyarrow") is None:
        beside.unlink(missing_ok=True)
        return
    with replacing(beside) as target:
        table.to_parquet(target, engine="pyarrow", index=False)


def write_png(path: Path, figure: Figure) -> None:
    """A plot at 150 dots an inch."""
    # drawn in memory first, so that the file appears whole or not at all
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    write(path, drawn.getvalue())
