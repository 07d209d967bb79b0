"""Records from a person's own files: .csv, .parquet and .npz. Nothing is unpickled, and sizes are bounded."""

from __future__ import annotations

import csv
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.data.layout import Arrays

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES: Final = (".csv", ".parquet", ".npz")
LARGEST: Final = 2**31
"""Bytes of one file, and of what is in it once it is unpacked."""
_ROW_NUMBERS: Final = re.compile(r"__index_level_\d+__")
MOST_COLUMNS: Final = 100_000
MOST_FILES: Final = 100_000


def files_in(folder: Path) -> list[Path]:
    """The files of a folder, one per client, in the order of their names. Hidden files do not count.

    Raises DataError for a folder of other files, or of several kinds.
    """
    found = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    for path in found:
        if not path.is_file() or path.suffix.lower() not in SUFFIXES:
            raise DataError(
                f"{folder}: expected a file for each client ({', '.join(SUFFIXES)}), got {path.name}. Move "
                "it elsewhere."
            )
    if not found or len(found) > MOST_FILES:
        raise DataError(f"{folder}: expected 1 to {MOST_FILES:,} files, one a client, got {len(found)}.")
    if len(kinds := {path.suffix.lower() for path in found}) > 1:
        raise DataError(f"{folder}: expected files of one kind, got {' and '.join(sorted(kinds))}.")
    return found


def read_table(path: Path, client_column: str | None = None) -> pd.DataFrame | Arrays:
    """What a file holds: a table from .csv (all texts) or .parquet, arrays from .npz.

    client_column: the array of a .npz that says whose each record is. Raises DataError for a file that is
    missing, too large or damaged.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"Expected a file of {', '.join(SUFFIXES)}, got {path}.")
    if not path.is_file():
        raise DataError(f"Expected a file at {path}, got none. Check the path.")
    if (size := path.stat().st_size) > LARGEST:
        raise DataError(f"{path}: expected at most {LARGEST:,} bytes, got {size:,}. Divide it into files.")
    match path.suffix.lower():
        case ".csv":
            return _csv(path)
        case ".parquet":
            return _parquet(path)
        case _:
            return _npz(path, client_column)


def _csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names, rows = _rows(path, csv.reader(file, strict=True))
    except UnicodeDecodeError:
        raise DataError(f"{path}: expected text in UTF-8, got other bytes. Save it as such.") from None
    except csv.Error as error:
        raise DataError(f"{path}: expected a table of comma-separated values, got: {error}.") from None
    # As texts: a guess at types would be learnt over all records, and differ between clients.
    return pd.DataFrame(rows, columns=names, dtype=object)


def _rows(path: Path, lines: Any) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the cells of all rows. Empty lines do not count."""
    names: list[str] = []
    rows: list[list[str]] = []
    for cells in filter(None, lines):
        if not names:
            names = [cell.strip() for cell in cells]
            _require_columns(path, len(names))
            if len(names) == 1 and any(sign in names[0] for sign in ";\t|"):
                raise DataError(f"{path}: expected columns with commas between them, got {names[0][:80]!r}.")
        elif len(cells) != len(names):
            line = f"{path}, line {lines.line_num}"
            raise DataError(f"{line}: expected {len(names)} cells, got {len(cells)}. Mend the line.")
        else:
            rows.append(cells)
    if not names:
        raise DataError(f"{path}: expected a line of column names and records, got an empty file.")
    return names, rows


def _parquet(path: Path) -> pd.DataFrame:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ConfigError(
            f"Expected the package pyarrow to read {path}, got none. Install it with: pip install "
            "'securefl[parquet]'"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
            # A few bytes can say millions of times the same: what they unpack to is known before it is.
            size = max(
                sum(group.total_byte_size for group in groups),
                8 * file.metadata.num_rows * file.metadata.num_columns,
            )
            if size > LARGEST:
                raise DataError(f"{path}: expected at most {LARGEST:,} bytes of values, got {size:,}.")
            _require_columns(path, file.metadata.num_columns)
            frame: pd.DataFrame = file.read().to_pandas(ignore_metadata=True)
    except (ArrowException, OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: expected a Parquet file, got: {str(error)[:200]}.") from None
    # pandas writes the numbers of rows so. As a feature they would tell whose a record is.
    return frame.drop(columns=[name for name in frame.columns if _ROW_NUMBERS.fullmatch(str(name))])


def _npz(path: Path, client_column: str | None) -> Arrays:
    try:
        with zipfile.ZipFile(path) as packed:
            size = sum(member.file_size for member in packed.infolist())
        if size > LARGEST:
            raise DataError(f"{path}: expected at most {LARGEST:,} bytes of arrays, got {size:,}.")
        # A pickle in a .npz runs code when it is loaded.
        with np.load(path, allow_pickle=False) as stored:
            found = {name: _member(stored, name, path) for name in ("x", "y", client_column) if name}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{path}: expected arrays as .npz, without pickles, got: {error}.") from None
    return Arrays(x=found["x"], y=found["y"], clients=found[client_column] if client_column else None)


def _member(stored: Any, name: str, path: Path) -> NDArray[Any]:
    if name not in stored.files:
        raise DataError(
            f"{path}: expected the arrays x and y, one entry a record, got no {name!r} among "
            f"{', '.join(stored.files) or 'none'}."
        )
    array: NDArray[Any] = stored[name]
    return array


def _require_columns(path: Path, count: int) -> None:
    if not 1 <= count <= MOST_COLUMNS:
        raise DataError(f"{path}: expected 1 to {MOST_COLUMNS:,} columns, got {count:,}.")
