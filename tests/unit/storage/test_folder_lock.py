"""The lock on a run folder: one process holds it, none that is dead, and who does is named."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.every import every
from support.read_only import bound_by_modes, content, forbid_writing

from securefl.core.errors import ConfigError, DataError
from securefl.storage.folder_lock import LOCK, Holder, locked, require_idle

HOLD = """
import os, sys, time
from pathlib import Path
from securefl.storage.folder_lock import locked
with locked(Path(sys.argv[1])):
    forked = os.fork() if "fork" in sys.argv else -1
    if forked == 0 and "leave" in sys.argv:
        sys.exit()
    if forked != 0:
        if "leave" in sys.argv:
            os.waitpid(forked, 0)
        print(forked, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def said() -> list[str]:
    return []


def holding(folder: Path, *how: str) -> tuple[subprocess.Popen[str], int]:
    """A process that holds the folder, and the number of its forked child."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *how], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_folder_is_held_once_and_given_back(tmp_path: Path, said: list[str]) -> None:
    folder = tmp_path / "new" / "run"
    with locked(folder, said.append):
        with pytest.raises(ConfigError) as caught, locked(folder, said.append):
            raise AssertionError("held twice")
        with pytest.raises(ConfigError, match="is in use by process"):
            require_idle(folder)
    holder = Holder.this()
    message = str(caught.value)
    assert (
        f"{folder} is in use by process {os.getpid()} on {holder.host} ({holder.command}, since 2" in message
    )
    assert "Wait for that process, stop it, or choose another folder." in message
    require_idle(folder)
    with locked(folder, said.append):
        pass
    assert said == []
    assert stat.S_IMODE((folder / LOCK).stat().st_mode) == 0o600
    assert (folder / LOCK).read_bytes() == b""


def test_the_lock_file_tells_when_the_folder_was_taken_and_not_for_how_long(tmp_path: Path) -> None:
    """Under a choice the time would tell the number of trials."""
    with locked(tmp_path):
        os.utime(tmp_path / LOCK, ns=(10**18, 10**18))
    assert (tmp_path / LOCK).stat().st_mtime_ns == 10**18
    assert (tmp_path / LOCK).read_bytes() == b""


def test_one_of_many_at_once_has_it(tmp_path: Path) -> None:
    start, end = threading.Barrier(8), threading.Barrier(8)
    held: list[int] = []

    def enter(number: int) -> None:
        start.wait()
        try:
            with locked(tmp_path):
                held.append(number)
                end.wait()
        except ConfigError:
            end.wait()

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1


def test_a_copied_folder_is_not_taken_over_from_a_process_that_lives(tmp_path: Path, said: list[str]) -> None:
    copy = tmp_path / "copy"
    with locked(tmp_path / "folder"):
        shutil.copytree(tmp_path / "folder", copy)
        with locked(copy, said.append):
            pass
    assert said == []
    strange = json.dumps({**vars(Holder.this()), "pid": 10**30})
    (copy / LOCK).write_text(strange)
    with locked(copy, said.append):
        pass
    assert len(said) == 1


@pytest.mark.parametrize("how", [[], ["fork"]], ids=["alone", "with-a-forked-child"])
def test_a_dead_process_holds_nothing(how: list[str], tmp_path: Path, said: list[str]) -> None:
    """Nor does a child that outlives it: the lock would last as long as that."""
    process, child = holding(tmp_path, *how)
    try:
        with pytest.raises(ConfigError, match=f"in use by process {process.pid} on"), locked(tmp_path):
            raise AssertionError("held twice")
        kill(process)
        require_idle(tmp_path)
        with locked(tmp_path, said.append):
            pass
    finally:
        kill(process)
        if how:
            os.kill(child, signal.SIGKILL)
    assert len(said) == 1
    assert said[0].startswith(f"Taking over {tmp_path} from process {process.pid} on ")
    assert said[0].endswith("which ended without leaving it.")


def test_a_forked_child_that_ends_gives_nothing_back(tmp_path: Path) -> None:
    process, _ = holding(tmp_path, "fork", "leave")
    try:
        with pytest.raises(ConfigError, match=f"in use by process {process.pid} on"), locked(tmp_path):
            raise AssertionError("held twice")
    finally:
        kill(process)


@every("what", ["link", "second name", "pipe", "folder"])
def test_what_is_no_file_is_not_locked(what: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    lock = tmp_path / "run" / LOCK
    lock.parent.mkdir()
    if what == "link":
        lock.symlink_to(target)
    elif what == "second name":
        lock.hardlink_to(target)
    elif what == "pipe":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    with pytest.raises(DataError, match=r"\.lock") as caught, locked(lock.parent):
        raise AssertionError("locked")
    assert target.read_text() == "mine"
    assert str(lock.parent) in str(caught.value)


@every(
    ("code", "part"),
    [
        (errno.ENOLCK, "cannot lock files (No locks available)"),
        (errno.EOPNOTSUPP, "cannot lock files"),
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "cannot be written (Read-only file system). Permit it, or choose another folder."),
    ],
)
def test_what_cannot_be_locked_is_said(
    code: int, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(DataError) as caught, locked(tmp_path):
        raise AssertionError("locked")
    assert part in str(caught.value)


@pytest.mark.parametrize(
    "note", [b"\xff", b"[" * 5000, b"[]", b'{"pid": "x"}', b'{"pid": 1, "host": "a"}'], ids=repr
)
def test_a_note_that_is_none_names_nobody(note: bytes, tmp_path: Path, said: list[str]) -> None:
    with locked(tmp_path, said.append):
        (tmp_path / LOCK).write_bytes(note)
        with pytest.raises(ConfigError, match=r"another process\. Wait"), locked(tmp_path):
            raise AssertionError("held twice")
    (tmp_path / LOCK).write_bytes(note)
    with locked(tmp_path, said.append):
        pass
    assert said == []


def test_a_note_cannot_write_to_the_terminal(tmp_path: Path, said: list[str]) -> None:
    note = {"pid": 1, "host": "h\x1b[2J", "command": "c\u202e" * 1000, "since": "\r"}
    (tmp_path / LOCK).write_text(json.dumps(note)[:4000])
    with locked(tmp_path, said.append):
        pass
    assert said == []  # longer than any note
    (tmp_path / LOCK).write_text(json.dumps({**note, "command": "c\u202e"}))
    with locked(tmp_path, said.append):
        pass
    assert "process 1 on h?[2J (c?, since ?)" in said[0]
    assert said[0].isprintable()


def test_a_lock_that_was_replaced_meanwhile_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking: another process may hold the file that is there now."""
    lock, own, calls = tmp_path / LOCK, fcntl.flock, []

    def replaced(number: int, how: int) -> None:
        if not calls:
            lock.unlink()
            lock.touch()
        calls.append(how)
        own(number, how)

    monkeypatch.setattr(fcntl, "flock", replaced)
    with locked(tmp_path):
        assert len(calls) == 2
        with pytest.raises(ConfigError), locked(tmp_path):
            raise AssertionError("held twice")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    forbid_writing(folder)
    done = subprocess.run(
        [*bound_by_modes(), sys.executable, "-c", HOLD, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(
        f"{folder} cannot be written (Permission denied). Permit it, or choose another folder."
    )
    assert content(folder) == {}
