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
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import inf, nan
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import DataError
from securefl.core.text_safety import is_legible, some

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES: Final = 10_000
_LONGEST: Final = 1000
"""The most characters of a column's name."""
_SHOWN: Final = 8
"""How many categories an error lists."""
WORDS: Final = {**dict.fromkeys(("", "na", "n/a", "nan", "null", "none"), nan), "true": 1.0, "false": 0.0}
"""The numbers of texts in lower case. nan stands for an empty cell."""
NUMBER: Final = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity)", re.ASCII)
"""A number in lower case."""
_SWAPPED: Final = str.maketrans(".,", ",.")
_MOST: Final = float(np.finfo(np.float32).max)
"""The largest number of a column: its values become float32."""
_WHOLE: Final = re.compile(r"(-?\d+)\.0+")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
UNREADABLE: Final = object()
"""A cell of a damaged row. No declaration covers it, not even `missing`."""
CORRECT: Final = "Correct the record, or leave it out."
"""The remedy for a value of a column that no declaration can change."""

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
            self.range[0] < self.range[1] and all(abs(end) <= _MOST for end in self.range)
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
        elif given is not None and (isinstance(given, str) or not abs(given) <= _MOST):
            raise ValueError(f"Expected `missing` as a finite number for a column of numbers, got {given!r}.")
        elif self.indicator and given is None:
            raise ValueError("Expected `missing` beside `indicator`: the number that an empty cell becomes.")

    @property
    def words(self) -> tuple[str, ...]:
        """The categories in the form of `word_of`, in which they are compared."""
        return tuple(word_of(one) for one in self.categories or ())


@dataclass(frozen=True, kw_only=True)
class Named(Column):
    """A column of a table: its declaration and its name. Raises ValueError if the name is not printable."""

    name: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name.strip() or len(self.name) > _LONGEST or not is_legible(self.name):
            raise ValueError(f"Expected a column's name of printable letters, got {self.name[:80]!r}.")

    @property
    def values(self) -> list[str]:
        """The names of the values into which the column is encoded."""
        plain = [self.name] if self.categories is None else [f"{self.name} = {word}" for word in self.words]
        return [*plain, *([f"{self.name} is missing"] if self.indicator else [])]


@dataclass(frozen=True)
class Cell:
    """The file and the column that an error names.

    remedy: the advice about a value that the declaration does not cover. By default the error shows how to
        declare the column.
    lenient: whether no value is an error, but counts as unusable. A study with a finite epsilon needs it,
        since an error would reveal a record.
    """

    where: str
    name: str
    remedy: str = ""
    lenient: bool = False

    def refuse(self, bad: NDArray[np.bool_], values: Any, expected: str, remedy: str = CORRECT) -> None:
        """Raise DataError for the first bad one of n values, unless the reading is lenient.

        Args:
            bad: Which values are unusable, shape (n,).
            values: The values, n of them.
            expected: The values that the column may have.
            remedy: The advice, if the cell has none of its own.
        """
        if not self.lenient and bad.any():
            row = int(bad.argmax())
            got = values[row] if isinstance(values, np.ndarray) else values.iloc[row]
            shown = "none" if _is_none(got) or not str(got) else f"{str(got)[:80]!r}"
            raise DataError(
                f"{self.where}, row {row + 1}, column {self.name!r}: expected {expected}, got {shown}. "
                f"{self.remedy or remedy}"
            )

    def lines(self, line: str) -> str:
        """The TOML that declares the column."""
        return f"\n\n    [data.columns.{key_of(self.name)}]\n    {line}\n"


class CommaText(str):
    """A cell of a file with decimal commas: a point in it could stand between thousands."""


def encoded(values: pd.Series[Any], column: Column, cell: Cell) -> NDArray[np.float32]:
    """Encode a column of n values as numbers.

    Args:
        values: The column's values.
        column: Its declaration.
        cell: Names file and column in errors.

    Returns:
        The numbers, float32 of shape (n, k). If the reading is lenient, an unusable row has one that is not
        finite.

    Raises:
        DataError: The declaration does not cover a value. It names file, row, column and value.
    """
    if column.categories is None:
        numbers = numbers_of(values, cell)
        gone = np.isnan(numbers)
        if column.missing is None:
            declare = "Declare in the study the number for an empty cell, such as:" + cell.lines(
                "missing = 0"
            )
            cell.refuse(gone, values, "a number", declare)
        else:
            numbers[gone] = column.missing
        numbers[np.isinf(numbers)] = nan  # or a range would make a number of it
        if column.range is not None:
            low, high = column.range
            numbers = (np.clip(numbers, low, high) - low) / (high - low)
        with np.errstate(over="ignore"):
            found: NDArray[Any] = numbers.astype(np.float32)
        cell.refuse(~np.isfinite(found), values, "a finite number of 32 bits")
    else:
        words = words_of(values)
        gone = words == ""
        if column.missing is not None:
            words[gone] = word_of(column.missing)
        codes = coded(words, column.words, cell, blank=column.indicator)[:, None]
        found = np.where(codes < 0, np.float32(nan), codes == np.arange(len(column.words)))
    return np.column_stack((found, gone) if column.indicator else (found,)).astype(np.float32)


def coded(
    found: NDArray[np.object_], words: tuple[str, ...], cell: Cell, *, blank: bool = False
) -> NDArray[np.int64]:
    """The position of each found word among `words`, shape (n,), or -1 for any other word.

    Args:
        found: Words in the form of `word_of`, shape (n,).
        words: The known words.
        cell: Names file and column in errors.
        blank: Whether an empty cell is known too. Its position is len(words).

    Raises:
        DataError: A word is unknown, and the reading is not lenient.
    """
    known = {word: code for code, word in enumerate((*words, *([""] if blank else [])))}
    if words == ("0", "1"):
        known |= {"false": 0, "true": 1}
    codes = np.array([known.get(word, -1) for word in found], np.int64)
    shown = ", ".join(map(repr, words[:_SHOWN])) + (", ..." if len(words) > _SHOWN else "")
    remedy = "Add it to the declared ones if it is a possible value, or correct the record."
    if "" in found[codes < 0][:1]:
        remedy = f"Name its category by `missing`, or mark empty cells:{cell.lines('indicator = true')}"
    cell.refuse(codes < 0, found, f"one of {shown}", remedy)
    return codes


def numbers_of(values: pd.Series[Any], cell: Cell) -> NDArray[np.float64]:
    """Convert numbers, truth values and texts of numbers to float64 (n,). A missing number becomes nan.

    Raises DataError for dates, complex numbers, infinity and any other value. If the reading is lenient, such
    a value in a column of another type becomes infinity.
    """
    kind = values.dtype.kind
    if kind in "mMc":
        remedy = cell.remedy or "Turn it into numbers first, or leave it out by `ignore` under [data]."
        raise DataError(
            f"{cell.where}, column {cell.name!r}: expected real numbers, got {values.dtype}. {remedy}"
        )
    if kind in "biuf":
        found = np.array(values.to_numpy(np.float64, na_value=nan))  # a copy, since the caller changes it
    else:
        # Cell by cell: pandas would choose one type for all, and one odd cell would change how others read.
        found = np.array([_number_of(value) for value in values], np.float64)
    first = next(iter(values[np.isinf(found)]), "")
    remedy = "Correct the record, or turn it into columns of numbers."
    if isinstance(first, str) and not NUMBER.fullmatch(first.strip().lower()):
        line = f"categories = [{json.dumps(first[:40], ensure_ascii=False)}, ...]"
        comma = NUMBER.fullmatch(first.strip().lower().replace(",", ".", 1))
        remedy = (
            'If commas stand before fractions in this file, write csv = { decimal = "," } under [data].'
            if comma and not isinstance(first, CommaText)
            else "If the column holds words, list all possible words in the study, from public knowledge of "
            f"the column:{cell.lines(line)}\n"
            "`securefl data describe FILE --public` proposes such lines from a public file."
        )
    remedy += (
        " To leave out a column without information, such as a name, write `ignore = [...]` under [data]."
    )
    cell.refuse(np.isinf(found), values, "a finite number", remedy)
    return found


def _number_of(value: Any) -> float:
    """The number in a cell, nan if the cell is empty, or inf if it holds something else."""
    if isinstance(value, CommaText):
        value = value.translate(_SWAPPED)
    if isinstance(value, str):
        text = value.strip().lower()
        return float(text) if NUMBER.fullmatch(text) else WORDS.get(text, inf)
    if _is_none(value):
        return nan
    try:
        return float(value) if isinstance(value, Real | Decimal | np.bool_) else inf
    except (OverflowError, ValueError):  # a signalling nan of `Decimal` has no value
        return inf


def _is_none(value: Any) -> bool:
    import pandas as pd

    # Not `pd.isna`: it fails at a signalling nan of `Decimal`.
    missing = value is None or value is pd.NA or value is pd.NaT
    return missing or (isinstance(value, float | np.floating) and bool(np.isnan(value)))


def word_of(value: Any) -> str:
    """The text by which a value is compared with categories: 1 equals 1.0, and true equals True."""
    if value is UNREADABLE:
        return " "  # all declared words are stripped, so it is none of them and not empty
    text = str(value).strip()
    if text in ("True", "False"):
        return text.lower()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def words_of(values: pd.Series[Any] | NDArray[Any]) -> NDArray[np.object_]:
    """The text of each of n values in the form of `word_of`, shape (n,): "" for an empty cell."""
    import pandas as pd

    return np.array(["" if _is_none(one) else word_of(one) for one in pd.Series(values)], object)


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
    """Names for a message, the first twelve of them, and the first hundred letters of each."""
    return some([*map(repr, (name if len(name) <= 100 else f"{name[:100]}…" for name in names))], 12)
