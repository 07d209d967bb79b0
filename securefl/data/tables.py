"""Readers of a user's own files: .csv, .parquet, .npz and .npy, without pickle and with limits on sizes.

A .npy holds one array. The name of a file of records ends in x, such as train-x.npy or x.npy. The name of the
file of their targets ends in y instead.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.core.installed import needing
from securefl.data.array_files import LARGEST, npy
from securefl.data.columns import UNREADABLE, CommaText
from securefl.data.digests import PINNED
from securefl.data.layout import Arrays, Dialect
from securefl.data.networks import arrays_of
from securefl.storage.inputs import DAMAGED

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES: Final = (".csv", ".parquet", ".npz", ".npy")
_ROW_NUMBERS: Final = re.compile(r"__index_level_\d+__")
_FEATURES: Final = re.compile(r"(?P<data>\w+)-features(-test)?\.npz")
MOST_COLUMNS: Final = 100_000
MOST_FILES: Final = 100_000
PLAIN: Final = Dialect()


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


def read_table(
    path: Path, client_column: str | None = None, dialect: Dialect = PLAIN, *, lenient: bool = False
) -> pd.DataFrame | Arrays:
    """Read a file: .csv (cells stay texts) and .parquet give a table, .npz and a pair of .npy give arrays.

    Args:
        path: The file.
        client_column: The array of a .npz that names the client of each record.
        dialect: How a .csv is written.
        lenient: Whether a damaged row is a record of `UNREADABLE` cells, and no error. A finite epsilon needs
            it, since an error would reveal a record. Each line of a .csv is then a row of its own: no cell
            holds a line break. The schema of a .parquet then states the width of each column of lists.

    Returns:
        The table or the arrays.

    Raises:
        DataError: The file is missing, too large or damaged.
        ConfigError: The file's ending or name is not supported.
    """
    if (table := _table(path, dialect, lenient)) is not None:
        return table
    if path.suffix.lower() == ".npz":
        found = arrays_of(path, [name for name in ("x", "y", client_column) if name])
        return Arrays(x=found["x"], y=found["y"], clients=found[client_column] if client_column else None)
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
    targets = _other(path, "y")
    _require_file(targets, "Records and targets come as a pair of .npy.")
    return Arrays(x=npy(path), y=npy(targets))


def read_records(path: Path, dialect: Dialect = PLAIN) -> pd.DataFrame | NDArray[Any]:
    """Read records without targets, to predict them: a table of .csv or .parquet, `x` of a .npz, or a .npy.

    dialect: how a .csv is written. Raises errors as `read_table` does.
    """
    if (table := _table(path, dialect)) is not None:
        return table
    return npy(path) if path.suffix.lower() == ".npy" else arrays_of(path, ["x"])["x"]


def targets_in(path: Path) -> NDArray[Any] | None:
    """The array `y` of a .npz, or of the .npy of targets beside a .npy of records; None if there is none.

    Raises errors as `read_table` does.
    """
    if path.suffix.lower() == ".npz":
        return arrays_of(path, [], ["y"]).get("y")
    beside = _other(path, "y")
    return npy(beside) if beside != path and beside.is_file() else None


def _table(path: Path, dialect: Dialect, lenient: bool = False) -> pd.DataFrame | None:
    """The table in a .csv or .parquet, or None for a file of arrays."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"Expected a file of {', '.join(SUFFIXES)}, got {path}. Unpack it, or save it as .csv. A .tsv is "
            'a .csv with csv = { delimiter = "\\t" } under [data]: rename it.'
        )
    _require_file(path, _remedy(path))
    match path.suffix.lower():
        case ".csv":
            return _csv(path, dialect, lenient)
        case ".parquet":
            return _parquet(path, lenient)
        case _:
            return None


def _require_file(path: Path, remedy: str) -> None:
    if not path.is_file():
        raise DataError(f"Expected a file at {path}, got none. {remedy}")
    if (size := path.stat().st_size) > LARGEST:
        raise DataError(f"{path}: expected at most {LARGEST:,} bytes, got {size:,}. Divide it into files.")


def _remedy(path: Path) -> str:
    """Advice for a missing file. The user can make the features of a packaged data set."""
    found = _FEATURES.fullmatch(path.name)
    if found is None or found["data"] not in PINNED:
        return "Check the path."
    out = shlex.quote(str(path.with_name(f"{found['data']}-features.npz")))
    return f"Make it, and its test part beside it, with: securefl features {found['data']} --out {out}"


def frame_of_table(thing: object) -> pd.DataFrame | None:
    """A table of pandas or polars as a DataFrame, or None for anything else.

    Args:
        thing: Any object.

    Returns:
        The table. Cells of polars are Python's own values, so that none takes the type of another.
    """
    import pandas as pd

    if hasattr(thing, "collect_schema") and hasattr(thing, "to_dict"):  # polars
        return pd.DataFrame(thing.to_dict(as_series=False), dtype=object)
    return thing if isinstance(thing, pd.DataFrame) else None


def _csv(path: Path, dialect: Dialect, lenient: bool) -> pd.DataFrame:
    import pandas as pd

    with path.open("rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise DataError(f"{path}: expected text in UTF-8, got UTF-16. Save it as UTF-8.")
    lines = _each_line(path, dialect) if lenient else _strict_lines(path, dialect)
    if (head := next(lines, None)) is None:
        raise DataError(f"{path}: expected a line of column names and records, got an empty file.")
    names = [cell.strip() for cell in head[1]]
    _require_columns(path, len(names))
    if len(names) == 1 and (other := next((sign for sign in ",;\t|" if sign in names[0]), "")):
        raise DataError(
            f"{path}: expected columns with {dialect.delimiter!r} between them, got {names[0][:80]!r}. Write "
            "that sign, or declare in a study, under [data]: "
            f"csv = {{ delimiter = {json.dumps(other)} }}"
        )
    rows: list[list[Any]] = []
    as_written = dialect.decimal == "." and not dialect.empty
    for line, cells in lines:
        if not lenient and len(cells) != len(names):
            raise DataError(
                f"{path}, line {line}: expected {len(names)} cells, got {len(cells)}. Correct the line."
            )
        row: list[Any] = cells if as_written else [_cell_of(cell, dialect) for cell in cells]
        rows.append(row if len(row) == len(names) else [UNREADABLE] * len(names))
    # Cells stay texts: a guessed type would depend on all records and could differ between clients.
    return pd.DataFrame(rows, columns=names, dtype=object)


def _cell_of(cell: str, dialect: Dialect) -> str:
    if cell.strip() in dialect.empty:
        return ""
    return cell if dialect.decimal == "." else CommaText(cell)


def _strict_lines(path: Path, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """The number of its last line, and the cells, of each row that is not empty. A fault is an error."""
    encoding = dialect.encoding
    try:
        with path.open(encoding=_marked(encoding), newline="") as file:
            lines = csv.reader(file, strict=True, delimiter=dialect.delimiter)
            yield from ((lines.line_num, cells) for cells in lines if cells)
    except UnicodeDecodeError:
        raise DataError(
            f"{path}: expected text in {encoding.upper()}, got other bytes. Save it as UTF-8, or declare its "
            "encoding in a study, under [data]: csv = { encoding = "
            f'"{"cp1250" if encoding == "cp1252" else "cp1252"}" }}'
        ) from None
    except csv.Error as error:
        raise DataError(f"{path}: expected a table of comma-separated values, got: {error}.") from None


def _marked(encoding: str) -> str:
    """The encoding, by which the mark is no text that some programs write before UTF-8."""
    return "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding


def _each_line(path: Path, dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """The number and the cells of each line that is not empty, read by itself. A damaged line has no cells.

    A quote that is not closed would otherwise make one record of all that follow.
    """
    content = path.read_bytes()
    if _marked(dialect.encoding) != dialect.encoding:
        content = content.removeprefix(codecs.BOM_UTF8)
    for number, line in enumerate(content.splitlines(), 1):
        if line:
            try:
                text = line.decode(dialect.encoding)
                yield number, next(csv.reader([text], strict=True, delimiter=dialect.delimiter))
            except (UnicodeDecodeError, csv.Error):
                yield number, []


def _parquet(path: Path, lenient: bool) -> pd.DataFrame:
    with needing("parquet", f"to read {path}"):
        from pyarrow import ArrowException, parquet
    try:
        with parquet.ParquetFile(path) as file:
            _require_columns(path, file.metadata.num_columns)
            # A scan takes the memory of a batch. Without it, `column` ends the process for damaged metadata.
            file.scan_contents()
            groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
            # A few bytes can encode one value millions of times, so the unpacked size is checked first.
            chunks = [
                (group.num_rows, group.column(place).num_values)
                for group in groups
                for place in range(group.num_columns)
            ]
            if any(rows > values for rows, values in chunks):
                raise ValueError("more rows than values, for which pyarrow would take memory")
            size = max(sum(group.total_byte_size for group in groups), 8 * sum(own for _, own in chunks))
            if size > LARGEST:
                raise DataError(f"{path}: expected at most {LARGEST:,} bytes of values, got {size:,}.")
            frame = _frame(file.read(), path, lenient)
    except (ArrowException, OSError, *DAMAGED) as error:
        raise DataError(f"{path}: expected a Parquet file, got: {str(error)[:200]}.") from None
    # pandas writes row numbers under this name. As a feature they could identify the client of a record.
    return frame.drop(columns=[name for name in frame.columns if _ROW_NUMBERS.fullmatch(str(name))])


def _frame(table: Any, path: Path, lenient: bool) -> pd.DataFrame:
    """Convert a table of pyarrow. A column of lists, such as embeddings, becomes one column a position."""
    import pandas as pd
    from pyarrow import compute, types

    parts: list[pd.Series[Any]] = []
    for place, name in enumerate(table.column_names):  # by place: two columns may have one name
        column = table.column(place)
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not str(column.type).startswith(("list", "fixed_size_list", "large_list")):
            parts.append(_series(column, lenient).rename(name))
            continue
        width = _width(column, name, path, lenient)
        _require_columns(path, width)
        for at in range(width):  # of a missing list, each is an empty cell
            parts.append(_series(compute.list_element(column, at), lenient).rename(f"{name}[{at}]"))
    return pd.concat(parts, axis=1)


def _series(column: Any, lenient: bool) -> pd.Series[Any]:
    """Convert a column. Whole numbers stay whole beside an empty cell, which would make them floats."""
    import pandas as pd
    from pyarrow import ArrowException

    # pandas takes a time of a zone in any year, and fails when its cell is read.
    if not (lenient and getattr(column.type, "tz", None)):
        try:
            column.validate(full=True)  # texts of UTF-8
            found: pd.Series[Any] = column.to_pandas(integer_object_nulls=True)
            return found
        except (ArrowException, ValueError, OverflowError):
            if not lenient:
                raise
    return pd.Series([_cell(one) for one in column], dtype=object)


def _cell(scalar: Any) -> Any:
    """A value of pyarrow as Python's, or `UNREADABLE` if Python has none, as of a text that is no UTF-8."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return UNREADABLE


def _width(column: Any, name: str, path: Path, lenient: bool) -> int:
    """The length of the lists in a column. Raises DataError if it is not known."""
    if hasattr(column.type, "list_size"):
        return int(column.type.list_size)
    if lenient:
        # The first record, or most of them, must not decide over the model's inputs.
        raise DataError(
            f"{path}, column {name!r}: expected lists of a length that the file's schema states, since a "
            "finite epsilon may not take it from the records, got lists of any length. Write the column as a "
            "fixed_size_list, such as pyarrow.list_(pyarrow.float32(), 512), or bring arrays."
        )
    widths = column.combine_chunks().value_lengths().unique().to_pylist()
    if column.null_count or len(widths) != 1:
        raise DataError(
            f"{path}, column {name!r}: expected lists of one length in all rows, got lengths "
            f"{', '.join(map(str, widths[:5])) or 'of no row'}. Correct or leave out the others."
        )
    return int(widths[0])


def _other(path: Path, end: str) -> Path:
    """The file of a pair whose name ends in `end`, or in its capital if the other name ends in a capital."""
    last = end.upper() if path.stem[-1].isupper() else end
    return path.with_name(f"{path.stem[:-1]}{last}{path.suffix}")


def _is_targets(path: Path) -> bool:
    """Whether a file holds the targets of a pair of .npy. Such a file is not a client of its own."""
    ends = path.suffix.lower() == ".npy" and path.stem.lower().endswith("y")
    return ends and _other(path, "x").is_file()


def _require_columns(path: Path, count: int) -> None:
    if not 1 <= count <= MOST_COLUMNS:
        raise DataError(f"{path}: expected 1 to {MOST_COLUMNS:,} columns, got {count:,}.")
