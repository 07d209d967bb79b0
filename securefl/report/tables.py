"""Writing of tables (CSV, Parquet) and plots (PNG) to files."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from securefl.core.text_safety import cell, comment
from securefl.storage.files import replacing, write

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


_DPI: Final = 150


def csv_of(table: pd.DataFrame, comments: Sequence[str] = ()) -> str:
    """The table without its index. Text that a spreadsheet would run as a formula is quoted.

    comments: lines above the table, each behind `# `. `pandas.read_csv(path, comment="#")` skips them.
    """
    # Of the other types no value is a text.
    texts = table.select_dtypes(exclude=["bool", "int64", "float64"])
    safe = table.assign(**texts.map(cell)).rename(columns=cell)
    head = "".join(f"# {comment(line)}\n" for line in comments)
    body = safe.to_csv(index=False)
    if head and "#" in body:
        # With comment="#", a reader drops the rest of a line behind a "#" that is not in quotes.
        body = safe.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC)
    return head + body


def write_csv(path: Path, table: pd.DataFrame, comments: Sequence[str] = ()) -> None:
    """Write the table as CSV (`csv_of`)."""
    write(path, csv_of(table, comments))


def write_table(path: Path, table: pd.DataFrame, notice: str = "") -> None:
    """Write a table as CSV, and with the same rows and columns as Parquet beside it if pyarrow is installed.

    notice: a comment above the CSV, and `attrs["notice"]` of the Parquet file.

    The Parquet file has the table's types and unquoted text: no spreadsheet runs it. Without pyarrow an older
    Parquet file is removed, since it would differ from the CSV.
    """
    write_csv(path, table, [notice] if notice else [])
    beside = path.with_suffix(".parquet")
    if find_spec("pyarrow") is None:
        beside.unlink(missing_ok=True)
        return
    noted = table.copy(deep=False)
    noted.attrs = {"notice": notice} if notice else {}
    with replacing(beside) as target:
        noted.to_parquet(target, engine="pyarrow", index=False)


def write_png(path: Path, figure: Figure, notice: str = "") -> None:
    """Write a plot at 150 dots an inch. notice: a comment in the file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    usual = figure.dpi
    figure.dpi = _DPI
    # `savefig` would draw the figure twice: once for its layout, and drawing lays it out too.
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = Image.frombuffer("RGBA", canvas.get_width_height(physical=True), canvas.buffer_rgba())
    figure.dpi = usual
    about = PngInfo()
    if notice:
        about.add_text("Comment", notice)
    # Drawn in memory first, so that the file is written as a whole or not at all. The paper is opaque: three
    # channels are packed into a file of the size of four in half of the time.
    drawn = BytesIO()
    pixels.convert("RGB").save(drawn, format="png", dpi=(_DPI, _DPI), pnginfo=about, compress_level=3)
    write(path, drawn.getvalue())
