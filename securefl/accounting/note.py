"""Detection of truncated or outdated ledgers: a file beside the ledger records its newest head.

If a write-ahead log is torn, SQLite uses its intact part and does not report the rest. So the ledger alone
cannot show that its last entries are missing; the note can. The head is noted after its transaction is on
disk. If a process is killed in between, the note is older than the ledger, which is accepted. The note is not
synced, so after a power failure it may be older too.

A backup of the folder holds ledger and note together, and they agree. A second note in another place, a
*counter*, shows that a ledger was restored from an old copy.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Final

from securefl.accounting.chain import Head
from securefl.storage.database import IN_MEMORY
from securefl.storage.note import SealedNote

END = "-head"
"""The note's file name is the ledger's name with this ending."""
_LAYOUT: Final = Struct("<Q32s")


def noted(ledger: Path | str) -> Head | None:
    """Return the head noted beside a ledger, or None if there is no note.

    Raises Damaged if the note was changed.
    """
    return None if ledger == IN_MEMORY else noted_in(_beside(ledger))


def noted_in(file: Path) -> Head | None:
    """Return the head in a note or counter, or None if it is not there. Raises Damaged if it was changed."""
    found = _note(file).read()
    return None if found is None else Head(*found)


class HeadNote:
    """The note beside a ledger, and its counter."""

    def __init__(self, ledger: Path | str, counter: Path | None = None) -> None:
        files = (None if ledger == IN_MEMORY else _beside(ledger), counter)
        # SQLite keeps its file when the process changes its folder, and so must the notes.
        self._notes = [_note(file.absolute()) for file in files if file is not None]

    def write(self, head: Head) -> None:
        """Write the head. Raises OSError if a file cannot be written."""
        for each in self._notes:
            each.write(head.count, head.digest)


def _note(file: Path) -> SealedNote:
    return SealedNote(file, "head", _LAYOUT)


def _beside(ledger: Path | str) -> Path:
    path = Path(ledger)
    return path.with_name(path.name + END)
