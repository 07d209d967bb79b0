"""A table as records and targets, by what a study declares of its columns."""

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
    """What a study says of its own data.

    target: the columns to be predicted. classes: the labels in their order, or how many there are when the
    labels are 0, 1, ...; 0 is a regression. None: targets that are no whole numbers are a regression's.
    client_column: says whose a record is. clients: who holds records or might, as declared; empty if they are
    those of whom there is a record. ignore: columns that are left out. columns: what is publicly known
    of a column.
    """

    target: tuple[str, ...] = ()
    classes: int | tuple[Word, ...] | None = None
    client_column: str | None = None
    clients: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)

    @property
    def count(self) -> int | None:
        """How many classes, 0 for a regression. None if it is not declared."""
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes

    def without_clients(self, names: Sequence[str]) -> Layout:
        """The same for a table with these columns that is no client's, such as the server's test part."""
        own = {*self.ignore, self.client_column} & {*names}
        return replace(
            self, client_column=None, clients=(), ignore=tuple(name for name in names if name in own)
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels in their order, as they are compared."""
        if isinstance(self.classes, tuple):
            return tuple(word_of(one) for one in self.classes)
        return tuple(str(label) for label in range(self.classes or 0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrays:
    """Records (n, *shape), targets (n, ...), and whose each record is, (n,) of any type, or None.

    by_name: whether columns were chosen as the layout names them.
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
    """The records of a table: a value or more for each of these columns, in their order.

    x is float32 (n, k). y is int64 (n,) or float32 (n, targets). unusable: takes rows whose values the layout
    does not fit; by default they are an error. Raises DataError for a table that the layout does not fit.
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
    """The columns that are records, in the order of the table: all that the layout says nothing else of.

    Raises DataError for a column that is named and not there.
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
                f"The columns are {_listed(names)}."
            )
    apart = {*layout.target, *layout.ignore, *other}
    found = tuple(name for name in names if name not in apart)
    if not found:
        raise DataError(f"{where}: expected a column beside the target, got none. A record would be empty.")
    return found


def values_of(name: str, layout: Layout) -> list[str]:
    """Names of the values that a column becomes."""
    column = layout.columns.get(name, Column())
    plain = [name] if column.categories is None else [f"{name} = {word}" for word in column.words]
    return [*plain, *([f"{name} is missing"] if column.indicator else [])]


def _require_alike(frame: pd.DataFrame, layout: Layout, features: Sequence[str], where: str) -> None:
    """Raises DataError unless the table has the columns that the first one has."""
    found = features_of(frame, layout, where)
    if gone := [name for name in features if name not in found]:
        raise DataError(f"{where}: expected the columns of the first table, got none named {_listed(gone)}.")
    if more := [name for name in found if name not in features]:
        raise DataError(
            f"{where}: expected the columns of the first table, got {_listed(more)} besides. Leave out by "
            "`ignore` what only some have."
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
    """Whose each record is, as it is compared, (n,); "" for a record that is nobody's, which is refused."""
    words = np.array([word_of(one) for one in values], object)
    gone = np.asarray(values.isna()) | (words == "")
    place.refuse(
        np.flatnonzero(gone),
        lambda row: DataError(f"{place.at(row)}: expected whose record it is, got nothing."),
    )
    words[gone] = ""
    return words


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
