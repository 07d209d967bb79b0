"""A ledger's file: its terms, and opening it only where it is whole and of this version."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from securefl.errors import ConfigError, DataError
from securefl.release import PARTIES, Adjacency, Unit

SCHEMA = """
CREATE TABLE IF NOT EXISTS terms (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS releases (
    holder TEXT, session BLOB, round INTEGER, stage INTEGER, attempt INTEGER, name TEXT,
    charge TEXT NOT NULL, state TEXT NOT NULL CHECK (state IN ('reserved', 'committed')),
    at TEXT NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (holder, session, round, stage, attempt, name)
) STRICT;
CREATE TABLE IF NOT EXISTS introductions (
    holder TEXT, name TEXT, session BLOB, round INTEGER, stage INTEGER,
    PRIMARY KEY (holder, name, session, round, stage)
) STRICT;
"""
VERSION = 5


IDENTITY = "identity"


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a ledger's epsilon means; fixed when the ledger is made.

    Attributes:
        unit, adjacency: which data sets are neighbours.
        delta: at which epsilon is stated.
        budget: the most epsilon against each party in `against`; None is no limit.
        against: the parties the budget must hold against; the others are trusted by name.
        schedule: by name, the most accounted releases of one holder, as many as the noise was calibrated
            for; None is no limit.
        adaptive: whether a release's parameters may depend on earlier releases; the budget is then held by
            a privacy filter instead of by composition.
    """

    unit: Unit
    adjacency: Adjacency
    delta: float
    budget: float | None = None
    against: tuple[str, ...] = PARTIES
    schedule: Mapping[str, int] | None = None
    adaptive: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ConfigError(f"Expected 0 < delta < 1, got {self.delta}.")
        if self.budget is not None and not self.budget >= 0:
            raise ConfigError(f"Expected a budget of epsilon >= 0, got {self.budget}.")
        if self.schedule is not None:
            if min(self.schedule.values(), default=1) < 1:
                raise ConfigError(f"Expected a schedule of at least one release each, got {self.schedule}.")
            object.__setattr__(self, "schedule", dict(sorted(self.schedule.items())))  # one order on file
        if unknown := set(self.against) - set(PARTIES):
            raise ConfigError(f"Expected parties among {PARTIES}, got {sorted(unknown)}.")


@contextmanager
def refusing_damage(path: Path | str) -> Iterator[None]:
    """Say in one sentence that a file is not the SQLite database it should be."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise DataError(
            f"{path} cannot be opened ({error}): restore it, or begin a new run in another folder. A ledger "
            "that is lost takes with it what is known of earlier releases."
        ) from None


def _write_ahead(db: sqlite3.Connection, *, tries: int = 600) -> None:
    """Switch to the write-ahead log. Unlike other statements the switch does not wait for its turn."""
    for left in reversed(range(tries)):
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not left or error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
        time.sleep(0.1)


def durable(path: Path | str, schema: str) -> sqlite3.Connection:
    """A database with these tables at `path`, every commit on disk. DataError for a file that is none."""
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    try:
        with refusing_damage(path):
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.executescript(schema)
    except BaseException:
        db.close()
        raise
    return db


def connect(path: Path | str) -> sqlite3.Connection:
    """The database at `path`, made where there is none. DataError for a damaged or another version's one."""
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    try:
        with refusing_damage(path):
            _write_ahead(db)
            db.execute("PRAGMA synchronous = FULL")
            _check(db, path)
            db.executescript(SCHEMA)
    except BaseException:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection, path: Path | str) -> None:
    """Refuse a damaged ledger, and one of another version: what it says of earlier releases is lost."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(found)
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'releases'").fetchone()
    if tables and version != VERSION:
        raise DataError(
            f"{path} is a ledger of version {version}, this release writes version {VERSION}: go on "
            "with the release that made it. It is not read, and never begun anew."
        )
    if version != VERSION:  # a ledger that is only read stays as it is, octet for octet
        db.execute(f"PRAGMA user_version = {VERSION}")
