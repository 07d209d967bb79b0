"""Paths that no command can read as a file: what stands there, and what is said of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path


def _socket(path: Path) -> None:
    # a socket's path has at most 107 bytes, so it is bound by a relative one
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: None, "got none (No such file"),
    "a folder": (lambda path: path.mkdir(), "got a folder"),
    "a pipe": (os.mkfifo, "got a pipe"),
    "a socket": (_socket, "got a socket"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "got a device"),
    "a broken link": (lambda path: path.symlink_to("nowhere"), "got a link that leads to no file"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "got a link that leads to no file"),
    "below a file": (lambda path: path.symlink_to("/etc/passwd/x"), "got a link that leads to no file"),
    # a regular file, of which the kernel gives the first bytes to nobody
    "a failing disk": (lambda path: path.symlink_to("/proc/self/mem"), "got an error (Input/output error)"),
}


def put(path: Path, what: str) -> str:
    """Put something that is no readable file at `path`. Returns what must be said of it."""
    path.unlink(missing_ok=True)
    make, said = BAD[what]
    make(path)
    return said
