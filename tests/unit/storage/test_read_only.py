"""Reading databases where nothing can be written: nothing that was committed is missed, nothing is made."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.bad_files import BAD, put
from support.every import every
from support.read_only import bound_by_modes, content, forbid_writing

from securefl.core.errors import DataError
from securefl.storage import read_only
from securefl.storage.database import Damaged
from securefl.storage.read_only import read

CODE = """
import sys
from pathlib import Path
from securefl.storage.read_only import read
print(read(Path(sys.argv[1]), lambda db: db.execute("SELECT SUM(spent) FROM releases").fetchone()[0]))
"""


def spent(db: sqlite3.Connection) -> int:
    (found,) = db.execute("SELECT SUM(spent) FROM releases").fetchone()
    return int(found)


def write(path: Path, *amounts: int) -> sqlite3.Connection:
    """A database with a row for each amount; the last ones stand in its log while it is open."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE IF NOT EXISTS releases (spent INTEGER)")
    db.executemany("INSERT INTO releases VALUES (?)", [(amount,) for amount in amounts])
    return db


def cut_off(folder: Path, *, index: bool) -> Path:
    """A database as a process leaves it that is killed: 1 is in the file, 2 in its log."""
    folder.mkdir()
    path, other = folder / "a b#?.sqlite", folder.with_name("alive.sqlite")
    write(other, 1).close()
    db = write(other, 2)
    for end in ("", "-wal", *(["-shm"] if index else [])):
        shutil.copyfile(other.with_name(other.name + end), path.with_name(path.name + end))
    db.close()
    return path


def read_elsewhere(path: Path) -> int:
    """The sum by a process that may not write."""
    command = [*bound_by_modes(), sys.executable, "-c", CODE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@every("index", [True, False])
def test_what_is_in_the_log_alone_is_read_on_read_only_media(index: bool, tmp_path: Path) -> None:
    """As immutable, it would be 1: less than was spent."""
    path = cut_off(tmp_path / "run", index=index)
    forbid_writing(path.parent)
    before = content(path.parent)
    assert read_elsewhere(path) == 3
    assert content(path.parent) == before


def test_a_closed_file_is_read_on_read_only_media(tmp_path: Path) -> None:
    path = tmp_path / "run" / "ledger.sqlite"
    path.parent.mkdir()
    write(path, 1, 2).close()
    forbid_writing(path.parent)
    assert read_elsewhere(path) == 3
    assert list(content(path.parent)) == ["ledger.sqlite"]


def test_a_run_that_writes_is_read_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "run" / "ledger.sqlite"
    path.parent.mkdir()
    db = write(path, 1, 2)
    forbid_writing(path.parent)
    try:
        assert read_elsewhere(path) == 3
        db.execute("INSERT INTO releases VALUES (4)")
        assert read_elsewhere(path) == 7
    finally:
        db.close()


@every("logs", ["none", "index", "no-index"])
def test_reading_makes_no_file_where_it_could(logs: str, tmp_path: Path) -> None:
    if logs == "none":
        path = tmp_path / "ledger.sqlite"
        write(path, 1, 2).close()
    else:
        path = cut_off(tmp_path / "run", index=logs == "index")
    before = content(path.parent)
    assert read(path, spent) == 3
    after = content(path.parent)
    for files in (before, after):
        files.pop(path.name + "-shm", None)  # SQLite notes in it who reads
    assert after == before


def test_a_file_that_changes_meanwhile_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    write(path, 1).close()
    readings: list[int] = []

    def disturbed(db: sqlite3.Connection) -> int:
        if not readings:
            write(path, 2).close()
        readings.append(spent(db))
        return readings[-1]

    assert read(path, disturbed) == 3
    assert len(readings) == 2


@every("error", [DataError("half"), Damaged("half"), FileNotFoundError("its log")])
def test_damage_in_a_file_that_changes_meanwhile_is_looked_at_again(error: Exception, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    write(path, 1).close()
    raised = [error]

    def disturbed(db: sqlite3.Connection) -> int:
        if raised:
            write(path, 2).close()
            raise raised.pop()
        return spent(db)

    assert read(path, disturbed) == 3


def test_a_log_that_goes_right_after_it_was_seen_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last process that has the file open removes its log, and may do so between any two looks."""
    path, exists = tmp_path / "a.sqlite", Path.exists
    write(path, 1, 2).close()
    monkeypatch.setattr(Path, "exists", lambda own: exists(own) or own.name.endswith("-wal"))
    assert read(path, spent) == 3


@every("turn", range(6))
def test_a_log_that_comes_and_goes_at_every_look_is_no_missing_folder(
    turn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.sqlite"
    write(path, 1, 2).close()
    log, stat, looks = path.with_name("a.sqlite-wal"), Path.stat, iter(range(turn, 10**6))

    def looked(own: Path, **how: Any) -> Any:
        if own == log:
            log.write_bytes(b"no log") if next(looks) % 3 else log.unlink(missing_ok=True)
        return stat(own, **how)

    monkeypatch.setattr(Path, "stat", looked)
    monkeypatch.setattr(read_only, "sleep", lambda seconds: None)
    with suppress(DataError):  # it may change at every try
        assert read(path, spent) == 3


def test_a_file_that_never_stands_still_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    write(path, 1).close()

    def disturbed(db: sqlite3.Connection) -> int:
        write(path, 1).close()
        return spent(db)

    with pytest.raises(DataError, match="each of 5 tries"):
        read(path, disturbed)


def test_a_damaged_file_is_told_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        read(path, spent)


@every("what", sorted(BAD.keys() - {"a failing disk"}))
def test_what_is_no_file_is_refused_at_once(what: str, tmp_path: Path) -> None:
    """SQLite would wait for the writer of a pipe, and take /dev/zero for an empty ledger."""
    said = put(tmp_path / "ledger.sqlite", what)
    with pytest.raises(DataError) as refused:
        read(tmp_path / "ledger.sqlite", lambda db: db.execute("PRAGMA user_version").fetchone())
    assert str(refused.value).startswith(f"{tmp_path / 'ledger.sqlite'}: Expected ")
    assert said in str(refused.value)
