"""The command `party allow`: agrees to more sessions without noise."""

from __future__ import annotations

from pathlib import Path

import click

from securefl.commands.party.agreeing import agreed
from securefl.commands.party.folder_argument import party_folder
from securefl.commands.printing import echo


@click.command(epilog="Example:  securefl party allow P --sessions 2")
@party_folder
@click.option("--sessions", type=int, required=True, help="Their number, those that were counted included.")
@click.option("--yes", is_flag=True, help="Agree without being asked.")
def allow(folder: Path, sessions: int, yes: bool) -> None:
    """Agree to a number of sessions without noise, over all studies of a stopped client.

    Within a session the server learns sums alone. But it could begin one with you and one without you, and
    subtract the sums: without noise the difference is close to your own update. So the party counts the
    sessions in which such a sum was ordered, and enters no more than you agree to.
    """
    from securefl.core.errors import ConfigError
    from securefl.deployment import folder as folders
    from securefl.deployment.plan_file import require_sessions

    require_sessions(sessions)
    ask = f"The server can compare the sums without noise of {sessions} sessions over your records. Agree?"
    if not yes and not agreed(ask):
        raise ConfigError("Expected your agreement, got none: nothing was changed.")
    content = folders.allow(folder, sessions)
    echo(f"{content.name}: {sessions} sessions without noise, over all studies.")
    echo(f"Next: securefl party serve {folder}")
