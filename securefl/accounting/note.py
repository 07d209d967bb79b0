"""Detection of truncated or outdated ledgers: a file beside the ledger records its newest head.

If a write-ahead log is torn, SQLite uses its intact part and does not report the rest. So the ledger alone
cannot show that its last entries are missing; the note can. The head is noted after its transaction is on
disk. If a process is killed in between, the note is older than the ledger, which is accepted. The note is not
synced, so after a power failure it may be older too.

A backup of the folder holds ledger and note together, and they agree. A second note in another place, a
*counter*, shows that a ledger was restored from an old copy.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import Final

from securefl.accounting.chain import Head
from securefl.storage import inputs
from securefl.storage.database import IN_MEMORY, Damaged, seal

END = "-head"
"""The note's file name is the ledger's name with this ending."""
_NOTE: Final = Struct("<Q32s")
_LARGEST = 2**10


def noted(ledger: Path | str) -> Head | None:
    """Return the head noted beside a ledger, or None if there is no note.

    Raises Damaged if the note was changed.
    """
    return None if ledger == IN_MEMORY else noted_in(_beside(ledger))


def noted_in(file: Path) -> Head | None:
    """Return the head in a note or counter, or None if it is not there. Raises Damaged if it was changed."""
    if not file.exists():
        return None
    content = inputs.content(file, _LARGEST)
    if not content:  # created, but not written yet
        return None
    body = content[: _NOTE.size]
    if content[_NOTE.size :] != seal("head", body):
        raise Damaged(f"its note {file.name} is not as it was written")
    return Head(*_NOTE.unpack(body))


class HeadNote:
    """The open note beside a ledger, and its counter. Raises OSError if a file cannot be created."""

    def __init__(self, ledger: Path | str, counter: Path | None = None) -> None:
        beside = [] if ledger == IN_MEMORY else [_beside(ledger)]
        # O_NOFOLLOW: an attacker's link at this path would otherwise redirect the write to another file
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        self._files: list[int] = []
        try:
            for path in beside if counter is None else [*beside, counter]:
                self._files.append(os.open(path, flags, 0o600))
        except OSError:
            self.close()
            raise

    def write(self, head: Head) -> None:
        """Write the head in one piece, so that a reader finds the old head or the new head."""
        for file in self._files:
            # all notes have one length, so a new note overwrites the old one completely
            body = _NOTE.pack(head.count, head.digest)
            os.pwrite(file, body + seal("head", body), 0)

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def _beside(ledger: Path | str) -> Path:
    path = Path(ledger)
    return path.with_name(path.name + END)
