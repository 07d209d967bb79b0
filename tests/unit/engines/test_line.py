"""The socket between a party and its carrier: who may open it, and bytes that no carrier sends."""

from __future__ import annotations

import _thread
import os
import signal
import socket
import stat
import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, Timer

import pytest

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.engines.apart.line import Line, ask, listening, serve

OWN = frozenset({os.getuid()})


@contextmanager
def served(
    folder: Path, *, allow: frozenset[int] = OWN, most: int = 2**20, patience: float = 5.0
) -> Iterator[tuple[Path, list[str]]]:
    """A party that says what it hears backwards, and what its owner is told."""
    told: list[str] = []
    path = folder / "run" / "party.sock"

    def handle(line: Line, request: bytes) -> bytes:
        if request == b"fail":
            raise ZeroDivisionError("a fault of this code")
        return request[::-1]

    with listening(path) as listener:
        thread = Thread(
            target=serve,
            args=(listener, handle),
            kwargs={"allow": allow, "tell": told.append, "most": most, "patience": patience},
        )
        thread.start()
        try:
            yield path, told
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
    assert not thread.is_alive()
    assert not path.exists()


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        yield connection


def ended(connection: socket.socket) -> bool:
    """Whether the other side ends the connection, with bytes of ours unread or not."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_frame_comes_back(tmp_path: Path) -> None:
    with served(tmp_path) as (path, told):
        assert ask(path, b"abc", timeout=5) == b"cba"
        assert ask(path, b"x" * 2**20, timeout=5) == b"x" * 2**20
        with connected(path) as connection:  # several on one connection
            line = Line(connection)
            for frame in (b"one", b""):
                line.send(frame)
                assert line.receive() == frame[::-1]
    assert told == []


def test_its_group_may_open_it_and_no_others(tmp_path: Path) -> None:
    before = os.umask(0)  # whatever the mask
    try:
        with served(tmp_path) as (path, _):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o770, 0o757, 0o1777])
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
        with served(tmp_path) as (path, _):
            assert ask(path, b"ab", timeout=5) == b"ba"


def test_another_user_is_turned_away(tmp_path: Path) -> None:
    others = frozenset({os.getuid() + 1})
    with served(tmp_path, allow=others) as (path, told), pytest.raises(RemoteProtocolError):
        ask(path, b"abc", timeout=5)
    assert f"user {os.getuid()} away" in told[0]


def test_two_gibibytes_are_refused_before_anything_is_made_for_them(tmp_path: Path) -> None:
    with served(tmp_path, most=2**30) as (path, told):
        tracemalloc.start()
        with connected(path) as connection:
            connection.sendall(struct.pack("<Q", 2**31) + b"x")
            assert ended(connection)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert ask(path, b"abc", timeout=5) == b"cba"
    assert "claim of 2147483648" in told[0]
    assert most < 2**22


def test_a_claim_below_the_limit_takes_no_memory_before_it_comes(tmp_path: Path) -> None:
    with served(tmp_path, most=2**31, patience=0.3) as (path, told):
        tracemalloc.start()
        with connected(path) as connection:
            connection.sendall(struct.pack("<Q", 2**30) + b"x" * 100)
            assert ended(connection)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert "in time" in told[0]
    assert most < 2**23


@pytest.mark.parametrize("sent", [b"abc", struct.pack("<Q", 10), struct.pack("<Q", 10) + b"nine byte"])
def test_a_frame_that_is_cut_ends_that_connection_alone(tmp_path: Path, sent: bytes) -> None:
    with served(tmp_path) as (path, told), connected(path) as other:
        with connected(path) as connection:
            connection.sendall(sent)
        line = Line(other)
        line.send(b"abc")
        assert line.receive() == b"cba"
        until = time.monotonic() + 10
        while not told and time.monotonic() < until:  # the cut connection has a thread of its own
            time.sleep(0.01)
    assert "and the end" in told[0]


def test_a_slow_sender_times_out_and_holds_up_nobody(tmp_path: Path) -> None:
    with served(tmp_path, patience=0.5) as (path, told), connected(path) as slow:
        slow.sendall(struct.pack("<Q", 2**20) + b"x")
        assert ask(path, b"abc", timeout=5) == b"cba"
        assert ended(slow)
    assert "in time" in told[0]


def test_a_fault_of_this_code_ends_that_connection_alone_and_tells_nobody_why(tmp_path: Path) -> None:
    with served(tmp_path) as (path, told):
        with pytest.raises(RemoteProtocolError) as error:
            ask(path, b"fail", timeout=5)
        assert "Zero" not in str(error.value)
        assert ask(path, b"abc", timeout=5) == b"cba"
    assert "ZeroDivisionError" in told[0]


def test_more_connections_than_there_is_room_for_are_turned_away(tmp_path: Path) -> None:
    with served(tmp_path) as (path, told):
        some = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(16)]
        for one in some:
            one.settimeout(10)
            one.connect(str(path))
            line = Line(one)
            line.send(b"a")  # it is served, not only accepted
            assert line.receive() == b"a"
        with connected(path) as beyond:
            assert ended(beyond)
        for one in some:
            one.close()
    assert "16 already" in told[0]


def test_a_party_that_does_not_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(RemoteProtocolError, match="securefl party serve"):
        ask(tmp_path / "nothing.sock", b"abc", timeout=1)


def test_a_signal_ends_the_wait_though_it_interrupts_no_call(tmp_path: Path) -> None:
    # As one does that comes after Python has looked for signals and before it begins to wait.
    def stop(number: int, _: object) -> None:
        raise InterruptedError(number)

    before = signal.signal(signal.SIGUSR1, stop)
    late = Timer(0.2, _thread.interrupt_main, (signal.SIGUSR1,))
    late.start()
    try:
        with listening(tmp_path / "run" / "party.sock") as listener, pytest.raises(InterruptedError):
            serve(listener, lambda line, request: request, allow=OWN, tell=lambda text: None)
    finally:
        late.join()
        signal.signal(signal.SIGUSR1, before)
