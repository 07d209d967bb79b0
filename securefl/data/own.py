"""Conversion of a user's own records into a `Split` for a study.

No statistic of records is computed: types are cast, and the study's declaration decides everything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.core.reading import near
from securefl.data.columns import CORRECT, Cell, Named, coded, listed, word_of, words_of
from securefl.data.dataset import Dataset, Split
from securefl.data.in_memory import InMemory
from securefl.data.layout import Arrays, Layout
from securefl.data.networks import one_network
from securefl.data.schema import Schema, of_layout
from securefl.data.sides import Sides, parted
from securefl.data.tables import PLAIN, files_in, read_table

if TYPE_CHECKING:
    import pandas as pd

    from securefl.data.in_memory import Portion

TEST_SHARE: Final = 0.3
_LABEL: Final = "Correct the record, or `classes` under [data]."


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A user's records, ready for a study.

    split: the records. whole: those of the clients before the split. digest: SHA-256 of all records in hex,
    computed before the split. clients: the names of the clients in the order of the groups, or empty if no
    client is named. notes: notes for the user, a sentence each. parted: whether the test part was split off
    from the same records, by a keyed hash of each record. schema: how such a record becomes a model's input.
    """

    split: Split
    whole: Dataset
    digest: str
    schema: Schema
    clients: tuple[str, ...]
    notes: tuple[str, ...]
    parted: bool


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
    divided = source.is_dir()
    if divided and layout.client_column is not None:
        raise ConfigError(
            f"Expected no client_column for {source}, a folder with a file for each client. Leave it out, "
            "and name the column under `ignore` if there is one."
        )
    tested = None if test is None else read_table(test, dialect=layout.csv)
    files = files_in(source) if divided else [source]
    if test is not None:
        files = [path for path in files if not (path.exists() and path.samefile(test))]
    kinds = {path.suffix.lower() for path in (*files, test) if path is not None}
    if layout.csv != PLAIN and ".csv" not in kinds:
        raise ConfigError(f"[data] Expected no `csv` for {source}, which is no .csv. Leave it out.")
    if not files:
        raise ConfigError(
            f"Expected a `test` file of other records than `source`, got {source} twice: the model "
            "would be tested on its training records. Name another file, or leave `test` out."
        )
    # An empty file is a client without records. An error would reveal that the client has none.
    full = [path for path in files if not (divided and _is_blank(path))] or files
    read = {path: read_table(path, layout.client_column, layout.csv, lenient=lenient) for path in full}
    blank: Any = read[full[0]]  # a table, since all files are of one kind, if some are blank
    parts = {path.name: read[path] if path in read else blank.iloc[:0] for path in files}
    network = one_network(full if test is None else [*full, test])
    name = "" if test is None else test.name
    return InMemory(parts=parts, test=tested, test_name=name, divided=divided, network=network)


def _is_blank(path: Path) -> bool:
    small = path.suffix.lower() == ".csv" and path.stat().st_size < 16
    return small and not path.read_bytes().removeprefix(b"\xef\xbb\xbf").strip()


def prepare(
    found: InMemory,
    layout: Layout,
    *,
    name: str,
    sides: Sides,
    share: float | None = None,
    claimed: bool = False,
) -> Prepared:
    """Divide a user's records into a training and a test part.

    Args:
        found: The records.
        layout: The study's declaration of them.
        name: The name of the data set.
        sides: Assigns a record to a part by the record's content.
        share: The probability with which a record becomes the server's. The default is TEST_SHARE if there is
            no test part.
        claimed: Whether the study claims a finite epsilon. Then no error depends on the number of records or
            on the clients that have them: such an error becomes a note. The clients must be declared.

    Returns:
        The records in two parts, with notes for the user.

    Raises:
        DataError: The records do not fit the layout.
        ConfigError: There are both a share and a test part, or the layout has keys of tables for arrays.
    """
    if found.test is not None and share:
        raise ConfigError("Expected `test_share` or a test part of its own, got both. Leave one out.")
    features: Sequence[str] | None = None
    for where, part in found.parts.items():
        if not isinstance(part, Arrays | Dataset):
            features = layout.features(part, where, features)
    if features is None:
        _require_no_columns(found.parts, layout)
    tested = found.test_name or f"{name} (test)"
    own_codes = () if found.test is None else (tested,)
    if known := tuple(found.parts) if found.divided else layout.clients:
        _require_sites(layout, (*known, *own_codes))
    schema = of_layout(layout, features)
    if any(isinstance(part, Dataset) for part in found.parts.values()):
        schema = replace(schema, targets=())  # its targets are encoded already, and may be others
    parts = {
        where: _portion(part, layout, schema, where, name, others=own_codes, lenient=claimed)
        for where, part in found.parts.items()
        if not (claimed and _is_shapeless(part))
    }
    test = None
    if found.test is not None:
        if not isinstance(found.test, Arrays | Dataset):
            layout.features(found.test, tested, features or (), server=True)
        test, _ = _portion(found.test, layout, schema, tested, name, server=True)
    if not parts:
        # An error would reveal that no client has a record. If nothing tells their shape, it is one number.
        nothing = Arrays(x=np.empty((0, 1)), y=np.empty((0, max(1, len(layout.target)))))
        blank = _portion(nothing, layout, schema, name, name, lenient=True)[0] if test is None else test
        parts = {next(iter(found.parts)): (replace(blank.take(slice(0)), lenient=True), None)}
    whole, clients = _joined(parts, tuple(found.parts) if found.divided else (), layout, claimed)
    digest = _digest(whole)
    if test is not None:
        _require_alike(test, whole, tested)
        digest = hashlib.sha256(f"{digest} {_digest(test)}".encode()).hexdigest()
        split = Split(train=whole, test=test)
    else:
        split = parted(whole, TEST_SHARE if share is None else share, sides)
        split = replace(split, test=split.test.take(split.test.usable.nonzero()[0]))
    split = replace(split, test=replace(split.test, groups=None, holders=0))
    doubts = list(_doubts(whole, split, clients, schema, tested=share != 0))
    if doubts and not claimed:
        raise DataError(doubts[0])
    notes = [*_notes(split.train, schema.columns or (), layout), *_absent(split.train, clients, schema)]
    # By the names of the files alone: the note must not depend on what stands in them.
    if claimed and any(where.lower().endswith(".csv") for where in found.parts):
        notes.append(f"{name}: each line is a record of its own, so no cell holds a line break.")
    return Prepared(
        split=split,
        whole=whole,
        digest=digest,
        schema=replace(schema, shape=split.train.shape),
        clients=clients,
        notes=(*notes, *doubts),
        parted=test is None and share != 0,
    )


def _is_shapeless(part: Portion) -> bool:
    """Whether a portion has no record that tells its shape, such as a torch data set of length 0."""
    return isinstance(part, Arrays) and not len(part.x) and (part.x.ndim < 2 or not prod(part.x.shape[1:]))


def _require_no_columns(parts: Mapping[str, Portion], layout: Layout) -> None:
    """Raises ConfigError if the study declares columns of portions without columns, to no effect."""
    for where, part in parts.items():
        is_dataset = isinstance(part, Dataset)
        by_name = isinstance(part, Arrays) and part.by_name
        for key, said in (
            ("columns", layout.columns if is_dataset else {*layout.columns} - {*layout.target}),
            ("ignore", layout.ignore and not by_name),
            ("client_column", is_dataset and layout.client_column),
            ("label_map", is_dataset and layout.label_map),
        ):
            if said:
                what = (
                    "a Dataset, which declares it itself"
                    if is_dataset
                    else "arrays, which have no columns but their targets"
                )
                raise ConfigError(
                    f"[data] Expected no `{key}` for {where}, {what}. Leave it out, or bring a table."
                )
        if isinstance(part, Dataset) and layout.count not in (None, part.classes):
            raise ConfigError(
                f"[data] Expected classes = {part.classes} for {where}, as its Dataset says, got "
                f"{layout.count}. Leave `classes` out."
            )


Clients = NDArray[np.object_] | None
"""The client of each record, (n,), or None if no client is named."""


def _portion(
    part: Portion,
    layout: Layout,
    schema: Schema,
    where: str,
    name: str,
    *,
    server: bool = False,
    others: tuple[str, ...] = (),
    lenient: bool = False,
) -> tuple[Dataset, Clients]:
    """Convert one portion into a data set and the client of each record.

    server: whether the portion is the server's, which needs no client column. others: who may have
    codes beside the clients. lenient: whether no error
    depends on the values of a record (see `Dataset.lenient`).
    """
    if isinstance(part, Dataset):
        return part, None if part.groups is None else part.groups.astype(object)
    whose, words = None if server else layout.client_column, None
    x: NDArray[Any]
    y: Any
    clients: Any
    if isinstance(part, Arrays):
        (x, y), clients = _of_arrays(part, layout, where, lenient), part.clients
    else:
        x, clients = schema.encode(part, where, remedy="", lenient=lenient), part[whose] if whose else None
        y = part[[*layout.target]]
    if whose:
        if clients is None:
            raise DataError(
                f"{where}: expected the client of each record as {whose!r}, which client_column names, got "
                "none. Leave client_column out, or bring it."
            )
        words = clients_of(clients, Cell(where, whose, lenient=lenient))
        if not (lenient or layout.clients):
            _require_sites(layout, (*sorted(set(words)), *others))
    if layout.count:
        sites = np.full(len(x), where, object) if words is None else words
        if server and not isinstance(part, Arrays) and layout.client_column in part:
            sites = words_of(part[layout.client_column])
        codes = []
        for target, own in y.items():
            labels = _labels_of(words_of(own), sites, layout, Cell(where, target, lenient=lenient))
            codes.append(coded(labels, layout.labels, Cell(where, target, _LABEL, lenient)))
        y = np.column_stack(codes).astype(np.float32) if len(codes) > 1 else codes[0]
    elif schema.targets:
        y = schema.encode_targets(y, where, lenient=lenient)
    else:
        y = _numbers(y.to_numpy(), where, "y", lenient)
    classes = layout.count or 0 if y.ndim == 1 else 0
    several = bool(layout.count) and not classes
    made = Dataset(name=name, x=x, y=y, classes=classes, multi_label=several, lenient=lenient)
    if lenient:
        bad = ~made.usable
        if words is not None and not isinstance(part, Arrays):
            bad |= words == ""
        x[bad], y[bad] = nan, -1 if classes else nan
    return made, words


def clients_of(clients: Any, cell: Cell) -> NDArray[np.object_]:
    """The client of each of n records by name, shape (n,), or "" if it is unknown.

    Raises DataError if the reading is not lenient, and a client is missing, is written in two ways such as 7
    and 7.0, or is a float so large that floats cannot tell it from the next whole number.
    """
    import pandas as pd

    words = words_of(clients)
    cell.refuse(words == "", words, "the client of the record", "Add it.")
    values = list(clients)
    rounded = np.array([_is_rounded(one) for one in values], np.bool_)
    cell.refuse(rounded, words, "a client as text or as a whole number", "A float rounds so large a number.")
    words[rounded] = ""
    # Two equal numbers are one client. Two texts of one number may be two.
    pairs = zip(values, words, strict=True)
    texts = np.array([one.strip() if isinstance(one, str) else word for one, word in pairs], object)
    first = pd.Series(texts, dtype=object).groupby(words).transform("first").to_numpy()
    other = texts != first
    cell.refuse(
        other,
        texts,
        f"{first[other.argmax()]!r} as before" if other.any() else "",
        "Write a client alike everywhere, or give two clients two names.",
    )
    return words


def _is_rounded(value: Any) -> bool:
    is_float = isinstance(value, float | np.floating)
    return is_float and bool(abs(value) >= 2 ** (np.finfo(type(value)).nmant + 1))


def _labels_of(
    labels: NDArray[np.object_], sites: NDArray[np.object_], layout: Layout, cell: Cell
) -> NDArray[np.object_]:
    """Translate labels (n,) by the codes of the clients that have their own. sites: the clients, (n,)."""
    for site, codes in layout.label_map.items():
        own = {word_of(code): word_of(label) for code, label in codes.items()}
        at = sites == site
        known = np.array([label in own for label in labels], np.bool_)
        remedy = "Add its code to `label_map` under [data], or correct the record."
        cell.refuse(at & ~known, labels, f"a code of {site!r}, {listed([*own])}", remedy)
        # With a space before it a word is no label.
        labels[at] = [own.get(label, f" {label}") for label in labels[at]]
    return labels


def _require_sites(layout: Layout, known: Sequence[str]) -> None:
    """Raises ConfigError unless each client with codes of its own is one of the known ones."""
    if strange := [site for site in layout.label_map if site not in known]:
        raise ConfigError(
            f"[data] Expected `label_map` for one of {listed(known)}, got {strange[0][:80]!r}"
            f"{near(strange[0], known)}."
        )


def _of_arrays(
    arrays: Arrays, layout: Layout, where: str, lenient: bool
) -> tuple[NDArray[np.float32], pd.DataFrame]:
    """Convert arrays of any number type into float32 records, and a table of the targets as they are.

    If no classes are declared, targets of a float type are a regression. Raises DataError for values that are
    not numbers, not finite, or of another length.
    """
    x, y, clients = arrays.x, arrays.y, arrays.clients
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(f"{where}: expected records x of shape (n, *shape), not empty, got {x.shape}.")
    if y.ndim < 1 or len(y) != len(x) or 0 in y.shape[1:]:
        raise DataError(f"{where}: expected a target for each of {len(x)} records, got y of shape {y.shape}.")
    if clients is not None and clients.shape != (len(x),):
        raise DataError(
            f"{where}: expected the client of each of {len(x)} records, got shape {clients.shape}."
        )
    if layout.count is None and y.dtype.kind != "f":
        raise DataError(
            f"{where}: expected `classes` under [data] for targets of type {y.dtype}, got none: their "
            "number if they are 0, 1, ...; a list of the labels; or 0 for a regression."
        )
    records = _numbers(x, where, "x", lenient)
    y = y[:, None] if y.ndim == 1 else y
    if y.ndim > 2 or (layout.count not in (None, 0, 2) and y.shape[1] != 1):
        raise DataError(
            f"{where}: expected one label a record, got y of shape {y.shape}. Of labels written as one 1 "
            "among zeros take y.argmax(1); several labels of a record have classes = 2."
        )
    if layout.target and len(layout.target) != y.shape[1]:
        raise DataError(
            f"{where}: expected y of shape (n, {len(layout.target)}), one column for each `target`, got "
            f"{y.shape}. Name each column, or leave `target` out."
        )
    import pandas as pd

    unnamed = ["y"] if y.shape[1] == 1 else [f"y[:, {place}]" for place in range(y.shape[1])]
    return records, pd.DataFrame(y, columns=[*layout.target] or unnamed)


def _numbers(array: NDArray[Any], where: str, name: str, lenient: bool) -> NDArray[np.float32]:
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: expected {name} of numbers, got type {array.dtype}. Pass texts in a DataFrame, with "
            "their categories under [data.columns]."
        )
    with np.errstate(over="ignore"):
        found = array.astype(np.float32)
    if not lenient and not (fine := np.isfinite(found)).all():
        row, *place = np.argwhere(~fine)[0].tolist()
        raise DataError(
            f"{where}, row {row + 1}, column {name!r}: expected finite numbers of 32 bits, got "
            f"{array[row, *place]} at {tuple(place)}. {CORRECT}"
        )
    return found


def _joined(
    parts: Mapping[str, tuple[Dataset, Clients]], divided: tuple[str, ...], layout: Layout, claimed: bool
) -> tuple[Dataset, tuple[str, ...]]:
    """Join all portions into one data set whose groups are the clients. Returns it and the clients' names.

    divided: the names of all portions, if each belongs to one client. Those that tell no shape are no parts.
    """
    import pandas as pd

    where, (first, whose) = next(iter(parts.items()))
    made = [part for part, _ in parts.values()]
    for key, part in zip(parts, made, strict=True):
        _require_alike(part, first, key)
        if not len(part) and not claimed:
            raise DataError(f"{key}: expected at least one record, got none. Leave out an empty client.")
    names = divided
    groups = None
    if divided:
        sizes = [len(parts[key][0]) if key in parts else 0 for key in divided]
        groups = np.repeat(np.arange(len(divided)), sizes)
    elif whose is not None:
        words = [*map(str, whose)]
        declared = layout.clients or tuple(map(str, range(first.holders)))
        names = declared or tuple(sorted(set(words), key=_by_size))
        groups = pd.Index(names, dtype=object).get_indexer(pd.Index(words, dtype=object))
        if -1 in groups and not claimed:
            row = int(groups.argmin())
            raise DataError(
                f"{where}, row {row + 1}: expected one of the declared clients, got {words[row]!r}. Add it "
                "to them, or correct the record."
            )
    # Concatenating copies even a single portion: a caller that changes its array later changes no record
    # here.
    x, y = (np.concatenate([getattr(part, name) for part in made]) for name in "xy")
    fitted = "; ".join(sorted({part.fitted for part in made if part.fitted}))
    holders = len(names) if divided or layout.clients or first.holders else 0
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
    expected, got = (
        f"records of shape {one.shape} and type {one.x.dtype}, {one.classes} classes and targets of shape "
        f"{one.y.shape[1:]}"
        for one in (first, part)
    )
    if got != expected:
        raise DataError(f"{where}: expected {expected}, as the first ones are, got {got}.")


def _doubts(
    whole: Dataset, split: Split, clients: Sequence[str], schema: Schema, *, tested: bool
) -> Iterator[str]:
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
    for place, values in enumerate((train.y[:, None] if train.classes else train.y).T, 1):
        if not len(values) or (values == values[0]).all():
            column = dict(enumerate(schema.targets, 1)).get(place)
            why = "Check that `target` names the right column."
            if column is not None and column.range is not None and {*values} & {0.0, 1.0}:
                low, high = column.range
                why = (
                    f"Perhaps the `range` of {column.name!r}, [{low:g}, {high:g}], clips them all. Widen it."
                )
            yield (
                f"{train.name}: expected targets that differ, got {len(values)} training records with the "
                f"same target in place {place}. {why}"
            )


def _absent(train: Dataset, clients: Sequence[str], schema: Schema) -> Iterator[str]:
    """A sentence about the clients that have no training record of some class."""
    if train.groups is None or not train.classes:
        return
    used = train.usable
    held = np.zeros((len(clients) or int(train.groups.max(initial=0)) + 1, train.classes), np.bool_)
    held[train.groups[used], train.y[used]] = True
    if not held.all():
        client, label = np.argwhere(~held)[0].tolist()
        yield (
            f"Without a training record of some class: {(~held.all(1)).sum()} of {len(held)} clients, such "
            f"as {clients[client] if clients else str(client)!r} of "
            f"{str(schema.classes(train.classes)[label])!r}."
        )


def _digest(whole: Dataset) -> str:
    found = hashlib.sha256(f"{whole.classes} {whole.fitted}".encode())
    for array in (whole.x, whole.y, whole.groups):
        if array is not None:
            found.update(f"{array.dtype} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _notes(train: Dataset, columns: Sequence[Named], layout: Layout) -> Iterator[str]:
    plain = [one.name for one in columns if one.name not in layout.columns]
    # Of targets of unlike scale a step learns the largest alone, or diverges.
    if train.task == "regression" and (columns or train.y.shape[1] > 1):
        unnamed = [f"y[:, {place}]" for place in range(train.y.shape[1])]
        plain += [name for name in layout.target or unnamed if name not in layout.columns]
    if plain:
        yield (
            f"{listed(plain)}: numbers used without scaling. A range under [data.columns] would scale them."
        )
    if train.task == "multi-label":
        yield (
            f"Each record has {train.y.shape[1]} labels. The loss is the mean of their binary "
            "cross-entropies, and accuracy counts records of which all labels are right."
        )
    if columns and len(train):
        flat = (train.x == train.x[0]).all(0)
        names = [name for one in columns for name in one.values]
        if same := [name for name, alike in zip(names, flat, strict=True) if alike]:
            yield f"{listed(same)}: equal in all training records, so without information."
