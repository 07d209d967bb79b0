"""The command `party enrol`: prints a party's line for the roster."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.party.folder_argument import party_folder
from securefl.commands.printing import echo


@click.command(epilog="Example:  securefl party enrol P >> roster.jsonl")
@party_folder
def enrol(folder: Path) -> None:
    """Print a party's line of the roster: JSON with its name, two public keys and their fingerprint.

    Send the line to the maker of the roster, and tell them the fingerprint over another channel, such as a
    telephone. Otherwise an attacker that changes the line on its way can impersonate the party.
    """
    from securefl.deployment import plan_file
    from securefl.deployment.pinning import newest_keys
    from securefl.deployment.roster import fingerprint, line_of

    own = newest_keys(folder, plan_file.read(folder)).member()
    click.echo(line_of(own))
    echo(f"{own.name}: fingerprint {fingerprint(own)}", err=True)
