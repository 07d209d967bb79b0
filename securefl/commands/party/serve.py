"""The command `party serve`: runs a party on a Unix socket."""

from __future__ import annotations

import os
from pathlib import Path

import click

from securefl.commands.party.folder_argument import party_folder
from securefl.commands.printing import echo
from securefl.commands.telling import with_trust


@click.command(epilog="Example:  securefl party serve P --allow flower")
@party_folder
@click.option(
    "--socket",
    type=click.Path(path_type=Path, readable=False),
    help="The socket; by default FOLDER/run/party.sock.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="USER",
    help="A user that may connect, by name or number; may be repeated. By default your own user.",
)
@click.option(
    "--most", type=click.IntRange(2**16, 2**32), default=2**30, show_default=True, help="Bytes of a frame."
)
@click.option("--new-records", default="", metavar="WHY", help="Accept changed records, and note the reason.")
@with_trust
def serve(
    folder: Path,
    socket: Path | None,
    allow: tuple[str, ...],
    most: int,
    new_records: str,
    trusted: tuple[Path, ...],
) -> None:
    """Run a client or the key holder on a Unix socket, until it is stopped.

    The socket exists once the party is ready. Its group may open it, but the party accepts only the users
    that --allow names. It notes refusals for `securefl party status`.
    """
    from securefl.deployment.peers import require_platform, user_of

    require_platform()
    # Below the check: some of it cannot be imported where the check fails.
    from securefl.deployment import folder as folders
    from securefl.deployment.folder_party import serve as serve_party
    from securefl.study.interruption import Interrupted, Interruption

    users = frozenset(map(user_of, allow)) or frozenset({os.getuid()})
    path = (socket or folder / folders.SOCKET).absolute()

    def ready(name: str) -> None:
        echo(f"{name} serves on {path} for {', '.join(map(str, sorted(users)))}. Ctrl-C stops it.")

    try:
        with Interruption():
            serve_party(
                folder, path, allow=users, ready=ready, most=most, new_records=new_records, trusted=trusted
            )
    except Interrupted as interrupted:
        raise click.exceptions.Exit(interrupted.exit_code) from None
