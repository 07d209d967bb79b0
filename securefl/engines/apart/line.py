"""The Unix socket between a party and whoever carries its frames on the same machine.

A frame on the line has its length in front, eight bytes. The length is checked before anything is made for
it, and memory grows with what came, not with what was claimed. A frame must come whole within a time. Whoever
connects is known by the kernel (SO_PEERCRED), and is let in by user alone.

Whatever goes wrong on a connection ends that connection. The party does not notice.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Thread

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.logs import logger

MOST = 2**30
"""The longest frame in bytes, unless somebody says otherwise."""
PATIENCE = 60.0
"""Seconds in which a frame must have come, or gone, whole."""
_CONNECTIONS = 16
_HEARS = 0.5
"""Seconds after which a party that waits hears a signal at the latest."""
_LENGTH = struct.Struct("<Q")
_PEER = struct.Struct("3i")
_CHUNK = 2**20
_LONGEST_PATH = 107
_LOG = logger(__name__)


class Line:
    """One connection: whole frames, each way. RemoteProtocolError for whatever is not one.

    most: the longest frame. patience: seconds for one frame; None to wait for its first byte without end.
    """

    def __init__(self, connection: socket.socket, *, most: int = MOST, patience: float = PATIENCE) -> None:
        self._connection = connection
        self._most = most
        self._patience = patience

    def send(self, frame: bytes) -> None:
        """Send a frame."""
        until = time.monotonic() + self._patience
        left = memoryview(_LENGTH.pack(len(frame)) + frame)
        try:
            while left:
                self._connection.settimeout(_left(until))
                left = left[self._connection.send(left) :]
        except OSError as error:
            raise _lost(error) from None

    def receive(self, *, wait: float | None = None) -> bytes | None:
        """The next frame; None where the other side has ended the connection between two frames.

        wait: seconds for its first byte, by default without end.
        """
        self._connection.settimeout(wait)
        try:
            first = self._connection.recv(_LENGTH.size)
            if not first:
                return None
            until = time.monotonic() + self._patience
            head = first + self._exactly(_LENGTH.size - len(first), until)
            (length,) = _LENGTH.unpack(head)
            if length > self._most:
                raise _refusal(f"Expected a frame of at most {self._most} bytes, got a claim of {length}.")
            return self._exactly(length, until)
        except OSError as error:
            raise _lost(error) from None

    def _exactly(self, count: int, until: float) -> bytes:
        came = bytearray()
        while len(came) < count:
            self._connection.settimeout(_left(until))
            piece = self._connection.recv(min(_CHUNK, count - len(came)))
            if not piece:
                raise _refusal(f"Expected {count} more bytes of a frame, got {len(came)} and the end.")
            came += piece
        return bytes(came)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("the frame took too long")
    return left


def _lost(error: OSError) -> RemoteProtocolError:
    return _refusal(f"Expected a whole frame in time, got: {error}.")


def _refusal(text: str) -> RemoteProtocolError:
    return RemoteProtocolError(text, sender="peer", phase="line")


# A carrier's side -----------------------------------------------------------------------------------


def ask(path: Path | str, request: bytes, *, timeout: float, most: int = MOST) -> bytes:
    """A party's reply to a request. `timeout`: seconds for all of it.

    Raises RemoteProtocolError for a party that does not run, lets this user not in, or does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(os.fspath(path))
        except OSError as error:
            raise _refusal(
                f"Expected a party at {path}, got: {error}. Start it: securefl party serve."
            ) from None
        line = Line(connection, most=most, patience=timeout)
        line.send(request)
        reply = line.receive(wait=timeout)
    if reply is None:
        raise _refusal(f"Expected a reply from the party at {path}, got the end of the connection.")
    return reply


# A party's side -------------------------------------------------------------------------------------


def serve(
    listener: socket.socket,
    handle: Callable[[Line, bytes], bytes],
    *,
    allow: Collection[int],
    tell: Callable[[str], None],
    most: int = MOST,
    patience: float = PATIENCE,
) -> None:
    """Answer frames until the listener is closed.

    Args:
        handle: makes the reply to a request that came on this line. It is called in this thread, for one
            request after the other, whoever sends them; a connection that is slow holds up none but itself.
        allow: the users, by number, who may connect.
        tell: is told, for the party's owner, who was turned away and what went wrong.
    """
    work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def answer(line: Line, request: bytes) -> bytes:
        reply: Future[bytes] = Future()
        work.put(lambda: _settle(reply, lambda: handle(line, request)))
        return reply.result()

    def note(text: str) -> None:
        work.put(lambda: tell(text))

    def run(connection: socket.socket, room: BoundedSemaphore) -> None:
        with connection:
            if not room.acquire(blocking=False):
                note(f"Turned a connection away: there are {_CONNECTIONS} already.")
                return
            try:
                _served(Line(connection, most=most, patience=patience), peer(connection), allow, answer, note)
            finally:
                room.release()

    def accept() -> None:
        room = BoundedSemaphore(_CONNECTIONS)
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                Thread(target=run, args=(connection, room), daemon=True).start()
        work.put(None)

    Thread(target=accept, daemon=True).start()
    while (order := _next(work)) is not None:
        order()


def _next(work: SimpleQueue[Callable[[], None] | None]) -> Callable[[], None] | None:
    """The next order. A signal that comes just before Python begins to wait ends no wait without a limit."""
    while True:
        with suppress(Empty):
            return work.get(timeout=_HEARS)


def _settle(reply: Future[bytes], make: Callable[[], bytes]) -> None:
    try:
        reply.set_result(make())
    except Exception as error:  # told where the connection ends
        reply.set_exception(error)


def _served(
    line: Line,
    user: int,
    allow: Collection[int],
    answer: Callable[[Line, bytes], bytes],
    note: Callable[[str], None],
) -> None:
    if user not in allow:
        note(f"Turned user {user} away, who is not among {sorted(allow)}: add it with --allow if it carries.")
        return
    try:
        while (request := line.receive()) is not None:
            line.send(answer(line, request))
    except RemoteProtocolError as error:
        note(f"Ended a connection of user {user}: {error}")
    except Exception as error:
        # A request that breaks this code must not end the party, nor tell anybody why.
        _LOG.exception("a request failed")
        note(f"Ended a connection of user {user} at an error of this code, {type(error).__name__}: {error}")


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
        listener.listen(_CONNECTIONS)
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
