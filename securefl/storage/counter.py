"""Rollback protection for a party's folder: a counter outside of it notes how far the party got.

The counter is a folder with three files. One notes the head of the ledger's hash chain (`accounting.note`),
one a `Place`: the numbers of sessions and the newest rounds, and one the fingerprint of the newest keys. If a
party's folder is restored from a backup, its ledger and journal lack the latest releases and acts, and its
keys may be void. The counter still has the numbers and the fingerprint, so such a folder is refused. Keep the
counter out of the backup of the folder. Two copies of a folder share one counter. A process locks it, so only
one copy is in use at a time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from struct import Struct

from securefl.core.errors import ConfigError, DataError
from securefl.storage import inputs
from securefl.storage.database import Damaged
from securefl.storage.files import folder_at, write
from securefl.storage.note import SealedNote

_LEDGER, _PLACE, _KEYS = "ledger.head", "place", "keys"
_LARGEST = 2**10


def default(name: str) -> Path:
    """The path of a party's counter if none is named: `$XDG_STATE_HOME/securefl/NAME`.

    `$XDG_STATE_HOME` is `~/.local/state` if it is not set.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    return root / "securefl" / name


def require_outside(counter: Path, folder: Path) -> None:
    """Raise ConfigError for a counter inside the folder: a backup would restore both together."""
    if folder.resolve() in (counter.resolve(), *counter.resolve().parents):
        raise ConfigError(
            f"Expected a counter outside {folder}, got {counter}: a backup of the folder would bring it back "
            "too, and could not be told from the newest state. Name another place with --counter."
        )


@dataclass(frozen=True)
class Place:
    """A party's progress.

    Attributes:
        sessions: the number of sessions that it entered.
        released, acted: the newest round of the last session in its ledger and in its journal, or 0.
        bare: the number of sessions in which a hidden sum without noise was ordered.
    """

    sessions: int = 0
    released: int = 0
    acted: int = 0
    bare: int = 0

    def reaches(self, noted: Place) -> bool:
        """Whether this progress is at or after `noted`."""
        if self.bare < noted.bare:
            return False
        if self.sessions != noted.sessions:
            return self.sessions > noted.sessions
        return self.released >= noted.released and self.acted >= noted.acted

    def __str__(self) -> str:
        rounds = f"the ledger at round {self.released}, the journal at round {self.acted}"
        return f"{self.sessions} sessions, {self.bare} of them without noise, {rounds}"


class Counter:
    """The notes in a counter's folder.

    Attributes:
        ledger: the file in which the ledger notes its head (see `accounting.note`).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / _LEDGER
        self._note = SealedNote(folder / _PLACE, "place", Struct("<4Q"))

    @property
    def there(self) -> bool:
        """Whether the counter was begun and its note exists."""
        return self._note.path.is_file()

    def begin(self) -> None:
        """Make the counter's folder, which only its owner may read, before the party's first session."""
        folder_at(self.folder, mode=0o700)
        self.note(Place())

    def note(self, place: Place) -> None:
        """Note the party's progress."""
        self._note.write(*astuple(place))

    def note_keys(self, fingerprint: str) -> None:
        """Note the fingerprint of the party's newest keys."""
        write(self.folder / _KEYS, fingerprint, secret=True)

    def keys(self) -> str:
        """The fingerprint of the party's newest keys; empty if none was noted.

        Raises DataError if the note cannot be read.
        """
        path = self.folder / _KEYS
        return inputs.content(path, _LARGEST).decode("utf-8", "replace") if path.exists() else ""

    def place(self) -> Place:
        """Return the last note. Raises ConfigError if it is missing, and DataError if it is damaged."""
        if not self.there:
            raise ConfigError(
                f"Expected the party's counter at {self.folder}, got none. Put it back. If the folder is a "
                "copy from another machine, serve it there: two copies would spend the same budget and the "
                "same sessions twice. If the counter is lost, and you know that the folder is the only one "
                "and was never restored from a backup, begin it anew: securefl party recount, or "
                "Counter.begin for a party of your own program."
            )
        with suppress(Damaged):
            if (found := self._note.read()) is not None:
                return Place(*found)
        raise DataError(
            f"Expected the counter's note in {self._note.path} as it was written, got other bytes. Put the "
            "newest copy of the file back. If an earlier securefl wrote it, make a new folder."
        )

    def require(self, own: Place) -> None:
        """Raise DataError if the party's progress is behind the note."""
        noted = self.place()
        if not own.reaches(noted):
            raise DataError(
                f"Expected a party's folder that is as new as its counter {self.folder} ({noted}), got an "
                f"older copy ({own}), such as a backup. It lacks the releases since then. Put the newest "
                "folder back. If it is lost, the spent budget is unknown: begin a new folder with new keys, "
                "and count the budget and the sessions of these records as spent."
            )
