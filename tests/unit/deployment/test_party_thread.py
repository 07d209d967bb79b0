"""The thread of a party beside those of its connections: one request at a time, each to its end."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import pytest
from support.every import every
from support.lines import OWN, Working, connected, served, taken, told_of

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.deployment.connection import send
from securefl.deployment.framing import Connection
from securefl.deployment.server import PartyThread, Relay, Served, _Server, listening, serve


def test_a_party_is_opened_asked_told_and_closed_in_one_thread(tmp_path: Path) -> None:
    """SQLite's objects may be used in the thread alone that made them."""
    threads: list[Any] = []

    @contextmanager
    def opening(party: Served) -> Iterator[Served]:
        database = sqlite3.connect(":memory:")

        def handle(relay: Relay, request: bytes) -> bytes:
            threads.append(current_thread())
            return b"%d" % database.execute("SELECT 7").fetchone()

        def tell(text: str) -> None:
            threads.append(current_thread())
            database.execute("SELECT 7")
            party.tell(text)

        yield Served(handle, tell)
        threads.append(current_thread())
        database.close()

    with served(tmp_path, lambda relay, request: b"", opening=opening, most=9) as (path, told):
        assert send(path, b"x", timeout=5) == b"7"
        with suppress(RemoteProtocolError):
            send(path, b"x" * 99, timeout=5)
        assert told_of(told, "claim of 99")
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert threads[0] is not current_thread()


def test_a_party_that_cannot_be_opened_says_so_and_leaves_no_thread() -> None:
    closed = []

    @contextmanager
    def opening() -> Iterator[Served]:
        with ExitStack() as stack:
            stack.callback(closed.append, 1)
            raise ConfigError("no folder")
        yield

    before = threading.active_count()
    with pytest.raises(ConfigError, match="no folder"), PartyThread(opening):
        pass
    assert closed == [1]
    assert threading.active_count() == before


def test_requests_run_one_at_a_time_and_all_of_them(tmp_path: Path) -> None:
    inside, most, answers = [0], [0], []

    def handle(relay: Relay, request: bytes) -> bytes:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.002)
        inside[0] -= 1
        return request

    def ask(number: int) -> None:
        for turn in range(5):
            answers.append(send(path, b"%d %d" % (number, turn), timeout=20))

    with served(tmp_path, handle) as (path, told):
        relays = [Thread(target=ask, args=(number,)) for number in range(12)]
        for one in relays:
            one.start()
        for one in relays:
            one.join(20)
    assert most == [1]
    assert len(set(answers)) == 60
    assert told == []


def test_a_relay_is_asked_on_its_own_connection(tmp_path: Path) -> None:
    def handle(relay: Relay, request: bytes) -> bytes:
        return request + relay.query(b"more?", seconds=5) + relay.query(b"and?", seconds=5)

    with served(tmp_path, handle) as (path, told), connected(path) as one, connected(path) as other:
        line = Connection(one)
        line.send(b"a")
        assert line.receive() == b"more?"
        Connection(other).send(b"waits")
        line.send(b"b")
        assert line.receive() == b"and?"
        line.send(b"c" * 2**20)
        assert line.receive() == b"ab" + b"c" * 2**20
        for asked in (b"more?", b"and?"):
            assert Connection(other).receive() == asked
            Connection(other).send(b"!")
        assert Connection(other).receive() == b"waits!!"
    assert told == []


@every("how", ["ends", "says nothing", "is cut", "claims too much"])
def test_a_relay_that_does_not_answer_costs_its_own_request_alone(tmp_path: Path, how: str) -> None:
    why: list[str] = []

    def handle(relay: Relay, request: bytes) -> bytes:
        if request == b"plain":
            return request
        try:
            return relay.query(b"more?", seconds=0.3)
        except RemoteProtocolError as error:
            why.append(str(error))
            return b"without it"

    with served(tmp_path, handle, patience=2.0, most=2**20) as (path, _), connected(path) as one:
        Connection(one).send(b"a")
        assert Connection(one).receive() == b"more?"
        if how == "ends":
            one.close()
        elif how == "is cut":
            one.sendall(b"\x09\0\0\0\0\0\0\0cut")
            one.shutdown(socket.SHUT_WR)
        elif how == "claims too much":
            one.sendall(b"\0\0\0\0\x09\0\0\0")
        if how != "ends":
            assert Connection(one).receive() == b"without it"
        assert send(path, b"plain", timeout=5) == b"plain"
    words = {
        "ends": "end of the connection",
        "says nothing": "it took too long",
        "is cut": "and the end",
        "claims too much": "a claim of",
    }
    assert words[how] in why[0]


def test_a_server_that_stops_lets_the_request_at_work_end(tmp_path: Path) -> None:
    begun, ends = Event(), []

    def handle(relay: Relay, request: bytes) -> bytes:
        begun.set()
        try:
            relay.query(b"more?", seconds=3600)
        except RemoteProtocolError as error:
            ends.append(str(error))
        return b""

    @contextmanager
    def opening(party: Served) -> Iterator[Served]:
        yield party
        ends.append("closed")

    with ExitStack() as stack, served(tmp_path, handle, opening=opening) as (path, _):
        one = stack.enter_context(connected(path))  # it outlives the server
        Connection(one).send(b"a")
        assert Connection(one).receive() == b"more?"
        assert begun.wait(5)
    assert "on this side" in ends[0]
    assert ends[1:] == ["closed"]


def test_a_request_that_was_dropped_holds_no_memory_while_another_is_at_work(tmp_path: Path) -> None:
    work = Working()
    with served(tmp_path, work, most=2**25) as (path, _), connected(path) as first:
        Connection(first).send(b"work")
        assert work.begun.wait(5)
        tracemalloc.start()
        try:
            with connected(path) as waits:
                Connection(waits).send(bytes(2**24))
                taken(waits)
                held, _ = tracemalloc.get_traced_memory()
            until = time.monotonic() + 10
            while (left := tracemalloc.get_traced_memory()[0]) > 2**20 and time.monotonic() < until:
                time.sleep(0.05)
        finally:
            tracemalloc.stop()
            work.go.set()
        assert held > 2**23
        assert left < 2**20


def test_what_the_owner_cannot_be_told_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def full(text: str) -> None:
        raise OSError("No space left on device")

    party = Served(lambda relay, request: request, full)
    with served(tmp_path, party.answer, opening=lambda _: nullcontext(party), most=9) as (path, _):
        with suppress(RemoteProtocolError):
            send(path, b"x" * 99, timeout=5)
        assert send(path, b"ab", timeout=5) == b"ab"
    assert "a note for the owner was lost" in caplog.text


def test_an_error_of_the_loop_itself_is_raised(tmp_path: Path) -> None:
    class Broken(socket.socket):
        def accept(self) -> Any:
            raise ZeroDivisionError("a fault of this code")

    with listening(tmp_path / "run" / "s") as listener, Broken(fileno=listener.detach()) as broken:
        own = Served(lambda relay, request: request, print)
        with (
            PartyThread(lambda: nullcontext(own)) as thread,
            connected(tmp_path / "run" / "s"),
            pytest.raises(ZeroDivisionError),
        ):
            serve(broken, thread, allow=OWN)


def test_a_party_prepares_after_its_reply_and_every_request_that_waits_goes_first(tmp_path: Path) -> None:
    events: list[str] = []
    begun, go, done = Event(), Event(), Event()

    def handle(relay: Relay, request: bytes) -> bytes:
        events.append(request.decode())
        return request

    def prepare() -> bool:
        events.append("piece")
        begun.set()
        assert go.wait(10)
        if events.count("piece") < 3:
            return True
        done.set()
        return False

    party, path = Served(handle, print, prepare), tmp_path / "run" / "s"
    with PartyThread(lambda: nullcontext(party)) as thread, listening(path) as listener:
        serving = Thread(target=serve, args=(listener, thread), kwargs={"allow": OWN})
        serving.start()
        assert send(path, b"one", timeout=5) == b"one", "it does not wait for what is prepared"
        assert begun.wait(10)
        relay = Thread(target=send, args=(path, b"two"), kwargs={"timeout": 10})
        relay.start()
        until = time.monotonic() + 10
        while not thread._executor._work_queue.qsize() and time.monotonic() < until:
            time.sleep(0.005)
        go.set()
        relay.join(10)
        assert done.wait(10)
        listener.shutdown(socket.SHUT_RDWR)
        serving.join(10)
    assert events[:4] == ["one", "piece", "two", "piece"]


def test_one_piece_waits_in_the_thread_however_many_replies_were_sent(tmp_path: Path) -> None:
    """Else a request would wait for a piece of each reply before it."""
    begun, go = Event(), Event()

    def prepare() -> bool:
        begun.set()
        go.wait(10)
        return False

    party, path = Served(lambda relay, request: request, print, prepare), tmp_path / "run" / "s"
    with PartyThread(lambda: nullcontext(party)) as thread, listening(path) as listener:
        server = _Server(listener, thread, OWN, 9, 9.0, lambda connection: 0)
        try:
            server._prepare_soon()
            assert begun.wait(10)
            for _ in range(3):
                server._prepare_soon()
            assert thread._executor._work_queue.qsize() == 0
        finally:
            go.set()
        assert server._preparing is not None
        server._preparing.result(10)
        begun.clear()
        server._prepare_soon()
        assert begun.wait(10), "the next reply has its piece again"


def test_a_failure_to_prepare_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def prepare() -> bool:
        raise MemoryError

    party = Served(lambda relay, request: request, print, prepare)
    with served(tmp_path, party.answer, opening=lambda _: nullcontext(party)) as (path, _):
        for request in (b"one", b"two"):
            assert send(path, request, timeout=5) == request
    assert "preparing an answer failed" in caplog.text
