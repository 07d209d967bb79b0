"""The command `party rotate`: makes new keys of a party."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.party.folder_argument import party_folder
from securefl.commands.printing import echo


@click.command(epilog="Example:  securefl party rotate P")
@party_folder
def rotate(folder: Path) -> None:
    """Make new keys for a stopped party, and print its new line of the roster. The old line is void.

    The old keys are deleted. The party takes part in no session until all parties have pinned a roster with
    the new line. It refuses sessions of the old roster. Its ledger continues.
    """
    from securefl.deployment import pinning
    from securefl.deployment.roster import fingerprint, line_of

    own = pinning.rotate(folder).member()
    click.echo(line_of(own))
    echo(
        f"{own.name}: fingerprint {fingerprint(own)}. Have the old line replaced by this one, and pin the "
        "new roster.",
        err=True,
    )
