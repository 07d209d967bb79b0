"""Files of SQLite: whole or refused, private, and a sentence for each kind of trouble with a disk."""

from __future__ import annotations

import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from securefl.core.errors import DataError
from securefl.storage.database import Damaged, Database, Kind, check, explaining, seal, writable

KIND = Kind(
    name="list",
    version=3,
    tables=("CREATE TABLE items (item INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT",),
    lost="Write it anew.",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "list.sqlite"


@contextmanager
def opened(path: Path | str) -> Iterator[Database]:
    db = Database(path, KIND)
    try:
        yield db
    finally:
        db.close()


def test_it_is_made_whole_and_private(path: Path) -> None:
    with opened(path) as db:
        db.run("INSERT INTO items VALUES (1, x'01')")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {f"list.sqlite{end}": 0o600 for end in ("", "-wal", "-shm")}
    with opened(path) as db:
        assert db.row("SELECT item, content FROM items") == (1, b"\x01")
        assert db.row("SELECT item FROM items WHERE item = 2") is None


def test_a_transaction_is_all_or_nothing(path: Path) -> None:
    with opened(path) as db:
        with suppress(ZeroDivisionError), db.transaction():
            db.run("INSERT INTO items VALUES (1, x'')")
            raise ZeroDivisionError
        assert db.rows("SELECT * FROM items") == []
        with pytest.raises(sqlite3.IntegrityError):
            db.run("INSERT INTO items VALUES (1, NULL)")
        with pytest.raises(DataError, match="NOTNULL"), db.transaction():
            db.run("INSERT INTO items VALUES (1, NULL)")


def test_seals_tell_kinds_and_lengths_apart() -> None:
    seals = [seal(1, "2"), seal("1", "2"), seal(b"1", "2"), seal("12"), seal("1", "2", None), seal()]
    assert len(set(seals)) == len(seals)
    check(seal(1, "2"), 1, "2")
    with pytest.raises(Damaged):
        check(seal(1, "2"), 1, "3")


# Another file ---------------------------------------------------------------------------------------


def test_another_version_is_refused_and_left_alone(path: Path) -> None:
    with opened(path):
        pass
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 2")
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"version 3, .*version 2"):
        Database(path, KIND)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE items RENAME TO things",
        "ALTER TABLE items ADD COLUMN more INTEGER",
        "CREATE TABLE more (x)",
        "CREATE TRIGGER quiet BEFORE INSERT ON items BEGIN SELECT RAISE(IGNORE); END",
        "CREATE VIEW seen AS SELECT * FROM items",
    ],
)
def test_other_tables_are_refused(path: Path, statement: str) -> None:
    """A trigger would drop rows without a word."""
    with opened(path):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(statement)
    with pytest.raises(DataError, match="not those of a list"):
        Database(path, KIND)


@pytest.mark.parametrize("content", [b"junk" * 999, b"SQLite format 3\x00" + b"\xff" * 4096])
def test_what_is_no_database_is_damaged(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged .*Write it anew"):
        Database(path, KIND)


def test_a_link_and_a_missing_folder(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere"))
    with pytest.raises(DataError, match="is a link"):
        Database(path, KIND)
    assert not path.with_name("elsewhere").exists()
    with pytest.raises(DataError, match="Expected a folder"):
        Database(path / "deep" / "list.sqlite", KIND)


# The disk -------------------------------------------------------------------------------------------


def test_a_full_disk(path: Path) -> None:
    with opened(path) as db:
        db.run("INSERT INTO items VALUES (1, x'')")
        ((pages,),) = db.rows("PRAGMA page_count")
        db.rows(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DataError, match=r"full.* Make room"), db.transaction():
            db.run("INSERT INTO items VALUES (2, zeroblob(99999))")
        db.rows("PRAGMA max_page_count = 100000")
        with db.transaction():
            db.run("INSERT INTO items VALUES (2, zeroblob(99999))")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (sqlite3.SQLITE_FULL, "disk is full"),
        (sqlite3.SQLITE_READONLY, "cannot be written"),
        (sqlite3.SQLITE_CANTOPEN, "cannot be written"),
        (sqlite3.SQLITE_READONLY | 8 << 8, "cannot be written"),
        (sqlite3.SQLITE_BUSY, "held by another process"),
        (sqlite3.SQLITE_CORRUPT, "is damaged"),
        (sqlite3.SQLITE_NOTADB, "is damaged"),
        (sqlite3.SQLITE_IOERR, "is damaged"),
        (sqlite3.SQLITE_IOERR_READ, "is damaged"),
        (sqlite3.SQLITE_IOERR_WRITE, "disk is full, or a quota or limit is reached"),
        (sqlite3.SQLITE_IOERR_FSYNC, "disk is full"),
    ],
)
def test_each_kind_of_trouble_has_its_sentence(path: Path, code: int, said: str) -> None:
    error = sqlite3.OperationalError("as SQLite says, with a cell")
    error.sqlite_errorcode, error.sqlite_errorname = code, "SQLITE_TROUBLE"
    with pytest.raises(DataError, match=said) as caught, explaining(path, KIND):
        raise error
    assert str(path) in str(caught.value)
    assert "(SQLITE_TROUBLE)" in str(caught.value)
    assert "cell" not in str(caught.value)


def test_input_and_output_fail_on_a_disk_without_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(9, 9, 0))  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="the disk is full"), explaining(path, KIND):
        raise error


def test_every_commit_is_on_disk_before_it_returns(path: Path) -> None:
    """In SQLite's words 2 is FULL, which no power cut undoes, and 2 is memory: no secret is in /tmp."""
    with closing(writable(path)) as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert db.execute("PRAGMA temp_store").fetchone() == (2,)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_may_read_becomes_its_owners_alone(path: Path, mode: int) -> None:
    path.touch()
    path.chmod(mode)
    with opened(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_damage_is_told_though_the_folder_is_gone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="damaged"), explaining(tmp_path / "gone" / "list.sqlite", KIND):
        raise Damaged("a seal is wrong")
