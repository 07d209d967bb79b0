"""Processes of other users, for root: a party's server, and a relay, which has none of a party's files."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from securefl.core.errors import RemoteProtocolError
from securefl.deployment.connection import send
from securefl.deployment.folder import serve
from securefl.study.interruption import Interruption
from support.party_folders import made
from support.started import forks

_LATER = ("encodings.utf_8_sig", "encodings.idna")
"""Modules that are imported as they are needed, when it is too late for another user."""


def become(user: int, groups: list[int]) -> None:
    """Become this user, of these groups beside its own.

    All is imported before: the interpreter may lie in a folder that other users cannot pass.
    """
    os.setgroups(groups)
    os.setgid(user)
    os.setuid(user)


def serve_as(user: int, folder: Path, allow: int, pipe: Connection) -> None:
    """Serve the party of a folder as this user."""
    become(user, [])
    with Interruption():
        serve(folder, folder / "run" / "party.sock", allow={allow}, ready=lambda name: pipe.send(name))


def relay_as(user: int, groups: list[int], pipe: Connection) -> None:
    """Send requests that come through the pipe to parties. Says the reply, or the error as text."""
    become(user, groups)
    while True:
        try:
            path, data = pipe.recv()
        except EOFError:
            return
        if data is None:
            pipe.send([_readable(one) for one in path])
            continue
        try:
            pipe.send(send(path, data, timeout=60))
        except RemoteProtocolError as error:
            pipe.send(str(error))


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except PermissionError:
        return False
    return True


Job = tuple[Callable[..., None], tuple[Any, ...]]


def _start(jobs: list[Job], study: str, pipes: list[Connection], orders: Connection) -> None:
    """Fork a process for each job, so that imports and data cost once."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for name in _LATER:
        importlib.import_module(name)
    made(study)
    children = []
    for (work, arguments), pipe in zip(jobs, pipes, strict=True):
        if (child := os.fork()) == 0:
            for other in (*pipes, orders):
                if other is not pipe:
                    other.close()
            work(*arguments, pipe)
            os._exit(0)
        children.append(child)
    orders.send(children)
    with suppress(EOFError):
        orders.recv()  # the children end with it
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@contextmanager
def processes(study: str, *jobs: Job) -> Iterator[list[Connection]]:
    """A process for each job, and a pipe to each."""
    pairs = [forks().Pipe() for _ in jobs]
    orders, there = forks().Pipe()
    starter = forks().Process(target=_start, args=(list(jobs), study, [own for _, own in pairs], there))
    starter.start()
    for own in (there, *(own for _, own in pairs)):
        own.close()
    try:
        orders.recv()
        yield [here for here, _ in pairs]
    finally:
        orders.close()
        starter.join(30)
        for here, _ in pairs:
            here.close()
