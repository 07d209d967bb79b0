"""Conversion of a table into records and targets, by the columns that a study declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import DataError
from securefl.core.reading import near
from securefl.data.columns import (
    Cell,
    Column,
    Word,
    coded,
    encoded,
    listed,
    names_of,
    numbers_of,
    word_of,
    words_of,
)

if TYPE_CHECKING:
    import pandas as pd


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
    """

    target: tuple[str, ...] = ()
    classes: int | tuple[Word, ...] | None = None
    client_column: str | None = None
    clients: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)

    @property
    def count(self) -> int | None:
        """The number of classes, 0 for a regression, or None if it is not declared."""
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes

    def of(self, name: str) -> Column:
        """The declaration of a column, or an empty one."""
        return self.columns.get(name, Column())

    def without_clients(self, names: Sequence[str]) -> Layout:
        """The layout of a table without a client column, such as the server's test part.

        names: the columns of that table.
        """
        own = {*self.ignore, self.client_column} & {*names}
        return replace(
            self, client_column=None, clients=(), ignore=tuple(name for name in names if name in own)
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in order, in the form of `word_of`, in which they are compared."""
        if isinstance(self.classes, tuple):
            return tuple(word_of(one) for one in self.classes)
        return tuple(str(label) for label in range(self.classes or 0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrays:
    """Records x (n, *shape), targets y (n, ...), and the client of each record, (n,) of any type, or None.

    by_name: whether `layout` chose the columns by their names.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    clients: NDArray[Any] | None = None
    by_name: bool = False


def arrays_of(
    frame: pd.DataFrame,
    layout: Layout,
    features: Sequence[str],
    where: str,
    unusable: set[int] | None = None,
) -> Arrays:
    """Encode a table as arrays: one or more values for each column of `features`, in that order.

    x is float32 (n, k). y is int64 (n,) or float32 (n, targets).

    unusable: a set that collects the rows with a value outside its declaration. If it is None, such a row
        raises. Raises DataError if the table does not fit the layout.
    """
    found = features_of(frame, layout, where)
    if gone := [name for name in features if name not in found]:
        raise DataError(f"{where}: expected the columns of the first table, got none named {listed(gone)}.")
    if more := [name for name in found if name not in features]:
        raise DataError(
            f"{where}: expected the columns of the first table, got {listed(more)} besides. Leave out by "
            "`ignore` the columns that only some tables have."
        )

    def cell(name: str, *, advice: bool = False) -> Cell:
        return Cell(where, name, advice=advice, unusable=unusable)

    def numbers(names: Sequence[str], *, advice: bool = False) -> NDArray[np.float32]:
        return np.hstack([encoded(frame[name], layout.of(name), cell(name, advice=advice)) for name in names])

    x = numbers(features, advice=True)
    whose = layout.client_column
    clients = None if whose is None else clients_of(frame[whose], cell(whose))
    if layout.count:
        y = coded(frame[layout.target[0]], layout.labels, cell(layout.target[0]))
        return Arrays(x=x, y=y, clients=clients)
    for name in layout.target:
        empty = np.isnan(numbers_of(frame[name], cell(name)))
        cell(name).refuse(empty, lambda _: "expected a target, got none. Leave out such records.")
    return Arrays(x=x, y=numbers(layout.target), clients=clients)


def features_of(frame: pd.DataFrame, layout: Layout, where: str) -> tuple[str, ...]:
    """The feature columns in the order of the table: all but target, client column and ignored columns.

    Raises DataError if the table lacks a named column, has two columns of one name, or has no feature, and if
    the layout declares no target or no classes.
    """
    names = names_of(frame, where)
    if not layout.target:
        raise DataError(
            f"{where}: expected `target` under [data], the column to be predicted, got none. The columns are "
            f"{listed(names)}."
        )
    if layout.count is None:
        raise DataError(
            f"{where}: expected `classes` under [data], got none: the labels of {layout.target[0]!r} in "
            'their order, such as classes = ["no", "yes"]; their number if they are 0, 1, ...; or 0 for '
            "a regression."
        )
    apart = (*layout.target, *([layout.client_column] if layout.client_column else []), *layout.ignore)
    for name in (*apart, *layout.columns):
        if name not in names:
            raise DataError(
                f"{where}: expected a column {name!r}, which the study names, got none{near(name, names)}. "
                f"The columns are {listed(names)}.{_headless(names)}"
            )
    found = tuple(name for name in names if name not in apart)
    if not found:
        raise DataError(f"{where}: expected a column beside the target, got none. A record would be empty.")
    return found


def values_of(name: str, column: Column) -> list[str]:
    """The names of the values into which a column is encoded."""
    plain = [name] if column.categories is None else [f"{name} = {word}" for word in column.words]
    return [*plain, *([f"{name} is missing"] if column.indicator else [])]


def clients_of(values: pd.Series[Any], cell: Cell) -> NDArray[np.object_]:
    """The client of each record in the form of `word_of`, shape (n,), or "" if the record names none.

    Raises DataError for the first record without a client, unless `cell.unusable` collects such rows.
    """
    words = words_of(values)
    cell.refuse(words == "", lambda _: "expected the client of the record, got none. Add it.")
    return words


def _headless(names: Sequence[str]) -> str:
    """Advice if the names of the columns look like a record."""
    if any(set(name) - set("0123456789.+-eE") for name in names):
        return ""
    return " They look like a record: write the names of the columns as the first line."
