"""Conversion of a user's own records into a `Split` for a study.

No statistic of records is computed: types are cast, and the study's declaration decides everything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.data.columns import Place, word_of
from securefl.data.dataset import Dataset, Split
from securefl.data.in_memory import InMemory
from securefl.data.layout import Arrays, Layout, arrays_of, clients_of, features_of, values_of
from securefl.data.networks import one_network
from securefl.data.schema import Schema, of_layout
from securefl.data.sides import Sides, parted
from securefl.data.tables import files_in, read_table

if TYPE_CHECKING:
    from securefl.data.in_memory import Portion
from typing import Any

from securefl.data.columns import coded

TEST_SHARE: Final = 0.3


@dataclass(frozen=True, kw_only=True, eq=False)
class Own:
    """A user's records, ready for a study.

    split: the records. digest: SHA-256 of all records in hex, computed before the split. clients: the names
    of the clients in the order of the groups, or empty if no client is named. notes: notes for the user, a
    sentence each. parted: whether the test part was split off from the same records, by a keyed hash of each
    record. schema: how such a record becomes a model's input.
    """

    split: Split
    digest: str
    schema: Schema
    clients: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    parted: bool = False


def from_files(source: Path, test: Path | None, layout: Layout, *, lenient: bool = False) -> InMemory:
    """Read a file, or a folder with one file a client.

    Args:
        source: The file or folder.
        test: A file with the server's records.
        layout: The study's declaration of its data.
        lenient: As in `read_table`, for the clients' files.

    Returns:
        The records, in portions.

    Raises:
        ConfigError: `test` is `source`, or a folder comes with a client column.
        DataError: A file cannot be read.
    """
    if test is not None and test.is_file() and source.is_file() and test.samefile(source):
        raise ConfigError(
            f"Expected a `test` file of other records than `source`, got {source} twice: the model "
            "would be tested on its training records. Name another file, or leave `test` out."
        )
    own = None if test is None else read_table(test, None)
    apart = [] if test is None else [test]
    if not source.is_dir():
        parts = {source.name: read_table(source, layout.client_column, lenient=lenient)}
        return InMemory(parts=parts, test=own, network=one_network([source, *apart]))
    if layout.client_column is not None:
        raise ConfigError(
            f"Expected no client_column for {source}, a folder with a file for each client. Leave it out, "
            "and name the column under `ignore` if there is one."
        )
    files = [path for path in files_in(source) if test is None or not path.samefile(test)]
    # An empty file is a client without records. An error would reveal that the client has none.
    full = [path for path in files if not _is_blank(path)] or files
    read = {path: read_table(path, lenient=lenient) for path in full}
    by_file: dict[str, Portion] = {
        path.name: read[path] if path in read else _without_rows(read[full[0]]) for path in files
    }
    return InMemory(parts=by_file, test=own, divided=True, network=one_network([*full, *apart]))


def _is_blank(path: Path) -> bool:
    small = path.suffix.lower() == ".csv" and path.stat().st_size < 16
    return small and not path.read_bytes().removeprefix(b"\xef\xbb\xbf").strip()


def _without_rows(part: Portion) -> Portion:
    if isinstance(part, Dataset):
        return part.take(slice(0))
    return replace(part, x=part.x[:0], y=part.y[:0]) if isinstance(part, Arrays) else part.iloc[:0]


def _is_shapeless(part: Portion) -> bool:
    """Whether a portion has no record that tells its shape, such as a torch data set of length 0."""
    return isinstance(part, Arrays) and not len(part.x) and (part.x.ndim < 2 or not prod(part.x.shape[1:]))


def own(
    found: InMemory,
    layout: Layout,
    *,
    name: str,
    sides: Sides,
    share: float | None = None,
    claimed: bool = False,
) -> Own:
    """Divide a user's records into a training and a test part.

    Args:
        name: The name of the data set.
        sides: Assigns a record to a part by the record's content.
        share: The probability with which a record becomes the server's. The default is TEST_SHARE if there is
            no test part.
        claimed: Whether the study claims a finite epsilon. Then no error depends on the number of records or
            on the clients that have them: such an error becomes a note. The clients must be declared.

    Raises DataError if the records do not fit the layout, and ConfigError if there are both a share and a
    test part.
    """
    if found.test is not None and share:
        raise ConfigError("Expected `test_share` or a test part of its own, got both. Leave one out.")
    if claimed:
        # An error would reveal that a client has no record. If nothing tells a shape, it is one number.
        given = (*found.parts.values(), *(() if found.test is None else (found.test,)))
        shaped = [part for part in given if not _is_shapeless(part)]
        blank = _without_rows(shaped[0]) if shaped else Arrays(x=np.empty((0, 1)), y=np.empty(0))
        parts_of = {key: blank if _is_shapeless(part) else part for key, part in found.parts.items()}
        found = replace(found, parts=parts_of)
    tables = {where: part for where, part in found.parts.items() if not isinstance(part, Arrays | Dataset)}
    features = features_of(tables[first], layout, first) if (first := next(iter(tables), "")) else ()
    if not tables:
        for where, part in found.parts.items():
            _require_said(part, layout, where)
    parts = {
        where: _dataset(part, layout, features, where, name, lenient=claimed)
        for where, part in found.parts.items()
    }
    whole, clients = _joined(parts, found, layout, claimed)
    digest = _digest(whole)
    by_content = found.test is None and share != 0
    if found.test is not None:
        test, _ = _dataset(found.test, layout, features, f"{name} (test)", name, whose=False)
        _require_alike(test, whole, f"{name} (test)")
        split = Split(train=whole, test=replace(test, groups=None, holders=0))
        digest = hashlib.sha256(f"{digest} {_digest(test)}".encode()).hexdigest()
    else:
        split = parted(whole, TEST_SHARE if share is None else share, sides)
        test = split.test.take(np.flatnonzero(split.test.usable))
        split = replace(split, test=replace(test, groups=None, holders=0))
    doubts = [*_unusable(whole), *_without(split.train, clients), *_useless(split, share != 0)]
    if doubts and not claimed:
        raise DataError(doubts[0])
    # By the names of the files alone: the note must not depend on what stands in them.
    lines = claimed and any(where.lower().endswith(".csv") for where in found.parts)
    by_line = (f"{name}: each line is a record of its own, so no cell holds a line break.",) if lines else ()
    notes = (*_notes(split, features, layout), *by_line, *doubts)
    schema = of_layout(layout, features if tables else None, split.train.shape)
    return Own(split=split, digest=digest, schema=schema, clients=clients, notes=notes, parted=by_content)


def _dataset(
    part: Portion,
    layout: Layout,
    features: Sequence[str],
    where: str,
    name: str,
    *,
    whose: bool = True,
    lenient: bool = False,
) -> tuple[Dataset, NDArray[np.object_] | None]:
    """Convert one portion into a data set and the client of each record, or None if no client is named.

    whose: whether the portion is the clients', so that a declared client column must be there.
    lenient: no error depends on the values of a record (see `Dataset.lenient`).
    """
    unusable: set[int] | None = set() if lenient else None
    if isinstance(part, Dataset):
        return part, part.groups.astype(object) if part.groups is not None else None
    if isinstance(part, Arrays):
        if whose and layout.client_column is not None and part.clients is None:
            raise DataError(
                f"{where}: expected the client of each record as {layout.client_column!r}, which "
                "client_column names, got none. Leave client_column out, or bring it."
            )
        made = cast(part, layout, where, name, unusable)
        if part.clients is None or not whose:
            return made, None
        import pandas as pd

        place = Place(where, layout.client_column or "clients", advice=False, unusable=unusable)
        return made, clients_of(pd.Series(part.clients), place)
    own = layout if whose else layout.without_clients(list(part.columns))
    found = arrays_of(part, own, features, where, unusable)
    made = Dataset(name=name, x=found.x, y=found.y, classes=layout.count or 0, lenient=lenient)
    return marked(made, unusable), found.clients


def _require_said(part: Portion, layout: Layout, where: str) -> None:
    """Raises ConfigError if the study declares columns of a portion without columns, to no effect."""
    by_name = isinstance(part, Arrays) and part.by_name
    is_dataset = isinstance(part, Dataset)
    for key, said in (
        ("columns", layout.columns),
        ("ignore", layout.ignore and not by_name),
        ("client_column", is_dataset and layout.client_column),
    ):
        if said:
            what = "a Dataset, which declares it itself" if is_dataset else "arrays, which have no columns"
            raise ConfigError(
                f"[data] Expected no `{key}` for {where}, {what}. Leave it out, or bring a table."
            )
    if isinstance(part, Dataset) and layout.count not in (None, part.classes):
        raise ConfigError(
            f"[data] Expected classes = {part.classes} for {where}, as its Dataset says, got {layout.count}. "
            "Leave `classes` out."
        )


def _joined(
    parts: Mapping[str, tuple[Dataset, NDArray[np.object_] | None]],
    found: InMemory,
    layout: Layout,
    claimed: bool,
) -> tuple[Dataset, tuple[str, ...]]:
    """Join all portions into one data set whose groups are the clients. Returns it and the clients' names."""
    first = next(iter(parts.values()))[0]
    for where, (part, _) in parts.items():
        _require_alike(part, first, where)
        if not len(part) and not claimed:
            raise DataError(f"{where}: expected at least one record, got none. Leave out an empty client.")
    sizes = [len(part) for part, _ in parts.values()]
    names: tuple[str, ...] = ()
    groups = None
    if found.divided:
        names, groups = tuple(parts), np.repeat(np.arange(len(parts)), sizes)
    elif (whose := next(iter(parts.values()))[1]) is not None:
        if layout.clients:
            names, groups = layout.clients, _among(whose, layout.clients, next(iter(parts)), lenient=claimed)
        elif first.holders:
            names, groups = tuple(map(str, range(first.holders))), first.groups
        else:
            names, groups = _in_order(whose)
    # Concatenating copies even a single portion: a caller that changes its array later changes no record
    # here.
    x = np.concatenate([part.x for part, _ in parts.values()])
    y = np.concatenate([part.y for part, _ in parts.values()])
    fitted = "; ".join(sorted({part.fitted for part, _ in parts.values() if part.fitted}))
    declared = found.divided or bool(layout.clients) or bool(first.holders)
    if groups is not None and claimed:
        # A record without a declared client belongs to no client's data.
        x, y, groups = x[groups >= 0], y[groups >= 0], groups[groups >= 0]
    return replace(
        first, x=x, y=y, groups=groups, holders=len(names) if declared else 0, fitted=fitted
    ), names


def _among(
    whose: NDArray[np.object_], clients: Sequence[str], where: str, *, lenient: bool
) -> NDArray[np.int64]:
    """The position of each record's client among the declared ones. Raises DataError for another client.

    lenient: an undeclared client gives -1 instead.
    """
    places = {name: place for place, name in enumerate(clients)}
    words = [word_of(one) for one in whose]
    for row, word in enumerate(words):
        if word not in places and not lenient:
            raise DataError(
                f"{where}, row {row + 1}: expected one of the declared clients, got {word!r}. Add it to "
                "them, or correct the record."
            )
    return np.array([places.get(word, -1) for word in words], np.int64)


def _in_order(whose: NDArray[np.object_]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The sorted names of the clients, and the position of each record's client among them.

    Numbers come first, by size. Words follow in alphabetical order.
    """
    words = np.array([str(one) for one in whose], object)
    # In alphabetical order, client 10 would come before client 2.
    numbers = sorted({word for word in words if word.isdecimal()}, key=int)
    names = [*numbers, *sorted({*words} - {*numbers})]
    places = {word: place for place, word in enumerate(names)}
    return tuple(names), np.array([places[word] for word in words], np.int64)


def _require_alike(part: Dataset, first: Dataset, where: str) -> None:
    """Raises DataError unless a portion's shapes, types and classes equal those of the first portion."""
    for what, one, other in (
        ("records of shape", first.shape, part.shape),
        ("records of type", first.x.dtype, part.x.dtype),
        ("this number of classes:", first.classes, part.classes),
        ("targets of shape", first.y.shape[1:], part.y.shape[1:]),
    ):
        if one != other:
            raise DataError(f"{where}: expected {what} {one}, as the first ones are, got {other}.")


def _unusable(whole: Dataset) -> list[str]:
    """A note if there are unusable records. They occur only under a finite epsilon, which allows no error."""
    count = int((~whole.usable).sum())
    return [f"Unusable records, {count} of them, count as zero."] if count else []


def _without(train: Dataset, clients: Sequence[str]) -> list[str]:
    """A sentence if a client has no training record."""
    if train.groups is None or not len(train):
        return []
    names = clients or tuple(map(str, range(int(train.groups.max()) + 1)))
    counts = np.bincount(train.groups, minlength=len(names))
    if counts.all():
        return []
    return [
        f"Expected a training record of client {names[int(np.argmin(counts))]!r}, got none: it has no "
        "record, or all are in the test part. Lower `test_share`, or bring a test part."
    ]


def _useless(split: Split, tested: bool) -> list[str]:
    """Sentences if there is no test record, or if all training targets are equal."""
    name, y = split.train.name, split.train.y
    found = []
    if tested and not len(split.test):
        found.append(
            f"{name}: expected a record for the test part, got {len(y)} in all and none for it. Raise "
            "`test_share`, or bring a test part."
        )
    columns = y[:, None] if split.train.classes else y
    for place, values in enumerate(columns.T):
        if not len(values) or (values == values[0]).all():
            found.append(
                f"{name}: expected targets that differ, got {len(values)} training records with the same "
                f"target in place {place + 1}. Check that `target` names the right column."
            )
    return found


def _digest(whole: Dataset) -> str:
    found = hashlib.sha256(f"{whole.classes} {whole.fitted}".encode())
    for array in (whole.x, whole.y, whole.groups):
        if array is not None:
            found.update(f"{array.dtype} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _notes(split: Split, features: Sequence[str], layout: Layout) -> tuple[str, ...]:
    notes = []
    plain = [name for name in features if name not in layout.columns]
    if plain:
        notes.append(
            f"{_listed(plain)}: numbers used without scaling. A range under [data.columns] would scale them."
        )
    x = split.train.x
    if x.ndim == 2 and len(features) and len(x):
        names = [name for feature in features for name in values_of(feature, layout)]
        if same := [name for name, values in zip(names, x.T, strict=True) if (values == values[0]).all()]:
            notes.append(f"{_listed(same)}: equal in all training records, so without information.")
    return tuple(notes)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:6]))
    return shown + (f" and {len(names) - 6} more" if len(names) > 6 else "")


# Arrays of any number type ---------------------------------------------------------------------------


def cast(arrays: Arrays, layout: Layout, where: str, name: str, unusable: set[int] | None = None) -> Dataset:
    """Convert arrays of any number type into a data set: float32 records, targets of the declared classes.

    If no classes are declared, targets of a float type are a regression. Raises DataError for values that are
    not numbers, not finite, or of another length.

    unusable: a set that collects the rows of unusable values. The data set then marks these rows
        (`Dataset.lenient`) and nothing is raised for them.
    """
    x, y = arrays.x, arrays.y
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(f"{where}: expected records x of shape (n, *shape), not empty, got {x.shape}.")
    if y.ndim < 1 or len(y) != len(x):
        raise DataError(f"{where}: expected a target for each of {len(x)} records, got y of shape {y.shape}.")
    if arrays.clients is not None and arrays.clients.shape != (len(x),):
        raise DataError(
            f"{where}: expected the client of each of {len(x)} records, got shape {arrays.clients.shape}."
        )
    count = layout.count
    if count is None and y.dtype.kind != "f":
        raise DataError(
            f"{where}: expected `classes` under [data] for targets of type {y.dtype}, got none: their "
            "number if they are 0, 1, ...; a list of the labels; or 0 for a regression."
        )
    values = _numbers(x, where, "x", unusable)
    if count:
        found: NDArray[Any] = _labels(y, layout, where, unusable)
    else:
        targets = _numbers(y, where, "y", unusable)
        found = targets[:, None] if targets.ndim == 1 else targets
    return marked(
        Dataset(name=name, x=values, y=found, classes=count or 0, lenient=unusable is not None), unusable
    )


def marked(dataset: Dataset, unusable: set[int] | None) -> Dataset:
    """The data set with these rows marked as unusable: their values become nan, their labels -1."""
    if not unusable:
        return dataset
    x, y, rows = dataset.x.copy(), dataset.y.copy(), sorted(unusable)
    x[rows], y[rows] = np.nan, -1 if dataset.classes else np.nan
    return replace(dataset, x=x, y=y)


def _numbers(array: NDArray[Any], where: str, what: str, unusable: set[int] | None) -> NDArray[np.float32]:
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: expected {what} of numbers, got type {array.dtype}. Pass texts in a DataFrame, with "
            "their categories under [data.columns]."
        )
    with np.errstate(over="ignore"):
        found = array.astype(np.float32)
    bad = np.argwhere(~np.isfinite(found))
    if unusable is not None:
        unusable |= set(bad[:, 0].tolist())
    elif len(bad):
        row, *place = (int(at) for at in bad[0])
        at = f" at {tuple(place)}" if place else ""
        raise DataError(
            f"{where}, row {row + 1}: expected finite numbers of 32 bits in {what}, got "
            f"{array[(row, *place)]}{at}. Correct the record, or leave it out."
        )
    return found


def _labels(y: NDArray[Any], layout: Layout, where: str, unusable: set[int] | None) -> NDArray[np.int64]:
    import pandas as pd

    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise DataError(f"{where}: expected one label a record, got y of shape {y.shape}.")
    return coded(pd.Series(y), layout.labels, Place(where, "y", advice=False, unusable=unusable))
