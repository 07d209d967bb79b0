"""The commands `profile` and `anchor`: the profile of a client's records, and a public one of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from securefl.commands.choices import FILE, tell_refused_baseline
from securefl.commands.printing import echo
from securefl.commands.telling import with_trust
from securefl.core.errors import ConfigError, DataError
from securefl.storage.files import require_replaceable
from securefl.storage.inputs import shown

if TYPE_CHECKING:
    from securefl.dp.moments import MeanVariance

_MODEL = click.option("--model", type=FILE, required=True, help="A model of `securefl export`, or TOML.")
_SEED = 0
"""The public seed of an anchor's inputs."""


@click.command(
    name="profile", epilog="Example:  securefl profile --data records.csv --model model.toml -o p1.json"
)
@click.option(
    "--data",
    required=True,
    help="Records: .csv with a header, .parquet, .npz (array x), .npy, module:name of code in this folder, "
    "or a name of `securefl data list`.",
)
@_MODEL
@click.option("--rows", help="The range of records, such as 0:100; default all.")
@click.option("-o", "--out", type=FILE, required=True, help="The profile to write, as JSON.")
@with_trust
def profile(data: str, model: Path, rows: str | None, out: Path, trusted: tuple[Path, ...]) -> None:
    """Write the mean and variance of every output of a model's layer over records, as JSON.

    MODEL is a file of `securefl export`, which reads a table as in training, or TOML. TOML has a table
    [model] as in a study (kind, hidden, profiled_layer), and a table [weights] with outputs, and seed or
    weights = "w.npy" (the vector of all parameters). For tables it names the columns that the model reads, as
    a study declares them: [data.columns.age], range = [0, 120]. Other columns are left out. All parties need
    the same file: a profile carries a digest of its model, and `match` refuses profiles of others.

    If this profile would be refused as a baseline, the command says so, and which flags or which --anchor
    mend that. All parties must then give them.
    """
    from securefl.matching.options import Options
    from securefl.matching.profiles import Anchor
    from securefl.storage.own_code import Namer
    from securefl.training import probe_profile
    from securefl.training import profile as profile_of
    from securefl.training.from_files import model_of, records_of, slice_of

    require_replaceable(out)
    namer = Namer(trusted=trusted)
    read = model_of(model, namer)
    x = read.inputs(records_of(data, namer), data)[slice_of(rows)]
    # A mean over no records is nan. Without this check, the file would fail only at another party.
    if not len(x):
        raise DataError(f"Expected records in {data}{f' at {rows}' if rows else ''}, got none.")
    module, layer = read.build(x.shape[1:])
    found = profile_of(module, layer, x)
    _write(out, found, read.digest(module, layer))
    echo(f"{shown(out)}: {len(found)} elements of {layer} over {found.count} records")
    if tell_refused_baseline(found, Options()):
        near = Anchor.of(probe_profile(module, layer, x.shape[1:], _SEED, characters=read.characters))
        if not tell_refused_baseline(found, Options(anchor=near)):
            echo(f"With the --anchor of this model it fits: securefl anchor --model {shown(model)}", err=True)


@click.command(epilog="Example:  securefl anchor --model model.toml -o anchor.json")
@_MODEL
@click.option("-o", "--out", type=FILE, required=True, help="The anchor to write, as JSON.")
@with_trust
def anchor(model: Path, out: Path, trusted: tuple[Path, ...]) -> None:
    """Write the profile of a model on random inputs from 0 to 1, as a public --anchor of a matching.

    It depends on the model and on no record. Values are then measured in its units, so that profiles of most
    models fit the default bounds. One party makes it and gives it to all: last bits may differ between
    machines. MODEL is as for `securefl profile`. A TOML without [data.columns] needs the shape of a record:
    shape = [1, 8, 8] under [weights].
    """
    from securefl.storage.own_code import Namer
    from securefl.training import probe_profile
    from securefl.training.from_files import model_of

    require_replaceable(out)
    read = model_of(model, Namer(trusted=trusted))
    if not read.shape:
        raise ConfigError(
            f"Expected the shape of a record in {shown(model)}, got none. Write shape = [4] under [weights], "
            "or name the columns of tables under [data.columns]."
        )
    module, layer = read.build(read.shape)
    found = probe_profile(module, layer, read.shape, _SEED, characters=read.characters)
    _write(out, found, read.digest(module, layer))
    echo(f"{shown(out)}: an anchor for {len(found)} elements of {layer}. Give it to all parties.")


def _write(out: Path, found: MeanVariance, model: str) -> None:
    import json

    from securefl.matching.profile_file import require_readable
    from securefl.storage.files import write

    words = {"mean": found.mean.tolist(), "variance": found.variance.tolist(), "count": found.count}
    raw = (json.dumps(words | {"model": model}) + "\n").encode()
    require_readable(raw)
    write(out, raw)
