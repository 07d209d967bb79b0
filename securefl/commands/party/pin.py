"""The command `party pin`: pins the roster that all parties agreed on."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.party.agreeing import agreed
from securefl.commands.party.folder_argument import party_folder
from securefl.commands.printing import echo


@click.command(epilog="Example:  securefl party pin P roster.jsonl")
@party_folder
@click.argument("roster", type=click.Path(path_type=Path, readable=False))
@click.option("--digest", help="The roster's digest, or its first 16 digits, as others have it.")
@click.option("--yes", is_flag=True, help="Pin it without being asked.")
def pin(folder: Path, roster: Path, digest: str | None, yes: bool) -> None:
    """Pin the ROSTER that all parties agreed on: a line for each party, in any order.

    Its digest is written into the plan file. Compare the digest with the other parties over another channel
    than the roster's. No server can change the roster afterwards: the party refuses a session with another
    one.
    """
    from securefl.core.errors import ConfigError
    from securefl.deployment import pinning
    from securefl.deployment.roster import LARGEST, fingerprint, parse
    from securefl.storage.texts import read_text

    text = read_text(roster, LARGEST)
    pinned = parse(text, str(roster))
    found = pinned.digest.hex()
    if digest is not None and (len(digest) < 16 or not found.startswith(digest.lower())):
        raise ConfigError(
            f"Expected a roster with digest {digest}, got {found}: it is another roster, or the digest has "
            "fewer than 16 digits. Ask the maker of the roster."
        )
    for member in pinned.members.values():
        echo(f"{member.name}  {fingerprint(member)}", err=True)
    known = yes or digest is not None
    if not known and not agreed(f"The digest is {found}. Do the other parties have the same?"):
        raise ConfigError("Expected a digest that all have, got none: nothing was pinned.")
    content = pinning.pin(folder, pinned, text)
    echo(f"{content.name}: pinned {len(pinned.members)} parties, digest {found}")
