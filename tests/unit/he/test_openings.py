"""The key holder's count: durable, capped, and no second answer to one request."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest
from support.every import every

from securefl.core.errors import DataError, RemoteProtocolError
from securefl.he.openings import Openings

_RACING = textwrap.dedent(
    """
    import sys
    from securefl.core.errors import RemoteProtocolError
    from securefl.he.openings import Openings
    store, refused = Openings(sys.argv[1]), 0
    for i in range(40):
        try:
            store.once(f"{sys.argv[2]}-{i}".encode(), 1, 50, lambda: sys.argv[2].encode(), sender="x")
            print(f"{sys.argv[2]}-{i}", flush=True)
        except RemoteProtocolError:
            refused += 1
    print("refused", refused)
    """
)


def never() -> bytes:
    raise AssertionError("opened again")


def test_an_answer_is_stored_before_it_is_given_and_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "openings.sqlite"
    first = Openings(path)
    assert first.once(b"a", 3, 5, lambda: b"reply", sender="v") == b"reply"
    first.close()
    again = Openings(path)
    assert again.once(b"a", 3, 5, never, sender="v") == b"reply"
    assert again.opened == 3
    with pytest.raises(RemoteProtocolError, match="used up"):
        again.once(b"b", 3, 5, never, sender="v")
    again.once(b"b", 2, 5, lambda: b"", sender="v")
    assert again.opened == 5
    again.close()


def test_an_opening_that_fails_is_not_counted(tmp_path: Path) -> None:
    store = Openings()
    with pytest.raises(AssertionError):
        store.once(b"a", 1, 5, never, sender="v")
    assert store.opened == 0
    store.close()


def test_two_processes_stay_under_one_cap(tmp_path: Path) -> None:
    path = tmp_path / "openings.sqlite"
    running = [
        subprocess.Popen([sys.executable, "-c", _RACING, path, name], stdout=subprocess.PIPE, text=True)
        for name in ("one", "two")
    ]
    lines = [line for process in running for line in process.communicate(timeout=120)[0].splitlines()]
    assert sum(not line.startswith("refused") for line in lines) == 50
    store = Openings(path)
    assert store.opened == 50
    store.close()


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "openings.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"junk" * 400)
    with pytest.raises(DataError, match="is damaged"):
        Openings(path)


@every(
    "edit",
    ["reply = x'00'", "integers = 1", "request = x'00'", "seal = x'00'"],
)
def test_an_altered_reply_or_count_is_refused(tmp_path: Path, edit: str) -> None:
    path = tmp_path / "openings.sqlite"
    first, second = Openings(path), Openings(path)
    first.once(b"a", 3, 5, lambda: b"reply", sender="v")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"UPDATE openings SET {edit}")
    if "request" not in edit:
        with pytest.raises(DataError, match="make a new key"):
            second.once(b"a", 3, 5, never, sender="v")
    with pytest.raises(DataError, match="not as it was written"):
        Openings(path)
    first.close()
    second.close()


def test_it_goes_on_beside_the_ledger_it_began_with(tmp_path: Path) -> None:
    store = Openings(tmp_path / "openings.sqlite")
    store.bind("one")
    store.bind("one")
    with pytest.raises(DataError, match="bound to this key"):
        store.bind("another")
    store.close()
    before = Openings()
    before.once(b"a", 1, 5, lambda: b"", sender="v")
    with pytest.raises(DataError, match="bound to this key"):
        before.bind("one")
    before.close()


def test_a_reply_that_is_altered_meanwhile_is_not_sent() -> None:
    store = Openings()
    store.once(b"a", 1, 5, lambda: b"reply", sender="v")
    store._db.run("UPDATE openings SET reply = x'00'")
    with pytest.raises(DataError):
        store.once(b"a", 1, 5, never, sender="v")
    store.close()


def test_one_opening_too_many_is_refused_whatever_its_size() -> None:
    store = Openings()
    store.once(b"a", 4, 5, lambda: b"", sender="v")
    for integers in (2, 5):
        with pytest.raises(RemoteProtocolError):
            store.once(b"b", integers, 5, never, sender="v")
    assert store.opened == 4
    store.close()
