"""Files of a worker: copied whole, and replaced in the order that a killed process can leave."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from securefl.storage import cluster
from securefl.storage.cluster import Copied, contents, replace_files
from securefl.storage.database import writable


def test_a_database_is_copied_with_what_its_log_has(tmp_path: Path) -> None:
    db = writable(tmp_path / "a.sqlite")
    db.execute("CREATE TABLE t (n INTEGER)")
    db.execute("INSERT INTO t VALUES (7)")
    assert (tmp_path / "a.sqlite-wal").stat().st_size > 0
    found = contents(tmp_path, ("a.sqlite", "missing.sqlite"))
    db.close()
    assert set(found) == {"a.sqlite"}
    replace_files(Copied(folder=tmp_path / "copy", names=("a.sqlite",)), found)
    copy = writable(tmp_path / "copy" / "a.sqlite")
    assert copy.execute("SELECT n FROM t").fetchall() == [(7,)]
    copy.close()
    assert stat.S_IMODE((tmp_path / "copy" / "a.sqlite").stat().st_mode) == 0o600


def test_files_are_replaced_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(cluster, "write", lambda path, content, secret: written.append(path.name))
    names = ("b", "c", "a")
    replace_files(Copied(folder=tmp_path, names=names), {"a": b"1", "b": b"2", "c": b"3", "strange": b"4"})
    assert tuple(written) == names
