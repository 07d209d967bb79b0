"""The commands `data list`, `data fetch` and `data describe`: data sets for studies."""

from __future__ import annotations

import json
from pathlib import Path

import click

from securefl.commands.choices import PATH, with_json
from securefl.commands.printing import Group, echo, echo_json
from securefl.core.errors import ConfigError
from securefl.core.reading import near


@click.group(cls=Group, epilog="Example:  securefl data list")
def data() -> None:
    """List and download data sets, and describe your own."""


@data.command(name="fetch", epilog="Example:  securefl data fetch mnist")
@click.argument("name")
def fetch_command(name: str) -> None:
    """Download data set NAME into $SECUREFL_DATA (default: the user's cache) and check its SHA-256."""
    from securefl.data import NAMES, fetch

    if name not in NAMES:
        hint = near(name, NAMES)
        raise click.BadParameter(f"{name!r}{hint} is not one of {', '.join(NAMES)}.", param_hint="NAME")
    for path in fetch(name):
        click.echo(path)


@data.command(name="list", epilog="Example:  securefl data list --json")
@with_json("Print as JSON.")
def list_command(as_json: bool) -> None:
    """List the data sets that `[data] source` can name, and the folder that holds them.

    Data sets of other packages (entry points `securefl.data`) come last. A study can also name a file, a
    folder or a function: docs/own-data.md.
    """
    from securefl.data import NAMES, data_folder
    from securefl.study.data_section import data_points

    folder, names = str(data_folder()), [*NAMES, *sorted(data_points())]
    click.echo(json.dumps({"folder": folder, "names": names}) if as_json else "\n".join(names))
    if not as_json:
        # On stderr, so that stdout has only the names and can be piped.
        echo(f"folder: {folder}", err=True)


@data.command(name="describe", epilog="Example:  securefl data describe survey.csv --target income --public")
@click.argument("file", type=PATH)
@click.option("--target", multiple=True, help="The column to predict. Repeat it for several.")
@click.option("--client-column", help="The column that names the client of a record.")
@click.option("--public", is_flag=True, help="Confirm that FILE is public. The output reveals records.")
@with_json("Print as JSON.")
def describe_command(
    file: Path, target: tuple[str, ...], client_column: str | None, public: bool, as_json: bool
) -> None:
    """Propose the section [data] of a study for FILE (.csv, .parquet, .npz, .npy), which must be public.

    Ranges and categories are read from its records. If your records are not public, describe a similar public
    file, or write the section from public knowledge of each column.
    """
    if not public:
        raise ConfigError(
            f"Expected --public, got none: ranges and categories from {file} reveal its records, and no "
            "ledger counts that. Give --public if the file is public, or write the section from public "
            "knowledge."
        )
    from securefl.data.describe import lines, proposal

    section, notes = proposal(file, target=target, client_column=client_column)
    if as_json:
        echo_json({"data": section, "notes": notes}, 2)
        return
    for line in (*(f"# {note}" for note in notes), *lines(section)):
        click.echo(line)
