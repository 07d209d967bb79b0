"""What a key holder has opened: counted, capped and answered again, durably where it has a file.

Noise is sized for the cap, so a semi-honest evaluator learns nothing of the key. The cap does not hold a
malicious one off, which reads the whole key within a few hundred openings (see `match`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from securefl.accounting.ledger import refusing_damage
from securefl.errors import RemoteProtocolError

Reply = Callable[[], bytes]
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS openings (request BLOB PRIMARY KEY, integers INTEGER NOT NULL, "
    "reply BLOB NOT NULL) STRICT"
)


class Openings:
    """Replies by request, and how many integers they opened; a file per key. Safe under kill -9.

    A copy of the key elsewhere, and a backup that is restored, count anew: make a new key instead.
    """

    def __init__(self, path: Path | str = ":memory:") -> None:
        self._db = sqlite3.connect(path, timeout=60, isolation_level=None)
        with refusing_damage(path):
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(_SCHEMA)

    def close(self) -> None:
        self._db.close()

    @property
    def opened(self) -> int:
        """Integers opened so far."""
        return int(self._db.execute("SELECT COALESCE(SUM(integers), 0) FROM openings").fetchone()[0])

    def once(self, request: bytes, integers: int, cap: int, reply: Reply, *, sender: str) -> bytes:
        """The stored reply to this request, or a new one, stored before it is returned.

        request: a digest of it. Raises RemoteProtocolError where the cap would be exceeded.
        """
        self._db.execute("BEGIN IMMEDIATE")
        try:
            answer = self._answer(request, integers, cap, reply, sender)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        return answer

    def _answer(self, request: bytes, integers: int, cap: int, reply: Reply, sender: str) -> bytes:
        row = self._db.execute("SELECT reply FROM openings WHERE request = ?", (request,)).fetchone()
        if row is not None:
            return bytes(row[0])
        if self.opened + integers > cap:
            raise RemoteProtocolError(
                f"This key's {cap} openings are used up; start a session with a new key.",
                sender=sender,
                phase="open",
            )
        answer = reply()
        self._db.execute("INSERT INTO openings VALUES (?, ?, ?)", (request, integers, answer))
        return answer
