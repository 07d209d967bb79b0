"""The commands `data list` and `data fetch`."""

from __future__ import annotations

import json

import click


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
    """The data sets that `[data] source` can name, and the folder they are looked for in."""
    from securefl.data import NAMES, data_folder

    folder = str(data_folder())
    click.echo(json.dumps({"folder": folder, "names": NAMES}) if as_json else "\n".join(NAMES))
    if not as_json:
        # On stderr: the names alone can be piped on.
        click.echo(f"folder: {folder}", err=True)
