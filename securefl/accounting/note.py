"""A ledger's newest head, noted in a file beside it.

SQLite uses the whole part of a torn write-ahead log and does not report the rest. A ledger alone therefore
cannot tell that its end is gone; the note can. The head is noted after its transaction is on disk. A process
that is killed in between leaves an older note, from which the ledger goes on. The note is not synced: after a
loss of power it may be older, too.
"""

from __future__ import annotations

import os
from pathlib import Path

from securefl.accounting.chain import Head
from securefl.storage.database import IN_MEMORY, Damaged, seal

END = "-head"
"""The note has the ledger's name with this ending."""
_COUNT, _DIGEST = 8, 32


def noted(ledger: Path | str) -> Head | None:
    """Return the head noted beside a ledger, or None without a note.

    Raises Damaged if the note was changed.
    """
    if ledger == IN_MEMORY:
        return None
    try:
        content = _beside(ledger).read_bytes()
    except FileNotFoundError:
        return None
    if not content:  # made, and not written yet
        return None
    body, sealed = content[: _COUNT + _DIGEST], content[_COUNT + _DIGEST :]
    if sealed != seal("head", body):
        raise Damaged(f"its note {_beside(ledger).name} is not as it was written")
    return Head(int.from_bytes(body[:_COUNT], "little"), body[_COUNT:])


class Note:
    """The open note beside a ledger. Raises OSError if the file cannot be made."""

    def __init__(self, ledger: Path | str) -> None:
        self._file = -1
        if ledger != IN_MEMORY:
            # O_NOFOLLOW: a link planted there would have another file overwritten
            self._file = os.open(_beside(ledger), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)

    def write(self, head: Head) -> None:
        """Write the head in place and in one piece, so that a reader finds the old one or the new one."""
        if self._file >= 0:
            # every note has one length, so nothing of an older note can remain behind a newer one
            body = head.count.to_bytes(_COUNT, "little") + head.digest
            os.pwrite(self._file, body + seal("head", body), 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def _beside(ledger: Path | str) -> Path:
    path = Path(ledger)
    return path.with_name(path.name + END)
