"""A ledger's newest head, noted in a file beside it.

SQLite uses the whole part of a torn write-ahead log and does not report the rest. A ledger alone therefore
cannot tell that its end is gone; the note can. The head is noted after its transaction is on disk. A process
that is killed in between leaves an older note, from which the ledger goes on. The note is not synced: after a
loss of power it may be older, too.

A backup of the folder has both, and they fit together. A second note in another place, a *counter*, tells an
old copy from the newest one.
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
    return None if ledger == IN_MEMORY else noted_in(_beside(ledger))


def noted_in(file: Path) -> Head | None:
    """Return the head in a note or counter, or None without one. Raises Damaged if it was changed."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    if not content:  # made, and not written yet
        return None
    body, sealed = content[: _COUNT + _DIGEST], content[_COUNT + _DIGEST :]
    if sealed != seal("head", body):
        raise Damaged(f"its note {file.name} is not as it was written")
    return Head(int.from_bytes(body[:_COUNT], "little"), body[_COUNT:])


class HeadNote:
    """The open note beside a ledger, and its counter. Raises OSError if a file cannot be made."""

    def __init__(self, ledger: Path | str, counter: Path | None = None) -> None:
        beside = [] if ledger == IN_MEMORY else [_beside(ledger)]
        # O_NOFOLLOW: a link planted there would have another file overwritten
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        self._files: list[int] = []
        try:
            for path in beside + [path for path in (counter,) if path is not None]:
                self._files.append(os.open(path, flags, 0o600))
        except OSError:
            self.close()
            raise

    def write(self, head: Head) -> None:
        """Write the head in place and in one piece, so that a reader finds the old one or the new one."""
        for file in self._files:
            # every note has one length, so nothing of an older note can remain behind a newer one
            body = head.count.to_bytes(_COUNT, "little") + head.digest
            os.pwrite(file, body + seal("head", body), 0)

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def _beside(ledger: Path | str) -> Path:
    path = Path(ledger)
    return path.with_name(path.name + END)
