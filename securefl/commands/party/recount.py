"""The command `party recount`: makes a lost counter again."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.party.agreeing import agreed
from securefl.commands.party.folder_argument import party_folder
from securefl.commands.printing import echo


@click.command(epilog="Example:  securefl party recount P")
@party_folder
@click.option("--yes", is_flag=True, help="Say that the folder is the newest one, without being asked.")
def recount(folder: Path, yes: bool) -> None:
    """Make a lost counter again, from the state of the party's folder.

    Use it only if the counter is lost, the folder was never restored from a backup, and no copy of it serves
    elsewhere. A restored folder does not have the releases and sessions since the backup; only the counter
    shows that they exist. An existing counter is not changed.
    """
    from securefl.core.errors import ConfigError
    from securefl.deployment import folder as folders

    ask = "Is this folder the newest and only one of the party, never restored from a backup?"
    if not yes and not agreed(ask):
        raise ConfigError("Expected your word that the folder is the newest, got none: nothing was changed.")
    echo(f"The counter begins anew: {folders.recount(folder)}")
