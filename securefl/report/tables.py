"""Tables and plots as files."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from securefl.core.legible import cell
from securefl.storage.files import write


def write_csv(path: Path, table: pd.DataFrame, comments: Sequence[str] = ()) -> None:
    """Write the table without its index. Text that a spreadsheet would run is quoted, in headings too.

    comments: lines above the table, each behind `# `.
    """
    safe = table.map(cell).rename(columns=cell)
    head = "".join(f"# {' '.join(line.split())}\n" for line in comments)
    write(path, head + safe.to_csv(index=False))


def write_png(path: Path, figure: Figure) -> None:
    """A plot at 150 dots an inch."""
    # drawn in memory first, so that the file appears whole or not at all
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    write(path, drawn.getvalue())
