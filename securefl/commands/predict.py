"""The command `predict`: labels of the records in a table, by an exported model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from securefl.commands.choices import NEW_FILE, PATH, with_json
from securefl.commands.printing import echo, echo_json
from securefl.commands.telling import bar, with_trust
from securefl.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray
    from torch import nn

    from securefl.data.schema import Schema
    from securefl.storage.own_code import Namer
    from securefl.training.trained import Trained


@click.command(epilog="Example:  securefl predict model.safetensors new.csv -o predicted.csv")
@click.argument("model", type=PATH)
@click.argument("table", type=PATH)
@click.option("-o", "--out", required=True, type=NEW_FILE, help="The CSV to write.")
@click.option("--proba", is_flag=True, help="Write the probability of each class too.")
@click.option("--force", is_flag=True, help="Replace OUT if there is one.")
@click.option(
    "--model",
    "own_model",
    metavar="MODULE:NAME",
    help="The class of a model of your own, in this folder or an installed package. Its code is run.",
)
@click.option(
    "--network",
    "own_network",
    metavar="MODULE:NAME",
    help="The function of your own that makes the network of the features. Its code is run.",
)
@with_trust
@with_json("Print the counts as JSON, and nothing else.")
def predict(
    model: Path,
    table: Path,
    out: Path,
    proba: bool,
    force: bool,
    own_model: str | None,
    own_network: str | None,
    trusted: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Predict the records of TABLE by MODEL, a file of `securefl export`. OUT gets a row for each record.

    TABLE is a .csv, .parquet, .npz (array `x`) or .npy. Its columns are found by name, in any order. Columns
    that the model does not read are left out. A cell that the card's declarations do not cover is an error
    that names row and column. OUT has the columns `row`, which counts from 1, and `prediction`. If TABLE has
    the target too, the accuracy is printed.
    """
    _require_out(out, force, (model, table))
    from securefl.data.networks import network_of
    from securefl.data.tables import read_records
    from securefl.report.tables import write_csv
    from securefl.storage.own_code import Namer
    from securefl.training.devices import one_thread

    with one_thread(), ExitStack() as imports:
        trained = _loaded(model, own_model, own_network, Namer(trusted=trusted), imports)
        records = read_records(table, trained.about.records.csv)
        _require_network(network_of(table), trained.about.records, table)
        with bar("records", len(records)) as tell:
            try:
                outputs = trained.outputs(records, tell)
            except DataError as error:
                raise DataError(f"{table}: {error}") from None
        made = _table(trained, outputs, proba)
    write_csv(out, made)
    told = _told(trained, records, made, out)
    if as_json:
        echo_json(told, 2)
        return
    for line in _lines(told):
        echo(line)  # a stranger may have chosen the labels


def _require_out(out: Path, force: bool, sources: tuple[Path, ...]) -> None:
    """Raises ConfigError unless `out` is a new .csv, or one to be replaced that is no source."""
    if out.suffix.lower() != ".csv":
        raise ConfigError(f"Expected --out with the ending .csv, got {out}.")
    if any(out.exists() and source.exists() and out.samefile(source) for source in sources):
        raise ConfigError(f"Expected --out as another file than MODEL and TABLE, got {out}.")
    if out.exists() and not force:
        raise ConfigError(f"Expected no file at {out}, got one. Name another, or replace it by --force.")


def _loaded(
    path: Path, own_model: str | None, own_network: str | None, namer: Namer, imports: ExitStack
) -> Trained:
    """The model, with its own code if the caller names it. The code may import until `imports` closes."""
    from securefl.training.trained import load, opened

    if own_model is None and own_network is None:
        return load(path)
    code = opened(path)[2].code
    factory = None if own_model is None else _code(own_model, code, namer, imports)
    network: nn.Module | None = None
    if own_network is not None:
        made = _code(own_network, None, namer, imports)
        network = made() if callable(made) else made
    return load(path, model=factory, network=network)


def _code(name: str, sha256: str | None, namer: Namer, imports: ExitStack) -> Any:
    """The object `module:name` of this folder or an installed package. Raises ConfigError for another file.

    sha256: the digest of its file that the card states, if any.
    """
    from securefl.storage.own_code import importable, load, located

    place = located(name, Path.cwd(), namer)
    if sha256 is not None and place.sha256 != sha256:
        raise ConfigError(
            f"Expected the code with which the model was trained, SHA-256 {sha256[:12]}, got {place}: "
            "another computation may fit the same values. Take the file of the study. In Python, "
            "securefl.load(path, model=...) takes any class."
        )
    imports.enter_context(importable(place))
    return load(place)


def _require_network(found: str, schema: Schema, table: Path) -> None:
    """Raises DataError if a table has features of another network than the card names."""
    from securefl.data.networks import NONE, of_own
    from securefl.storage.own_code import names_code

    own = schema.features
    expected = schema.network if own is None else own.about
    if own is not None and names_code(own.word):
        expected = of_own(own.about, own.name)
    if found in ("", expected) or (found == NONE and not schema.network):
        return
    wanted = f"features by {expected!r}" if expected else "records without a named network"
    raise DataError(
        f"{table}: expected {wanted}, as the model's card says, got features by {found!r}. Compute them by "
        "the network of the card."
    )


def _table(trained: Trained, outputs: NDArray[Any], proba: bool) -> pd.DataFrame:
    """The predictions as a table with a row for each record."""
    import pandas as pd

    found = trained.labelled(outputs)
    made: dict[str, Any] = {"row": range(1, len(outputs) + 1)}
    if found.ndim == 1:
        made["prediction"] = found
    else:
        targets = [one.name for one in trained.about.records.targets] or range(found.shape[1])
        made |= {f"prediction of {name}": own for name, own in zip(targets, found.T, strict=True)}
    if proba:
        shares = trained.probable(outputs).T
        names = trained.classes_ if found.ndim == 1 else targets
        made |= {f"probability of {name}": own for name, own in zip(names, shares, strict=True)}
    return pd.DataFrame(made)


def _told(trained: Trained, records: Any, made: pd.DataFrame, out: Path) -> dict[str, Any]:
    """What the command prints: numbers of records by label, the columns left out, and the accuracy or the
    labels for which there is none."""
    from securefl.data.columns import words_of

    schema = trained.about.records
    left = schema.left_out(records) if hasattr(records, "columns") and schema.columns is not None else ()
    told: dict[str, Any] = {"records": len(made), "left_out": list(left), "file": str(out)}
    if trained.about.task != "regression":
        found = {
            str(name).removeprefix("prediction of "): words_of(own)
            for name, own in made.filter(regex="^prediction").items()
        }
        alone = trained.about.task == "classification"
        told["labels"] = dict(
            Counter(word if alone else f"{name} = {word}" for name, own in found.items() for word in own)
        )
        targets = [one.name for one in schema.targets]
        if targets and {*targets} <= {*left}:
            actual = [words_of(records[name]) for name in targets]
            known = {*words_of(trained.classes_)}
            if strange := [word for word in np.concatenate(actual) if word not in known]:
                told["unknown_labels"] = dict(Counter(strange))
            else:
                right = [one == other for one, other in zip(found.values(), actual, strict=True)]
                told["accuracy"] = float(np.all(right, axis=0).mean())
    return told


def _lines(told: dict[str, Any]) -> Iterator[str]:
    from securefl.data.columns import listed

    counts = ", ".join(f"{label} {count:,}" for label, count in told.get("labels", {}).items())
    yield f"records   {told['records']:,}" + (f": {counts}" if counts else "")
    if told["left_out"]:
        yield f"left out  {listed(told['left_out'])}"
    if "accuracy" in told:
        yield f"accuracy  {told['accuracy']:.4f} against the labels in the table"
    if unknown := told.get("unknown_labels"):
        found = ", ".join(f"{label!r} {count:,}" for label, count in unknown.items())
        yield f"accuracy  not known: labels in the table that the model does not know: {found}"
    yield f"File: {told['file']}"
