"""The command `profile`: computes a client's representation profile from its records and a model."""

from __future__ import annotations

import json
from pathlib import Path

import click

from securefl.commands.choices import FILE
from securefl.commands.printing import echo
from securefl.core.errors import DataError
from securefl.storage.files import require_replaceable, write
from securefl.storage.inputs import shown


@click.command(
    name="profile", epilog="Example:  securefl profile --data records.npy --model model.toml -o p1.json"
)
@click.option("--data", required=True, help="Records: .npy, .csv, or a name of `securefl data list`.")
@click.option("--model", type=FILE, required=True, help="The model and its weights, as TOML.")
@click.option("--rows", help="The range of records, such as 0:100; default all.")
@click.option("-o", "--out", type=FILE, required=True, help="The profile to write, as JSON.")
def profile(data: str, model: Path, rows: str | None, out: Path) -> None:
    """Write the mean and variance of every output of a model's layer over records, as JSON.

    The MODEL file is TOML: a table [model] as in a study (kind, hidden, profiled_layer), and
    a table [weights] with outputs, and seed or weights = "w.npy" (the vector of all parameters).
    """
    import numpy as np

    from securefl.matching.profile_file import require_readable
    from securefl.training import profile as profile_of
    from securefl.training.from_files import array_of, model_of, records_of, slice_of
    from securefl.training.vector import load_vector

    require_replaceable(out)
    x = records_of(data)[slice_of(rows)]
    # A mean over no records is nan. Without this check, the file would fail only at another party.
    if not len(x):
        raise DataError(f"Expected records in {data}{f' at {rows}' if rows else ''}, got none.")
    config, weights = model_of(model)
    module = config.build(x.shape[1:], weights.outputs, weights.seed)
    if weights.weights is not None:
        # Relative to the model file and not to the working folder, since both files are kept together.
        load_vector(module, array_of(model.parent / weights.weights).astype(np.float32))
    found = profile_of(module, config.layer, x)
    said = {"mean": found.mean.tolist(), "variance": found.variance.tolist(), "count": found.count}
    raw = (json.dumps(said) + "\n").encode()
    require_readable(raw)
    write(out, raw)
    echo(f"{shown(out)}: {len(found)} elements of {config.layer} over {found.count} records")
