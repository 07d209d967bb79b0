"""Several kinds in one file: their changes in one durable commit, whatever ends it."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from traceback import format_exception

import pytest

from securefl.core.errors import DataError, LocalProtocolError
from securefl.storage.database import Database, Kind, joined

TABLE = "CREATE TABLE {} (item INTEGER PRIMARY KEY, content BLOB) STRICT"
ONE, OTHER = (
    Kind(name=name, version=version, tables=(TABLE.format(name),), lost="Write it anew.")
    for name, version in (("one", 3), ("other", 5))
)
BOTH = joined(ONE, OTHER, lost="Write both anew.")


@contextmanager
def opened(path: Path) -> Iterator[tuple[Database, Database, Database]]:
    with closing(Database(path, BOTH)) as file:
        yield file, file.part(ONE), file.part(OTHER)


def put(
    part: Database, item: int, content: bytes = b"", afterwards: Callable[[], None] | None = None
) -> None:
    with part.transaction(afterwards):
        part.run(f"INSERT INTO {part.kind.name} VALUES (?, ?)", (item, content))


def items(path: Path) -> tuple[list[int], list[int]]:
    with closing(sqlite3.connect(path)) as db:
        one, other = ([row[0] for row in db.execute(f"SELECT item FROM {name}")] for name in ("one", "other"))
        return one, other


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "both.sqlite"


def nothing() -> None:
    pass


# Its kinds ----------------------------------------------------------------------------------------


def test_it_is_opened_as_a_whole_or_as_one_of_its_kinds(path: Path) -> None:
    with opened(path) as (_, one, _):
        put(one, 1)
    with closing(Database(path, ONE)) as db:
        assert db.rows("SELECT item FROM one") == [(1,)]
    with closing(Database(path, OTHER)) as db:
        assert db.rows("SELECT item FROM other") == []
    stranger = Kind(name="third", version=1, tables=(TABLE.format("third"),), lost="Write it anew.")
    with pytest.raises(DataError, match="it holds no third"):
        Database(path, stranger)


def test_a_file_of_one_kind_is_none_of_several(path: Path) -> None:
    Database(path, ONE).close()
    with pytest.raises(DataError, match="got version 3"):
        Database(path, BOTH)


def test_a_file_of_another_version_says_the_way_on_of_its_first_kind(path: Path) -> None:
    """A ledger's is to count what it spent: begun anew, its records would have a fresh budget."""
    spent = replace(ONE, anew="count what it spent")
    with closing(Database(path, ONE)):
        pass
    with pytest.raises(DataError, match="count what it spent"):
        Database(path, joined(spent, OTHER, lost="Write both anew."))


DAMAGE = {
    "another version of a part": ("UPDATE kinds SET version = 6 WHERE name = 'other'", "of version 5"),
    "a part that is not named": ("DELETE FROM kinds WHERE name = 'other'", "it holds no other"),
    "a table less": ("DROP TABLE other", "its tables are not those"),
    "a table more": ("CREATE TABLE more (x)", "its tables are not those"),
    "no kinds": ("DROP TABLE kinds", "is damaged"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found(what: str, path: Path) -> None:
    with opened(path):
        pass
    statement, said = DAMAGE[what]
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)
    with pytest.raises(DataError, match=said), opened(path):
        pass


# One commit ---------------------------------------------------------------------------------------


def test_nobody_else_sees_a_step_before_the_end(path: Path) -> None:
    with opened(path) as (file, one, other):
        with file.together(nothing):
            put(one, 1)
            put(other, 2)
            assert one.rows("SELECT item FROM one") == [(1,)]
            assert items(path) == ([], [])
        assert items(path) == ([1], [2])
        put(one, 3)  # and again each transaction is a commit
        assert items(path) == ([1, 3], [2])


def test_a_step_that_fails_is_undone_alone(path: Path) -> None:
    with opened(path) as (file, one, other):
        with file.together(nothing):
            put(one, 1)
            with suppress(ZeroDivisionError), other.transaction():
                other.run("INSERT INTO other VALUES (2, NULL)")
                raise ZeroDivisionError
            with pytest.raises(DataError):
                put(one, 1)
            put(other, 3)
        assert items(path) == ([1], [3])


def test_what_follows_a_commit_is_called_once_and_after_it(path: Path) -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def look() -> None:
        seen.append(items(path))

    with opened(path) as (file, one, other):
        put(one, 1, afterwards=look)
        with file.together(nothing):
            put(one, 2, afterwards=look)
            put(other, 3, afterwards=look)
            assert seen == [([1], [])]
        assert seen == [([1], []), ([1, 2], [3])]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_is_raised_after_the_steps_before_it_are_on_disk(
    error: type[BaseException], path: Path
) -> None:
    called: list[int] = []
    with opened(path) as (file, one, _):

        def within() -> None:
            with file.together(lambda: called.append(1)):
                put(one, 1)
                raise error

        with pytest.raises(error):
            within()
        assert items(path) == ([1], [])
        assert called == [1]


# kill -9 ------------------------------------------------------------------------------------------

POINTS = ("begun", "one step", "within a step", "all steps")


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_process_leaves_none_of_the_steps(point: str, path: Path) -> None:
    with opened(path) as (_, one, _):
        put(one, 1)

    def reach(here: str) -> None:
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    if (child := os.fork()) == 0:
        with opened(path) as (file, one, other), file.together(nothing):
            reach("begun")
            put(one, 2)
            reach("one step")
            with other.transaction():
                other.run("INSERT INTO other VALUES (3, NULL)")
                reach("within a step")
            reach("all steps")
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    with opened(path):
        assert items(path) == ([1], [])


# A full disk --------------------------------------------------------------------------------------


def limit(db: Database, pages: int) -> None:
    """Let the file grow to so many pages beyond its present ones."""
    ((now,),) = db.rows("PRAGMA page_count")
    db.rows(f"PRAGMA max_page_count = {now + pages}")


def test_a_disk_that_is_full_within_a_step(path: Path) -> None:
    """SQLite undoes all steps. No later step counts, and whatever error follows, this one comes out."""
    called: list[int] = []
    with opened(path) as (file, one, other):
        limit(file, 2)

        def within() -> None:
            with file.together(lambda: called.append(1)):
                put(one, 1)
                with pytest.raises(DataError, match="disk is full"):
                    put(one, 2, bytes(2**16))
                with suppress(DataError):  # a caller that goes on all the same
                    put(other, 3)
                raise ValueError("the total is 3.14")

        with pytest.raises(DataError, match="disk is full") as caught:
            within()
        assert "3.14" not in "".join(format_exception(caught.value))
        assert "nothing released" in str(caught.value)
        assert called == []
    with opened(path) as (_, one, _):
        assert items(path) == ([], [])
        put(one, 4, bytes(2**16))  # there is room again


class Refusing:
    """A connection whose commits find no room."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        if statement == "COMMIT":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
            raise error
        return self._db.execute(statement, *values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


@pytest.mark.parametrize("error", [None, ValueError("the total is 3.14")], ids=["", "after an error"])
def test_a_disk_that_is_full_at_the_commit(error: Exception | None, path: Path) -> None:
    called: list[int] = []
    with opened(path) as (file, one, _):
        file._db = Refusing(file._db)  # type: ignore[assignment]

        def within() -> None:
            with file.together(lambda: called.append(1)):
                put(one, 1)
                if error is not None:
                    raise error

        with pytest.raises(DataError, match="disk is full") as caught:
            within()
        assert "3.14" not in "".join(format_exception(caught.value))
        with pytest.raises(LocalProtocolError):  # its objects count what was not written
            one.rows("SELECT item FROM one")
    assert called == []
    assert items(path) == ([], [])
