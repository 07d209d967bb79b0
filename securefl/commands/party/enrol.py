"""The command `party enrol`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(epilog="Example:  securefl party enrol P >> roster.jsonl")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def enrol(folder: Path) -> None:
    """Print a party's line of the roster: JSON with its name, two public keys and their fingerprint.

    Send it to whoever makes the roster, and read the fingerprint to them by another way, such as a telephone.
    Who changes a line on its way can otherwise stand for its party.
    """
    from securefl.engine.apart.roster import fingerprint, line_of
    from securefl.study.parties import keys, plan_file

    own = keys.read(folder, plan_file.read(folder).name).member()
    click.echo(line_of(own))
    click.echo(f"{own.name}: fingerprint {fingerprint(own)}", err=True)
