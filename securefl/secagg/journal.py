"""What clients did that they must not do twice, on disk before it is done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from securefl.accounting.store import durable
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
        """Write a wave of acts in one durable transaction; for each whether it was new."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            new = [self._insert(act) for act in acts]
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        return new

    def _insert(self, act: Durable) -> bool:
        at = act.header
        row = (act.client, at.session, at.round, at.attempt, at.stage, act.act, act.digest)
        done = self._db.execute("INSERT OR IGNORE INTO acts VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return done.rowcount == 1
