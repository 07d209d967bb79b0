"""Conversion of a table into records and targets, by the columns that a study declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import DataError
from securefl.core.reading import near
from securefl.data.columns import Column, Place, Word, coded, encoded, numbers_of, require_name, word_of

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
    _require_alike(frame, layout, features, where)
    parts = [
        encoded(frame[name], layout.columns.get(name, Column()), Place(where, name, unusable=unusable))
        for name in features
    ]
    x = np.concatenate(parts, axis=1) if parts else np.empty((len(frame), 0), np.float32)
    column = layout.client_column
    clients = (
        None
        if column is None
        else clients_of(frame[column], Place(where, column, advice=False, unusable=unusable))
    )
    return Arrays(x=x, y=_targets(frame, layout, where, unusable), clients=clients)


def features_of(frame: pd.DataFrame, layout: Layout, where: str) -> tuple[str, ...]:
    """The feature columns in the order of the table: all but target, client column and ignored columns.

    Raises DataError if the table lacks a named column, has two columns of one name, or has no feature, and if
    the layout declares no target or no classes.
    """
    names = [require_name(name, where) for name in frame.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{where}: expected columns with different names, got {twice[0]!r} twice.")
    if not layout.target:
        raise DataError(
            f"{where}: expected `target` under [data], the column to be predicted, got none. The columns are "
            f"{_listed(names)}."
        )
    if layout.count is None:
        raise DataError(
            f"{where}: expected `classes` under [data], got none: the labels of {layout.target[0]!r} in "
            'their order, such as classes = ["no", "yes"]; their number if they are 0, 1, ...; or 0 for '
            "a regression."
        )
    other = (layout.client_column,) if layout.client_column else ()
    for name in (*layout.target, *other, *layout.ignore, *layout.columns):
        if name not in names:
            raise DataError(
                f"{where}: expected a column {name!r}, which the study names, got none{near(name, names)}. "
                f"The columns are {_listed(names)}.{_headless(names)}"
            )
    apart = {*layout.target, *layout.ignore, *other}
    found = tuple(name for name in names if name not in apart)
    if not found:
        raise DataError(f"{where}: expected a column beside the target, got none. A record would be empty.")
    return found


def values_of(name: str, layout: Layout) -> list[str]:
    """The names of the values into which a column is encoded."""
    column = layout.columns.get(name, Column())
    plain = [name] if column.categories is None else [f"{name} = {word}" for word in column.words]
    return [*plain, *([f"{name} is missing"] if column.indicator else [])]


def _require_alike(frame: pd.DataFrame, layout: Layout, features: Sequence[str], where: str) -> None:
    """Raises DataError unless the table has the feature columns of the first table."""
    found = features_of(frame, layout, where)
    if gone := [name for name in features if name not in found]:
        raise DataError(f"{where}: expected the columns of the first table, got none named {_listed(gone)}.")
    if more := [name for name in found if name not in features]:
        raise DataError(
            f"{where}: expected the columns of the first table, got {_listed(more)} besides. Leave out by "
            "`ignore` the columns that only some tables have."
        )


def _targets(frame: pd.DataFrame, layout: Layout, where: str, unusable: set[int] | None) -> NDArray[Any]:
    if layout.count:
        place = Place(where, layout.target[0], advice=False, unusable=unusable)
        return coded(frame[layout.target[0]], layout.labels, place)
    columns = []
    for name in layout.target:
        place = Place(where, name, advice=False, unusable=unusable)
        place.refuse(
            np.flatnonzero(np.isnan(numbers_of(frame[name], place))),
            lambda row, place=place: DataError(  # type: ignore[misc]
                f"{place.at(row)}: expected a target, got none. Leave out such records."
            ),
        )
        columns.append(encoded(frame[name], layout.columns.get(name, Column()), place))
    return np.concatenate(columns, axis=1)


def clients_of(values: pd.Series[Any], place: Place) -> NDArray[np.object_]:
    """The client of each record in the form of `word_of`, shape (n,), or "" if the record names none.

    Raises DataError for the first record without a client, unless `place.unusable` collects such rows.
    """
    words = np.array([word_of(one) for one in values], object)
    gone = np.asarray(values.isna()) | (words == "")
    place.refuse(
        np.flatnonzero(gone),
        lambda row: DataError(f"{place.at(row)}: expected the client of the record, got none. Add it."),
    )
    words[gone] = ""
    return words


def _headless(names: Sequence[str]) -> str:
    """Advice if the names of the columns look like a record."""
    if any(set(name) - set("0123456789.+-eE") for name in names):
        return ""
    return " They look like a record: write the names of the columns as the first line."


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
