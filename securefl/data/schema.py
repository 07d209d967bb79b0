"""The schema of a model's records: how a record becomes the model's input, and an output the table's label.

A study declares it, an exported model carries it in its card, and predictions read records by it. It holds
declarations and names alone: no statistic of records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.core.reading import convert, near
from securefl.core.text_safety import is_legible
from securefl.data.columns import (
    CORRECT,
    Cell,
    Column,
    Named,
    Word,
    encoded,
    listed,
    names_of,
    require_name,
    word_of,
)
from securefl.data.layout import Dialect, Layout
from securefl.data.networks import NAMED, is_name
from securefl.data.scaling import Scaling
from securefl.data.tables import MOST_COLUMNS, frame_of_table

if TYPE_CHECKING:
    import pandas as pd

MOST_VALUES: Final = 10**8
"""The most values of one record."""
_SHOWN: Final = 12
_TRAINED: Final = "The model was trained without a rule for it: correct the record, or leave it out."


@dataclass(frozen=True, kw_only=True)
class Features:
    """The network that computes features of records before the model: `[data] features` of the study.

    word: its entry point of `securefl.networks`, or `module:name` of a study's own code. name: identifies the
    network and its weights, such as a word and a SHA-256. about: the network in words, or "".
    """

    word: str
    name: str
    about: str = ""

    def __post_init__(self) -> None:
        for text in (self.word, self.name, self.about or "unknown"):
            if not is_name(text):
                raise ValueError(f"Expected the network of the features as {NAMED}, got {text[:80]!r}.")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """How a table, a list of mappings or an array becomes a model's input, and outputs become labels.

    columns: the feature columns in order with their declarations, or None for records that were arrays.
    shape: of one record as it is encoded, before `features`. targets: the columns that the model predicts, or
    empty for arrays of which the study names none. labels: the labels in the order of the classes, or empty
    if they are 0, 1, ... or if the targets are numbers. network: the network that computed the records
    elsewhere, "none", or "" if it is unknown. scaling: of the encoded records by public constants, or None.
    features: the network that computes features of the encoded records, or None. csv: how a .csv of such
    records is written.

    Raises ValueError if the parts contradict each other.
    """

    columns: tuple[Named, ...] | None
    shape: tuple[int, ...]
    targets: tuple[Named, ...] = ()
    labels: tuple[Word, ...] = ()
    network: str = ""
    scaling: Scaling | None = None
    features: Features | None = None
    csv: Dialect = field(default_factory=Dialect)

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1 or prod(self.shape) > MOST_VALUES:
            raise ValueError(f"Expected records of 1 to {MOST_VALUES:,} values, got shape {self.shape}.")
        self.csv.require()
        if self.scaling is not None:
            self.scaling.require(self.shape)
        if self.network and not is_name(self.network):
            raise ValueError(f"Expected `network` as {NAMED}, got {self.network[:80]!r}.")
        if len({*map(word_of, self.labels)}) < len(self.labels):
            raise ValueError(f"Expected each label once, got {self.labels[:_SHOWN]}.")
        if self.columns is None:
            return
        names = [one.name for one in (*self.columns, *self.targets)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"Expected each column once, got {twice[0]!r} twice.")
        width = sum(len(one.values) for one in self.columns)
        if self.shape != (width,):
            raise ValueError(f"Expected the shape ({width},) of the declared columns, got {self.shape}.")

    # In a card ---------------------------------------------------------------------------------------

    def words(self) -> dict[str, Any]:
        """The schema as a value for JSON."""
        own, by = self.features, self.scaling
        return {
            "columns": None if self.columns is None else [*map(_written, self.columns)],
            "shape": self.shape,
            "targets": [*map(_written, self.targets)],
            "labels": self.labels,
            "network": self.network,
            "features": own and {"word": own.word, "name": own.name, "about": own.about},
            **({"scaling": {"mean": by.mean, "deviation": by.deviation}} if by else {}),
            **({"csv": vars(self.csv)} if self.csv != Dialect() else {}),
        }

    @classmethod
    def parse(cls, table: Any) -> Schema:
        """The schema that `words` wrote. Raises ConfigError, which names the column, for anything else."""
        # These two are written where they say something alone: cards of before have no such keys.
        if not isinstance(table, dict) or {*table, "scaling", "csv"} != {one.name for one in fields(cls)}:
            raise ConfigError(
                "[records] Expected the keys columns, features, labels, network, shape and targets, got "
                f"{', '.join(map(str, table))[:200] if isinstance(table, dict) else type(table).__name__}."
            )
        whole = convert(Schema, {**table, "columns": None, "targets": []}, "records")
        columns = None if table["columns"] is None else _columns(table["columns"], "columns")
        try:
            return replace(whole, columns=columns, targets=_columns(table["targets"], "targets"))
        except ValueError as error:
            raise ConfigError(f"[records] {error}") from None

    # From records to the model's input ----------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether a record's values are the model's input, unchanged."""
        unchanged = self.features is None and self.scaling is None
        return unchanged and all(one == Named(name=one.name) for one in self.columns or ())

    @property
    def names(self) -> tuple[str, ...]:
        """The feature columns by name, or nothing for arrays."""
        return tuple(one.name for one in self.columns or ())

    def left_out(self, frame: Any) -> tuple[str, ...]:
        """The columns of a table that the model does not read, targets included."""
        return tuple(str(name) for name in frame.columns if name not in self.names)

    def encode(
        self, frame: pd.DataFrame, where: str, *, remedy: str = _TRAINED, lenient: bool = False
    ) -> NDArray[np.float32]:
        """Encode a table. Columns are found by name, in any order; others are left out.

        Args:
            frame: A table of n records.
            where: The table's name for errors.
            remedy, lenient: As in `Cell`.

        Returns:
            The model's input, float32 (n, *shape).

        Raises:
            DataError: A column is missing or comes twice, or a declaration does not cover a value. It names
                row and column.
        """
        if not len(frame) and not lenient:
            raise DataError(f"{where}: expected at least one record, got none.")
        if self.columns is None:
            # A model that was trained on arrays reads the columns in their order.
            columns = [(frame.iloc[:, at], str(name), Column()) for at, name in enumerate(frame.columns)]
            if self.shape != (len(columns),):
                shape = ", ".join(map(str, self.shape))
                raise DataError(
                    f"{where}: expected records of shape ({shape}), since the model was trained on arrays, "
                    f"got a table of {len(columns)} columns: {listed([*map(str, frame.columns)])}. Leave out "
                    "the others."
                )
        else:
            found = names_of(frame, where)
            if gone := [name for name in self.names if name not in found]:
                raise DataError(
                    f"{where}: expected a column {gone[0]!r}, which the model reads, got none"
                    f"{near(gone[0], found)}. The model reads {listed(self.names)}; the table has "
                    f"{listed(found)}."
                )
            columns = [(frame[one.name], one.name, one) for one in self.columns]
        cells = [(values, column, Cell(where, name, remedy, lenient)) for values, name, column in columns]
        made: NDArray[np.float32] = np.hstack([encoded(*cell) for cell in cells])
        return made

    def encode_targets(self, values: Any, where: str, *, lenient: bool) -> NDArray[np.float32]:
        """Encode the targets of a regression, a table or an array (n, targets): float32 (n, targets).

        Args:
            values: The targets in units.
            where, lenient: As of `encode`.

        Raises:
            DataError: As `encode` does.
        """
        import pandas as pd

        frame = pd.DataFrame(values, columns=[one.name for one in self.targets])
        own = Schema(columns=self.targets, shape=(len(self.targets),))
        return own.encode(frame, where, remedy=CORRECT, lenient=lenient)

    # From outputs to labels ---------------------------------------------------------------------------

    def classes(self, count: int) -> NDArray[Any]:
        """The labels of `count` classes, (count,), in the type that the study declared."""
        same = len({type(label) for label in self.labels}) == 1
        return np.array(self.labels, None if same else object) if self.labels else np.arange(count)

    def in_units(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values of a regression (n, targets) in the table's units: (n, targets), or (n,) for one target."""
        low, high = np.array([one.range or (0.0, 1.0) for one in self.targets] or [(0.0, 1.0)]).T
        found: NDArray[Any] = (low + values.astype(np.float64) * (high - low)).astype(np.float32)
        return found[:, 0] if found.shape[1] == 1 else found


def of_layout(layout: Layout, features: Sequence[str] | None, shape: tuple[int, ...] = (1,)) -> Schema:
    """The schema of records that a layout declares.

    features: the columns of a table, or None for arrays. shape: of a record, if they are arrays.
    """
    labels = layout.classes if isinstance(layout.classes, tuple) else ()
    if features is None:
        return Schema(columns=None, shape=shape, targets=layout.named(layout.target), labels=labels)
    columns, targets = layout.named(features), layout.named(layout.target)
    width = sum(len(one.values) for one in columns)
    return Schema(columns=columns, shape=(width,), targets=targets, labels=labels, csv=layout.csv)


def frame_of(thing: object, where: str) -> pd.DataFrame | None:
    """A table of pandas or polars, or a list of mappings, as a DataFrame. None for anything else.

    A key that a mapping lacks is an empty cell, unless all lack it. Raises DataError for a list of which only
    some entries are mappings, for a single mapping, and for a lazy table.
    """
    import pandas as pd

    if (table := frame_of_table(thing)) is not None:
        return table
    if hasattr(thing, "collect_schema"):
        raise DataError(f"{where}: expected a table, got a lazy one. Call its collect() first.")
    if isinstance(thing, Mapping):
        raise DataError(f"{where}: expected a list of records, got one mapping. Write [record].")
    if not isinstance(thing, list | tuple) or not any(isinstance(one, Mapping) for one in thing):
        return None
    for row, one in enumerate(thing):
        if not isinstance(one, Mapping):
            raise DataError(
                f"{where}, row {row + 1}: expected a mapping of columns to values, got {type(one).__name__}."
            )
    names = list(dict.fromkeys(require_name(name, where) for one in thing for name in one))
    return pd.DataFrame([[one.get(name) for name in names] for one in thing], columns=names, dtype=object)


def _written(column: Named) -> dict[str, Any]:
    """A column by its keys in a card. Keys with their default values are left out."""
    # By default and not by truth: `missing = 0` is a declaration, and 0 == False.
    default = vars(Named(name=column.name))
    return {"name": column.name} | {key: own for key, own in vars(column).items() if own != default[key]}


def _columns(table: Any, key: str) -> tuple[Named, ...]:
    if not isinstance(table, list) or len(table) > MOST_COLUMNS:
        raise ConfigError(f"[records] `{key}`: Expected a list of at most {MOST_COLUMNS:,} columns.")
    return tuple(convert(Named, one, f"records.{key}.{_place(one, at)}") for at, one in enumerate(table, 1))


def _place(one: Any, at: int) -> Any:
    """The name of a column in a card, if it can be shown, or else its place."""
    name = one.get("name") if isinstance(one, dict) else None
    return name[:80] if isinstance(name, str) and is_legible(name) else at
