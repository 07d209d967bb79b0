"""A party's diary: sessions, bound names and reasons, as they were written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every

from securefl.core.errors import DataError
from securefl.deployment.session_store import SessionStore

ONE, TWO = bytes(32), bytes([1] * 32)
STATE = {"w": np.arange(3, dtype=np.float32)}


def filled(path: Path) -> None:
    with closing(SessionStore(path)) as diary:
        diary.bound("party", "client-0000")
        diary.enter(ONE, "a study")
        diary.note_records("0123", "first")
        diary.keep(ONE, 0, STATE)


CHANGES: dict[str, tuple[str, Callable[[SessionStore], Any]]] = {
    "the newest session": ("UPDATE sessions SET session = zeroblob(31)", SessionStore.newest),
    "a session": ("UPDATE sessions SET number = 7", lambda diary: diary.number(ONE)),
    "a counted session": ("UPDATE sessions SET bare = 1", SessionStore.bare),
    "all sessions": ("UPDATE sessions SET study = 'another'", SessionStore.sessions),
    "a bound name": ("UPDATE bound SET value = 'client-0001'", lambda diary: diary.bound_to("party")),
    "a name to bind": ("UPDATE bound SET value = 'x'", lambda diary: diary.bound("party", "client-0000")),
    "records": ("UPDATE records SET digest = 'ffff'", SessionStore.records),
    "a client's state": ("UPDATE client_state SET client = 1", lambda diary: diary.kept(ONE)),
}


@every("what", CHANGES)
def test_a_row_that_was_changed_is_refused(what: str, tmp_path: Path) -> None:
    change, ask = CHANGES[what]
    path = tmp_path / "diary.sqlite"
    filled(path)
    with closing(SessionStore(path)) as diary:
        ask(diary)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(change)
    with closing(SessionStore(path)) as diary, pytest.raises(DataError):
        ask(diary)


def test_a_name_is_bound_once() -> None:
    diary = SessionStore()
    assert diary.bound_to("party") == ""
    assert diary.bound("party", "client-0000") == "client-0000"
    assert diary.bound("party", "client-0001") == "client-0000"
    assert diary.bound_to("party") == "client-0000"


def test_a_flood_of_refusals_does_not_fill_the_disk() -> None:
    diary = SessionStore()
    for number in range(130):
        diary.refuse(f"{number}" + "x" * 9000)
    kept = diary.refusals()
    assert len(kept) == 100
    assert kept[0].text.startswith("129x")
    assert max(len(entry.text) for entry in kept) <= 4000


def test_a_new_session_begins_without_the_state_of_the_last() -> None:
    diary = SessionStore()
    diary.enter(ONE, "a study")
    diary.keep(ONE, 0, STATE)
    np.testing.assert_array_equal(diary.kept(ONE)[0]["w"], STATE["w"])
    diary.enter(TWO, "another")
    assert diary.kept(TWO) == {}
    assert diary.kept(ONE) == {}
    assert diary.newest() == (2, TWO)
