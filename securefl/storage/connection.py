"""Opening a SQLite file, for everything that reads or writes one.

A writer decides itself where a transaction begins, and waits for its turn. A reader says how much of SQLite's
own way it wants, and never makes a file.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final

_PATIENCE: Final = 60
"""Seconds that a statement waits for another process."""


def writable(path: Path | str) -> sqlite3.Connection:
    """The file at `path`, made where there is none; every commit is on disk before it returns."""
    db = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
    try:
        _write_ahead(db)
        # NORMAL, the usual setting with a write-ahead log, may lose the last commits with the power
        db.execute("PRAGMA synchronous = FULL")
    except BaseException:
        db.close()
        raise
    return db


def readable(path: Path, how: str) -> sqlite3.Connection:
    """The file at `path`, opened as the parameters of an SQLite URI say."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=_PATIENCE)


def _write_ahead(db: sqlite3.Connection, *, tries: int = 600) -> None:
    """Switch to the write-ahead log."""
    # Unlike other statements the switch does not wait for its turn, whatever the timeout says.
    for left in reversed(range(tries)):
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not left or error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
        time.sleep(0.1)
