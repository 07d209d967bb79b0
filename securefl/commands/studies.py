"""The command `studies`: lists the packaged studies, or prints one."""

from __future__ import annotations

import json

import click

from securefl.commands.choices import with_json
from securefl.study.packaged import packaged, require_packaged


@click.command(epilog="Example:  securefl studies demo > my.toml")
@click.argument("name", required=False)
@with_json("Print the names as a JSON list.")
def studies(name: str | None, as_json: bool) -> None:
    """List the packaged studies, or print one as TOML, as a template for your own."""
    if name is None:
        click.echo(json.dumps(list(packaged())) if as_json else "\n".join(packaged()))
    else:
        click.echo(require_packaged(name), nl=False)
