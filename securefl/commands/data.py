"""The commands `data list` and `data fetch`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from securefl.core.errors import ConfigError


@click.group(epilog="Example:  securefl data list")
def data() -> None:
    """Data sets: where they are looked for, and how to get them."""


@data.command(name="fetch", epilog="Example:  securefl data fetch mnist")
@click.argument("name")
def fetch_command(name: str) -> None:
    """Download data set NAME into $SECUREFL_DATA (default: the user's cache) and check its SHA-256."""
    from securefl.data import NAMES, fetch

    if name not in NAMES:
        raise click.BadParameter(f"{name!r} is not one of {', '.join(NAMES)}.", param_hint="NAME")
    for path in fetch(name):
        click.echo(path)


@data.command(name="list", epilog="Example:  securefl data list --json")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_command(as_json: bool) -> None:
    """The data sets that `[data] source` can name, and the folder they are looked for in.

    Those that other packages bring (entry points `securefl.data`) come last. A study can also name a file, a
    folder or a function: docs/own-data.md.
    """
    from securefl.data import NAMES, data_folder
    from securefl.study.data_section import data_points

    folder, names = str(data_folder()), [*NAMES, *sorted(data_points())]
    click.echo(json.dumps({"folder": folder, "names": names}) if as_json else "\n".join(names))
    if not as_json:
        # On stderr: the names alone can be piped on.
        click.echo(f"folder: {folder}", err=True)


@data.command(name="describe", epilog="Example:  securefl data describe survey.csv --target income --public")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--target", help="The column to be predicted.")
@click.option("--client-column", help="The column that says whose a record is.")
@click.option("--public", is_flag=True, help="Say that FILE is public: what is printed is read off it.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def describe_command(
    file: Path, target: str | None, client_column: str | None, public: bool, as_json: bool
) -> None:
    """Propose the section [data] of a study for FILE (.csv, .parquet, .npz, .npy), which must be public.

    Ranges and categories are read off its records. For records that are not public, describe a public file
    like them, or write the section from what is publicly known of each column.
    """
    if not public:
        raise ConfigError(
            f"Expected --public, got none: ranges and categories that are read off {file} tell of its "
            "records, and no ledger counts that. Give it if the file is public, or write the section from "
            "what is publicly known."
        )
    from securefl.data.describe import lines, proposal

    section, notes = proposal(file, target=target, client_column=client_column)
    if as_json:
        click.echo(json.dumps({"data": section, "notes": notes}, indent=2))
        return
    for line in (*(f"# {note}" for note in notes), *lines(section)):
        click.echo(line)
