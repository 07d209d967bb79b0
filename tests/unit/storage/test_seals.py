"""The journal's rows carry seals: a value that was flipped on the disk is refused, in every table."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.every import every

from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Question
from securefl.core.errors import DataError
from securefl.core.wire import Header
from securefl.storage.database import Value, seal
from securefl.storage.journal import KIND, Journal

CLIENT, SESSION = "client-0000", bytes(32)
NAMES = tuple(f"client-000{number}" for number in range(5))
UNSEALED = {"journal", "cohorts"}
"""A number that nothing follows from, and rows that stand under their own digest."""


def at(attempt: int = 1) -> Header:
    return Header(SESSION, 1, attempt, 2)


QUESTIONS = (Question(SESSION, 1, "update"),)


def begin(attempt: int = 1) -> Begin:
    return Begin(
        client=CLIENT,
        header=at(attempt),
        questions=QUESTIONS,
        members=NAMES,
        signers=4,
        once=frozenset(),
        context=bytes([attempt] * 32),
    )


def act(kind: Any) -> RecordAct:
    return RecordAct(client=CLIENT, header=at(), questions=QUESTIONS, act=kind, digest=b"it")


def filled(path: Path, *more: str) -> None:
    """A journal with a row in every table, after these acts too."""
    with Journal(path) as kept:
        kept.lasting([CLIENT], SESSION)
        kept.totals([CLIENT], SESSION, [100])
        answers = kept.record([begin(), *map(act, ("deal", "mask", *more, "open"))])
        assert all(answers)
        kept.said(CLIENT, at(), "key", lambda: b"said")
        assert kept.row(CLIENT, at(), "update", b"it") == 0


READS: dict[str, Callable[[Journal], list[Any]]] = {
    "parties": lambda kept: kept.secrets([CLIENT], SESSION, 1),
    "lasting": lambda kept: kept.lasting([CLIENT], SESSION),
    "totals": lambda kept: kept.totals([CLIENT], SESSION, [100]),
    "said": lambda kept: [kept.said(CLIENT, at(), "key", lambda: b"")],
    "rows": lambda kept: [kept.row(CLIENT, replace(at(), round=2), "update", b"it")],
    "questions": lambda kept: kept.record([act("mask")]),
    "attempts": lambda kept: kept.record([begin()]),
    "opened": lambda kept: kept.record([act("open")]),
    "cohorts": lambda kept: kept.record([begin(2)]),
}


def columns() -> list[tuple[str, str]]:
    """Each table and each of its columns that is no key."""
    db = sqlite3.connect(":memory:")
    for statement in KIND.tables:
        db.execute(statement)
    tables = [re.split(r"[ (]", statement)[2] for statement in KIND.tables]
    found = [
        (table, name)
        for table in tables
        for _, name, _, _, _, key in db.execute(f"PRAGMA table_info({table})")
        if not key
    ]
    db.close()
    return found


def flipped(value: Any) -> Any:
    """The same value with its lowest bit flipped, and something in place of nothing."""
    match value:
        case int():
            return value ^ 1
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:]
        case str():
            return chr(ord(value[0]) ^ 1) + value[1:]
    return b"it"


def flip(path: Path, table: str, column: str) -> None:
    db = sqlite3.connect(path)
    [(value,)] = db.execute(f"SELECT {column} FROM {table}").fetchall()
    db.execute(f"UPDATE {table} SET {column} = ?", (flipped(value),))
    db.commit()
    db.close()


def test_every_row_that_is_acted_on_carries_a_seal() -> None:
    assert {table for table, column in columns() if column == "seal"} == READS.keys() - UNSEALED
    assert {table for table, _ in columns()} == READS.keys() | UNSEALED


@every("table", READS)
def test_what_was_written_is_read_again(table: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    filled(path)
    with Journal(path) as kept:
        assert all(READS[table](kept))


@every(("table", "column"), [one for one in columns() if one[0] != "journal"])
def test_a_flipped_value_in_a_row_is_refused(table: str, column: str, tmp_path: Path) -> None:
    """A party that acted on it could contradict what it said before."""
    path = tmp_path / "journal.sqlite"
    filled(path)
    flip(path, table, column)
    with Journal(path) as kept, pytest.raises(DataError, match="as it was written"):
        READS[table](kept)


@every("column", ["dealt", "masked", "signed"])
def test_an_act_that_was_lost_from_its_row_is_refused(column: str, tmp_path: Path) -> None:
    """With nothing in its place, the act could be done again, and otherwise."""
    path = tmp_path / "journal.sqlite"
    filled(path, "sign")
    db = sqlite3.connect(path)
    db.execute(f"UPDATE attempts SET {column} = NULL")
    db.commit()
    db.close()
    with Journal(path) as kept, pytest.raises(DataError, match="as it was written"):
        kept.record([act("mask")])


def test_a_row_of_another_key_is_refused(tmp_path: Path) -> None:
    """A seal covers the key too: no row serves in the place of another."""
    path = tmp_path / "journal.sqlite"
    filled(path)
    db = sqlite3.connect(path)
    db.execute("UPDATE lasting SET party = ?", (NAMES[1],))
    db.commit()
    db.close()
    with Journal(path) as kept, pytest.raises(DataError, match="as it was written"):
        kept.lasting([NAMES[1]], SESSION)


def constant(number: int) -> Begin:
    """Entering a value that cannot change, in the round of this number."""
    questions = (Question(SESSION, number, "count"),)
    header = Header(SESSION, number, 1, 2)
    return replace(begin(), header=header, questions=questions, once=frozenset({"count"}))


def test_a_signature_that_was_taken_off_the_record_lets_nobody_give_a_value_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    first = constant(1)
    with Journal(path) as kept:
        sign = RecordAct(
            client=CLIENT, header=first.header, questions=first.questions, act="sign", digest=b"x"
        )
        assert all(kept.record([first, sign]))
        assert kept.record([constant(2)]) == [None]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE questions SET signed = 0")
    with Journal(path) as kept, pytest.raises(DataError, match="not as it was written"):
        kept.record([constant(3)])


def test_a_cohort_that_is_gone_is_told_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path) as kept:
        assert all(kept.record([begin()]))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM cohorts")
    with Journal(path) as kept, pytest.raises(DataError, match="a cohort is missing"):
        kept.record([begin(2)])


def test_a_seal_is_of_typed_parts_with_their_lengths() -> None:
    """As files of earlier runs have it. Parts that are equal to Python have seals of their own."""

    def of(*parts: Value) -> bytes:
        raw = [part if isinstance(part, bytes) else repr(part).encode() for part in parts]
        typed = [type(part).__name__.encode() for part in parts]
        pieces = [b"%b%d:%b" % (kind, len(one), one) for kind, one in zip(typed, raw, strict=True)]
        return hashlib.sha256(b"".join(pieces)).digest()

    parts: list[Value] = [1, True, 0, False, None, "1", "x" * 64, "x" * 65, "y" * 2**17]
    parts += [b"", b"1", bytes(2**16 + 1)]
    for one in parts:
        assert seal(one, "a", one) == of(one, "a", one)
    assert seal(*parts) == of(*parts)
    assert len({seal(one) for one in parts}) == len(parts)
    assert seal("a", "b") != seal("ab")


def test_a_cohort_that_was_changed_is_told_as_damage(tmp_path: Path) -> None:
    """With a larger one on record, a client could be asked beside strangers."""
    path = tmp_path / "journal.sqlite"
    filled(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE cohorts SET members = replace(members, ']', ', \"client-0009\"]')")
    with Journal(path) as kept, pytest.raises(DataError):
        kept.record([replace(begin(2), members=(*NAMES, "client-0009"))])
