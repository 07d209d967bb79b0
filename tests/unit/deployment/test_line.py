"""The socket between a party and its carrier: who may open it, and bytes that no carrier sends."""

from __future__ import annotations

import _thread
import errno
import os
import signal
import socket
import stat
import struct
import time
import tracemalloc
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest
from support.every import every
from support.lines import Working, connected, gone, served, serving, taken, told_of

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.deployment.connection import send
from securefl.deployment.framing import Connection
from securefl.deployment.server import Relay, listening


def backwards(relay: Relay, request: bytes) -> bytes:
    if request == b"fail":
        raise ZeroDivisionError("a fault of this code")
    return request[::-1]


def ended(connection: socket.socket) -> bool:
    """Whether the other side ends the connection, with bytes of ours unread or not."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_frame_comes_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        with served(tmp_path, backwards) as (path, told):
            assert send(path, b"abc", timeout=5) == b"cba"
            assert send(path, b"x" * 2**20, timeout=5) == b"x" * 2**20
            connection = stack.enter_context(connected(path))
            for frame in (b"one", b""):  # several on one connection
                Connection(connection).send(frame)
                assert Connection(connection).receive() == frame[::-1]
        assert ended(connection)
    assert told == []


def test_its_group_may_open_it_and_no_others(tmp_path: Path) -> None:
    before = os.umask(0)  # whatever the mask
    try:
        with served(tmp_path, backwards) as (path, _):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    finally:
        os.umask(before)


@every("mode", [0o770, 0o757, 0o1777])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 0750"), listening(folder / "s"):
        pass


def test_a_link_for_a_folder_and_a_file_for_a_socket_are_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(ConfigError, match="owner alone"), listening(tmp_path / "link" / "s"):
        pass
    (tmp_path / "there" / "s").write_text("mine")
    with pytest.raises(ConfigError, match="another file"), listening(tmp_path / "there" / "s"):
        pass
    assert (tmp_path / "there" / "s").read_text() == "mine"


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="107 bytes"), listening(tmp_path / "run" / ("s" * 120)):
        pass


def test_the_socket_of_a_process_that_was_killed_is_replaced(tmp_path: Path) -> None:
    with listening(tmp_path / "run" / "party.sock") as first:
        first.detach()
        with served(tmp_path, backwards) as (path, _):
            assert send(path, b"ab", timeout=5) == b"ba"


def test_another_user_is_turned_away(tmp_path: Path) -> None:
    others = frozenset({os.getuid() + 1})
    with served(tmp_path, backwards, allow=others) as (path, told), pytest.raises(RemoteProtocolError):
        send(path, b"abc", timeout=5)
    assert f"Refused user {os.getuid()}" in told[0]


def test_two_gibibytes_are_refused_before_anything_is_made_for_them(tmp_path: Path) -> None:
    with served(tmp_path, backwards, most=2**30) as (path, told):
        tracemalloc.start()
        with connected(path) as connection:
            connection.sendall(struct.pack("<Q", 2**31) + b"x")
            assert ended(connection)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert send(path, b"abc", timeout=5) == b"cba"
    assert "claim of 2147483648" in told[0]
    assert most < 2**22


def test_a_claim_below_the_limit_takes_no_memory_before_it_comes(tmp_path: Path) -> None:
    with served(tmp_path, backwards, most=2**31, patience=0.3) as (path, told):
        tracemalloc.start()
        with connected(path) as connection:
            connection.sendall(struct.pack("<Q", 2**30) + b"x" * 100)
            assert send(path, b"abc", timeout=5) == b"cba", "it holds up nobody"
            assert ended(connection)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert "in time" in told[0]
    assert most < 2**23


@every("sent", [b"abc", struct.pack("<Q", 10), struct.pack("<Q", 10) + b"nine byte"])
def test_a_frame_that_is_cut_ends_that_connection_alone(tmp_path: Path, sent: bytes) -> None:
    with served(tmp_path, backwards) as (path, told), connected(path) as other:
        with connected(path) as connection:
            connection.sendall(sent)
        line = Connection(other)
        line.send(b"abc")
        assert line.receive() == b"cba"
        assert told_of(told, "and the end")  # the cut connection has a thread of its own


def test_a_fault_of_this_code_ends_that_connection_alone_and_tells_nobody_why(tmp_path: Path) -> None:
    with served(tmp_path, backwards) as (path, told):
        with pytest.raises(RemoteProtocolError) as error:
            send(path, b"fail", timeout=5)
        assert "Zero" not in str(error.value)
        assert send(path, b"abc", timeout=5) == b"cba"
    assert "ZeroDivisionError" in told[0]


def test_idle_connections_keep_nobody_out(tmp_path: Path) -> None:
    with served(tmp_path, backwards) as (path, told), ExitStack() as stack:
        some = [stack.enter_context(connected(path)) for _ in range(16)]
        # All others are asked once more: a thread notes that it is idle a moment after its reply has come.
        for one in (*some, *some[1:]):
            Connection(one).send(b"a")  # it is served, not only accepted
            assert Connection(one).receive() == b"a"
        assert send(path, b"abc", timeout=5) == b"cba"
        assert ended(some[0])  # the one that was idle longest made room
        Connection(some[1]).send(b"ab")
        assert Connection(some[1]).receive() == b"ba"
    assert told == []


def test_beside_as_many_connections_as_have_a_request_another_is_turned_away(tmp_path: Path) -> None:
    with served(tmp_path, backwards) as (path, told), ExitStack() as stack:
        some = [stack.enter_context(connected(path)) for _ in range(16)]
        for one in some:
            one.sendall(struct.pack("<Q", 3) + b"ab")
            taken(one)
        with connected(path) as beyond:
            assert ended(beyond)
        for one in some:
            one.sendall(b"c")
            assert Connection(one).receive() == b"cba"
    assert "16 already" in told[0]


def test_frames_on_all_connections_together_have_a_limit(tmp_path: Path) -> None:
    with served(tmp_path, backwards, most=2**20) as (path, told), ExitStack() as stack:
        part = b"x" * (2**20 - 2**10)
        slow = [stack.enter_context(connected(path)) for _ in range(2)]
        for one in slow:
            one.sendall(struct.pack("<Q", 2**20) + part)
            taken(one)
        with connected(path) as third:
            third.sendall(struct.pack("<Q", 2**12) + b"x" * 2**12)
            assert ended(third)
        assert told_of(told, "2097152 bytes on all connections together")
        # nobody else is hurt, and there is room again
        for one in slow:
            one.sendall(b"x" * 2**10)
            assert Connection(one).receive() == b"x" * 2**20
        slow[0].close()
        slow[1].sendall(struct.pack("<Q", 2**20) + part)
        assert send(path, b"x" * 2**12, timeout=5) == b"x" * 2**12


def test_two_of_the_longest_frames_have_room_together(tmp_path: Path) -> None:
    """Though the first is still being answered: their heads do not count."""
    work = Working()
    with served(tmp_path, work) as (path, told), connected(path) as first, connected(path) as second:
        for one in (first, second):
            Connection(one).send(b"x" * 2**20)
            taken(one)
        assert work.begun.wait(10)
        work.go.set()
        assert Connection(first).receive() == Connection(second).receive() == b"x" * 2**20
    assert told == []


def test_a_request_of_a_carrier_that_is_gone_is_dropped_and_one_at_work_is_finished(tmp_path: Path) -> None:
    work = Working()
    with served(tmp_path, work) as (path, told):
        with connected(path) as first, connected(path) as second:
            Connection(first).send(b"at work")
            assert work.begun.wait(10)
            Connection(second).send(b"waits")
            taken(second)
        # both are gone, and the second has had no turn
        with connected(path) as third:
            Connection(third).send(b"stays")
            taken(third)
            work.go.set()
            assert Connection(third).receive() == b"stays"
        assert told_of(told, "ended before its turn")
    assert work.came == [b"at work", b"stays"]


def let_in(path: Path, frame: bytes, stack: ExitStack) -> socket.socket | None:
    """A connection whose frame is taken, or None if it is turned away."""
    one = stack.enter_context(connected(path))
    with suppress(OSError, RemoteProtocolError):
        Connection(one).send(frame)
        taken(one)
    return None if gone(one) else one


def test_carriers_that_are_gone_keep_no_place_while_a_request_is_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securefl.deployment.server._MOST_NOTES", 3)
    monkeypatch.setattr("securefl.deployment.server._HEARS", 0.02)
    work = Working()
    with served(tmp_path, work) as (path, told), ExitStack() as stack:
        assert let_in(path, b"at work", stack)
        assert work.begun.wait(10)
        with ExitStack() as others:
            assert all(let_in(path, b"waits", others) for _ in range(15))
            assert not any(let_in(path, b"beyond", others) for _ in range(5))
        until = time.monotonic() + 10
        while (late := let_in(path, b"late", stack)) is None and time.monotonic() < until:
            time.sleep(0.02)
        work.go.set()
        assert late is not None
        assert Connection(late).receive() == b"late"
    # what is told while nobody can hear it takes no memory without end
    assert sum("16 already" in one for one in told) == 3


class Slow:
    """A connection on which everything takes four seconds, by a clock of its own."""

    def __init__(self, reply: bytes) -> None:
        self.left = struct.pack("<Q", len(reply)) + reply
        self.now = 0.0

    def settimeout(self, seconds: float | None) -> None:
        self.limit = seconds

    def _takes(self) -> None:
        if self.limit is not None and self.limit < 4:
            raise TimeoutError("timed out")
        self.now += 4

    def connect(self, path: str) -> None:
        self._takes()

    def send(self, data: bytes) -> int:
        self._takes()
        return len(data)

    def recv(self, count: int, flags: int = 0) -> bytes:
        if not flags:
            self._takes()
        piece = self.left[:count]
        self.left = self.left if flags else self.left[count:]
        return piece

    def getsockopt(self, *anything: int) -> bytes:
        return struct.pack("3i", 1, 7, 7)

    def __enter__(self) -> Slow:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@every(("timeout", "comes"), [(16, True), (15, False)])
def test_the_seconds_of_a_request_are_for_all_of_it(
    timeout: float, comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(b"abc")  # connecting, sending, and a head and a frame that come: sixteen seconds
    for module in ("connection", "framing"):
        monkeypatch.setattr(f"securefl.deployment.{module}.monotonic", lambda: slow.now)
    monkeypatch.setattr("securefl.deployment.connection.socket.socket", lambda *anything: slow)
    monkeypatch.setattr("securefl.deployment.connection.owner_of", lambda path, user: 7)
    if comes:
        assert send("here", b"", timeout=timeout) == b"abc"
        return
    with pytest.raises(RemoteProtocolError, match="in time"):
        send("here", b"", timeout=timeout)


def test_a_machine_that_is_out_of_files_for_a_moment_ends_no_party(tmp_path: Path) -> None:
    class Full(socket.socket):
        tried = 0

        def accept(self) -> Any:
            self.tried += 1
            if self.tried == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    with served(tmp_path, backwards, make=lambda listener: Full(fileno=os.dup(listener.fileno()))) as (
        path,
        told,
    ):
        assert send(path, b"ab", timeout=10) == b"ba"
    assert "Too many open files" in told[0]


def test_a_machine_that_is_out_of_threads_for_a_moment_ends_no_party(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, full = Thread.start, [True]

    def failing(thread: Thread) -> None:
        if thread.name == "connection" and full:
            raise RuntimeError(f"can't start new thread {full.pop()}")
        start(thread)

    monkeypatch.setattr(Thread, "start", failing)
    with served(tmp_path, backwards) as (path, told), connected(path) as first:
        assert send(path, b"ab", timeout=10) == b"ba"
        assert "start new thread" in told[0]
        assert ended(first)


def test_a_party_that_does_not_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError, match="securefl party serve"):
        send(tmp_path / "nothing.sock", b"abc", timeout=1)


def test_a_user_who_may_not_open_the_socket_is_told_what_lets_it_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Slow, path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")  # which root never gets

    monkeypatch.setattr(Slow, "connect", refuse)
    monkeypatch.setattr("securefl.deployment.connection.socket.socket", lambda *anything: Slow(b""))
    monkeypatch.setattr("securefl.deployment.connection.owner_of", lambda path, user: 7)
    with pytest.raises(RemoteProtocolError, match=r"--allow"):
        send("here", b"", timeout=1)


def test_a_signal_ends_the_wait_though_it_interrupts_no_call(tmp_path: Path) -> None:
    # As one does that comes after Python has looked for signals and before it begins to wait.
    def stop(number: int, _: object) -> None:
        raise InterruptedError(number)

    before = signal.signal(signal.SIGUSR1, stop)
    late = Timer(0.2, _thread.interrupt_main, (signal.SIGUSR1,))
    late.start()
    try:
        with listening(tmp_path / "run" / "party.sock") as listener, pytest.raises(InterruptedError):
            serving(listener, backwards, [])
    finally:
        late.join()
        signal.signal(signal.SIGUSR1, before)
