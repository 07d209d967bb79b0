"""What clients did that they must not do twice, on disk before it is done."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from securefl.accounting.store import durable
from securefl.errors import DataError
from securefl.secagg.client import Durable

_SCHEMA = """
CREATE TABLE IF NOT EXISTS acts (
    client TEXT, session BLOB, round INTEGER, attempt INTEGER, stage INTEGER, act TEXT, digest BLOB NOT NULL,
    PRIMARY KEY (client, session, round, attempt, stage, act)
) STRICT;
"""


class Journal:
    """Acts of all clients at hand in one SQLite file; safe under two processes and kill -9.

    A restored copy forgets what came after it: a client that restores one begins a new session.
    """

    def __init__(self, path: Path | str = ":memory:") -> None:
        self._db = durable(path, _SCHEMA)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, acts: Sequence[Durable]) -> list[bool]:
        """Write a wave of acts in one durable transaction; for each whether it was new.

        DataError where the disk refuses: then nothing was written, and nothing is done.
        """
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                return [self._insert(act) for act in acts]
        except sqlite3.DatabaseError as error:
            raise DataError(f"The journal cannot be written ({error}); nothing was done.") from None

    def attempts(self, session: bytes, round_number: int) -> int:
        """How many attempts at this round it has seen: the number of the next one."""
        query = "SELECT MAX(attempt) FROM acts WHERE session = ? AND round = ?"
        last = self._db.execute(query, (session, round_number)).fetchone()[0]
        return 0 if last is None else last + 1

    def _insert(self, act: Durable) -> bool:
        at = act.header
        row = (act.client, at.session, at.round, at.attempt, at.stage, act.act, act.digest)
        done = self._db.execute("INSERT OR IGNORE INTO acts VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return done.rowcount == 1
