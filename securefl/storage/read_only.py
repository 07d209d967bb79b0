"""Reading a SQLite file without writing beside it: on read-only media, and while another process writes.

The newest commits may be in the write-ahead log only. A reader that ignores the log sees an earlier
ledger, with a smaller epsilon. SQLite ignores the log of a file that is declared immutable. Otherwise it
reads the log by an index (`-shm`), which it may have to make. Hence three ways:

    no log, or an empty one    everything is in the file, which is read as immutable
    a log and its index        SQLite's own way, which waits for a process that writes
    a log without an index     no process has the file open: file and log are read as a private copy
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import TypeVar

from securefl.core.errors import DataError
from securefl.storage.database import readable
from securefl.storage.inputs import opened

T = TypeVar("T")
_LOGS = ("-wal", "-journal")
"""Beside a file: its write-ahead log, and the log of a change that was not finished."""
_TRIES = 5
_PAUSE = 0.02
"""In seconds: a process that makes a file, or closes it, changes it several times at once."""


def read(path: Path, ask: Callable[[sqlite3.Connection], T]) -> T:
    """Return what `ask` finds in the database at `path`. No file beside it is made or changed.

    Raises DataError if the file changes during every try or is no regular file, sqlite3.Error if it is
    damaged, and what `ask` raises of a file that does not change.
    """
    with opened(path):  # SQLite would wait for a pipe's writer, and read a device
        pass
    for _ in range(_TRIES):
        before = _state(path)
        try:
            with _open(path) as db:
                found = ask(db)
        except Exception:
            # What looks damaged may only have been read in the middle of a write. A log that was there may be
            # gone.
            if _state(path) == before:
                raise
            sleep(_PAUSE)
            continue
        # A file without an index has no locks: a process that began to write meanwhile shows here alone.
        if _indexed(path) or _state(path) == before:
            return found
    raise DataError(
        f"Expected {path} not to change while it is read, got a change at each of {_TRIES} tries. "
        "Try again when its run has ended."
    )


def copy(path: Path, folder: Path) -> Path:
    """Copy a database with its logs into `folder`; return the copy. No process may write meanwhile."""
    shutil.copyfile(path, folder / path.name)
    for end in _LOGS:
        with suppress(FileNotFoundError):
            shutil.copyfile(path.with_name(path.name + end), folder / (path.name + end))
    return folder / path.name


@contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    if not any(_filled(path, end) for end in _LOGS):
        with closing(readable(path, "mode=ro&immutable=1")) as db:
            yield db
    elif _indexed(path):
        with closing(readable(path, "mode=ro")) as db:
            yield db
    else:
        with tempfile.TemporaryDirectory() as private, closing(readable(copy(path, Path(private)), "")) as db:
            yield db


def _indexed(path: Path) -> bool:
    return _filled(path, "-wal") and path.with_name(path.name + "-shm").exists()


def _filled(path: Path, end: str) -> bool:
    """By one look: between two, the last process that has the file open may remove its log."""
    found = _stamp(path.with_name(path.name + end))
    return found is not None and found[1] > 0


def _state(path: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """Inode, size and time of the file and its logs: equal states mean that nothing changed in between."""
    return tuple(_stamp(path.with_name(path.name + end)) for end in ("", *_LOGS))


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
