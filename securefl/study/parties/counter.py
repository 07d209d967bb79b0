"""A party's counter: a folder outside its own, with notes of how far ledger and sessions got.

A party's folder that is restored from a backup has an older ledger and an older journal. They do not know
what left since, or what was done. The counter does: such a folder is refused. The counter belongs where the
folder's backup does not reach. Two copies of a folder have one counter, which one process holds at a time.
"""

from __future__ import annotations

import os
from pathlib import Path

from securefl.core.errors import ConfigError, DataError
from securefl.storage.database import seal

_LEDGER, _PLACE = "ledger.head", "place"
_NUMBER = 8


def default(identity: str) -> Path:
    """`$XDG_STATE_HOME/securefl/IDENTITY`, by default in `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    return root / "securefl" / identity


def require_outside(counter: Path, folder: Path) -> None:
    """Raises ConfigError for a counter inside the folder, where it would be restored with it."""
    if folder.resolve() in (counter.resolve(), *counter.resolve().parents):
        raise ConfigError(
            f"Expected a counter outside {folder}, got {counter}: a backup of the folder would bring it back "
            "too, and could not be told from the newest state. Name another place with --counter."
        )


class Counter:
    """The notes in a counter's folder.

    Attributes:
        ledger: the file in which the ledger notes its head (see `accounting.note`).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / _LEDGER

    @property
    def there(self) -> bool:
        """Whether it was begun, and is not lost."""
        return (self.folder / _PLACE).is_file()

    def begin(self) -> None:
        """Make the folder, for its owner alone, before the party's first session."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.note(0, 0)

    def note(self, sessions: int, number: int) -> None:
        """Note that the party was in so many sessions, and in this round of the last of them."""
        body = sessions.to_bytes(_NUMBER, "little") + number.to_bytes(_NUMBER, "little")
        file = os.open(self.folder / _PLACE, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(file, body + seal("place", body), 0)  # of one length, so in one piece
        finally:
            os.close(file)

    def place(self) -> tuple[int, int]:
        """The number of sessions, and the round of the last. Raises ConfigError where the note is gone."""
        path = self.folder / _PLACE
        if not self.there:
            raise ConfigError(
                f"Expected the party's counter at {self.folder}, got none. Put it back. If it is lost, and "
                "you know that the party's folder was never restored from a backup: securefl party recount."
            )
        content = path.read_bytes()
        body = content[: 2 * _NUMBER]
        if content[2 * _NUMBER :] != seal("place", body):
            raise DataError(f"{path} is not as it was written. Put the newest one back.")
        return int.from_bytes(body[:_NUMBER], "little"), int.from_bytes(body[_NUMBER:], "little")

    def require(self, sessions: int, number: int) -> None:
        """Raises DataError for a party that was in fewer sessions, or in an earlier round, than noted."""
        noted = self.place()
        if (sessions, number) < noted:
            raise DataError(
                f"Expected a party that was in {noted[0]} sessions and in round {noted[1]} of the last, as "
                f"its counter {self.folder} has noted, got one of {sessions} and {number}: its folder is an "
                "older copy, such as from a backup, and does not know what it did since. Put the newest "
                "folder back. If it is lost, what it did is unknown: begin a new folder with new keys, and "
                "count the budget of these records as spent."
            )
