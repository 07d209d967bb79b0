"""Users share a party's places and memory: what one holds above its share gives way to another who waits."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from support.every import every
from support.lines import taken

from securefl.core.errors import RemoteProtocolError
from securefl.deployment.connection import send
from securefl.deployment.framing import Connection
from securefl.deployment.limits import Guest, Limits
from securefl.deployment.peers import peer_of
from securefl.deployment.server import Handle, PartyThread, Relay, Served, listening, serve

ANN, BEN, CY = 1001, 1002, 1003


# The rule, by a clock ----------------------------------------------------------------------------------


@dataclass
class House:
    """Limits of some places, a clock that counts its readings, and what was turned out."""

    places: int = 4
    most: int = 1000
    now: float = 0.0
    out: list[tuple[Guest, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limits = Limits(
            places=self.places,
            most=self.most,
            turn_out=lambda guest, why: self.out.append((guest, why)),
            clock=self._tick,
        )

    def _tick(self) -> float:
        self.now += 1
        return self.now

    def idle(self, user: int) -> Guest:
        guest = self.limits.admit(user)
        assert guest is not None
        return guest

    def busy(self, user: int, *, whole: bool = False, held: int = 0, stops: bool = True) -> Guest:
        guest = self.idle(user)
        assert self.limits.begin(guest)
        if held:
            self.limits.hold(guest, held)
        guest.whole, guest.stops = whole, lambda: stops
        return guest

    @property
    def turned_out(self) -> list[Guest]:
        return [guest for guest, _ in self.out]


def test_one_user_has_all_places_and_no_more() -> None:
    house = House()
    own = [house.busy(ANN) for _ in range(4)]
    assert house.limits.admit(ANN) is None
    assert house.out == []
    house.limits.rest(own[2])
    assert house.limits.admit(ANN) is not None
    assert house.turned_out == [own[2]]


def test_a_user_above_its_share_gives_way_to_one_that_waits_until_both_have_theirs() -> None:
    house = House()
    own = [house.busy(ANN) for _ in range(4)]
    house.busy(BEN)
    house.busy(BEN)
    assert house.turned_out == own[:2], "the oldest of what has not arrived whole"
    assert "another user waits" in house.out[0][1]
    assert house.limits.admit(BEN) is None, "it has its share"
    assert house.limits.admit(ANN) is None


def test_an_idle_connection_gives_way_first_and_says_nothing() -> None:
    house = House()
    own = [house.busy(ANN), house.idle(ANN), house.busy(ANN), house.idle(ANN)]
    house.idle(BEN)
    assert house.out == [(own[1], "")]


def test_a_flood_does_not_turn_out_anothers_idle_connection() -> None:
    """It may have connected a moment ago, and be about to send."""
    house = House()
    ben = house.idle(BEN)
    for _ in range(3):
        house.busy(ANN)
    assert house.limits.admit(ANN) is None
    assert house.out == []
    assert house.limits.begin(ben)


def test_a_request_that_waits_gives_way_after_those_that_have_not_arrived_and_the_newest_first() -> None:
    house = House()
    first, second, third = (house.busy(ANN, whole=True) for _ in range(3))
    slow = house.busy(ANN)
    for _ in range(2):
        house.busy(BEN)
    assert house.turned_out == [slow, third]
    assert house.limits.admit(CY) is not None, "a share is one place of four now"
    assert house.turned_out[2] in (second, first)


def test_a_request_at_work_never_gives_way() -> None:
    house = House(places=2)
    house.busy(ANN, whole=True, stops=False)
    house.busy(ANN, whole=True, stops=False)
    assert house.limits.admit(BEN) is None
    assert house.out == []


def test_more_users_than_places_are_served_as_places_become_free() -> None:
    house = House(places=2)
    own = house.busy(ANN)
    house.busy(BEN)
    assert house.limits.admit(CY) is None
    house.limits.rest(own)
    assert house.limits.admit(CY) is not None
    assert house.turned_out == [own]


def test_memory_above_a_users_share_gives_way_too() -> None:
    house = House(places=9)
    empty = house.busy(ANN)
    slow, work = house.busy(ANN, held=500), house.busy(ANN, held=400, whole=True, stops=False)
    ben = house.busy(BEN, held=450)
    assert house.turned_out == [slow], "what holds nothing stays"
    assert house.limits.begin(empty)
    with pytest.raises(RemoteProtocolError, match="1000 bytes on all"):
        house.limits.hold(ben, 200)  # above its own share, and what the other holds is within its
    house.limits.rest(work)
    house.limits.hold(ben, 200)


def test_memory_of_a_request_at_work_is_waited_for() -> None:
    house = House()
    house.busy(ANN, held=1000, whole=True, stops=False)
    ben = house.busy(BEN)
    with pytest.raises(RemoteProtocolError, match="Send it again"):
        house.limits.hold(ben, 1)
    assert house.out == []


def test_one_that_was_turned_out_brings_no_more() -> None:
    house = House(places=2)
    own, _ = house.busy(ANN), house.busy(ANN)
    house.busy(BEN)
    assert house.turned_out == [own]
    assert not house.limits.begin(own)
    with pytest.raises(RemoteProtocolError, match="lost its place"):
        house.limits.hold(own, 1)


# A server ----------------------------------------------------------------------------------------------


def named(connection: socket.socket) -> int:
    """The user of a connection, in place of the kernel: tests bind their ends to a name with a number."""
    name = connection.getpeername()
    return int(name[1:].split(b"-")[0]) if name else BEN


@contextmanager
def served(folder: Path, handle: Handle, **rules: Any) -> Iterator[tuple[Path, list[str]]]:
    told: list[str] = []
    path = folder / "run" / "s"
    rules = {"allow": {ANN, BEN}, "most": 2**20, "peer": named, **rules}

    def run() -> None:
        with PartyThread(lambda: nullcontext(Served(handle, told.append))) as thread:
            serve(listener, thread, **rules)

    with listening(path) as listener:
        thread = Thread(target=run)
        thread.start()
        try:
            yield path, told
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)
    assert not thread.is_alive()


@contextmanager
def connected(path: Path, user: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.bind(b"\0%d-%d-%d" % (user, os.getpid(), id(connection)))
        connection.settimeout(10)
        while True:
            with suppress(BlockingIOError):  # its queue is full for a moment
                connection.connect(str(path))
                break
            time.sleep(0.01)
        yield connection


def backwards(relay: Relay, request: bytes) -> bytes:
    return request[::-1]


@every("sent", [b"", b"abc", struct.pack("<Q", 10) + b"nine byte"])
def test_200_connections_with_unfinished_heads_leave_another_user_served(tmp_path: Path, sent: bytes) -> None:
    with served(tmp_path, backwards) as (path, _), ExitStack() as stack:
        for number in range(200):
            with suppress(OSError):  # many are turned away
                stack.enter_context(connected(path, ANN)).sendall(sent)
            if number % 50 == 49:
                assert send(path, b"abc", timeout=20) == b"cba"
        mine = [stack.enter_context(connected(path, BEN)) for _ in range(8)]
        for one in mine:
            Connection(one).send(b"abc")
        assert [Connection(one).receive() for one in mine] == [b"cba"] * 8


def test_a_request_that_is_at_work_outlasts_a_flood_of_another_user(tmp_path: Path) -> None:
    begun, go = Event(), Event()

    def handle(relay: Relay, request: bytes) -> bytes:
        begun.set()
        assert go.wait(20)
        return request

    with served(tmp_path, handle) as (path, told), ExitStack() as stack:
        mine = [stack.enter_context(connected(path, BEN)) for _ in range(3)]
        for one in mine:
            Connection(one).send(b"mine")
        assert begun.wait(10)
        for _ in range(60):
            last = stack.enter_context(connected(path, ANN))
            with suppress(OSError):
                last.sendall(struct.pack("<Q", 3) + b"abc")
        until = time.monotonic() + 10
        while _open(last) and time.monotonic() < until:
            time.sleep(0.01)
        go.set()
        assert [Connection(one).receive() for one in mine] == [b"mine"] * 3
    assert any("Refused a connection of user 1001: there are 16" in one for one in told)


def test_requests_of_one_user_that_wait_give_way_and_are_never_begun(tmp_path: Path) -> None:
    begun, go = Event(), Event()
    came: list[bytes] = []

    def handle(relay: Relay, request: bytes) -> bytes:
        came.append(request)
        begun.set()
        assert go.wait(20)
        return request

    with served(tmp_path, handle) as (path, told), ExitStack() as stack:
        flood = [stack.enter_context(connected(path, ANN)) for _ in range(16)]
        Connection(flood[0]).send(b"0")
        assert begun.wait(10)
        for number, one in enumerate(flood[1:], start=1):
            Connection(one).send(b"%d" % number)
            taken(one)
        mine = stack.enter_context(connected(path, BEN))
        Connection(mine).send(b"mine")
        until = time.monotonic() + 10
        while not (ended := [one for one in flood if not _open(one)]) and time.monotonic() < until:
            time.sleep(0.01)
        go.set()
        assert Connection(mine).receive() == b"mine"
    assert ended == flood[-1:], "the newest of those that wait"
    assert len(came) == 16
    assert b"15" not in came
    assert any(
        "Ended a connection of user 1001 before its request was begun: another user" in t for t in told
    )


def test_a_request_at_work_keeps_its_memory_though_it_is_above_its_users_share(tmp_path: Path) -> None:
    """Of three users each may hold two thirds of a longest frame. The one that waits gives way, not this."""
    begun, go = Event(), Event()

    def handle(relay: Relay, request: bytes) -> bytes:
        begun.set()
        assert go.wait(20)
        return request[:4]

    with served(tmp_path, handle, allow={ANN, BEN, CY}) as (path, _), ExitStack() as stack:
        work, waits, mine = (stack.enter_context(connected(path, user)) for user in (ANN, CY, BEN))
        Connection(work).send(b"work" + b"x" * (2**20 - 4))
        assert begun.wait(10)
        Connection(waits).send(b"wait" + b"x" * (2**20 - 4))
        taken(waits)
        Connection(mine).send(b"mine" + b"x" * 2**19)
        taken(mine)
        until = time.monotonic() + 10
        while _open(waits) and time.monotonic() < until:
            time.sleep(0.01)
        go.set()
        assert Connection(work).receive() == b"work"
        assert Connection(mine).receive() == b"mine"
        assert not _open(waits)


def _open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        connection.settimeout(10)


def test_memory_is_shared_between_users_on_a_socket(tmp_path: Path) -> None:
    with served(tmp_path, backwards) as (path, told), ExitStack() as stack:
        slow = [stack.enter_context(connected(path, ANN)) for _ in range(2)]
        for one in slow:
            one.sendall(struct.pack("<Q", 2**20) + b"x" * (2**20 - 2**10))
            taken(one)
        mine = stack.enter_context(connected(path, BEN))
        Connection(mine).send(b"y" * 2**19)
        assert Connection(mine).receive() == b"y" * 2**19
        assert [_open(one) for one in slow] == [False, True]
        slow[1].sendall(b"x" * 2**10)
        assert Connection(slow[1]).receive() == b"x" * 2**20
    assert ["it held more than 1048576 of 2097152 bytes" in one for one in told] == [True]


# Users of the kernel -----------------------------------------------------------------------------------

OTHER = 54321
"""A number that no user of this machine has."""
root = pytest.mark.skipif(os.getuid() != 0, reason="only root can run a process under another user")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can pass. pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


FLOOD = """
import os, socket, sys, time
path, user = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setgid(user); os.setuid(user)
held = []
for _ in range(200):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.settimeout(5)
    try:
        one.connect(path)
        one.sendall(b"abc")
    except OSError:
        pass
    held.append(one)
print("all", flush=True)
time.sleep(60)
"""


@contextmanager
def flooded(path: Path) -> Iterator[None]:
    """A process of another user that holds what connections it gets, each with an unfinished head."""
    path.parent.chmod(0o755)
    path.chmod(0o666)
    program = [sys.executable, "-c", FLOOD, str(path), str(OTHER)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "all\n"
            yield
        finally:
            other.kill()


@root
def test_a_process_of_another_user_cannot_shut_ours_out(open_folder: Path) -> None:
    with (
        served(open_folder, backwards, allow={0, OTHER}, peer=peer_of) as (path, told),
        flooded(path),
    ):
        assert send(path, b"abc", timeout=20) == b"cba"
    assert any(f"Refused a connection of user {OTHER}: there are 16" in one for one in told)
    assert any(f"Ended a connection of user {OTHER}" in one for one in told)


@root
def test_a_process_of_a_user_that_is_not_allowed_is_turned_away(open_folder: Path) -> None:
    with served(open_folder, backwards, allow={0}, peer=peer_of) as (path, told), flooded(path):
        assert send(path, b"abc", timeout=20) == b"cba"
    assert any(f"Refused user {OTHER}, which is not among [0]" in one for one in told)
