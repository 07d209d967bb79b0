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
from collections.abc import Callable, Sequence
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

_NUMBER: Final = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity)", re.ASCII)
"""A number in lower case."""
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
        given, words = self.missing, self.words
        if self.range is not None and self.categories is not None:
            raise ValueError("Expected `range` or `categories`, got both. Keep one of them.")
        if self.range is not None and not (
            self.range[0] < self.range[1] and all(isfinite(np.float32(end)) for end in self.range)
        ):
            raise ValueError(f"Expected a finite range = [low, high] with low < high, got {self.range}.")
        if self.categories is not None:
            if not 1 <= len(words) <= MOST_CATEGORIES or len(set(words)) < len(words) or "" in words:
                raise ValueError(
                    f"Expected 1 to {MOST_CATEGORIES:,} categories, each once, got {len(words)} with "
                    f"{len(set(words))} different ones."
                )
            if given is not None and word_of(given) not in words:
                raise ValueError(f"Expected `missing` among the categories, got {given!r}. Add it there.")
        elif given is not None and (isinstance(given, str) or not isfinite(np.float32(given))):
            raise ValueError(f"Expected `missing` as a finite number for a column of numbers, got {given!r}.")
        elif self.indicator and given is None:
            raise ValueError("Expected `missing` beside `indicator`: the number that an empty cell becomes.")

    @property
    def words(self) -> tuple[str, ...]:
        """The categories in the form of `word_of`, in which they are compared."""
        return tuple(word_of(one) for one in self.categories or ())


@dataclass(frozen=True)
class Cell:
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

    def __str__(self) -> str:
        return f"{self.where}, column {self.name!r}"

    def at(self, row: int) -> str:
        """The cell of a row, counted from 0, in words."""
        return f"{self.where}, row {row + 1}, column {self.name!r}"

    def refuse(self, bad: NDArray[np.bool_], said: Callable[[int], str]) -> None:
        """Raise DataError for the first bad value or, if `unusable` is a set, add the rows of all to it.

        Args:
            bad: Which of n values are unusable, shape (n,).
            said: What the error says of the value in this row.
        """
        rows = np.flatnonzero(bad).tolist()
        if self.unusable is not None:
            self.unusable.update(rows)
        elif rows:
            raise DataError(f"{self.at(rows[0])}: {said(rows[0])}")

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


def encoded(values: pd.Series[Any], column: Column, cell: Cell) -> NDArray[np.float32]:
    """Encode a column of n values as numbers, shape (n, k).

    Args:
        values: The column's values.
        column: Its declaration.
        cell: Names file and column in errors.

    Returns:
        The numbers, float32 of shape (n, k).

    Raises:
        DataError: The declaration does not cover a value. It names file, row, column and value.
    """
    found, gone = (_scaled if column.categories is None else _one_hot)(values, column, cell)
    return np.column_stack((found, gone) if column.indicator else (found,)).astype(np.float32)


def _scaled(
    values: pd.Series[Any], column: Column, cell: Cell
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The scaled numbers, shape (n,), and which cells are empty."""
    numbers = numbers_of(values, cell)
    gone = np.isnan(numbers)
    if column.missing is None:
        declare = "Declare in the study the number for an empty cell, such as:" + cell.lines("missing = 0")
        cell.refuse(gone, lambda _: f"expected a number, got none. {cell.remedy(declare)}")
    numbers[gone] = column.missing or 0
    if column.range is not None:
        low, high = column.range
        numbers = (np.clip(numbers, low, high) - low) / (high - low)
    with np.errstate(over="ignore"):
        found = numbers.astype(np.float32)
    cell.refuse(~np.isfinite(found), lambda row: f"expected a finite number of 32 bits, got {numbers[row]}.")
    return found, gone


def _one_hot(
    values: pd.Series[Any], column: Column, cell: Cell
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """1 at the value's category, shape (n, categories), and which cells are empty.

    A row is all zeros if its value is missing and the column declares `indicator` without `missing`.
    """
    words = column.words
    gone = words_of(values) == ""
    if column.missing is None and not column.indicator:
        declare = (
            "Name the category of empty cells by `missing`, or mark them by `indicator = true`, under "
            f"[data.columns.{key_of(cell.name)}]."
        )
        cell.refuse(gone, lambda _: f"expected a category, got no value. {cell.remedy(declare)}")
    empty = -1 if column.missing is None else words.index(word_of(column.missing))
    return coded(values, words, cell, empty)[:, None] == np.arange(len(words)), gone


def coded(
    values: pd.Series[Any], words: tuple[str, ...], cell: Cell, empty: int | None = None
) -> NDArray[np.int64]:
    """The position of each value among `words`, shape (n,), or -1 if the value is none of them.

    empty: the position that an empty cell gets. By default an empty cell is unknown. Raises DataError for the
    first unknown value, unless `cell.unusable` collects such rows.
    """
    known = {word: code for code, word in enumerate(words)}
    if words == ("0", "1"):
        known |= {"false": 0, "true": 1}
    if empty is not None:
        known[""] = empty
    found = words_of(values)

    def said(row: int) -> str:
        got = values.iloc[row]
        got = got.item() if isinstance(got, np.generic) else got
        shown = ", ".join(map(repr, words[:_SHOWN])) + (", ..." if len(words) > _SHOWN else "")
        declare = "Add it to the declared ones if it is a possible value, or correct the record."
        return f"expected one of {shown}, got {got!r}. {cell.remedy(declare)}"

    cell.refuse(np.array([word not in known for word in found], bool), said)
    return np.array([known.get(word, -1) for word in found], np.int64)


def numbers_of(values: pd.Series[Any], cell: Cell) -> NDArray[np.float64]:
    """Convert numbers, truth values and texts of numbers to float64 (n,). A missing number becomes NaN.

    Raises DataError for dates, complex numbers, infinity and any other value.
    """
    from pandas.api import types

    if types.is_datetime64_any_dtype(values) or types.is_timedelta64_dtype(values):
        remedy = cell.remedy("Turn it into numbers first, or leave it out by `ignore` under [data].")
        raise DataError(f"{cell}: expected numbers, got dates. {remedy}")
    if types.is_complex_dtype(values):
        raise DataError(f"{cell}: expected real numbers, got complex ones.")
    if types.is_numeric_dtype(values):
        found = values.to_numpy(np.float64, na_value=np.nan, copy=True)
    else:
        # Cell by cell: pandas would choose one type for all, and one odd cell would change how others read.
        numbers = [_number_of(value) for value in values]
        cell.refuse(
            np.array([number is None for number in numbers], bool),
            lambda row: _no_number(values.iloc[row], cell),
        )
        found = np.array(numbers, np.float64)
    cell.refuse(np.isinf(found), lambda _: "expected a finite number, got infinity.")
    return found


def _number_of(value: Any) -> float | None:
    """The number in a cell, nan if the cell is empty, or None if it holds something else."""
    if isinstance(value, str):
        text = value.strip().lower()
        if _NUMBER.fullmatch(text):
            return float(text)
        return np.nan if text in _ABSENT else _TRUTH.get(text)
    if _is_none(value):
        return np.nan
    try:
        return float(value) if isinstance(value, Real | Decimal | np.bool_) else None
    except OverflowError:
        return np.inf
    except ValueError:  # a signalling nan of `Decimal`
        return None


def _no_number(got: Any, cell: Cell) -> str:
    if isinstance(got, list | tuple | dict | np.ndarray):
        remedy = cell.remedy("Turn it into columns of numbers, or leave it out by `ignore` under [data].")
        return f"expected a number in each cell, got {type(got).__name__}. {remedy}"
    said = f"expected a number, got {str(got)[:80]!r}."
    if not cell.advice or cell.trained:
        return f"{said} {cell.remedy('Correct the record.')}"
    line = f"categories = [{json.dumps(str(got)[:40], ensure_ascii=False)}, ...]"
    return (
        f"{said} If the column holds words, list all possible words in the study, from public knowledge of "
        f"the column:{cell.lines(line)}\n"
        "`securefl data describe FILE --public` proposes such lines from a public file. To leave out a "
        "column without information, such as a name, write `ignore = [...]` under [data]."
    )


def _is_none(value: Any) -> bool:
    import pandas as pd

    # Not `pd.isna`: it fails at a signalling nan of `Decimal`.
    missing = value is None or value is pd.NA or value is pd.NaT
    return missing or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


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


def words_of(values: pd.Series[Any]) -> NDArray[np.object_]:
    """The text of each of n values in the form of `word_of`, shape (n,): "" for an empty cell."""
    return np.array(["" if _is_none(one) else word_of(one) for one in values], object)


def key_of(name: str) -> str:
    """A column's name, written as a TOML key."""
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def names_of(frame: pd.DataFrame, where: str) -> list[str]:
    """The names of a table's columns. Raises DataError unless they are different printable texts."""
    names = [require_name(name, where) for name in frame.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{where}: expected columns with different names, got {twice[0]!r} twice.")
    return names


def require_name(name: Any, where: str) -> str:
    """Return the column's name. Raises DataError unless it is a text of printable letters."""
    if not isinstance(name, str) or not is_legible(name) or not name.strip():
        raise DataError(
            f"{where}: expected columns with names of printable letters, got {name!r}. A column without a "
            "name often holds row numbers: write the file without them (`index=False`)."
        )
    return name


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first twelve of them."""
    shown = ", ".join(map(repr, names[:12]))
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
