"""Proposal of a study's section [data], computed from a public file.

It takes ranges and categories from the records. For a private file that would be a release without noise that
no ledger counts: one more record could change them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.core.reading import near
from securefl.data.array_files import LARGEST
from securefl.data.columns import NUMBER, WORDS, Cell, key_of, names_of, numbers_of, words_of
from securefl.data.layout import Arrays, Dialect
from securefl.data.own import clients_of
from securefl.data.tables import PLAIN, read_table

if TYPE_CHECKING:
    import pandas as pd

MOST_WORDS: Final = 50
"""A column with more different words than this is proposed under `ignore`, not as categories."""
GUESS: Final = "A guess from the file's text: `csv`. Look whether its cells are read as you would read them."
"""The note beside a guessed dialect."""
_UNKNOWN: Final = ("-", "--", "?", ".", "missing", "unknown", "#n/a", "k.a.")
"""Words in a column of numbers that are guessed to stand for an empty cell, in lower case."""
_QUOTED: Final = re.compile(r'"[^"]*"')
MOST_LABELS: Final = 20
"""A target with more different whole numbers than this is proposed as a regression."""


def proposal(
    path: Path, *, target: tuple[str, ...] = (), client_column: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Propose the section [data] as a table, with notes of one sentence each for the author of the study.

    Raises DataError if the file cannot be read, and ConfigError if it lacks a named column.
    """
    table, said = guessed(path, client_column)
    section: dict[str, Any] = {"source": path.name, **said}
    records, clients = len(table.x if isinstance(table, Arrays) else table), 10
    if isinstance(table, Arrays):
        whole, several = table.y.dtype.kind in "iub" and table.y.size, table.y.size > len(table.y)
        low, most = (int(table.y.min()), int(table.y.max())) if whole else (0, 0)
        section["classes"] = most + 1 if 0 <= low < most and not (several and most > 1) else 0
        notes = [f"x has shape {table.x.shape}, y has shape {table.y.shape}."]
        if whole and not section["classes"]:
            notes.append("y has no labels 0, 1, ...: it is a regression, unless you number its classes so.")
    else:
        if client_column is not None and client_column in table:
            clients = table[client_column].nunique()
        more, notes = _of_table(table, path, target, client_column)
        section |= more
        notes = [GUESS, *notes] if said else notes
    each = float(f"{max(1, records / max(1, clients)):.2g}")
    notes.append(
        f"A finite epsilon needs a public number of a client's records too: public_num_examples = {each:.0f}"
    )
    if client_column is not None:
        return section | {"client_column": client_column}, notes
    return section | {"clients": 10, "partition": {"kind": "iid"}}, [*notes, "Choose clients and partition."]


def guessed(path: Path, client_column: str | None = None) -> tuple[pd.DataFrame | Arrays, dict[str, Any]]:
    """Read the records of a file, and guess how it is written.

    Args:
        path: the file.
        client_column: as of `read_table`.

    Returns:
        The records, and the key `csv` of [data] if the file is no plain .csv; else no key.

    Raises:
        DataError, ConfigError: as `read_table`.
    """
    if path.suffix.lower() != ".csv" or not path.is_file() or path.stat().st_size > LARGEST:
        return read_table(path, client_column), {}
    content = path.read_bytes()
    for encoding in (PLAIN.encoding, "cp1252", "latin-1"):  # the last one takes any bytes
        with suppress(UnicodeDecodeError):
            text = content.decode(encoding)
            break
    head = _QUOTED.sub("", text.partition("\n")[0])
    signs: tuple[Any, ...] = (",", ";", "\t", "|")
    dialect = Dialect(delimiter=max(signs, key=head.count), encoding=encoding)
    try:
        table: Any = read_table(path, client_column, dialect)
    except DataError as error:
        if all(sign == dialect.delimiter or not head.count(sign) for sign in signs):
            raise
        raise DataError(
            f"{error} Its first line suggests the sign {dialect.delimiter!r} between cells. If another one "
            "is meant, put each column's name with that sign into double quotes, or leave the sign out."
        ) from None
    empty: set[str] = set()
    signs_of_numbers: set[str] = set()
    for name in names_of(table, str(path)):
        values = table[name].map(str.strip)
        points = values if dialect.delimiter == "," else values.str.replace(",", ".")
        known = points.map(lambda cell: bool(NUMBER.fullmatch(cell.lower())))
        others = {*values[~known]}
        if known.sum() > len(values) / 2 and all(word.lower() in {*WORDS, *_UNKNOWN} for word in others):
            empty |= {word for word in others if word.lower() in _UNKNOWN}
            signs_of_numbers |= {*"".join(values[known])} & {".", ","}
    if signs_of_numbers == {","}:  # beside points, a comma may stand between thousands
        dialect = replace(dialect, decimal=",")
    dialect = replace(dialect, empty=tuple(sorted(empty)))
    said = {key: own for key, own in vars(dialect).items() if own != vars(PLAIN)[key]}
    return (read_table(path, client_column, dialect), {"csv": said}) if said else (table, {})


def _of_table(
    frame: pd.DataFrame, path: Path, target: tuple[str, ...], client_column: str | None
) -> tuple[dict[str, Any], list[str]]:
    names = names_of(frame, str(path))
    for name in (*target, client_column):
        if name is not None and name not in names:
            raise ConfigError(
                f"{path}: expected one of the columns {', '.join(names)}, got {name!r}{near(name, names)}."
            )
    if not len(frame):
        raise DataError(f"{path}: expected records to describe, got none.")
    if len({*target, client_column}) <= len(target):
        raise ConfigError(
            f"{path}: expected targets that differ, and none that names the clients, got "
            f"{', '.join(target)}. Name each once."
        )
    found: dict[str, Any] = {}
    columns: dict[str, Any] = {}
    notes, ignored = [], []
    if not target:
        notes.append("Choose the target, and declare its classes (0 for a regression): --target COLUMN.")
    for name in names:
        values = frame[name]
        words = sorted(set(words_of(values)) - {""})
        if name == client_column:
            words = sorted(set(clients_of(values, Cell(str(path), name))))
            # Without this declaration an epsilon could not cover who the clients are.
            if len(words) <= MOST_WORDS:
                columns[name] = {"categories": words}
            else:
                notes.append(
                    f"{name}: {len(words)} clients. A finite epsilon needs their names as categories."
                )
        elif name not in target:
            proposed, note = _column(values, Cell(str(path), name), words)
            if proposed is None:
                ignored.append(name)
            else:
                columns[name] = proposed
            notes += [f"{name}: {note}"] if note else []
    if target:
        found["target"] = target[0] if len(target) == 1 else list(target)
        found["classes"], scales = _labels_of_all(frame, path, target)
        columns |= scales
    return found | ({"ignore": ignored} if ignored else {}) | {"columns": columns}, notes


def _column(values: pd.Series[Any], cell: Cell, words: list[str]) -> tuple[dict[str, Any] | None, str]:
    """Propose the declaration of a column, or None if it should be left out, with a note."""
    try:
        numbers = numbers_of(values, cell)
    except DataError:
        if len(words) > MOST_WORDS:
            return None, f"{len(words)} different words. Turn them into numbers if they have information."
        if len(words) < 2:
            return None, "one word in all records, so it has no information."
        return {"categories": words, **({"indicator": True} if "" in words_of(values) else {})}, ""
    known = numbers[~np.isnan(numbers)]
    if not len(known) or (known == known[0]).all():
        return None, "one value in all records, so it has no information."
    if (found := _scale(known)) is None:
        return None, "values beyond 32 bits. Write them in larger units if they have information."
    if len(known) == len(numbers):
        return found, ""
    found |= {"missing": found["range"][0], "indicator": True}
    return found, f"{len(numbers) - len(known)} of {len(numbers)} values are missing."


def _labels(values: pd.Series[Any], cell: Cell) -> tuple[Any, NDArray[np.float64] | None]:
    """Propose the classes of a target, 0 for a regression. Also its numbers, or None if it has words."""
    words = set(words_of(values)) - {""}
    try:
        numbers = numbers_of(values, cell)
    except DataError:
        return sorted(words), None
    known = numbers[~np.isnan(numbers)]
    few = len(words) <= MOST_LABELS and (known == np.round(known)).all()
    return sorted(int(one) for one in np.unique(known)) if few else 0, known


def _labels_of_all(
    frame: pd.DataFrame, path: Path, target: tuple[str, ...]
) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Propose the classes of all targets: two that each of several labels has, or else a regression's."""
    each = {name: _labels(frame[name], Cell(str(path), name)) for name in target}
    for name, (own, _) in each.items():
        if own != 0 and len(own) < 2:
            raise ConfigError(
                f"{path}: expected a target of two values or more, got {len(own)} in {name}. Take another "
                "target, or records with more of its values."
            )
    (classes, _), *others = each.values()
    if others and (classes == 0 or len(classes) != 2 or any(own != classes for own, _ in others)):
        if any(known is None for _, known in each.values()):
            raise ConfigError(
                f"{path}: expected several targets with the same two classes, or of numbers, got others in "
                f"{', '.join(target)}. Take one of them, or write each as 0 and 1."
            )
        classes = 0
    scales = {name: _scale(known) for name, (_, known) in each.items() if classes == 0 and known is not None}
    return classes, {name: scale for name, scale in scales.items() if scale}


def _scale(known: NDArray[np.float64]) -> dict[str, Any] | None:
    """A range of round numbers that contains all of `known`; None for none, or for some beyond float32."""
    if np.abs(known).max(initial=0) > np.finfo(np.float32).max or not len(known):
        return None
    low, high = float(known.min()), float(known.max())
    step = 10.0 ** floor(log10(high - low)) / 10 if high > low else 1.0
    # Format to 12 digits: a float multiple of 0.1 has many.
    ends = floor(low / step) * step, ceil(high / step) * step
    return {"range": [float(f"{end:.12g}") for end in ends]}


def lines(section: Mapping[str, Any]) -> Iterator[str]:
    """Write the section as TOML, one line a column."""
    yield "[data]"
    for key, value in section.items():
        if key != "columns":
            yield f"{key} = {_written(value)}"
    if columns := section.get("columns"):
        yield "[data.columns]"
        yield from (f"{key_of(name)} = {_written(column)}" for name, column in columns.items())


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_written(one)}" for key, one in value.items()) + " }"
    # JSON and TOML write texts, numbers, truth values and lists of them in the same way.
    return json.dumps(value, ensure_ascii=False)
