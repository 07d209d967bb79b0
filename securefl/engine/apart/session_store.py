"""A party's diary: which sessions it entered, what it refused and why, whose records it had, what it keeps.

It is for the party's owner. Nothing of it is ever sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from securefl.algorithm.queries import ClientState
from securefl.core.arrays import packed, unpacked
from securefl.storage.database import Database, Kind, check, decoding, seal

DIARY = "diary.sqlite"
"""Its name in a party's folder."""
KIND = Kind(
    name="diary",
    version=2,  # 2: safetensors
    tables=(
        "CREATE TABLE bound (name TEXT PRIMARY KEY, value TEXT NOT NULL, seal BLOB NOT NULL) STRICT",
        "CREATE TABLE sessions (number INTEGER PRIMARY KEY, session BLOB UNIQUE NOT NULL, "
        "study TEXT NOT NULL, at TEXT NOT NULL, seal BLOB NOT NULL) STRICT",
        "CREATE TABLE refusals (number INTEGER PRIMARY KEY, why TEXT NOT NULL, times INTEGER NOT NULL, "
        "at TEXT NOT NULL) STRICT",
        "CREATE TABLE records (number INTEGER PRIMARY KEY, digest TEXT NOT NULL, why TEXT NOT NULL, "
        "at TEXT NOT NULL, seal BLOB NOT NULL) STRICT",
        "CREATE TABLE kept (only INTEGER PRIMARY KEY CHECK (only = 1), session BLOB NOT NULL, "
        "client INTEGER NOT NULL, arrays BLOB NOT NULL, seal BLOB NOT NULL) STRICT",
    ),
    lost="Without it the party cannot tell an old session from a new one: restore the party's folder from "
    "one backup, or begin a new folder.",
)
_MOST_REFUSALS = 100
_LONGEST = 4000


@dataclass(frozen=True)
class Entry:
    """A line of the diary: what it says, and when it was written, in UTC."""

    text: str
    at: str
    times: int = 1


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class SessionStore:
    """The diary in one SQLite file. Safe under two processes and kill -9."""

    def __init__(self, path: Path | str = ":memory:", *, clock: Callable[[], str] = now) -> None:
        self._clock = clock
        self._db = Database(path, KIND)

    def close(self) -> None:
        self._db.close()

    # What belongs together ----------------------------------------------------------------------------

    def bound(self, name: str, value: str) -> str:
        """What this name was bound to when it was bound first, which is now if it never was."""
        with self._db.transaction():
            row = self._db.row("SELECT value, seal FROM bound WHERE name = ?", (name,))
            if row is None:
                self._db.run("INSERT INTO bound VALUES (?, ?, ?)", (name, value, seal(name, value)))
                return value
            check(row[1], name, row[0])
            return str(row[0])

    # Sessions -----------------------------------------------------------------------------------------

    def sessions(self) -> list[tuple[bytes, Entry]]:
        """All sessions in the order in which they were entered, each with the study's name."""
        rows = self._db.rows("SELECT number, session, study, at, seal FROM sessions ORDER BY number")
        with self._db.explaining():
            for *content, sealed in rows:
                check(sealed, *content)
        return [(bytes(session), Entry(study, at)) for _, session, study, at, _ in rows]

    def newest(self) -> tuple[int, bytes]:
        """How many sessions were entered, and the last of them; 0 and no bytes before any."""
        return self._session("ORDER BY number DESC LIMIT 1") or (0, b"")

    def number(self, session: bytes) -> int:
        """The number of a session, from 1 in the order in which they were entered; 0 for none of them."""
        found = self._session("WHERE session = ?", (session,))
        return 0 if found is None else found[0]

    def _session(self, which: str, values: Sequence[bytes] = ()) -> tuple[int, bytes] | None:
        row = self._db.row(f"SELECT number, session, study, at, seal FROM sessions {which}", values)
        if row is None:
            return None
        with self._db.explaining():
            check(row[-1], *row[:-1])
        return int(row[0]), bytes(row[1])

    def enter(self, session: bytes, study: str) -> None:
        """Note a session, durably. What was kept in the one before is forgotten."""
        with self._db.transaction():
            number = self._next("sessions")
            row = (number, session, study[:_LONGEST], self._clock())
            self._db.run("INSERT INTO sessions VALUES (?, ?, ?, ?, ?)", (*row, seal(*row)))
            self._db.run("DELETE FROM kept")

    # Refusals -----------------------------------------------------------------------------------------

    def refuse(self, why: str) -> None:
        """Note why something was refused. The newest hundred are kept; the same again counts up."""
        why = why[:_LONGEST]
        with self._db.transaction():
            last = self._db.row("SELECT number, why FROM refusals ORDER BY number DESC LIMIT 1")
            if last is not None and last[1] == why:
                again = "UPDATE refusals SET times = times + 1, at = ? WHERE number = ?"
                self._db.run(again, (self._clock(), last[0]))
                return
            number = self._next("refusals")
            self._db.run("INSERT INTO refusals VALUES (?, ?, 1, ?)", (number, why, self._clock()))
            self._db.run("DELETE FROM refusals WHERE number <= ?", (number - _MOST_REFUSALS,))

    def refusals(self) -> list[Entry]:
        """The newest refusals, the newest first."""
        rows = self._db.rows("SELECT why, at, times FROM refusals ORDER BY number DESC")
        return [Entry(*row) for row in rows]

    # Records ------------------------------------------------------------------------------------------

    def records(self) -> list[tuple[str, Entry]]:
        """The fingerprints of the records that the party had, each with the owner's reason."""
        rows = self._db.rows("SELECT number, digest, why, at, seal FROM records ORDER BY number")
        with self._db.explaining():
            for *content, sealed in rows:
                check(sealed, *content)
        return [(digest, Entry(why, at)) for _, digest, why, at, _ in rows]

    def note_records(self, digest: str, why: str) -> None:
        """Note the fingerprint of the records from now on."""
        with self._db.transaction():
            row = (self._next("records"), digest, why[:_LONGEST], self._clock())
            self._db.run("INSERT INTO records VALUES (?, ?, ?, ?, ?)", (*row, seal(*row)))

    # Kept state ---------------------------------------------------------------------------------------

    def keep(self, session: bytes, client: int, own: ClientState) -> None:
        """Note what the party keeps on its device in a session, in place of what it kept before."""
        row = (1, session, client, packed(own))
        with self._db.transaction():
            self._db.run("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?)", (*row, seal(*row)))

    def kept(self, session: bytes) -> Mapping[int, ClientState]:
        """What the party keeps in this session: nothing, or its own arrays by its number."""
        row = self._db.row("SELECT * FROM kept WHERE session = ?", (session,))
        if row is None:
            return {}
        with self._db.explaining():
            check(row[-1], *row[:-1])
            with decoding():
                return {row[2]: unpacked(row[3])}

    def _next(self, table: str) -> int:
        found: Sequence[Any] = self._db.rows(f"SELECT COALESCE(MAX(number), 0) + 1 FROM {table}")[0]
        return int(found[0])
