"""The command `party recount`."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.party.agreeing import agreed


@click.command(epilog="Example:  securefl party recount P")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--yes", is_flag=True, help="Say that the folder is the newest one, without being asked.")
def recount(folder: Path, yes: bool) -> None:
    """Begin a lost counter anew, from the folder as it is.

    It is for a counter that is gone while the folder never was. A folder that was restored from a backup does
    not know what left since: its counter is the only thing that does. A counter that is there stays.
    """
    from securefl.core.errors import ConfigError
    from securefl.study.parties import folder as folders

    ask = "Is this folder the newest state of the party, never restored from a backup?"
    if not yes and not agreed(ask):
        raise ConfigError("Expected your word that the folder is the newest, got none: nothing was changed.")
    click.echo(f"The counter begins anew: {folders.recount(folder)}")
