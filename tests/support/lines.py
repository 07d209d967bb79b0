"""Connections to a party's socket in tests."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWN = frozenset({os.getuid()})


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
