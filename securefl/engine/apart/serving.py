"""A party's side of its socket: who may connect, and one request after the other.

Whoever connects is known by the kernel (SO_PEERCRED), and is let in by user alone. A thread for each
connection takes its frames; the party's own thread answers them. What a connection may take of the party, a
place and memory, `Limits` counts.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import sleep

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.logs import logger
from securefl.engine.apart.connection import MOST, PATIENCE, Connection, refusal
from securefl.engine.apart.limits import Guest, Limits

_PLACES = 16
_FRAMES = 2
"""So many of the longest frames fit into what all connections together may hold."""
_HEARS = 0.5
"""Seconds after which a wait looks up, at the latest: for a signal, or for an end of the connection."""
_MOST_ORDERS = 1000
_PEER = struct.Struct("3i")
_LONGEST_PATH = 107
_CLOSED = (errno.EINVAL, errno.EBADF)
_GONE = "Dropped a request: who brought it was gone before its turn."
_LOG = logger(__name__)
Handle = Callable[[Connection, bytes], bytes]


def serve(
    listener: socket.socket,
    handle: Handle,
    *,
    allow: Collection[int],
    tell: Callable[[str], None],
    most: int = MOST,
    patience: float = PATIENCE,
) -> None:
    """Answer frames until the listener is closed.

    Guarantees:
        - A connection that is slow, idle or hostile holds up none but itself: 16 idle ones keep nobody out.
        - Frames that come or wait hold two of the longest frames together, and no more.
        - A request whose connection has ended is not begun. One that is begun is finished.

    Args:
        handle: makes the reply to a request that came on this line. It is called in this thread, for one
            request after the other, whoever sends them: as long as it takes, the others wait.
        allow: the users, by number, who may connect.
        tell: is told, for the party's owner, who was turned away and what went wrong.
    """
    room, orders = Limits(places=_PLACES, most=_FRAMES * most), _Orders(handle, tell)

    def accept() -> None:
        try:
            while True:
                try:
                    welcome(listener.accept()[0])
                except OSError as error:
                    if error.errno in _CLOSED:
                        return
                    orders.note(f"Could not take a connection: {error}.")
                    sleep(_HEARS)
        finally:
            orders.end()

    def welcome(connection: socket.socket) -> None:
        if (user := peer(connection)) not in allow:
            may = sorted(allow)
            orders.note(
                f"Turned user {user} away, who is not among {may}. If it carries, name it with --allow."
            )
        elif (guest := room.admit(connection)) is None:
            orders.note(f"Turned a connection away: there are {_PLACES} already, with a request each.")
        else:
            line = Connection(connection, most=most, patience=patience, hold=partial(room.hold, guest))
            Thread(target=_served, args=(guest, line, user, room, orders), daemon=True).start()
            return
        connection.close()

    Thread(target=accept, daemon=True).start()
    try:
        orders.work()
    finally:
        room.close()


def _served(guest: Guest, line: Connection, user: int, room: Limits, orders: _Orders) -> None:
    """A connection, until it ends."""
    with guest.connection:
        try:
            while line.begins() and room.begin(guest):
                # in one line: a name for the frame would keep its bytes until the next one
                line.send(orders.answer(line, line.frame()))
                room.rest(guest)
        except RemoteProtocolError as error:
            orders.note(f"Ended a connection of user {user}: {error}")
        except Exception as error:
            # A request that breaks this code must not end the party, nor tell anybody why.
            _LOG.exception("a request failed")
            name = type(error).__name__
            orders.note(f"Ended a connection of user {user} at an error of this code, {name}: {error}")
        finally:
            room.leave(guest)


class _Orders:
    """What the party's own thread does, one after the other."""

    def __init__(self, handle: Handle, tell: Callable[[str], None]) -> None:
        self._handle, self._tell = handle, tell
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def work(self) -> None:
        """Work until the end."""
        while (order := self._next()) is not None:
            order()
            del order  # its reply would stay in memory with it

    def end(self) -> None:
        self._queue.put(None)

    def note(self, text: str) -> None:
        """Tell the owner. What comes in masses while a request is at work is told of in part."""
        if self._queue.qsize() < _MOST_ORDERS:
            self._queue.put(lambda: self._tell(text))

    def answer(self, line: Connection, request: bytes) -> bytes:
        """The reply to a request, in its turn. RemoteProtocolError if the line has ended before."""
        reply: Future[bytes] = Future()
        # A list that is emptied: what was dropped, or is done, must not stay in memory with the order.
        requests = [request]
        del request
        self._queue.put(lambda: self._settle(reply, line, requests))
        while not wait([reply], timeout=_HEARS).done and not reply.cancelled():
            if line.gone:
                reply.cancel()  # in vain once it is begun
        try:
            return reply.result()
        except CancelledError:
            requests.clear()
            raise refusal(_GONE) from None

    def _settle(self, reply: Future[bytes], line: Connection, requests: list[bytes]) -> None:
        if not reply.set_running_or_notify_cancel():
            return
        try:
            # It can have ended since the other thread looked.
            if line.gone:
                raise refusal(_GONE)
            reply.set_result(self._handle(line, requests.pop()))
        except Exception as error:  # told where the connection ends
            reply.set_exception(error)

    def _next(self) -> Callable[[], None] | None:
        """The next order. A signal just before Python begins to wait ends no wait without a limit."""
        while True:
            with suppress(Empty):
                return self._queue.get(timeout=_HEARS)


def peer(connection: socket.socket) -> int:
    """The number of the user at the other end, from the kernel."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, user, _ = _PEER.unpack(raw)
    return int(user)


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket at `path` that its owner and its group may open, in a folder that no others may write.

    A socket that an earlier process left is removed: the caller has made sure that none runs. Raises
    ConfigError for another file there, a folder that others may write, and a path that is too long.
    """
    _require_folder(path.parent)
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ConfigError(
            f"Expected a socket path of at most {_LONGEST_PATH} bytes, got {len(os.fsencode(path))}: {path}. "
            "Name a shorter one with --socket."
        )
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"Expected nothing or an old socket at {path}, got another file. Remove it.")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mask holds from the moment the file exists. A mode that is set afterwards comes too late.
    before = os.umask(0o117)
    try:
        listener.bind(os.fspath(path))
    finally:
        os.umask(before)
    try:
        listener.listen(_PLACES)
        yield listener
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept, which close does not
        listener.close()
        path.unlink(missing_ok=True)


def _require_folder(folder: Path) -> None:
    """Make the folder, for owner and group, or check the one that is there."""
    with suppress(FileExistsError):
        folder.mkdir(parents=True, mode=0o750)
        folder.chmod(0o750)  # whatever the mask left
    found = folder.lstat()
    own = found.st_uid in (os.getuid(), 0)
    if not stat.S_ISDIR(found.st_mode) or not own or found.st_mode & 0o022:
        raise ConfigError(
            f"Expected a folder for the socket that its owner alone may write, got {folder} with mode "
            f"{stat.S_IMODE(found.st_mode):04o} of user {found.st_uid}: others could put their socket there. "
            f"Run chmod 0750 {folder}, or name another with --socket."
        )
