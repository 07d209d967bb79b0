"""The columns of a table that a study declares, and the arrays of records that have no columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from numpy.typing import NDArray

from securefl.core.errors import DataError
from securefl.core.reading import near
from securefl.data.columns import Column, Named, Word, listed, names_of, word_of

if TYPE_CHECKING:
    import pandas as pd


_SIGNS: Final = ',;|\t"\r\n+-.0123456789'


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How the text of a .csv becomes cells.

    delimiter: the sign between two cells.
    decimal: the sign before the fraction of a number. With "," a number with a point is unreadable, since the
        point could stand between thousands.
    encoding: the encoding of the text by Python's name, such as "cp1252". Signs have their ASCII bytes in it.
    empty: the words for an empty cell, beside "", na, n/a, nan, null and none.

    """

    delimiter: Literal[",", ";", "|", "\t"] = ","
    decimal: Literal[".", ","] = "."
    encoding: str = "utf-8"
    empty: tuple[str, ...] = ()

    def require(self) -> None:
        """Raises ValueError if the encoding is unknown, or is one of several bytes such as UTF-16."""
        try:
            plain = _SIGNS.encode(self.encoding) == _SIGNS.encode()
        except (LookupError, UnicodeError):
            plain = False
        if not plain:
            raise ValueError(
                'Expected `encoding` with the digits and commas of ASCII, as "utf-8" and "cp1252" are, got '
                f"{self.encoding[:80]!r}. Save the file as UTF-8."
            )


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A study's public declaration of its data.

    target: the columns to predict.
    classes: the labels in order, or their number if the labels are 0, 1, .... 0 is a regression. If it is
        None, targets of a float type are a regression.
    client_column: the column that names the client of each record.
    clients: the declared clients, with records or without. If it is empty, they are the clients that the
        records name.
    ignore: the columns that are left out. columns: the public declaration of each column.
    csv: how a .csv is written.
    label_map: for a client, the label for which each of its own codes stands. It has all codes of the client.
    """

    target: tuple[str, ...] = ()
    classes: int | tuple[Word, ...] | None = None
    client_column: str | None = None
    clients: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)
    csv: Dialect = field(default_factory=Dialect)
    label_map: Mapping[str, Mapping[str, Word]] = field(default_factory=dict)

    @property
    def count(self) -> int | None:
        """The number of classes, 0 for a regression, or None if it is not declared."""
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in order, in the form of `word_of`, in which they are compared."""
        return tuple(
            map(word_of, self.classes if isinstance(self.classes, tuple) else range(self.count or 0))
        )

    def named(self, names: Iterable[str]) -> tuple[Named, ...]:
        """The declarations of these columns. A column that is not declared has an empty one."""
        return tuple(Named(name=name, **vars(self.columns.get(name, Column()))) for name in names)

    def features(
        self, frame: pd.DataFrame, where: str, first: Sequence[str] | None = None, *, server: bool = False
    ) -> Sequence[str]:
        """The feature columns: all but target, client column and ignored columns.

        Args:
            frame: A table.
            where: Its name for errors.
            first: The feature columns of the first table. By default this one is the first.
            server: Whether the table is the server's, which may lack client column and ignored columns.

        Returns:
            The feature columns in the order of the first table.

        Raises:
            DataError: The table lacks a named column, has two columns of one name, has no feature, or has
                others than the first table. Or no target or no classes are declared.
        """
        names = names_of(frame, where)
        if not self.target:
            raise DataError(
                f"{where}: expected `target` under [data], the column to be predicted, got none. The columns "
                f"are {listed(names)}."
            )
        if self.count is None:
            raise DataError(
                f"{where}: expected `classes` under [data], got none: the labels of {self.target[0]!r} in "
                'their order, such as classes = ["no", "yes"]; their number if they are 0, 1, ...; or 0 for '
                "a regression."
            )
        left_out = (*([self.client_column] if self.client_column else []), *self.ignore)
        for name in (*self.target, *(() if server else left_out), *self.columns):
            if name not in names:
                raise DataError(
                    f"{where}: expected a column {name!r}, which the study names, got none"
                    f"{near(name, names)}. The columns are {listed(names)}.{_headless(names)}"
                )
        found = tuple(name for name in names if name not in (*self.target, *left_out))
        if not found:
            raise DataError(
                f"{where}: expected a column beside the target, got none. A record would be empty."
            )
        if first is not None and (more := [name for name in found if name not in first]):
            raise DataError(
                f"{where}: expected the columns of the first table, got {listed(more)} besides. Leave out by "
                "`ignore` the columns that only some tables have."
            )
        return first or found


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrays:
    """Records x (n, *shape), targets y (n, ...), and the client of each record, (n,) of any type, or None.

    by_name: whether `layout` chose the columns by their names.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    clients: NDArray[Any] | None = None
    by_name: bool = False


def _headless(names: Sequence[str]) -> str:
    """Advice if the names of the columns look like a record."""
    if any(set(name) - set("0123456789.+-eE") for name in names):
        return ""
    return " They look like a record: write the names of the columns as the first line."
