"""Readers of a user's own files: .csv, .parquet, .npz and .npy, without pickle and with limits on sizes.

A .npy holds one array. The name of a file of records ends in x, such as train-x.npy or x.npy. The name of the
file of their targets ends in y instead.
"""

from __future__ import annotations

import csv
import re
import shlex
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.data.digests import PINNED
from securefl.data.layout import Arrays

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES: Final = (".csv", ".parquet", ".npz", ".npy")
LARGEST: Final = 2**31
"""The most bytes of one file, and of its unpacked content."""
_ROW_NUMBERS: Final = re.compile(r"__index_level_\d+__")
_FEATURES: Final = re.compile(r"(?P<data>\w+)-features(-test)?\.npz")
MOST_COLUMNS: Final = 100_000
MOST_FILES: Final = 100_000


def files_in(folder: Path) -> list[Path]:
    """The files of a folder with one file a client, in the order of their names. Hidden files do not count.

    Raises DataError if the folder has other files, or files of several kinds.
    """
    found = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))
    for path in found:
        if not path.is_file() or path.suffix.lower() not in SUFFIXES:
            raise DataError(
                f"{folder}: expected a file for each client ({', '.join(SUFFIXES)}), got {path.name}. Move "
                "it elsewhere."
            )
    found = [path for path in found if not _is_targets(path)]
    if not found or len(found) > MOST_FILES:
        raise DataError(f"{folder}: expected 1 to {MOST_FILES:,} files, one a client, got {len(found)}.")
    if len(kinds := {path.suffix.lower() for path in found}) > 1:
        raise DataError(f"{folder}: expected files of one kind, got {' and '.join(sorted(kinds))}.")
    return found


def read_table(path: Path, client_column: str | None = None) -> pd.DataFrame | Arrays:
    """Read a file: .csv (cells stay texts) and .parquet give a table, .npz and a pair of .npy give arrays.

    client_column: the array of a .npz that names the client of each record.

    Raises DataError if the file is missing, too large or damaged, and ConfigError if its ending or name is
    not supported.
    """
    _require_file(path)
    match path.suffix.lower():
        case ".csv":
            return _csv(path)
        case ".parquet":
            return _parquet(path)
        case ".npy":
            return _npy(path)
        case _:
            found = _npz(path, [name for name in ("x", "y", client_column) if name])
            return Arrays(x=found["x"], y=found["y"], clients=found[client_column] if client_column else None)


def read_records(path: Path) -> pd.DataFrame | NDArray[Any]:
    """Read records without targets, to predict them: a table of .csv or .parquet, `x` of a .npz, or a .npy.

    Raises errors as `read_table` does.
    """
    _require_file(path)
    match path.suffix.lower():
        case ".csv":
            return _csv(path)
        case ".parquet":
            return _parquet(path)
        case ".npy":
            return _array(path)
        case _:
            return _npz(path, ["x"])["x"]


def targets_in(path: Path) -> NDArray[Any] | None:
    """The array `y` of a .npz, or of the .npy of targets beside a .npy of records; None if there is none.

    Raises errors as `read_table` does.
    """
    if path.suffix.lower() == ".npy":
        return (
            _array(_other(path, "y")) if _other(path, "y") != path and _other(path, "y").is_file() else None
        )
    try:
        return _npz(path, ["y"])["y"]
    except DataError:
        # The records of the same file were read before, so only `y` can be missing or unusable.
        with zipfile.ZipFile(path) as packed:
            if "y.npy" in packed.namelist():
                raise
        return None


def _require_file(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"Expected a file of {', '.join(SUFFIXES)}, got {path}.")
    if not path.is_file():
        raise DataError(f"Expected a file at {path}, got none. {_remedy(path)}")
    if (size := path.stat().st_size) > LARGEST:
        raise DataError(f"{path}: expected at most {LARGEST:,} bytes, got {size:,}. Divide it into files.")


def _remedy(path: Path) -> str:
    """Advice for a missing file. The user can make the features of a packaged data set."""
    found = _FEATURES.fullmatch(path.name)
    if found is None or found["data"] not in PINNED:
        return "Check the path."
    out = shlex.quote(str(path.with_name(f"{found['data']}-features.npz")))
    return f"Make it, and its test part beside it, with: securefl features {found['data']} --out {out}"


def _csv(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names, rows = _rows(path, csv.reader(file, strict=True))
    except UnicodeDecodeError:
        raise DataError(f"{path}: expected text in UTF-8, got other bytes. Save it as UTF-8.") from None
    except csv.Error as error:
        raise DataError(f"{path}: expected a table of comma-separated values, got: {error}.") from None
    # Cells stay texts: a guessed type would depend on all records and could differ between clients.
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
            raise DataError(f"{line}: expected {len(names)} cells, got {len(cells)}. Correct the line.")
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
            # A few bytes can encode one value millions of times, so the unpacked size is checked first.
            values = sum(group.column(k).num_values for group in groups for k in range(group.num_columns))
            size = max(sum(group.total_byte_size for group in groups), 8 * values)
            if size > LARGEST:
                raise DataError(f"{path}: expected at most {LARGEST:,} bytes of values, got {size:,}.")
            _require_columns(path, file.metadata.num_columns)
            frame = _frame(file.read(), path)
    except (ArrowException, OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: expected a Parquet file, got: {str(error)[:200]}.") from None
    # pandas writes row numbers under this name. As a feature they could identify the client of a record.
    return frame.drop(columns=[name for name in frame.columns if _ROW_NUMBERS.fullmatch(str(name))])


def _frame(table: Any, path: Path) -> pd.DataFrame:
    """Convert a table of pyarrow. A column of lists, such as embeddings, becomes one column a position."""
    import pandas as pd

    parts: list[pd.DataFrame] = []
    for place, name in enumerate(table.column_names):  # by place: two columns may have one name
        column = table.column(place).combine_chunks()
        if not str(column.type).startswith(("list", "fixed_size_list", "large_list")):
            parts.append(table.select([place]).to_pandas(ignore_metadata=True))
            continue
        widths = column.value_lengths().unique().to_pylist()
        if column.null_count or len(widths) != 1:
            raise DataError(
                f"{path}, column {name!r}: expected lists of one length in all rows, got lengths "
                f"{', '.join(map(str, widths[:5])) or 'of no row'}. Correct or leave out the others."
            )
        _require_columns(path, widths[0])
        array = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), widths[0])
        parts.append(pd.DataFrame(array, columns=[f"{name}[{at}]" for at in range(widths[0])]))
    return pd.concat(parts, axis=1)


def _npz(path: Path, names: list[str]) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as packed:
            size = sum(member.file_size for member in packed.infolist())
        if size > LARGEST:
            raise DataError(f"{path}: expected at most {LARGEST:,} bytes of arrays, got {size:,}.")
        # Loading a pickle from a .npz would run its code.
        with np.load(path, allow_pickle=False) as stored:
            return {name: _member(stored, name, path) for name in names}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{path}: expected arrays as .npz, without pickles, got: {error}.") from None


def _npy(path: Path) -> Arrays:
    if _is_targets(path):
        records = _other(path, "x").name
        raise ConfigError(
            f"Expected a .npy of records, got {path}, the targets of {records}. Name that file."
        )
    if not path.stem.lower().endswith("x"):
        raise ConfigError(
            f"Expected a .npy of records with a name that ends in x, such as {path.stem}-x.npy, and their "
            f"targets beside it in {path.stem}-y.npy, got {path}. Rename them."
        )
    return Arrays(x=_array(path), y=_array(_other(path, "y")))


def _other(path: Path, end: str) -> Path:
    """The file of a pair whose name ends in `end`, or in its capital if the other name ends in a capital."""
    last = end.upper() if path.stem[-1].isupper() else end
    return path.with_name(f"{path.stem[:-1]}{last}{path.suffix}")


def _is_targets(path: Path) -> bool:
    """Whether a file holds the targets of a pair of .npy. Such a file is not a client of its own."""
    ends = path.suffix.lower() == ".npy" and path.stem.lower().endswith("y")
    return ends and _other(path, "x").is_file()


def _array(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise DataError(f"Expected a file at {path}, got none: records and targets come as a pair of .npy.")
    if (size := path.stat().st_size) > LARGEST:
        raise DataError(f"{path}: expected at most {LARGEST:,} bytes, got {size:,}. Divide it into files.")
    try:
        found: NDArray[Any] | np.lib.npyio.NpzFile = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise DataError(f"{path}: expected an array as .npy, without pickles, got: {error}.") from None
    if not isinstance(found, np.ndarray):
        found.close()
        raise DataError(f"{path}: expected one array as .npy, got an archive. Give it the ending .npz.")
    return found


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
