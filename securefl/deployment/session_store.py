"""A party's store of its sessions, refusals, fingerprints of records, and client state.

It is for the party's owner. No part of it is ever sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from securefl.algorithm.queries import ClientState
from securefl.core.arrays import packed, unpacked
from securefl.core.errors import DataError
from securefl.storage.database import Damaged, Database, Kind, decoding

LEDGER, ACTS = "ledger.sqlite", "acts.sqlite"
"""The one file of a client, and that of a party without a ledger (see `deployment.files`)."""
LOST = (
    "Without it the party cannot tell what left it, nor an old session from a new one: restore the newest "
    "copy of its folder. If there is none, count the budget and the sessions of its records as spent, and "
    "begin a new folder with new keys."
)
KIND = Kind(
    name="diary",
    tables=(
        "CREATE TABLE bound (name TEXT PRIMARY KEY, value TEXT NOT NULL, seal BLOB NOT NULL) STRICT",
        "CREATE TABLE sessions (number INTEGER PRIMARY KEY, session BLOB UNIQUE NOT NULL, "
        "study TEXT NOT NULL, at TEXT NOT NULL, bare INTEGER NOT NULL, seal BLOB NOT NULL) STRICT",
        "CREATE TABLE refusals (number INTEGER PRIMARY KEY, why TEXT NOT NULL, times INTEGER NOT NULL, "
        "at TEXT NOT NULL) STRICT",
        "CREATE TABLE records (number INTEGER PRIMARY KEY, digest TEXT NOT NULL, why TEXT NOT NULL, "
        "at TEXT NOT NULL, seal BLOB NOT NULL) STRICT",
        "CREATE TABLE client_state (only INTEGER PRIMARY KEY CHECK (only = 1), session BLOB NOT NULL, "
        "client INTEGER NOT NULL, arrays BLOB NOT NULL, seal BLOB NOT NULL) STRICT",
    ),
    lost=LOST,
    anew="make the party a new folder with securefl party init",
)
NO_VALUE = "sent no value"
"""The party gave nothing to a cohort query."""
BLANK = "answered as without records"
"""The party's silence would have revealed the reason, so it sent the value of a party without records."""
CUT = "sent a value cut to its bound"
"""The party's value was beyond a public bound, and was cut to it before it was sent."""
_ALLOWED = "sessions without noise"
_MOST_REFUSALS = 100
_LONGEST = 4000


@dataclass(frozen=True)
class Entry:
    """A line of the diary: its text, and the time of writing in UTC."""

    text: str
    at: str
    times: int = 1


def there(folder: Path) -> list[Path]:
    """The files of a party that this folder has."""
    return [path for name in (LEDGER, ACTS) if (path := folder / name).is_file()]


def require_file(path: Path) -> Path:
    """The path of a party's file. Raises DataError if it is lost."""
    # Opening a lost file would create an empty one in the place where the newest copy must be restored.
    if not path.is_file():
        raise DataError(f"Expected the party's file at {path}, got none. {LOST}")
    return path


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class SessionStore:
    """The diary, in a file of its own or in a party's one. It is safe under two processes and kill -9."""

    def __init__(self, where: Path | str | Database = ":memory:", *, clock: Callable[[], str] = now) -> None:
        self._clock = clock
        self._db = Database.of(where, KIND)

    def close(self) -> None:
        self._db.close()

    # What belongs together ----------------------------------------------------------------------------

    def bound_to(self, name: str) -> str:
        """The value that a name is bound to; empty if it is not bound."""
        rows = self._db.sealed("SELECT * FROM bound WHERE name = ?", (name,))
        return str(rows[0][1]) if rows else ""

    def bound(self, name: str, value: str) -> str:
        """Bind a name to a value, unless it is bound already. Returns the value that it is bound to."""
        with self._db.transaction():
            self._db.put("INSERT OR IGNORE INTO bound", name, value)
        return self.bound_to(name)

    def note_allowed(self, sessions: int) -> None:
        """Write for `allowed` how many sessions without noise the owner agreed to."""
        with self._db.transaction():
            self._db.put("INSERT OR REPLACE INTO bound", _ALLOWED, str(sessions))

    def allowed(self) -> int:
        """The number of sessions without noise that the party's newest process allows; 0 if none noted it."""
        return int(self.bound_to(_ALLOWED) or 0)

    # Sessions -----------------------------------------------------------------------------------------

    def sessions(self) -> list[tuple[bytes, Entry]]:
        """All sessions in the order of entering, each with the study's name."""
        return [(bytes(session), Entry(study, at)) for _, session, study, at, _ in self._sessions()]

    def bare(self) -> list[bytes]:
        """The sessions in which a hidden sum without noise was ordered (`count`)."""
        return [bytes(session) for _, session, _, _, bare in self._sessions() if bare]

    def bare_count(self) -> int:
        """The number of these sessions. Their seals are not checked: it is asked with each reply."""
        return int(self._db.rows("SELECT COALESCE(SUM(bare), 0) FROM sessions")[0][0])

    def count(self, session: bytes) -> None:
        """Write durably that a hidden sum without noise is ordered in this session."""
        with self._db.transaction():
            found = self._session("WHERE session = ?", (session,))
            if found is None:
                raise Damaged("the session is missing")
            self._db.put("INSERT OR REPLACE INTO sessions", *found[:-1], 1)

    def _sessions(self) -> list[tuple[Any, ...]]:
        return self._db.sealed("SELECT * FROM sessions ORDER BY number")

    def newest(self) -> tuple[int, bytes]:
        """The number of sessions that were entered, and the last of them; 0 and no bytes if there is none."""
        found = self._session("ORDER BY number DESC LIMIT 1")
        return (0, b"") if found is None else (int(found[0]), bytes(found[1]))

    def number(self, session: bytes) -> int:
        """The number of a session in the order of entering, from 1; 0 if it was never entered."""
        found = self._session("WHERE session = ?", (session,))
        return 0 if found is None else int(found[0])

    def _session(self, which: str, values: Sequence[bytes] = ()) -> Sequence[Any] | None:
        rows = self._db.sealed(f"SELECT * FROM sessions {which}", values)
        return rows[0] if rows else None

    def enter(self, session: bytes, study: str) -> None:
        """Write a new session durably, and delete the client state of the session before."""
        with self._db.transaction():
            number = self._next("sessions")
            self._db.put("INSERT INTO sessions", number, session, study[:_LONGEST], self._clock(), 0)
            self._db.run("DELETE FROM client_state")

    # Refusals -----------------------------------------------------------------------------------------

    def refuse(self, why: str) -> None:
        """Write the reason of a refusal. The newest hundred are kept. A repeated reason raises its count."""
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

    def miss(self, what: str, why: str) -> None:
        """Write why a value of this party is missing, or was cut. what: `NO_VALUE`, `BLANK` or `CUT`."""
        self.refuse(f"{what}: {why}")

    def refusals(self) -> list[Entry]:
        """The kept refusals and reasons of missing and cut values, the newest first."""
        rows = self._db.rows("SELECT why, at, times FROM refusals ORDER BY number DESC")
        return [Entry(*row) for row in rows]

    # Records ------------------------------------------------------------------------------------------

    def records(self) -> list[tuple[str, Entry]]:
        """The fingerprints of the party's records over time, each with the owner's reason for the change."""
        rows = self._db.sealed("SELECT * FROM records ORDER BY number")
        return [(digest, Entry(why, at)) for _, digest, why, at in rows]

    def note_records(self, digest: str, why: str) -> None:
        """Write the fingerprint of the records that the party has from now on."""
        with self._db.transaction():
            self._db.put("INSERT INTO records", self._next("records"), digest, why[:_LONGEST], self._clock())

    # Kept state ---------------------------------------------------------------------------------------

    def keep(self, session: bytes, client: int, own: ClientState) -> None:
        """Write the client state of a session, in place of the earlier one."""
        with self._db.transaction():
            self._db.put("INSERT OR REPLACE INTO client_state", 1, session, client, packed(own))

    def kept(self, session: bytes) -> Mapping[int, ClientState]:
        """The client state of this session by the client's number, or nothing."""
        rows = self._db.sealed("SELECT * FROM client_state WHERE session = ?", (session,))
        with self._db.explaining(), decoding():
            return {client: unpacked(arrays) for _, _, client, arrays in rows}

    # Rows ---------------------------------------------------------------------------------------------

    def _next(self, table: str) -> int:
        found: Sequence[Any] = self._db.rows(f"SELECT COALESCE(MAX(number), 0) + 1 FROM {table}")[0]
        return int(found[0])
