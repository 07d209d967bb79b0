"""Reading a model description, records and arrays from the files that a command names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.core.reading import convert
from securefl.data import NAMES, load
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
    """Read numbers from .npy or .csv. Raises DataError for other content."""
    # Loading a pickle from a .npy would run its code. The memory map reads only the array of a file.
    try:
        found = (
            np.load(path, allow_pickle=False, mmap_mode="r")
            if path.suffix == ".npy"
            else np.loadtxt(path, delimiter=",", ndmin=2)
        )
    except (ValueError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected numbers as .npy or .csv, got other content: {error}.") from None
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu":
        raise DataError(f"{path}: expected an array of numbers, got other content.")
    return found


def slice_of(rows: str | None) -> slice:
    if rows is None:
        return slice(None)
    try:
        first, last = (int(part) if part else None for part in rows.split(":"))
    except ValueError:
        raise ConfigError(f"Expected --rows like 0:100, got {rows!r}.") from None
    return slice(first, last)
