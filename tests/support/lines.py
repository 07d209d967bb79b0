"""A party behind its socket in tests, and connections to it."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event, Thread
from typing import Any

from securefl.deployment.server import Answer, PartyThread, Relay, Served, listening, serve

OWN = frozenset({os.getuid()})


def serving(
    listener: socket.socket, answer: Answer, told: list[str], opening: Any = nullcontext, **rules: Any
) -> None:
    """opening: of the party, in its own thread."""
    with PartyThread(lambda: opening(Served(answer, told.append))) as thread:
        serve(listener, thread, **{"allow": OWN, "most": 2**20, "patience": 5.0, **rules})


@contextmanager
def served(
    folder: Path, answer: Answer, *, make: Callable[[socket.socket], Any] | None = None, **rules: Any
) -> Iterator[tuple[Path, list[str]]]:
    """A party, and what its owner is told. make: of the listener."""
    told: list[str] = []
    path = folder / "run" / "party.sock"
    with listening(path) as listener:
        own = make(listener) if make else listener
        thread = Thread(target=serving, args=(own, answer, told), kwargs=rules)
        thread.start()
        try:
            yield path, told
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)
            if own is not listener:
                own.close()
    assert not thread.is_alive()
    assert not path.exists()


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        yield connection


def told_of(told: list[str], words: str) -> bool:
    """Whether the owner is told so, soon."""
    until = time.monotonic() + 10
    while not any(words in one for one in told) and time.monotonic() < until:
        time.sleep(0.005)
    return any(words in one for one in told)


def taken(connection: socket.socket) -> None:
    """Wait until the other side has taken all that was sent."""
    until = time.monotonic() + 10
    while struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]:
        assert time.monotonic() < until
        time.sleep(0.005)


def gone(connection: socket.socket) -> bool:
    """Whether the other side has ended the connection."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))


class Working:
    """An answer that is at work until `go`. came: the requests that had their turn."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.begun, self.go = Event(), Event()

    def __call__(self, relay: Relay, request: bytes) -> bytes:
        self.came.append(request)
        self.begun.set()
        assert self.go.wait(30)
        return request
