"""What a run needs to go on after it was cut off: state, what clients keep, and every finished round."""

from __future__ import annotations

import io
import json
import secrets
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.accounting.store import durable
from securefl.errors import DataError, LocalProtocolError
from securefl.rounds import Kept, State

_SCHEMA = """
CREATE TABLE IF NOT EXISTS session (only INTEGER PRIMARY KEY CHECK (only = 1), nonce BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS bound (name TEXT PRIMARY KEY, identity TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS rounds (round INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS kept (client INTEGER PRIMARY KEY, arrays BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS state (only INTEGER PRIMARY KEY CHECK (only = 1), arrays BLOB NOT NULL) STRICT;
"""


class Checkpoint:
    """One SQLite file per arm and seed; a round is in it whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._db = durable(path, _SCHEMA)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def nonce(self) -> bytes:
        """32 random bytes, drawn when the run began."""
        self._db.execute("INSERT OR IGNORE INTO session VALUES (1, ?)", (secrets.token_bytes(32),))
        nonce: bytes = self._db.execute("SELECT nonce FROM session").fetchone()[0]
        return nonce

    def bind(self, **identities: str) -> None:
        """Go on with these files only (ledger, journal); DataError where the run began with another one, now
        lost.

        A file that is lost and begun anew forgets what was released, or which sums were opened.
        """
        for name, identity in identities.items():
            if not identity:
                continue
            self._db.execute("INSERT OR IGNORE INTO bound VALUES (?, ?)", (name, identity))
            row = self._db.execute("SELECT identity FROM bound WHERE name = ?", (name,)).fetchone()
            if row[0] != identity:
                raise DataError(
                    f"The {name} beside this run's checkpoint is not the one that the run began with: it was "
                    "lost or replaced, and with it what was released. Restore it, or begin a new run "
                    "elsewhere."
                )

    def save(
        self, number: int, state: State, record: dict[str, Any], kept: Mapping[int, Kept] | None = None
    ) -> None:
        """Finish round `number`, durably. Raises LocalProtocolError where it is finished already.

        kept: what clients keep, of those where it changed.
        """
        memory = {f"memory.{name}": array for name, array in state.memory.items()}
        arrays = _packed({"model": state.model, **memory})
        devices = [(client, _packed(own)) for client, own in (kept or {}).items()]
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute("INSERT INTO rounds VALUES (?, ?)", (number, json.dumps(record)))
        except sqlite3.IntegrityError:
            self._db.execute("ROLLBACK")
            raise LocalProtocolError(
                f"Round {number} is finished already: another process runs in this folder; stop one of them."
            ) from None
        self._db.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (arrays,))
        self._db.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", devices)
        self._db.execute("COMMIT")

    def load(self) -> tuple[State | None, list[dict[str, Any]]]:
        """The newest state and the records of all finished rounds, in order."""
        rows = self._db.execute("SELECT record FROM rounds ORDER BY round").fetchall()
        stored = self._db.execute("SELECT arrays FROM state").fetchone()
        if stored is None:
            return None, []
        arrays = _unpacked(stored[0])
        memory = {k.removeprefix("memory."): arrays[k] for k in arrays if k.startswith("memory.")}
        return State(arrays["model"], memory), [json.loads(row[0]) for row in rows]

    def kept(self) -> dict[int, Kept]:
        """What each client keeps, as of the last finished round."""
        rows = self._db.execute("SELECT client, arrays FROM kept").fetchall()
        return {client: _unpacked(arrays) for client, arrays in rows}


def _packed(arrays: Kept) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **dict[str, Any](arrays))
    return buffer.getvalue()


def _unpacked(stored: bytes) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(stored), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays}
