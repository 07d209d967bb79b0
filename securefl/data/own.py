"""Conversion of a user's own records into a `Split` for a study.

No statistic of records is computed: types are cast, and the study's declaration decides everything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.data.columns import Cell, coded, listed
from securefl.data.dataset import Dataset, Split, finite_rows
from securefl.data.in_memory import InMemory
from securefl.data.layout import Arrays, Layout, arrays_of, clients_of, features_of, values_of
from securefl.data.networks import one_network
from securefl.data.schema import Schema, of_layout
from securefl.data.sides import Sides, parted
from securefl.data.tables import files_in, read_table

if TYPE_CHECKING:
    from securefl.data.in_memory import Portion

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
    divided = source.is_dir()
    if divided and layout.client_column is not None:
        raise ConfigError(
            f"Expected no client_column for {source}, a folder with a file for each client. Leave it out, "
            "and name the column under `ignore` if there is one."
        )
    files = files_in(source) if divided else [source]
    if divided and test is not None:
        files = [path for path in files if not path.samefile(test)]
    # An empty file is a client without records. An error would reveal that the client has none.
    full = [path for path in files if not (divided and _is_blank(path))] or files
    read = {path: read_table(path, layout.client_column, lenient=lenient) for path in full}
    parts = {path.name: read[path] if path in read else _without_rows(read[full[0]]) for path in files}
    network = one_network(full if test is None else [*full, test])
    return InMemory(parts=parts, test=own, divided=divided, network=network)


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
    doubts = list(_doubts(whole, split, clients, tested=share != 0))
    if doubts and not claimed:
        raise DataError(doubts[0])
    notes = list(_notes(split, features, layout))
    # By the names of the files alone: the note must not depend on what stands in them.
    if claimed and any(where.lower().endswith(".csv") for where in found.parts):
        notes.append(f"{name}: each line is a record of its own, so no cell holds a line break.")
    schema = of_layout(layout, features if tables else None, split.train.shape)
    notes += doubts
    return Own(
        split=split, digest=digest, schema=schema, clients=clients, notes=tuple(notes), parted=by_content
    )


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
    clients = None
    if not isinstance(part, Arrays):
        own = layout if whose else layout.without_clients(list(part.columns))
        found = arrays_of(part, own, features, where, unusable)
        x, y, clients = found.x, found.y, found.clients
    else:
        if whose and layout.client_column is not None and part.clients is None:
            raise DataError(
                f"{where}: expected the client of each record as {layout.client_column!r}, which "
                "client_column names, got none. Leave client_column out, or bring it."
            )
        x, y = _cast(part, layout, where, unusable)
        if whose and part.clients is not None:
            import pandas as pd

            # A record without a client is usable: the clients' list decides over it.
            cell = Cell(where, layout.client_column or "clients", False, unusable=set() if lenient else None)
            clients = clients_of(pd.Series(part.clients), cell)
    if rows := sorted(unusable or ()):
        x[rows], y[rows] = np.nan, -1 if layout.count else np.nan
    return Dataset(name=name, x=x, y=y, classes=layout.count or 0, lenient=lenient), clients


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
    where, (first, whose) = next(iter(parts.items()))
    made = [part for part, _ in parts.values()]
    for key, part in zip(parts, made, strict=True):
        _require_alike(part, first, key)
        if not len(part) and not claimed:
            raise DataError(f"{key}: expected at least one record, got none. Leave out an empty client.")
    names: tuple[str, ...] = ()
    groups = None
    if found.divided:
        names, groups = tuple(parts), np.repeat(np.arange(len(parts)), [len(part) for part in made])
    elif whose is not None:
        words = [str(one) for one in whose]
        declared = layout.clients or tuple(map(str, range(first.holders)))
        names = declared or tuple(sorted(set(words), key=_by_size))
        places = {one: place for place, one in enumerate(names)}
        groups = np.array([places.get(word, -1) for word in words], np.int64)
        if -1 in groups and not claimed:
            row = int(groups.argmin())
            raise DataError(
                f"{where}, row {row + 1}: expected one of the declared clients, got {words[row]!r}. Add it "
                "to them, or correct the record."
            )
    # Concatenating copies even a single portion: a caller that changes its array later changes no record
    # here.
    x, y = np.concatenate([part.x for part in made]), np.concatenate([part.y for part in made])
    fitted = "; ".join(sorted({part.fitted for part in made if part.fitted}))
    holders = len(names) if found.divided or layout.clients or first.holders else 0
    if groups is not None and claimed:
        # A record without a declared client belongs to no client's data.
        x, y, groups = x[groups >= 0], y[groups >= 0], groups[groups >= 0]
    return replace(first, x=x, y=y, groups=groups, holders=holders, fitted=fitted), names


def _by_size(name: str) -> tuple[bool, int, str]:
    """The order of clients' names: numbers first, by size, then words. By letters, 10 would precede 2."""
    number = name.isdecimal()
    return not number, int(name) if number else 0, name


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


def _doubts(whole: Dataset, split: Split, clients: Sequence[str], *, tested: bool) -> Iterator[str]:
    """A sentence for each reason why a study should not use these records.

    tested: whether the split sets a test part apart.
    """
    train = split.train
    # Unusable records occur only under a finite epsilon, which allows no error.
    if count := int((~whole.usable).sum()):
        yield f"Unusable records, {count} of them, count as zero."
    if train.groups is not None and len(train):
        counts = np.bincount(train.groups, minlength=len(clients))
        if not counts.all():
            first = int(np.argmin(counts))
            yield (
                f"Expected a training record of client {clients[first] if clients else str(first)!r}, got "
                "none: it has no record, or all are in the test part. Lower `test_share`, or bring a test "
                "part."
            )
    if tested and not len(split.test):
        yield (
            f"{train.name}: expected a record for the test part, got {len(train)} in all and none for it. "
            "Raise `test_share`, or bring a test part."
        )
    for place, values in enumerate((train.y[:, None] if train.classes else train.y).T):
        if not len(values) or (values == values[0]).all():
            yield (
                f"{train.name}: expected targets that differ, got {len(values)} training records with the "
                f"same target in place {place + 1}. Check that `target` names the right column."
            )


def _digest(whole: Dataset) -> str:
    found = hashlib.sha256(f"{whole.classes} {whole.fitted}".encode())
    for array in (whole.x, whole.y, whole.groups):
        if array is not None:
            found.update(f"{array.dtype} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _notes(split: Split, features: Sequence[str], layout: Layout) -> Iterator[str]:
    if plain := [name for name in features if name not in layout.columns]:
        yield (
            f"{listed(plain)}: numbers used without scaling. A range under [data.columns] would scale them."
        )
    x = split.train.x
    if x.ndim == 2 and len(x):
        names = [name for one in features for name in values_of(one, layout.of(one))]
        if same := [name for name, values in zip(names, x.T, strict=False) if (values == values[0]).all()]:
            yield f"{listed(same)}: equal in all training records, so without information."


# Arrays of any number type ---------------------------------------------------------------------------


def _cast(
    arrays: Arrays, layout: Layout, where: str, unusable: set[int] | None
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Convert arrays of any number type into float32 records and targets of the declared classes.

    If no classes are declared, targets of a float type are a regression. Raises DataError for values that are
    not numbers, not finite, or of another length.

    unusable: a set that collects the rows of unusable values. If it is None, such a row raises.
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
    if layout.count is None and y.dtype.kind != "f":
        raise DataError(
            f"{where}: expected `classes` under [data] for targets of type {y.dtype}, got none: their "
            "number if they are 0, 1, ...; a list of the labels; or 0 for a regression."
        )
    records = _numbers(x, Cell(where, "x", unusable=unusable))
    of_targets = Cell(where, "y", advice=False, unusable=unusable)
    if not layout.count:
        targets = _numbers(y, of_targets)
        return records, targets[:, None] if targets.ndim == 1 else targets
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise DataError(f"{where}: expected one label a record, got y of shape {y.shape}.")
    import pandas as pd

    return records, coded(pd.Series(y), layout.labels, of_targets)


def _numbers(array: NDArray[Any], cell: Cell) -> NDArray[np.float32]:
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{cell.where}: expected {cell.name} of numbers, got type {array.dtype}. Pass texts in a "
            "DataFrame, with their categories under [data.columns]."
        )
    with np.errstate(over="ignore"):
        found = array.astype(np.float32)

    def said(row: int) -> str:
        place = tuple(np.argwhere(~np.isfinite(found[row]))[0].tolist())
        at = f" at {place}" if place else ""
        came = array[(row, *place)]
        return f"expected finite numbers of 32 bits, got {came}{at}. Correct the record, or leave it out."

    cell.refuse(~finite_rows(found), said)
    return found
