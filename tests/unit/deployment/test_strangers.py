"""A flood of a user whom the owner did not name takes no place. No flood ends a request at work."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.every import every
from support.lines import Working, gone, served, taken

from securefl.deployment.connection import send
from securefl.deployment.framing import Connection
from securefl.deployment.peers import peer_of
from securefl.deployment.server import Relay

STRANGER, BEN = 1001, 1002


def named(connection: socket.socket) -> int:
    """The user of a connection, in place of the kernel: tests bind their ends to a name with a number."""
    name = connection.getpeername()
    return int(name[1:].split(b"-")[0]) if name else BEN


RULES: dict[str, Any] = {"allow": {BEN}, "peer": named}


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
def test_200_connections_of_a_stranger_leave_a_named_user_served(tmp_path: Path, sent: bytes) -> None:
    with served(tmp_path, backwards, **RULES) as (path, told), ExitStack() as stack:
        for number in range(200):
            with suppress(OSError):  # all are turned away
                stack.enter_context(connected(path, STRANGER)).sendall(sent)
            if number % 50 == 49:
                assert send(path, b"abc", timeout=20) == b"cba"
        mine = [stack.enter_context(connected(path, BEN)) for _ in range(16)]
        for one in mine:
            Connection(one).send(b"abc")
        assert [Connection(one).receive() for one in mine] == [b"cba"] * 16
    assert all("Refused user 1001" in one for one in told)


def test_a_request_that_is_at_work_outlasts_a_flood_of_another_named_user(tmp_path: Path) -> None:
    work = Working()
    rules = {**RULES, "allow": {STRANGER, BEN}}
    with served(tmp_path, work, **rules) as (path, told), ExitStack() as stack:
        mine = [stack.enter_context(connected(path, BEN)) for _ in range(3)]
        for one in mine:
            Connection(one).send(b"mine")
            taken(one)
        assert work.begun.wait(10)
        for _ in range(60):
            last = stack.enter_context(connected(path, STRANGER))
            with suppress(OSError):
                last.sendall(struct.pack("<Q", 3) + b"abc")
        until = time.monotonic() + 10
        while not gone(last) and time.monotonic() < until:
            time.sleep(0.01)
        work.go.set()
        assert [Connection(one).receive() for one in mine] == [b"mine"] * 3
    assert any("Refused a connection of user 1001: there are 16" in one for one in told)


# Users of the kernel -----------------------------------------------------------------------------------

OTHER = 54321
"""A number that no user of this machine has."""
root = pytest.mark.skipif(os.getuid() != 0, reason="only root can run a process under another user")


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
def test_a_process_of_a_user_that_is_not_allowed_is_turned_away(open_folder: Path) -> None:
    with served(open_folder, backwards, allow={0}, peer=peer_of) as (path, told), flooded(path):
        assert send(path, b"abc", timeout=20) == b"cba"
    assert any(f"Refused user {OTHER}, which is not among [0]" in one for one in told)
