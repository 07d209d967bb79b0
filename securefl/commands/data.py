"""The commands `data list` and `data fetch`."""

from __future__ import annotations

import json

import click

from securefl.data import NAMES, data_folder, fetch


@click.group(epilog="Example:  securefl data list")
def data() -> None:
    """Data sets: where they are looked for, and how to get them."""


@data.command(name="fetch", epilog="Example:  securefl data fetch mnist")
@click.argument("name", type=click.Choice(NAMES))
def fetch_command(name: str) -> None:
    """Download data set NAME into $SECUREFL_DATA (default: the user's cache) and check its SHA-256."""
    for path in fetch(name):
        click.echo(path)


@data.command(name="list", epilog="Example:  securefl data list --json")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_command(as_json: bool) -> None:
    """The data sets that `[data] source` can name, and the folder they are looked for in."""
    folder = str(data_folder())
    click.echo(json.dumps({"folder": folder, "names": NAMES}) if as_json else "\n".join(NAMES))
    if not as_json:
        # On stderr: the names alone can be piped on.
        click.echo(f"folder: {folder}", err=True)
