"""Reading models and records for a profile, and arrays, from the files and names that a command is given.

A model is a file of `securefl export`, or TOML with the table [model] of a study, a table [weights], and for
tables [data.columns], which names the columns that the model reads, in the order of its inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from securefl.core.errors import ConfigError, DataError
from securefl.core.ranges import Count, Range, Ranged
from securefl.core.reading import convert
from securefl.data import NAMES, Dataset, Split, load
from securefl.data.array_files import LARGEST, npy
from securefl.data.columns import Named, key_of, listed
from securefl.data.in_memory import array_of as array
from securefl.data.layout import Arrays
from securefl.data.schema import Schema, frame_of
from securefl.data.tables import read_records
from securefl.storage.inputs import opened, require_size, shown
from securefl.storage.own_code import Namer, located, names_code, running
from securefl.storage.own_code import load as load_code
from securefl.storage.texts import read_text, toml
from securefl.training import trained
from securefl.training.models import ModelConfig
from securefl.training.networks import digest_of
from securefl.training.own_models import OwnModel, model_points, profiled_layer, section_of
from securefl.training.vector import load_vector

_MOST_SHOWN = 4000
"""The most letters of a table's columns that a message suggests."""


@dataclass(frozen=True, kw_only=True)
class WeightsSection(Ranged):
    """The table [weights] of a model file.

    outputs: the number of the model's outputs. seed: the seed of its initial weights. weights: the path of a
    .npy vector, float32 (d,), that replaces the initial weights. shape: of a record, if no columns tell it.
    """

    outputs: int
    seed: Annotated[int, Range("[0, 2^64)")] = 0
    weights: str | None = None
    shape: tuple[Count, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableSection:
    """The table [data]. columns: those that the model reads, in the order of its inputs, as in a study."""

    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelFile:
    """A model of a file.

    build: makes the module for records of a shape, and names its profiled layer. encode: makes the module's
    input of records, which may be a table or an array. shape: of the input, or () if only records tell it.
    columns: what a table's columns become, for the digest. characters: of the vocabulary, for text.
    """

    build: Callable[[tuple[int, ...]], tuple[nn.Module, str]]
    encode: Callable[[object, str], NDArray[Any]]
    shape: tuple[int, ...]
    columns: Any
    characters: int | None = None

    def inputs(self, records: object, where: str) -> NDArray[Any]:
        """Records as the module's input, (n, *shape). Raises DataError for others. where: their name."""
        found = self.encode(records, where)
        shape = found.shape[1:]
        if not all(shape) or self.shape not in ((), shape):
            wanted = f"shape {self.shape}" if self.shape else "one number or more"
            raise DataError(f"{where}: expected records of {wanted}, got {shape}.")
        return found

    def digest(self, module: nn.Module, layer: str) -> str:
        """16 hex digits, equal for all parties whose profiles can be compared."""
        whole = f"{digest_of(module)} {layer} {self.columns}"
        return hashlib.sha256(whole.encode()).hexdigest()[:16]


def model_of(path: Path, namer: Namer) -> ModelFile:
    """The model in a file. Code that a TOML names in `kind` is run. Raises ConfigError and DataError."""
    if path.suffix.lower() != ".toml":
        model = trained.load(path)
        about = model.about
        return ModelFile(
            build=lambda shape: (model.module, profiled_layer(model.module) or ""),
            encode=lambda records, where: model.inputs(records),
            shape=about.shape,
            columns=about.records.words()["columns"],
            characters=about.outputs if about.reads_text else None,
        )
    text = read_text(path)
    try:
        table = toml(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not {"model", "weights"} <= set(table) <= {"model", "weights", "data"}:
        study = " A study is none: copy its [model], and add [weights]." if "study" in table else ""
        raise ConfigError(
            f"{path}: expected the tables [model], [weights] and, for tables of records, [data], got "
            f"{', '.join(map(key_of, sorted(table))) or 'none'}.{study}"
        )
    weights = convert(WeightsSection, table["weights"], "weights")
    columns = tuple(
        convert(Named, {**own, "name": name}, f"data.columns.{key_of(name)}")
        for name, own in convert(TableSection, table.get("data", {}), "data").columns.items()
    )
    kind, part = section_of(table["model"], brought=False)
    section: Any = convert(kind, part, "model")
    if section.weights is not None:
        section = replace(section, weights=str(path.parent / section.weights))
    shape = (sum(len(one.values) for one in columns),) if columns else weights.shape
    schema = Schema(columns=columns, shape=shape) if columns else None

    def build(shape: tuple[int, ...]) -> tuple[nn.Module, str]:
        own: Any = section
        if not isinstance(own, ModelConfig):
            word = own.kind if names_code(own.kind) else model_points()[own.kind].value
            place = located(word, path.parent, replace(namer, files=(path,)))
            made = OwnModel(
                factory=load_code(place),
                name=own.kind,
                options=own.options,
                profiled_layer=own.profiled_layer,
                train=own.train,
                buffers=own.buffers,
                weights=own.weights,
                place=place,
            )
            own = made.resolved(shape, weights.outputs, weights.seed)
        module = own.build(shape, weights.outputs, weights.seed)
        if weights.weights is not None:
            # Relative to the model file and not to the working folder, since both files are kept together.
            load_vector(module, array_of(path.parent / weights.weights).astype(np.float32))
        return module, own.layer

    def encode(records: object, where: str) -> NDArray[Any]:
        if (frame := frame_of(records, where)) is None:
            found = array(records, where)
            if found.dtype.kind not in "biuf":
                raise DataError(f"{where}: expected numbers, got an array of {found.dtype}.")
            return found.astype(np.int64 if reads_text else np.float32)
        if schema is None:
            lines = "\n".join(f"{key_of(str(name))} = {{}}" for name in frame.columns)
            if len(lines) > _MOST_SHOWN:
                lines = f"{lines[:_MOST_SHOWN]}…"
            raise DataError(
                f"{where}: expected the columns that the model reads, in the order of its inputs, in {path}, "
                f"got none. All parties need the same ones:\n\n[data.columns]\n{lines}\n\n"
                "A column of words needs `categories`, and other numbers than from 0 to 1 a `range`, as in a "
                "study."
            )
        return schema.encode(
            frame, where, remedy=f"Declare it under [data.columns] of {path}, or correct it."
        )

    reads_text = getattr(section, "reads_text", False)
    return ModelFile(
        build=build,
        encode=encode,
        shape=shape,
        columns=schema and schema.words()["columns"],
        characters=weights.outputs if reads_text else None,
    )


def records_of(data: str, namer: Namer) -> object:
    """The records of a data set, of code `module:name` in the working folder, or of a file.

    Returns a table, or an array (n, ...). Raises ConfigError and DataError.
    """
    if data in NAMES:
        return load(data, seed=0).train.x
    if names_code(data):
        return _bare(_made(data, namer))
    path = Path(data)
    if path.suffix.lower() == ".npy":
        return array_of(path)
    with opened(path) as source:  # a pipe or a device is refused before a reader waits for it
        require_size(source, LARGEST)
        found = read_records(path)
    names = [*map(str, getattr(found, "columns", ()))]
    counted = [[*map(str, range(first, first + len(names)))] for first in (0, 1)]
    if names and names not in counted and not set("".join(names)) - set("0123456789.+-eE "):
        raise DataError(
            f"{shown(path)}: expected the names of the columns as the first line, got what looks like a "
            f"record: {listed(names)}. Write the names there."
        )
    return found


def _made(name: str, namer: Namer) -> Any:
    place = located(name, Path.cwd(), namer)
    made = load_code(place)
    with running(place, f"{name}: expected records", error=DataError):
        return made() if callable(made) else made


def _bare(found: Any) -> object:
    """Records without their targets."""
    if isinstance(found, Split):
        found = found.train
    if isinstance(found, Dataset | Arrays):
        return found.x
    if isinstance(found, Mapping) and "x" in found:
        return found["x"]
    return found[0] if isinstance(found, tuple) and len(found) == 2 else found


def array_of(path: Path) -> NDArray[Any]:
    """Read numbers from a .npy (`npy`). Raises DataError, with the path, for other content too."""
    found = npy(path)
    if found.dtype.kind not in "fiu":
        raise DataError(f"{shown(path)}: Expected an array of numbers, got one of type {found.dtype}.")
    return found


def slice_of(rows: str | None) -> slice:
    if rows is None:
        return slice(None)
    try:
        first, last = (int(part) if part else None for part in rows.split(":"))
    except ValueError:
        raise ConfigError(f"Expected --rows like 0:100, got {rows!r}.") from None
    return slice(first, last)
