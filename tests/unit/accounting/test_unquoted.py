"""Damaged databases are not quoted: no error of any of them prints a byte of the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import securefl
from support.every import every

from securefl.accounting.chain import replay
from securefl.accounting.events import NO_COST
from securefl.accounting.ledger import Ledger, Terms
from securefl.accounting.named_ledger import NamedLedger
from securefl.accounting.shared import Allotment, SharedLedger, is_shared, runs_of, shared_terms
from securefl.accounting.statements import identity_of, statement
from securefl.algorithm.clients import State
from securefl.core.errors import SecureFLError
from securefl.core.release import ReleaseKey
from securefl.deployment.session_store import SessionStore
from securefl.he.openings import Openings
from securefl.storage.counter import Counter, Place
from securefl.storage.database import Damaged, decoding
from securefl.storage.journal import Journal
from securefl.study.checkpoint import Checkpoint, rounds_in

MARK = b"SECRET-\x1b[2J\xff\xe2\x80\xae=cmd|" * 400
"""Text of nobody's: escapes, a direction override, bytes that are no UTF-8, and 8,000 characters of it."""
TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5, budget=None)
SESSION = bytes(32)


def ledger(path: Path) -> None:
    with Ledger(path, TERMS) as own:
        own.reserve([(ReleaseKey("p1", SESSION, 1, 0, 0, "score"), NO_COST)])


def use_ledger(path: Path) -> None:
    statement(path, party="server")
    identity_of(path)
    go_on(path)


def go_on(path: Path) -> None:
    with Ledger(path, TERMS) as own:
        _ = own.identity, own.head, own.rows(), own.worst("key-holder")
        own.reserve([(ReleaseKey("p2", SESSION, 1, 0, 0, "score"), NO_COST)])


def shared(path: Path) -> None:
    terms = shared_terms(Terms(unit="record", adjacency="replace-one", delta=1e-5, budget=2.0))
    with SharedLedger(path, terms, "ab" * 32) as own:
        own.reserve([Allotment(run="a", what="a study", charges={})])


def use_shared(path: Path) -> None:
    is_shared(path)
    runs_of(path)
    shared(path)


def journal(path: Path) -> None:
    with Journal(path) as own:
        own.lasting(["client-0000"], SESSION)
        own.secrets(["client-0000"], SESSION, 1)
        own.totals(["client-0000"], SESSION, [5])


def use_journal(path: Path) -> None:
    with Journal(path) as own:
        _ = own.identity, own.sessions(), own.newest(SESSION)
    journal(path)


def openings(path: Path) -> None:
    with closing(Openings(path)) as own:
        own.bind("ab")
        own.once(b"request", 1, 5, lambda: b"reply", sender="p1")


def diary(path: Path) -> None:
    with closing(SessionStore(path, clock=lambda: "2026-11-25")) as own:
        own.bound("ledger", "ab")
        own.enter(SESSION, "a study")
        own.refuse("a reason")
        own.note_records("ab", "at first")
        own.keep(SESSION, 3, {"w": np.zeros(2)})


def use_diary(path: Path) -> None:
    with closing(SessionStore(path)) as own:
        for read in (own.sessions, own.newest, own.records, lambda: own.kept(SESSION)):
            read()
        own.bound("ledger", "ab")


def checkpoint(path: Path) -> None:
    with Checkpoint(path) as own:
        own.nonce()
        own.bind(study="ab", arm="FedAvg", seed="1", ledger="ab", journal="ab")
        own.save(1, State(np.zeros(2, np.float32), {}), {"round": 1}, {0: {"w": np.zeros(2)}})


def use_checkpoint(path: Path) -> None:
    rounds_in(path)
    with Checkpoint(path) as own:
        own.nonce()
        own.load()
        own.kept()
        own.bind(study="ab", arm="FedAvg", seed="1", ledger="ab", journal="ab")


FILES: dict[str, tuple[str, Callable[[Path], None], Callable[[Path], None]]] = {
    "ledger": ("ledger.sqlite", ledger, use_ledger),
    "shared ledger": ("people.ledger", shared, use_shared),
    "journal": ("journal.sqlite", journal, use_journal),
    "openings": ("openings.sqlite", openings, openings),
    "diary": ("diary.sqlite", diary, use_diary),
    "checkpoint": ("checkpoint.sqlite", checkpoint, use_checkpoint),
}


def marked(told: object) -> bool:
    """Whether a text quotes the mark, in any spelling, or may do so."""
    text = str(told)
    return "SECRET" in text or "cmd" in text or "\x1b" in text or not text.isprintable() or len(text) > 1500


def refused(use: Callable[[Path], None], path: Path) -> bool:
    """Use a file. What is raised is ours, and quotes nothing."""
    found: SecureFLError | None = None
    try:
        use(path)
    except SecureFLError as error:
        found = error
    assert found is None or not marked(found), found
    # A log with the traceback would print what an error was made of.
    assert found is None or found.__suppress_context__ or found.__context__ is None
    return found is not None


def cells(path: Path) -> Iterator[tuple[str, str, str]]:
    """Table, column and type of every column of the file."""
    with closing(sqlite3.connect(path)) as db:
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in db.execute(f"PRAGMA table_info({table})"):
                yield table, row[1], row[2]


@every("what", FILES)
def test_no_cell_of_a_damaged_file_is_quoted(what: str, tmp_path: Path) -> None:
    name, make, use = FILES[what]
    make(tmp_path / name)
    use(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    spoilt = 0
    for number, (table, column, kind) in enumerate(cells(tmp_path / name)):
        for mark in (MARK, MARK.decode("utf-8", "ignore").encode()):
            home = tmp_path / f"{number} {len(mark)}"
            home.mkdir()
            (home / name).write_bytes(whole)
            with closing(sqlite3.connect(home / name)) as db:
                value = "CAST(? AS TEXT)" if kind == "TEXT" else "?"
                try:
                    db.execute(f"UPDATE {table} SET {column} = {value}", (mark,))
                except sqlite3.IntegrityError:
                    continue  # an INTEGER, which holds no text
                db.commit()
            spoilt += refused(use, home / name)
    assert spoilt >= 2


@every("what", FILES)
def test_no_name_and_no_page_of_a_damaged_file_is_quoted(what: str, tmp_path: Path) -> None:
    name, make, use = FILES[what]
    (tmp_path / "made").mkdir()
    make(tmp_path / "made" / name)
    whole = (tmp_path / "made" / name).read_bytes()
    spoilt = {
        "a page": whole[:4096] + (MARK * 9)[: len(whole) - 4096],
        "the schema": whole[:200] + (MARK * 9)[: 4096 - 200] + whole[4096:],
        "all": (MARK * 9)[:4096],
        "behind the head": whole[:16] + MARK,
        "half": whole[: len(whole) // 2],
    }
    for number, content in enumerate(spoilt.values()):
        home = tmp_path / str(number)
        home.mkdir()
        (home / name).write_bytes(content)
        assert refused(use, home / name), list(spoilt)[number]
    for number, change in enumerate(
        (
            "UPDATE sqlite_master SET name = ? WHERE type = 'table'",
            "UPDATE sqlite_master SET tbl_name = ? WHERE type = 'table'",
            "UPDATE sqlite_master SET sql = ? WHERE type = 'table'",
            "UPDATE sqlite_master SET name = 'sqlite_autoindex_' || ? WHERE type = 'index'",
        )
    ):
        home = tmp_path / f"schema {number}"
        home.mkdir()
        (home / name).write_bytes(whole)
        with closing(sqlite3.connect(home / name)) as db:
            db.execute("PRAGMA writable_schema = ON")
            db.execute(change, (MARK.decode("utf-8", "ignore"),))
            db.commit()
        refused(use, home / name)


def test_what_sqlites_own_check_says_is_not_quoted(tmp_path: Path) -> None:
    """It describes pages, rows and indices of the file."""
    openings(path := tmp_path / "openings.sqlite")
    with closing(sqlite3.connect(path)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE type = 'index'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    raw = bytearray(path.read_bytes())
    raw[(page - 1) * size + 3 : (page - 1) * size + 5] = b"\0\0"  # the index has no entry
    path.write_bytes(raw)
    with pytest.raises(SecureFLError, match="SQLite's own check"):
        openings(path)


def test_a_decoder_is_not_quoted() -> None:
    for error in (ValueError(MARK), SecureFLError(MARK), KeyError("SECRET")):
        with pytest.raises(Damaged) as told, decoding():
            raise error
        assert str(told.value) == f"its content cannot be decoded: {type(error).__name__}"


@every("content", [MARK, b"", bytes(56), b"\x1b[2J" * 14])
def test_a_damaged_counter_is_not_quoted(content: bytes, tmp_path: Path) -> None:
    counter = Counter(tmp_path)
    counter.begin()
    counter.note(Place(sessions=1))
    (tmp_path / "place").write_bytes(content)
    assert refused(lambda _: counter.require(Place(sessions=1)), tmp_path)
    ledger(path := tmp_path / "ledger.sqlite")
    (tmp_path / "ledger.sqlite-head").write_bytes(content)
    refused(use_ledger, path)


def test_another_ledgers_holders_are_not_quoted(tmp_path: Path) -> None:
    for number, holder in enumerate(("SECRET", "client SECRET", "client ['SECRET']", "client 'SECRET '")):
        path = tmp_path / f"{number}.sqlite"
        with Ledger(path, TERMS) as own:
            own.reserve([(ReleaseKey(holder, SESSION, 1, 0, 0, "score"), NO_COST)])
        with NamedLedger(path, TERMS) as loop, pytest.raises(SecureFLError, match="other holders") as told:
            loop.admit(["client 1"])
        assert not marked(told.value)


@pytest.mark.parametrize("command", ["show", "runs"])
def test_tables_of_ledgers_are_legible_and_narrow(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A ledger of somebody's may be whole and have any names."""
    long: Any = MARK.decode("utf-8", "ignore")
    path = tmp_path / "a.ledger"
    if command == "show":
        long = "x" * 8_000  # no name of a holder has control characters
        with Ledger(path, TERMS) as own:
            own.reserve([(ReleaseKey(long, SESSION, 1, 0, 0, long), NO_COST)])
    else:
        terms = shared_terms(Terms(unit="record", adjacency="replace-one", delta=1e-5, budget=2.0))
        with SharedLedger(path, terms, "ab" * 32) as own_:
            own_.reserve([Allotment(run="a", what=long, charges={})])
    code, out, err = securefl(capfd, "ledger", command, path)
    assert code == 0, err
    assert f"a text of {len(long):,} characters" in out
    assert all(line.isprintable() and len(line) < 1500 for line in (out + err).splitlines())


def forged(path: Path, change: str, *values: str) -> None:
    """Change a ledger, and make its chain fit again, as a person with a program would."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(change, values)

        def rows(query: str) -> list[tuple[Any, ...]]:
            return db.execute(query).fetchall()

        link = replay(rows)
        db.execute("UPDATE head SET count = ?, digest = ?", (link.count, link.digest))
        db.commit()
    path.with_name(path.name + "-head").unlink()


@every(
    "change",
    [
        "UPDATE releases SET charge = ?",
        "UPDATE terms SET value = ? WHERE name = 'delta'",
        "UPDATE terms SET value = ? WHERE name = 'unit'",
        "UPDATE terms SET name = ? WHERE name = 'delta'",
    ],
)
def test_a_ledger_whose_chain_was_made_to_fit_is_not_quoted(change: str, tmp_path: Path) -> None:
    ledger(path := tmp_path / "ledger.sqlite")
    forged(path, change, MARK.decode("utf-8", "ignore"))
    assert refused(go_on, path)
    if "unit" not in change:  # a statement does not compute with it
        assert refused(lambda path: statement(path, party="server") and None, path)
        with pytest.raises(SecureFLError, match=path.name):
            statement(path, party="server")
