"""Durable SQLite files: atomic creation, integrity checks, and errors that explain the damage.

Every commit is on disk before the call returns. A file opens only if it has the tables of its kind and
version and passes SQLite's own check. Rows carry a `seal`, a digest of their values, because SQLite does not
detect a flipped bit in a value. A seal shows damage, not malice: an attacker with write access can compute a
new seal.

No message quotes the file. SQLite's own texts do: a cell that is no UTF-8 stands in its error whole, and so
does the name of a damaged table.

`writable` and `readable` open every SQLite file of the package. A writer begins its transactions itself, and
waits for the lock. A reader never creates a file.

One file can hold the tables of several kinds (`joined`). Each of them is then a `Database` on the same
connection (`Database.part`), and `Database.together` makes all their changes in one durable commit.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from securefl.core.errors import DataError, LocalProtocolError, of_another_version
from securefl.core.formats import VERSION

_PATIENCE: Final = 60
"""Seconds that a statement waits for another process."""


def writable(path: Path | str) -> sqlite3.Connection:
    """Open the file at `path`, or create it. Every commit is on disk before it returns."""
    db = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
    try:
        _write_ahead(db)
        # NORMAL, the usual setting with a write-ahead log, may lose the last commits if the power fails.
        db.execute("PRAGMA synchronous = FULL")
        # What a step may have to undo would otherwise go to a file elsewhere on the disk, secrets included.
        db.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        db.close()
        raise
    return db


def readable(path: Path, how: str) -> sqlite3.Connection:
    """Open the file at `path` with these parameters of an SQLite URI."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=_PATIENCE)


def _write_ahead(db: sqlite3.Connection) -> None:
    """Switch to the write-ahead log."""
    # Unlike other statements, the switch does not wait for a lock, whatever the timeout is.
    for left in reversed(range(600)):
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not left or error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
        time.sleep(0.1)


IN_MEMORY = ":memory:"
Value = bytes | str | int | None
_LONG: Final = 2**16
"""In bytes. A longer part is hashed where it is. Shorter ones are joined: a call for each takes longer."""
_WORD: Final = 64
"""The longest text, in characters, whose bytes in a seal are kept for the next seal with it."""
_ROOM = 2**16
"""In bytes. If a disk has less free space, an input/output error means a full disk."""
_FULL = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
}
"""The codes that SQLite gives for a full disk, a quota, and a limit on the size of files."""
_READ_ONLY = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of file.

    Attributes:
        name: its name in messages, such as "ledger".
        version: the version of its tables.
        tables: the statements that make them.
        lost: a sentence or two on what is lost with such a file, and what to do.
        anew: what to do with a file of another version.
        parts: the kinds that a file of several kinds holds; empty for any other kind.
    """

    name: str
    version: int = VERSION
    tables: tuple[str, ...]
    lost: str
    anew: str = "begin anew in another folder"
    parts: tuple[Kind, ...] = ()


_JOINED: Final = 2**16
"""The version in SQLite's header of a file of several kinds. Their own versions are in its table `kinds`."""
_KINDS: Final = "CREATE TABLE kinds (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT"


def joined(*kinds: Kind, lost: str) -> Kind:
    """The kind of a file that holds the tables of these kinds. It has name and way on of the first one."""
    tables = (_KINDS, *(table for kind in kinds for table in kind.tables))
    first = kinds[0]
    return Kind(name=first.name, version=_JOINED, tables=tables, lost=lost, anew=first.anew, parts=kinds)


class Damaged(Exception):
    """The error for content of a file that is not as it was written. `explaining` makes a DataError of it.

    Its text is a constant of ours, with numbers at most: it never quotes the file.
    """


def seal(*parts: Value) -> bytes:
    """SHA-256 over typed parts with their lengths: no two lists of parts have the same bytes."""
    pieces: list[bytes] = []
    digest = hashlib.sha256()
    for part in parts:
        kind = type(part)
        if kind is bytes:
            pieces += (_bytes_of(len(part)), part)  # type: ignore[arg-type]  # bytes
        elif kind is int or (kind is str and len(part) <= _WORD):  # type: ignore[arg-type]  # a str
            pieces.append(_word(part))
            continue
        else:
            pieces.append(_typed(part))
        if len(pieces[-1]) > _LONG:
            for piece in pieces:
                digest.update(piece)
            pieces = []
    digest.update(b"".join(pieces))
    return digest.digest()


@lru_cache(maxsize=1024)
def _bytes_of(length: int) -> bytes:
    return b"bytes%d:" % length


def _typed(part: Value) -> bytes:
    """A part with its type and length in front."""
    raw = part if isinstance(part, bytes) else repr(part).encode()
    return b"%b%d:%b" % (type(part).__name__.encode(), len(raw), raw)


# Cached: the rows of a round hold the same names and numbers again and again. Only whole numbers and short
# texts: other values can be equal and have other bytes, as True and 1.
_word = lru_cache(maxsize=4096)(_typed)


def check(sealed: object, *parts: Value) -> None:
    """Raises Damaged unless this is the seal of these parts."""
    if sealed != seal(*parts):
        raise Damaged("a row is not as it was written")


@contextmanager
def explaining(path: Path | str, kind: Kind) -> Iterator[None]:
    """Turn the errors of SQLite and of damaged values into a DataError with the file and the remedy.

    It tells apart a full disk, a file that cannot be written, one that is held, and one that is damaged.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError, OSError, Damaged) as error:
        raise _explained(path, kind, error) from None


_SENTENCES: Final = {
    "full": "{path}: the disk is full, or a quota or limit is reached ({told}), so nothing was written and "
    "nothing released. Make room, and run the same command again: it goes on where it stopped.",
    "held": "{path} is held by another process ({told}), so nothing was released. Wait for it, or stop it, "
    "and run the same command again.",
    "closed": "{path} cannot be written ({told}), so nothing was released: the file or its folder is "
    "read-only, or belongs to another user. Permit writing, or choose another folder.",
    "link": "Expected a regular file for the {name}; {path} is a link. Remove the link.",
    "no folder": "Expected a folder {folder} for the {name}, got none. Create the folder.",
    "damaged": "{path} is damaged and cannot be used as a {name} ({told}). {lost}",
}
"""What went wrong with a file, and what to do, by cause."""
_CAUSES: Final = {
    errno.ELOOP: "link",
    errno.ENOENT: "no folder",
    errno.ENOTDIR: "no folder",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    None: "damaged",
}


def _explained(path: Path | str, kind: Kind, error: Exception) -> Exception:
    if isinstance(error, sqlite3.IntegrityError):  # of the caller, not of the file
        return error
    if isinstance(error, sqlite3.ProgrammingError):
        return LocalProtocolError(
            f"Expected {path} to be used by the thread that opened it, until it is closed, got another call. "
            "Open it again, once in each thread: all of them share its content."
        )
    return _told(path, kind, error, _cause(path, error))


def _told(path: Path | str, kind: Kind, error: Exception, cause: str) -> DataError:
    """The sentence for this cause. It never quotes the file."""
    match error:
        case sqlite3.Error() | UnicodeDecodeError():  # a damaged schema, which SQLite quotes
            # The module's own errors, such as for a text that is no UTF-8, have no code.
            told = getattr(error, "sqlite_errorname", None) or "a value cannot be read"
        case OSError():
            told = error.strerror or type(error).__name__
        case _:
            told = str(error)
    words = {"path": path, "folder": Path(path).parent, "name": kind.name, "lost": kind.lost, "told": told}
    return DataError(_SENTENCES[cause].format(**words))


def _cause(path: Path | str, error: Exception) -> str:
    if isinstance(error, OSError):
        return _CAUSES.get(error.errno, "closed")
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    code = extended & 0xFF
    if extended in _FULL or (code == sqlite3.SQLITE_IOERR and _no_room(path)):
        return "full"
    return "closed" if code in _READ_ONLY else "held" if code in _HELD else "damaged"


def _no_room(path: Path | str) -> bool:
    return path != IN_MEMORY and shutil.disk_usage(Path(path).parent).free < _ROOM


@contextmanager
def decoding() -> Iterator[None]:
    """Turn every failure to decode stored content into Damaged."""
    # A person can edit a row and compute its seal, so a decoder may raise any error, and quote the row in it.
    try:
        yield
    except Damaged:
        raise
    except Exception as error:
        raise Damaged(f"its content cannot be decoded: {type(error).__name__}") from None


@dataclass(eq=False)
class _Connection:
    """The connection to a file, which all its parts share.

    together: whether a transaction is open that several `transaction`s are steps of. lost: why SQLite undid
    it, as for a full disk. afterwards: the functions to call once it is on disk.
    """

    together: bool = False
    lost: Exception | None = None
    afterwards: dict[Callable[[], None], None] = field(default_factory=dict)


class Database:
    """One open file of a kind. Every method raises DataError if the file is damaged or unusable.

    A missing file is created, readable by its owner alone. Safe under two processes and kill -9.
    """

    def __init__(self, path: Path | str, kind: Kind) -> None:
        self.path, self.kind = path, kind
        self._owner = True
        if path != IN_MEMORY:
            _only_for_its_owner(Path(path), kind)
        with self.explaining():
            self._db = writable(path)
            try:
                _make(self._db, kind)
                require(self._db, path, kind)
            except BaseException:
                self._db.close()
                raise
        self._shared = _Connection()

    @classmethod
    def of(cls, where: Path | str | Database, kind: Kind) -> Database:
        """The file at a path, or the part of this kind of an open file."""
        return where.part(kind) if isinstance(where, Database) else cls(where, kind)

    def part(self, kind: Kind) -> Database:
        """The tables of one of this file's kinds. Closing the part leaves the file open."""
        assert kind in self.kind.parts, f"{self.kind.name} holds no {kind.name}"
        part = Database.__new__(type(self))
        part.path, part.kind, part._owner = self.path, kind, False
        part._db, part._shared = self._db, self._shared
        return part

    def close(self) -> None:
        if self._owner:
            self._db.close()

    def explaining(self) -> AbstractContextManager[None]:
        """As the function, for this file."""
        return explaining(self.path, self.kind)

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        # Not in a context: a round makes a few of these for each client.
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _explained(self.path, self.kind, error) from None

    def sealed(
        self, statement: str, values: Sequence[Value] = (), label: Sequence[Value] = ()
    ) -> list[tuple[Any, ...]]:
        """All rows of a query without their last columns, the seals, which are checked (see `put`)."""
        rows = self.rows(statement, values)
        try:
            for *row, own in rows:
                check(own, *label, *row)
        except Damaged as error:
            raise _told(self.path, self.kind, error, "damaged") from None
        return [row[:-1] for row in rows]

    def put(self, how: str, *row: Value, label: Sequence[Value] = ()) -> None:
        """Write a row with its seal, which covers the label too. how: the statement up to the values."""
        self.run(f"{how} VALUES ({'?, ' * len(row)}?)", (*row, seal(*label, *row)))

    def each(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query one by one, for tables that grow with a run."""
        with self.explaining():
            yield from self._db.execute(statement)

    def row(self, statement: str, values: Sequence[Value] = ()) -> tuple[Any, ...] | None:
        """The first row of a query, or None."""
        rows = self.rows(statement, values)
        return rows[0] if rows else None

    def run(self, statement: str, values: Sequence[Value] = ()) -> None:
        """Change something. A broken constraint raises sqlite3.IntegrityError."""
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise _explained(self.path, self.kind, error) from None

    @contextmanager
    def transaction(self, afterwards: Callable[[], None] | None = None) -> Iterator[None]:
        """A transaction: all of its changes are on disk at the end, or none.

        Within `together` it is a step of that transaction: all of its changes count, or none, and they are on
        disk when `together` ends. afterwards: called once the changes are on disk.
        """
        steps = self._shared.together
        try:
            with self.explaining():
                # After a full disk SQLite has undone the transaction. A savepoint would be one of its own.
                if steps and not self._db.in_transaction:
                    raise OSError(errno.ENOSPC, "an earlier write failed")
                with _undone(self._db, *(_STEP if steps else _TRANSACTION)):
                    yield
        except sqlite3.IntegrityError as error:
            raise _told(self.path, self.kind, error, "damaged") from None
        except DataError as error:
            if steps and not self._db.in_transaction:
                self._shared.lost = self._shared.lost or error
            raise
        if afterwards is not None:
            if steps:
                self._shared.afterwards[afterwards] = None
            else:
                afterwards()

    @contextmanager
    def together(self, afterwards: Callable[[], None]) -> Iterator[None]:
        """Make all changes of all parts of this file within in one durable commit.

        afterwards: called once they are on disk, also after an error within.

        An error within does not undo the steps before it: they are on disk before the error is raised, since
        its text may tell what they record. A process that is killed leaves none of them.

        Raises DataError if the commit fails, also in place of an error within. Nothing is then recorded, and
        the file is closed: the objects on it count what was not written.
        """
        shared = self._shared
        with self.explaining():
            self._db.execute(_BEGIN)
        shared.together, shared.afterwards = True, {afterwards: None}
        try:
            yield
        finally:
            shared.together = False
            self._commit()
            for each in shared.afterwards:
                each()

    def _commit(self) -> None:
        try:
            if self._shared.lost is not None:
                raise self._shared.lost from None
            with self.explaining():
                self._db.execute("COMMIT")
        except BaseException:
            # Closing undoes an open transaction.
            self._db.close()
            raise


def _only_for_its_owner(path: Path, kind: Kind) -> None:
    """Create the file, or restrict it, so that only its owner has access. A link is not followed."""
    # Before SQLite opens it: the logs that SQLite creates beside a file get the file's permissions.
    with explaining(path, kind):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(file).st_mode & 0o077:
            os.fchmod(file, 0o600)
    except PermissionError:  # the file belongs to another user, who permits us to write
        pass
    finally:
        os.close(file)


def _make(db: sqlite3.Connection, kind: Kind) -> None:
    """Create all tables of an empty file in one transaction. If the process is killed, it stays empty."""
    with _undone(db, *_TRANSACTION):
        if not _tables(db):
            for statement in kind.tables:
                db.execute(statement)
            for part in kind.parts:
                db.execute("INSERT INTO kinds VALUES (?, ?)", (part.name, part.version))
            db.execute(f"PRAGMA user_version = {kind.version}")


def is_empty(db: sqlite3.Connection) -> bool:
    """Whether the file has no table yet, as after a process was killed when it had created the file."""
    return not _tables(db)


def require(db: sqlite3.Connection, path: Path | str, kind: Kind) -> None:
    """Raise DataError for another version or other tables, and Damaged or sqlite3.Error for damage.

    A file of several kinds passes as each of them.
    """
    for each in (kind, *kind.parts):
        require_version(db, path, each)
    tables = _tables(db)
    if tables != set(kind.tables) and not (
        _version(db) == _JOINED and not kind.parts and tables >= set(kind.tables)
    ):
        raise DataError(
            f"Expected {path} as a {kind.name}, got another file: its tables are not those of a {kind.name}. "
            "Name another file. If it was one, restore it from a backup."
        )
    (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise Damaged("SQLite's own check finds it inconsistent")


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def require_version(db: sqlite3.Connection, path: Path | str, kind: Kind) -> None:
    """Raise DataError for another version, and Damaged for a file of several other kinds."""
    version = _version(db)
    if version == _JOINED and not kind.parts:
        rows = db.execute("SELECT version FROM kinds WHERE name = ?", (kind.name,)).fetchall()
        if len(rows) != 1:
            raise Damaged(f"it holds no {kind.name}")
        ((version,),) = rows
    if version != kind.version:
        raise DataError(
            of_another_version(
                f"{path} as a {kind.name} of version {kind.version}", f"version {version}", kind.anew
            )
        )


def _tables(db: sqlite3.Connection) -> set[str]:
    """The statements by which everything in this file was made."""
    rows = db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {str(row[0]) for row in rows}


# IMMEDIATE takes the write lock at once. A lock taken at the first write can find that another process has
# changed what was read, and fail.
_BEGIN: Final = "BEGIN IMMEDIATE"
_TRANSACTION: Final = (_BEGIN, "COMMIT", "ROLLBACK")
_STEP: Final = ("SAVEPOINT step", "RELEASE step", "ROLLBACK TO step", "RELEASE step")
"""The statements that begin, end and undo a transaction, or a part of it that is undone alone."""


@contextmanager
def _undone(db: sqlite3.Connection, begin: str, end: str, *undo: str) -> Iterator[None]:
    """All changes within, or none if there is an error."""
    db.execute(begin)
    try:
        yield
        db.execute(end)
    except BaseException:
        if db.in_transaction:  # a full disk has rolled back already
            for statement in undo:
                db.execute(statement)
        raise
