"""The command `profile`: a client's representation profile from its records and a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from securefl.data import NAMES, load
from securefl.errors import ConfigError, DataError
from securefl.files import write
from securefl.study.config import convert
from securefl.texts import read_text, toml
from securefl.training import ModelConfig
from securefl.training import profile as profile_of
from securefl.training.vector import load_vector


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """outputs: of the model. seed: of its initial weights. weights: a .npy vector, float32 (d,), instead."""

    outputs: int
    seed: int = 0
    weights: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"Expected 0 <= seed < 2^64, got {self.seed}.")


@click.command(
    name="profile", epilog="Example:  securefl profile --data records.npy --model model.toml -o p1.json"
)
@click.option("--data", required=True, help=f"Records: a .npy or .csv file, or one of {', '.join(NAMES)}.")
@click.option("--model", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=True)
@click.option("--rows", help="Which records, such as 0:100; default all.")
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def profile(data: str, model: Path, rows: str | None, out: Path) -> None:
    """Write the mean and variance of every output of a model's layer over records, as JSON.

    The MODEL file is TOML: a table [model] as in a study (kind, hidden, profiled_layer), and
    a table [weights] with outputs, and seed or weights = "w.npy" (the vector of all parameters).
    """
    x = _records(data)[_slice(rows)]
    if not len(x):
        raise DataError(f"There are no records in {data}{f' at {rows}' if rows else ''}.")
    config, weights = _model(model)
    module = config.build(x.shape[1:], weights.outputs, weights.seed)
    if weights.weights is not None:
        load_vector(module, _array(model.parent / weights.weights).astype(np.float32))
    found = profile_of(module, config.layer, x)
    text = {"mean": found.mean.tolist(), "variance": found.variance.tolist(), "count": found.count}
    write(out, json.dumps(text) + "\n")
    click.echo(f"{out}: {len(found)} elements of {config.layer} over {found.count} records")


def _model(path: Path) -> tuple[ModelConfig, ModelFile]:
    text = read_text(path)
    try:
        table = toml(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if set(table) != {"model", "weights"}:
        raise ConfigError(f"{path}: Expected the tables [model] and [weights], got {sorted(table)}.")
    return convert(ModelConfig, table["model"], "model"), convert(ModelFile, table["weights"], "weights")


def _records(data: str) -> NDArray[Any]:
    if data in NAMES:
        return load(data, seed=0).train.x
    return _array(Path(data)).astype(np.float32)


def _array(path: Path) -> NDArray[Any]:
    """Numbers from .npy or .csv, never unpickled. Raises DataError for anything else."""
    try:
        found = (
            np.load(path, allow_pickle=False, mmap_mode="r")
            if path.suffix == ".npy"
            else np.loadtxt(path, delimiter=",", ndmin=2)
        )
    except (ValueError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: Expected numbers as .npy or .csv; {error}.") from None
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu":
        raise DataError(f"{path}: Expected an array of numbers.")
    return found


def _slice(rows: str | None) -> slice:
    if rows is None:
        return slice(None)
    try:
        first, last = (int(part) if part else None for part in rows.split(":"))
    except ValueError:
        raise ConfigError(f"Expected --rows like 0:100, got {rows!r}.") from None
    return slice(first, last)
