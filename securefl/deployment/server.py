"""A party's server on a Unix socket: access by user, and one request at a time.

The kernel names the user of a connection (SO_PEERCRED), and access depends on the user alone. A thread for
each connection reads its frames. The party's own thread answers them. `Limits` limits the number of
connections and the memory of their frames.
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
from securefl.deployment.connection import MOST, PATIENCE, Connection, refusal
from securefl.deployment.limits import Guest, Limits

_PLACES = 16
_FRAMES = 2
"""All connections together may hold the bytes of this many of the longest frames."""
_HEARS = 0.5
"""The longest wait in seconds before a check for a signal or for the end of the connection."""
_MOST_ORDERS = 1000
_PEER = struct.Struct("3i")
_LONGEST_PATH = 107
_CLOSED = (errno.EINVAL, errno.EBADF)
_GONE = "Dropped a request: its connection ended before its turn."
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

        >>> import os, socket, tempfile, threading
        >>> from securefl.deployment import send, serve
        >>> path, listener = f"{tempfile.mkdtemp()}/s", socket.socket(socket.AF_UNIX)
        >>> listener.bind(path); listener.listen()
        >>> rules = {"allow": {os.getuid()}, "tell": print}
        >>> party = threading.Thread(target=serve, args=(listener, lambda line, r: r.upper()), kwargs=rules)
        >>> party.start(); send(path, b"ping", timeout=9)
        b'PING'
        >>> listener.shutdown(socket.SHUT_RDWR); party.join(); listener.close()

    Guarantees:
        - A slow, idle or hostile connection delays only itself. 16 idle connections keep no other one out.
        - Frames that arrive or wait hold at most the memory of two of the longest frames together.
        - If a connection has ended, its request is not begun. A request that was begun is finished.

    Args:
        handle: makes the reply to a request from this connection. It is called in this thread, for one
            request at a time, and all other requests wait meanwhile.
        allow: the numbers of the users that may connect.
        tell: gets messages for the party's owner on refused connections and errors.
        most: the longest frame in bytes.
        patience: seconds for one frame, from its first byte.

    Raises nothing. An error of `handle` ends its connection and is told to the owner.
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
                f"Refused user {user}, which is not among {may}. If it carries frames, name it with --allow."
            )
        elif (guest := room.admit(connection)) is None:
            orders.note(f"Refused a connection: there are {_PLACES} already, with a request each.")
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
    """Answer the requests of one connection until it ends."""
    with guest.connection:
        try:
            while line.begins() and room.begin(guest):
                # In one expression: a variable for the frame would keep its bytes until the next frame.
                line.send(orders.answer(line, line.frame()))
                room.rest(guest)
        except RemoteProtocolError as error:
            orders.note(f"Ended a connection of user {user}: {error}")
        except Exception as error:
            # A request that raises an unexpected error must not end the party, nor reveal the reason.
            _LOG.exception("a request failed")
            name = type(error).__name__
            orders.note(f"Ended a connection of user {user} at an error of this code, {name}: {error}")
        finally:
            room.leave(guest)


class _Orders:
    """The queue of the party's own thread."""

    def __init__(self, handle: Handle, tell: Callable[[str], None]) -> None:
        self._handle, self._tell = handle, tell
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def work(self) -> None:
        """Run queued orders until `end`."""
        while (order := self._next()) is not None:
            order()
            del order  # it would keep its reply in memory

    def end(self) -> None:
        self._queue.put(None)

    def note(self, text: str) -> None:
        """Tell the owner. If many notes come while a request is at work, some are dropped."""
        if self._queue.qsize() < _MOST_ORDERS:
            self._queue.put(lambda: self._tell(text))

    def answer(self, line: Connection, request: bytes) -> bytes:
        """The reply to a request, in its turn. RemoteProtocolError if the connection ended before it."""
        reply: Future[bytes] = Future()
        # A list that is emptied, so that the order does not keep a finished or dropped request in memory.
        requests = [request]
        del request
        self._queue.put(lambda: self._settle(reply, line, requests))
        while not wait([reply], timeout=_HEARS).done and not reply.cancelled():
            if line.gone:
                reply.cancel()  # has no effect once the request is begun
        try:
            return reply.result()
        except CancelledError:
            requests.clear()
            raise refusal(_GONE) from None

    def _settle(self, reply: Future[bytes], line: Connection, requests: list[bytes]) -> None:
        if not reply.set_running_or_notify_cancel():
            return
        try:
            # The connection may have ended since the other thread checked it.
            if line.gone:
                raise refusal(_GONE)
            reply.set_result(self._handle(line, requests.pop()))
        except Exception as error:  # the connection's thread reports it
            reply.set_exception(error)

    def _next(self) -> Callable[[], None] | None:
        """The next order. Waits have a limit, since a signal just before a wait would not end it."""
        while True:
            with suppress(Empty):
                return self._queue.get(timeout=_HEARS)


def peer(connection: socket.socket) -> int:
    """The user number of the connection's other end, from the kernel."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, user, _ = _PEER.unpack(raw)
    return int(user)


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Listen on a socket at `path` that owner and group may open, in a folder that only the owner may write.

    An existing socket is removed, so the caller must first make sure that no process serves it. Raises
    ConfigError for another kind of file at `path`, for a folder that other users may write, and for a path
    that is too long.
    """
    _require_folder(path.parent)
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ConfigError(
            f"Expected a socket path of at most {_LONGEST_PATH} bytes, got {len(os.fsencode(path))}: {path}. "
            "Choose a shorter one with --socket."
        )
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"Expected nothing or an old socket at {path}, got another file. Remove it.")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mask applies from the moment the file exists. A mode that is set afterwards comes too late.
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
            listener.shutdown(socket.SHUT_RDWR)  # ends a waiting accept, which close does not
        listener.close()
        path.unlink(missing_ok=True)


def _require_folder(folder: Path) -> None:
    """Create the folder for owner and group, or check the existing one."""
    with suppress(FileExistsError):
        folder.mkdir(parents=True, mode=0o750)
        folder.chmod(0o750)  # the process's umask may have removed bits
    found = folder.lstat()
    own = found.st_uid in (os.getuid(), 0)
    if not stat.S_ISDIR(found.st_mode) or not own or found.st_mode & 0o022:
        raise ConfigError(
            f"Expected a folder for the socket that its owner alone may write, got {folder} with mode "
            f"{stat.S_IMODE(found.st_mode):04o} of user {found.st_uid}: others could put their socket there. "
            f"Run chmod 0750 {folder}, or name another with --socket."
        )
