"""Encoding of a table column as numbers, from its public declaration alone: no statistic of records is used.

| declared | a cell becomes |
|---|---|
| nothing | its number, unchanged, float32 |
| `range = [low, high]` | its number, clipped to the range and scaled to [0, 1] |
| `categories = [...]` | one value a category: 1 for the cell's category, 0 for the others |
| `missing = value` | that value, if the cell is empty |
| `indicator = true` | one value more: 1 if the cell is empty, else 0 |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import DataError
from securefl.core.text_safety import is_legible

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES: Final = 10_000
_SHOWN: Final = 8
"""How many categories an error lists."""
_ABSENT: Final = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""Texts that stand for a missing number, in lower case."""
_TRUTH: Final = {"true": 1.0, "false": 0.0}
_WHOLE: Final = re.compile(r"(-?\d+)\.0+")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")

_NUMBER: Final = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity)", re.ASCII | re.IGNORECASE)
UNREADABLE: Final = object()
"""A cell of a damaged row. No declaration covers it, not even `missing`."""

Word = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class Column:
    """The public declaration of a column. See the table above.

    range: [low, high] of its numbers. They are clipped to it and scaled to [0, 1].
    categories: its words or whole numbers, each once. A cell becomes one value a category.
    missing: what an empty cell is taken for. Without it an empty cell is refused.
    indicator: whether a further value says that the cell was empty.

    Raises ValueError if the declaration contradicts itself.
    """

    range: tuple[float, float] | None = None
    categories: tuple[Word, ...] | None = None
    missing: Word | None = None
    indicator: bool = False

    def __post_init__(self) -> None:
        if self.range is not None and self.categories is not None:
            raise ValueError("Expected `range` or `categories`, got both. Keep one of them.")
        if self.range is not None and not (
            self.range[0] < self.range[1] and all(isfinite(float(np.float32(end))) for end in self.range)
        ):
            raise ValueError(f"Expected a finite range = [low, high] with low < high, got {self.range}.")
        if self.categories is None:
            self._check_number()
            return
        words = self.words
        if not 1 <= len(words) <= MOST_CATEGORIES or len(set(words)) < len(words) or "" in words:
            raise ValueError(
                f"Expected 1 to {MOST_CATEGORIES:,} categories, each once, got {len(words)} with "
                f"{len(set(words))} different ones."
            )
        if self.missing is not None and word_of(self.missing) not in words:
            raise ValueError(f"Expected `missing` among the categories, got {self.missing!r}. Add it there.")

    def _check_number(self) -> None:
        given = self.missing
        if given is not None and (isinstance(given, str) or not isfinite(float(np.float32(given)))):
            raise ValueError(f"Expected `missing` as a finite number for a column of numbers, got {given!r}.")
        if self.indicator and given is None:
            raise ValueError("Expected `missing` beside `indicator`: the number that an empty cell becomes.")

    @property
    def words(self) -> tuple[str, ...]:
        """The categories in the form of `word_of`, in which they are compared."""
        return tuple(word_of(one) for one in self.categories or ())


@dataclass(frozen=True)
class Place:
    """The file and the column that an error names.

    advice: whether the error shows how to declare the column.
    trained: whether a trained model reads the column, so that no declaration can change any more.
    unusable: a set that collects the rows of unusable values. A study with a finite epsilon needs it, since
        an error would reveal a record. If it is None, the first unusable row raises.
    """

    where: str
    name: str
    advice: bool = True
    trained: bool = False
    unusable: set[int] | None = None

    def refuse(self, rows: Iterable[int], error: Callable[[int], DataError]) -> None:
        """Raise the error of the first of these rows or, if `unusable` is a set, add all of them to it."""
        for row in rows:
            if self.unusable is None:
                raise error(int(row))
            self.unusable.add(int(row))

    def at(self, row: int) -> str:
        return f"{self.where}, row {row + 1}, column {self.name!r}"

    def lines(self, line: str) -> str:
        """The TOML that declares the column."""
        return f"\n\n    [data.columns.{key_of(self.name)}]\n    {line}\n" if self.advice else ""

    def remedy(self, declare: str) -> str:
        """What to do about a value that the declaration does not cover.

        declare: the sentence for the author of a study, who can change the declaration.
        """
        if not self.trained:
            return declare
        return "The model was trained without a rule for it: correct the record, or leave it out."


def encoded(values: pd.Series[Any], column: Column, place: Place) -> NDArray[np.float32]:
    """Encode a column of n values as numbers, shape (n, k).

    Raises DataError if the declaration does not cover a value. It names file, row, column and value.
    """
    if column.categories is not None:
        parts = [one_hot(values, column, place)]
        gone = _absent_words(values, column)
    else:
        numbers = numbers_of(values, place)
        gone = np.isnan(numbers)
        if column.missing is None:
            place.refuse(
                np.flatnonzero(gone),
                lambda row: DataError(
                    f"{place.at(row)}: expected a number, got none. "
                    + place.remedy(
                        "Declare in the study the number for an empty cell, such as:"
                        + place.lines("missing = 0")
                    )
                ),
            )
        numbers = np.where(gone, float(column.missing or 0), numbers)
        parts = [_scaled(numbers, column, place)[:, None]]
    if column.indicator:
        parts.append(gone[:, None].astype(np.float32))
    return np.concatenate(parts, axis=1)


def _scaled(numbers: NDArray[np.float64], column: Column, place: Place) -> NDArray[np.float32]:
    if column.range is not None:
        low, high = column.range
        numbers = (np.clip(numbers, low, high) - low) / (high - low)
    with np.errstate(over="ignore"):
        found = numbers.astype(np.float32)
    place.refuse(
        np.flatnonzero(~np.isfinite(found)),
        lambda row: DataError(f"{place.at(row)}: expected a finite number of 32 bits, got {numbers[row]}."),
    )
    return found


def one_hot(values: pd.Series[Any], column: Column, place: Place) -> NDArray[np.float32]:
    """Encode n values as rows (n, categories): 1 at the value's category, 0 elsewhere.

    A row is all zeros if its value is missing and the column declares `indicator` without `missing`.
    """
    codes = _codes(values, column, place)
    found = np.zeros((len(values), len(column.words)), np.float32)
    present = codes >= 0
    found[np.flatnonzero(present), codes[present]] = 1
    return found


def _codes(values: pd.Series[Any], column: Column, place: Place) -> NDArray[np.int64]:
    gone = _absent_words(values, column)
    instead = -1 if column.missing is None else column.words.index(word_of(column.missing))
    if column.missing is None and not column.indicator:
        place.refuse(
            np.flatnonzero(gone),
            lambda row: DataError(
                f"{place.at(row)}: expected a category, got no value. "
                + place.remedy(
                    "Name the category of empty cells by `missing`, or mark them by `indicator = true`, "
                    f"under [data.columns.{key_of(place.name)}]."
                )
            ),
        )
    present = np.flatnonzero(~gone)
    codes = np.full(len(values), instead, np.int64)
    codes[present] = coded(values.iloc[present], column.words, place, present)
    return codes


def coded(
    values: pd.Series[Any], words: tuple[str, ...], place: Place, rows: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """The position of each value among `words`, shape (n,), or -1 if the value is none of them.

    rows: each value's row in its file, shape (n,), for errors. Raises DataError for the first unknown value,
    unless `place.unusable` collects such rows.
    """
    known = {word: code for code, word in enumerate(words)}
    if words == ("0", "1"):
        known |= {"false": 0, "true": 1}
    codes = np.fromiter((known.get(word_of(one), -1) for one in values), np.int64, len(values))
    at = np.arange(len(codes)) if rows is None else rows
    places = {int(row): place for place, row in enumerate(at.tolist())}

    def error(row: int) -> DataError:
        got = values.iloc[places[row]]
        got = got.item() if isinstance(got, np.generic) else got
        shown = ", ".join(map(repr, words[:_SHOWN])) + (", ..." if len(words) > _SHOWN else "")
        return DataError(
            f"{place.at(row)}: expected one of {shown}, got {got!r}. "
            + place.remedy("Add it to the declared ones if it is a possible value, or correct the record.")
        )

    place.refuse(at[codes < 0], error)
    return codes


def numbers_of(values: pd.Series[Any], place: Place) -> NDArray[np.float64]:
    """Convert numbers, truth values and texts of numbers to float64 (n,). A missing number becomes NaN.

    Raises DataError for dates, complex numbers, infinity and any other value.
    """
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(values) or pd.api.types.is_timedelta64_dtype(values):
        raise DataError(
            f"{place.where}, column {place.name!r}: expected numbers, got dates. "
            + place.remedy("Turn it into numbers first, or leave it out by `ignore` under [data].")
        )
    if pd.api.types.is_complex_dtype(values):
        raise DataError(f"{place.where}, column {place.name!r}: expected real numbers, got complex ones.")
    if pd.api.types.is_bool_dtype(values) or pd.api.types.is_numeric_dtype(values):
        found = values.to_numpy(np.float64, na_value=np.nan)
    else:
        found = _from_cells(values, place)
    place.refuse(
        np.flatnonzero(np.isinf(found)),
        lambda row: DataError(f"{place.at(row)}: expected a finite number, got infinity."),
    )
    return found


def _from_cells(values: pd.Series[Any], place: Place) -> NDArray[np.float64]:
    # Cell by cell: pandas would choose one type for all, and one odd cell would change how the others read.
    found = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if (number := _number_of(value)) is not None:
            found[row] = number
        elif isinstance(value, list | tuple | dict | np.ndarray):
            place.refuse([row], lambda row: _no_cell(values.iloc[row], place))
        else:
            place.refuse([row], lambda row: _no_number(values, row, place))
    return found


def _number_of(value: Any) -> float | None:
    """The number in a cell, nan if the cell is empty, or None if it holds something else."""
    if not isinstance(value, str):
        return _plain_number(value)
    text = value.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    return np.nan if text.lower() in _ABSENT else _TRUTH.get(text.lower())


def _plain_number(value: Any) -> float | None:
    """The same of a cell that is no text."""
    if _is_none(value):
        return np.nan
    if isinstance(value, bool | np.bool_):
        return float(value)
    if not isinstance(value, Real | Decimal):
        return None
    try:
        return float(value)
    except OverflowError:
        return np.inf
    except ValueError:  # a signalling nan of `Decimal`
        return None


def _no_cell(value: Any, place: Place) -> DataError:
    return DataError(
        f"{place.where}, column {place.name!r}: expected a number in each cell, got {type(value).__name__}. "
        + place.remedy("Turn it into columns of numbers, or leave it out by `ignore` under [data].")
    )


def _no_number(values: pd.Series[Any], row: int, place: Place) -> DataError:
    got = values.iloc[row]
    said = f"{place.at(row)}: expected a number, got {str(got)[:80]!r}."
    if not place.advice or place.trained:
        return DataError(f"{said} {place.remedy('Correct the record.')}")
    line = f"categories = [{json.dumps(str(got)[:40], ensure_ascii=False)}, ...]"
    return DataError(
        f"{said} If the column holds words, list all possible words in the study, from public knowledge of "
        f"the column:{place.lines(line)}\n"
        "`securefl data describe FILE --public` proposes such lines from a public file. To leave out a "
        "column without information, such as a name, write `ignore = [...]` under [data]."
    )


def _absent_words(values: pd.Series[Any], column: Column) -> NDArray[np.bool_]:
    return np.fromiter((_is_none(one) or word_of(one) == "" for one in values), np.bool_, len(values))


def _is_none(value: Any) -> bool:
    import pandas as pd

    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value)


def word_of(value: Any) -> str:
    """The text by which a value is compared with categories: 1 equals 1.0, and true equals True."""
    if value is UNREADABLE:
        return " "  # all declared words are stripped, so it is none of them and not empty
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    text = str(value).strip()
    if text in ("True", "False"):
        return text.lower()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def key_of(name: str) -> str:
    """A column's name, written as a TOML key."""
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def require_name(name: Any, where: str) -> str:
    """Return the column's name. Raises DataError unless it is a text of printable letters."""
    if not isinstance(name, str) or not is_legible(name) or not name.strip():
        raise DataError(
            f"{where}: expected columns with names of printable letters, got {name!r}. A column without a "
            "name often holds row numbers: write the file without them (`index=False`)."
        )
    return name
