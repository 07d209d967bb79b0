"""Reading a model description, records and arrays from the files that a command names."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.core.reading import convert
from securefl.data import NAMES, load
from securefl.data.tables import LARGEST
from securefl.storage.inputs import opened, require_size
from securefl.storage.texts import read_text, toml
from securefl.training import ModelConfig


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """The table [weights] of a model file.

    outputs: the number of the model's outputs. seed: the seed of its initial weights. weights: the path of a
    .npy vector, float32 (d,), that replaces the initial weights.
    """

    outputs: int
    seed: int = 0
    weights: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"Expected 0 <= seed < 2^64, got {self.seed}.")


def model_of(path: Path) -> tuple[ModelConfig, ModelFile]:
    text = read_text(path)
    try:
        table = toml(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if set(table) != {"model", "weights"}:
        raise ConfigError(f"{path}: expected the tables [model] and [weights], got {sorted(table)}.")
    return convert(ModelConfig, table["model"], "model"), convert(ModelFile, table["weights"], "weights")


def records_of(data: str) -> NDArray[Any]:
    if data in NAMES:
        return load(data, seed=0).train.x
    return array_of(Path(data)).astype(np.float32)


def array_of(path: Path) -> NDArray[Any]:
    """Read numbers from a .npy or .csv of at most `LARGEST` bytes.

    Raises DataError, with the path, for other content and for anything but a regular file.
    """
    with opened(path) as source:
        size = require_size(source, LARGEST)
        if not source.peek(1):
            raise DataError("Expected numbers as .npy or .csv, got an empty file.")
        try:
            found = _array(source, size) if path.suffix == ".npy" else _table(source)
        except (ValueError, EOFError, SyntaxError) as error:
            raise DataError(
                f"Expected numbers as .npy or .csv, got other content: {str(error)[:200]}."
            ) from None
        if found.dtype.kind not in "fiu":
            raise DataError(f"Expected an array of numbers, got one of type {found.dtype}.")
    return found


def _array(source: BufferedReader, size: int) -> NDArray[Any]:
    """The array of a .npy. Its header is checked against the file's size before memory is taken."""
    version = np.lib.format.read_magic(source)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(source)
    if dtype.hasobject:
        raise ValueError("objects, which only a pickle can hold")
    if source.tell() + prod(shape) * dtype.itemsize != size:
        raise DataError(
            f"Expected an array of {prod(shape) * dtype.itemsize:,} bytes behind the header, got "
            f"{size - source.tell():,}: the file is damaged or cut. Get it again."
        )
    source.seek(0)
    # Loading a pickle from a .npy would run its code.
    found: NDArray[Any] = np.load(source, allow_pickle=False)
    return found


def _table(source: BufferedReader) -> NDArray[Any]:
    """The numbers of a .csv: float64 (rows, columns)."""
    # numpy warns of a file without numbers, whose table has no rows
    with TextIOWrapper(source, encoding="utf-8-sig") as text, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return np.loadtxt(text, delimiter=",", ndmin=2)


def slice_of(rows: str | None) -> slice:
    if rows is None:
        return slice(None)
    try:
        first, last = (int(part) if part else None for part in rows.split(":"))
    except ValueError:
        raise ConfigError(f"Expected --rows like 0:100, got {rows!r}.") from None
    return slice(first, last)
