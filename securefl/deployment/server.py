"""A party's server on a Unix socket: a thread for each connection, and one thread for the party.

    serve           accepts connections of the allowed users, and keeps the limits
    a connection    reads a request, waits for its turn, and sends the reply
    PartyThread     opens the party's databases, and runs its requests one after the other

The kernel names the user of a connection, and access depends on the user alone. A request that has begun goes
on to its end.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Protocol, TypeVar

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.logs import logger
from securefl.deployment.framing import MOST, PATIENCE, Connection, refusal
from securefl.deployment.peers import longest_path, peer_of, require_platform
from securefl.storage.files import folder_at

_PLACES = 16
_WAITING = 128
"""Connections that wait in the kernel until they are accepted."""
_FRAMES = 2
"""All connections together may hold the bytes of this many of the longest frames."""
_HEARS = 0.5
"""The longest wait in seconds before a check for a signal or for the end of a connection."""
_MOST_NOTES = 1000
_CLOSED = (errno.EINVAL, errno.EBADF)
_GONE = "Dropped a request: its connection ended before its turn."
_LOG = logger(__name__)
T = TypeVar("T")


class Relay(Protocol):
    """The other end of the connection that brought a request, while the request is answered."""

    def query(self, envelope: bytes, *, seconds: float) -> bytes:
        """Send it an envelope, and return its answer. RemoteProtocolError if none comes in time."""
        ...


Answer = Callable[[Relay, bytes], bytes]
"""Makes the reply to a request that this relay brought."""


@dataclass(frozen=True)
class Served:
    """What a server needs of a party, all of it called in the party's thread.

    tell: gets messages for the party's owner on refused connections and errors.
    prepare: works beforehand for some milliseconds, after a reply was sent; returns whether to call it again.
    """

    answer: Answer
    tell: Callable[[str], None]
    prepare: Callable[[], bool] = lambda: False


class PartyThread:
    """The one thread of a party. In it the party is opened, answers all its requests in turn, and is closed.

        >>> from contextlib import nullcontext
        >>> from threading import current_thread
        >>> from securefl.deployment.server import PartyThread, Served
        >>> party = Served(lambda relay, request: request.upper(), print)
        >>> with PartyThread(lambda: nullcontext(party)) as thread:
        ...     thread.run(lambda: current_thread().name).result()
        'party_0'

    Args:
        opening: opens the party, in that thread.

    Raises what `opening` raises, as the context is entered. Its end waits for the request at work.
    """

    def __init__(self, opening: Callable[[], AbstractContextManager[Served]]) -> None:
        self._opening = opening
        self._stack = ExitStack()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="party")

    def __enter__(self) -> PartyThread:
        try:
            self.party = self.run(lambda: self._stack.enter_context(self._opening())).result()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, work: Callable[[], T]) -> Future[T]:
        """Run a function in the party's thread, after all that it was given before."""
        return self._executor.submit(work)

    def _end(self) -> None:
        # The party's files are closed in the thread that opened them.
        closed = self.run(self._stack.close)
        self._executor.shutdown()
        closed.result()


def serve(
    listener: socket.socket,
    thread: PartyThread,
    *,
    allow: Collection[int],
    most: int = MOST,
    patience: float = PATIENCE,
    peer: Callable[[socket.socket], int] = peer_of,
) -> None:
    """Answer requests until the listener is shut down.

        >>> import os, socket, tempfile, threading
        >>> from contextlib import nullcontext
        >>> from securefl.deployment import send, serve
        >>> from securefl.deployment.server import PartyThread, Served
        >>> path, listener = f"{tempfile.mkdtemp()}/s", socket.socket(socket.AF_UNIX)
        >>> listener.bind(path); os.chmod(path, 0o660); listener.listen()
        >>> party = Served(lambda relay, request: request.upper(), print)
        >>> with PartyThread(lambda: nullcontext(party)) as own:
        ...     rules = {"allow": {os.getuid()}}
        ...     serving = threading.Thread(target=serve, args=(listener, own), kwargs=rules)
        ...     serving.start()
        ...     reply = send(path, b"ping", timeout=9)
        ...     listener.shutdown(socket.SHUT_RDWR); serving.join(); listener.close()
        >>> reply
        b'PING'

    Guarantees:
        - A slow, idle or hostile connection delays only itself. 16 idle connections keep no other one out.
        - At most 16 connections, 16 threads, and the memory of two of the longest frames are held together.
        - If a connection has ended, its request is not begun. A request that was begun is finished.

    Args:
        listener: a listening Unix socket.
        thread: the party's. One request runs in it at a time, and all others wait meanwhile.
        allow: the numbers of the users that may connect.
        most: the longest frame in bytes.
        patience: seconds for one frame, from its first byte.
        peer: the number of the user at the other end of a connection, from the kernel.

    Raises nothing. An error of the party ends its connection and is told to the owner.
    """
    require_platform()
    _Server(listener, thread, allow, most, patience, peer).run()


def served(
    party: Callable[[], AbstractContextManager[Served]],
    path: Path,
    *,
    allow: Collection[int],
    ready: Callable[[socket.socket], None] = lambda listener: None,
) -> None:
    """Serve a party on a socket until the process receives a signal to stop, or the listener is shut down.

    A request that has begun goes on to its end first.

    Args:
        party: opens the party, in the thread in which it then answers: a database belongs to the thread that
            opened it.
        path: of the socket, which is made once the party holds its folder.
        allow: the numbers of the users that may connect.
        ready: called with the listener once the socket accepts connections.

    Raises what opening the party raises, and ConfigError if the socket cannot be made.
    """
    # In this order: `listening` removes an existing socket, and only the party's lock shows that no other
    # process serves the same folder.
    with PartyThread(party) as thread, listening(path) as listener:
        ready(listener)
        serve(listener, thread, allow=allow)


class _Line(Connection):
    """The party's end of a connection of an allowed user.

    Attributes:
        user: its number, from the kernel.
        idle: the time since which it has no request, or None while it has one.
        held: bytes of its request that arrived and are not answered.
    """

    def __init__(self, connection: socket.socket, user: int, most: int, patience: float) -> None:
        super().__init__(connection, most=most, patience=patience)
        self.user, self.held = user, 0
        self.idle: float | None = monotonic()

    @property
    def gone(self) -> bool:
        """Whether a side has ended the connection, even if some bytes are still unread."""
        return self.ended or _hung_up(self._connection)

    def end(self) -> None:
        """End the connection, from any thread. Its own thread closes it."""
        self.ended = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


@dataclass(eq=False)
class _Server:
    """The connections of a party, and their limits."""

    listener: socket.socket
    thread: PartyThread
    allow: Collection[int]
    most: int
    patience: float
    peer: Callable[[socket.socket], int]

    def __post_init__(self) -> None:
        self._lock, self._lines = Lock(), set[_Line]()
        self._threads: list[Thread] = []
        self._notes: list[Future[None]] = []
        self._preparing: Future[None] | None = None

    def run(self) -> None:
        """Accept connections until the listener is shut down. Then all connections end."""
        self.listener.setblocking(False)
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        try:
            while not _hung_up(self.listener):
                # The wait has a limit, since a signal just before it would not end it.
                if poll.poll(1000 * _HEARS):
                    self._accept()
        finally:
            with self._lock:
                for line in self._lines:
                    line.end()
            for thread in self._threads:
                thread.join()

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in _CLOSED:
                self._not_taken(error)
            return
        if (line := self._admitted(connection)) is None:
            connection.close()
            return
        thread = Thread(target=self._served, args=(line, connection), name="connection", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no thread left
            connection.close()
            with self._lock:
                self._lines.discard(line)
            self._not_taken(error)
        else:
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]

    def _not_taken(self, error: Exception) -> None:
        self._note(f"Could not take a connection: {error}.")
        sleep(_HEARS)

    # Limits -------------------------------------------------------------------------------------------

    def _admitted(self, connection: socket.socket) -> _Line | None:
        try:
            user = self.peer(connection)
        except OSError as error:
            self._note(f"Refused a connection whose user the kernel does not name: {error}.")
            return None
        if user not in self.allow:
            may = sorted(self.allow)
            self._note(
                f"Refused user {user}, which is not among {may}. If it is a relay, name it with --allow."
            )
            return None
        with self._lock:
            idle = [line for line in self._lines if line.idle is not None]
            if len(self._lines) >= _PLACES and idle:
                longest = min(idle, key=lambda line: line.idle or 0)
                self._lines.remove(longest)
                longest.end()
            if len(self._lines) < _PLACES:
                self._lines.add(line := _Line(connection, user, self.most, self.patience))
                return line
        self._note(f"Refused a connection of user {user}: there are {_PLACES} already, with a request each.")
        return None

    def _hold(self, line: _Line, count: int) -> None:
        """Count bytes that a connection brings. RemoteProtocolError if there is no memory for them."""
        with self._lock:
            line.idle = None
            held, most = sum(one.held for one in self._lines), _FRAMES * self.most
            if line.ended or held + count > most:
                raise refusal(
                    f"Expected frames of at most {most} bytes on all connections together, got {count} more "
                    f"beside {held}. Send it again when the others are answered."
                )
            line.held += count

    # One connection -----------------------------------------------------------------------------------

    def _served(self, line: _Line, connection: socket.socket) -> None:
        """In the connection's thread: answer its requests until it ends."""
        with connection:
            try:
                while self._answer(line):
                    self._prepare_soon()
            except RemoteProtocolError as error:
                if not line.ended:
                    self._note(f"Ended a connection of user {line.user}: {error}")
            except Exception as error:
                # A request that raises an unexpected error must not end the party, nor reveal the reason.
                _LOG.exception("a request failed")
                name = type(error).__name__
                self._note(
                    f"Ended a connection of user {line.user} at an error of this code, {name}: {error}"
                )
            finally:
                with self._lock:
                    self._lines.discard(line)

    def _answer(self, line: _Line) -> bool:
        """Read a request, and send its reply. Returns whether there was one."""
        # A list that is emptied, so that the queue does not keep a dropped request in memory.
        requests = [line.receive(hold=lambda count: self._hold(line, count))]
        if requests == [None]:
            return False
        reply = self.thread.run(lambda: self._reply(line, requests))
        while not wait([reply], timeout=_HEARS).done:
            # Of a request that is begun, the end of this side drops the reply alone.
            if line.gone and (reply.cancel() or line.ended):
                requests.clear()
                raise refusal(_GONE)
        line.send(reply.result())
        with self._lock:
            line.idle, line.held = monotonic(), 0
        return True

    def _reply(self, line: _Line, requests: list[bytes | None]) -> bytes:
        """In the party's thread: the reply to the only request of this list, which is taken out."""
        # The connection may have ended since its thread checked it.
        if line.gone or (request := requests.pop()) is None:
            raise refusal(_GONE)
        return self.thread.party.answer(line, request)

    def _prepare_soon(self) -> None:
        # One piece waits in the party's thread at a time, so that a request waits for one at most.
        with self._lock:
            if self._preparing is None or self._preparing.done():
                self._preparing = self.thread.run(self._prepare)

    def _prepare(self) -> None:
        """In the party's thread: work beforehand, piece by piece. Requests that came meanwhile go first."""
        try:
            more = self.thread.party.prepare()
        except Exception:
            # Nothing is lost: the party does the same work as it answers, and refuses if it fails again.
            _LOG.exception("preparing an answer failed")
            return
        if more:
            self._preparing = self.thread.run(self._prepare)

    def _note(self, text: str) -> None:
        """Tell the owner. If many notes come while a request is at work, some are dropped."""

        def told() -> None:
            try:
                self.thread.party.tell(text)
            except Exception:
                _LOG.exception("a note for the owner was lost: %s", text)

        with self._lock:
            self._notes = [note for note in self._notes if not note.done()]
            if len(self._notes) < _MOST_NOTES:
                self._notes.append(self.thread.run(told))


def _hung_up(connection: socket.socket) -> bool:
    poll = select.poll()
    try:
        poll.register(connection, 0)  # even without events, poll reports a hang-up
    except ValueError:  # closed on this side
        return True
    return bool(poll.poll(0))


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Listen on a socket at `path` that owner and group may open, in a folder that only the owner may write.

    An existing socket is removed, so the caller must first make sure that no process serves it. Raises
    ConfigError for another kind of file at `path`, for a folder that other users may write, for a path that
    is too long, and on a platform whose kernel does not name the user of a connection.
    """
    require_platform()
    _require_folder(path.parent)
    if len(os.fsencode(path)) > (most := longest_path()):
        raise ConfigError(
            f"Expected a socket path of at most {most} bytes, got {len(os.fsencode(path))}: {path}. Choose a "
            "shorter one with --socket."
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
        listener.listen(_WAITING)
        yield listener
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # ends a waiting accept, which close does not
        listener.close()
        path.unlink(missing_ok=True)


def _require_folder(folder: Path) -> None:
    """Create the folder for owner and group, or check the existing one."""
    with suppress(FileExistsError):
        folder_at(folder, mode=0o750, exact=True)
    found = folder.lstat()
    own = found.st_uid in (os.getuid(), 0)
    if not stat.S_ISDIR(found.st_mode) or not own or found.st_mode & 0o022:
        raise ConfigError(
            f"Expected a folder for the socket that its owner alone may write, got {folder} with mode "
            f"{stat.S_IMODE(found.st_mode):04o} of user {found.st_uid}: others could put their socket there. "
            f"Run chmod 0750 {folder}, or name another with --socket."
        )
