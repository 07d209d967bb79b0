"""A party's server on a Unix socket: access by user, and one request at a time.

    asyncio, one thread          accepts connections, reads and sends frames, keeps the limits
    `PartyThread`, one thread    opens the party's databases, and runs its requests one after the other

The kernel names the user of a connection, and access depends on the user alone. A request that has begun goes
on to its end. `Limits` shares places and memory fairly between users.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import stat
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Protocol, TypeVar

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.logs import logger
from securefl.deployment.framing import (
    CHUNK,
    HEAD,
    MOST,
    PATIENCE,
    claimed,
    cut,
    framed,
    lost,
    refusal,
)
from securefl.deployment.limits import Guest, Limits
from securefl.deployment.peers import longest_path, peer_of, require_platform

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


Handle = Callable[[Relay, bytes], bytes]
"""Makes the reply to a request that this relay brought."""


@dataclass(frozen=True)
class Served:
    """What a server needs of a party, all of it called in the party's thread.

    tell: gets messages for the party's owner on refused connections and errors.
    prepare: works beforehand for some milliseconds, after a reply was sent; returns whether to call it again.
    """

    handle: Handle
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
        - A user holds at most its share of the 16 places and of the memory while another user waits.
        - Frames that arrive or wait hold at most the memory of two of the longest frames together.
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
    server = _Server(listener, thread, frozenset(allow), most, patience, peer)
    ended: Future[None] = Future()

    def run() -> None:
        try:
            ended.set_result(asyncio.run(server.run()))
        except BaseException as error:
            ended.set_exception(error)

    looping = Thread(target=run, daemon=True)
    looping.start()
    try:
        # Waits have a limit, since a signal just before a wait would not end it.
        while not wait([ended], timeout=_HEARS).done:
            pass
    finally:
        server.stop(ended)
        looping.join()
    ended.result()


class _Server:
    """The server's coroutines. All of its methods but `stop` run in the thread of the loop."""

    def __init__(
        self,
        listener: socket.socket,
        thread: PartyThread,
        allow: frozenset[int],
        most: int,
        patience: float,
        peer: Callable[[socket.socket], int],
    ) -> None:
        self._listener, self._thread, self._allow = listener, thread, allow
        self._most, self._patience, self._peer = most, patience, peer
        self._limits = Limits(places=_PLACES, most=_FRAMES * most, turn_out=self._turn_out)
        self._tasks: dict[Guest, asyncio.Task[None]] = {}
        self._notes: list[Future[None]] = []
        self._preparing: Future[None] | None = None
        self._begun = Event()

    async def run(self) -> None:
        """Accept connections until the listener is shut down, or `stop`. Then all connections end."""
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        self._listener.setblocking(False)
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    await self._accept(group)
                finally:
                    for task in self._tasks.values():
                        task.cancel()
        except asyncio.CancelledError:
            pass  # `stop` was called

    def stop(self, ended: Future[None]) -> None:
        """End `run`, from any thread. ended: is done once it has ended."""
        while not ended.done() and not self._begun.wait(_HEARS):
            pass
        if not ended.done():
            with suppress(RuntimeError):  # the loop has ended meanwhile
                self._loop.call_soon_threadsafe(self._main.cancel)  # type: ignore[union-attr]

    async def _accept(self, group: asyncio.TaskGroup) -> None:
        while not _hung_up(self._listener):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                await self._somebody()
                continue
            except OSError as error:
                if error.errno in _CLOSED:
                    return
                self._note(f"Could not take a connection: {error}.")
                await asyncio.sleep(_HEARS)
                continue
            connection.setblocking(False)
            if (guest := self._admitted(connection)) is None:
                connection.close()
            else:
                self._begin(group, connection, guest)
            await asyncio.sleep(0)  # a flood has always one more, and the others are to run meanwhile

    async def _somebody(self) -> None:
        """Wait until a connection comes, or the listener is shut down.

        `sock_accept` of asyncio does not end in the second case: it tries again without end.
        """
        came = asyncio.Event()
        self._loop.add_reader(self._listener, came.set)
        try:
            await came.wait()
        finally:
            self._loop.remove_reader(self._listener)

    def _begin(self, group: asyncio.TaskGroup, connection: socket.socket, guest: Guest) -> None:
        line = _Line(connection, self._loop, self._most, self._patience)
        task = group.create_task(self._served(line, guest))
        self._tasks[guest] = task

        def left(_: object) -> None:
            self._limits.leave(guest)
            del self._tasks[guest]
            connection.close()

        # A callback, since a task that is cancelled before its first step runs no `finally`.
        task.add_done_callback(left)

    def _admitted(self, connection: socket.socket) -> Guest | None:
        try:
            user = self._peer(connection)
        except OSError as error:
            self._note(f"Refused a connection whose user the kernel does not name: {error}.")
            return None
        if user not in self._allow:
            may = sorted(self._allow)
            self._note(
                f"Refused user {user}, which is not among {may}. If it is a relay, name it with --allow."
            )
            return None
        guest = self._limits.admit(user)
        if guest is None:
            self._note(
                f"Refused a connection of user {user}: there are {_PLACES} already, with a request each."
            )
        return guest

    def _turn_out(self, guest: Guest, why: str) -> None:
        if why:
            self._note(f"Ended a connection of user {guest.user} before its request was begun: {why}.")
        self._tasks[guest].cancel()

    # One connection -----------------------------------------------------------------------------------

    async def _served(self, line: _Line, guest: Guest) -> None:
        """Answer the requests of one connection until it ends."""
        try:
            while (head := await line.begin()) and self._limits.begin(guest):
                # In one expression: a variable for the frame would keep its bytes until the next frame.
                reply = await self._answered(line, guest, await self._frame(line, guest, head))
                await line.send(reply)
                del reply
                self._limits.rest(guest)
                self._prepare_soon()
        except RemoteProtocolError as error:
            self._note(f"Ended a connection of user {guest.user}: {error}")
        except Exception as error:
            # A request that raises an unexpected error must not end the party, nor reveal the reason.
            _LOG.exception("a request failed")
            name = type(error).__name__
            self._note(f"Ended a connection of user {guest.user} at an error of this code, {name}: {error}")
        finally:
            line.close()

    async def _frame(self, line: _Line, guest: Guest, head: bytes) -> bytes:
        request = await line.frame(head, lambda count: self._limits.hold(guest, count))
        guest.whole = True
        return request

    async def _answered(self, line: _Line, guest: Guest, request: bytes) -> bytes:
        """The reply to a request, in its turn. RemoteProtocolError if the connection ended before it."""
        # A list that is emptied, so that the queue does not keep a dropped request in memory.
        requests = [request]
        del request
        reply = self._thread.run(lambda: self._reply(line, requests))
        guest.stops = reply.cancel  # has no effect once the request is begun
        waiting = asyncio.wrap_future(reply)
        waiting.add_done_callback(lambda own: own.cancelled() or own.exception())  # else asyncio logs it
        try:
            while not (await asyncio.wait([waiting], timeout=_HEARS))[0]:
                if line.gone:
                    reply.cancel()
        finally:
            # Of a request that is begun, this drops the reply alone.
            if reply.cancel() or reply.cancelled():
                requests.clear()
        if waiting.cancelled():
            raise refusal(_GONE)
        return waiting.result()

    def _reply(self, line: _Line, requests: list[bytes]) -> bytes:
        """In the party's thread: the reply to the only request of this list, which is taken out."""
        # The connection may have ended since the loop checked it.
        if line.gone:
            raise refusal(_GONE)
        return self._thread.party.handle(line, requests.pop())

    def _prepare_soon(self) -> None:
        # One piece waits in the party's thread at a time, so that a request waits for one at most.
        if self._preparing is None or self._preparing.done():
            self._preparing = self._thread.run(self._prepare)

    def _prepare(self) -> None:
        """In the party's thread: work beforehand, piece by piece. Requests that came meanwhile go first."""
        try:
            more = self._thread.party.prepare()
        except Exception:
            # Nothing is lost: the party does the same work as it answers, and refuses if it fails again.
            _LOG.exception("preparing an answer failed")
            return
        if more:
            self._preparing = self._thread.run(self._prepare)

    # The owner ----------------------------------------------------------------------------------------

    def _note(self, text: str) -> None:
        """Tell the owner. If many notes come while a request is at work, some are dropped."""
        self._notes = [note for note in self._notes if not note.done()]
        if len(self._notes) < _MOST_NOTES:
            self._notes.append(self._thread.run(lambda: self._told(text)))

    def _told(self, text: str) -> None:
        try:
            self._thread.party.tell(text)
        except Exception:
            _LOG.exception("a note for the owner was lost: %s", text)


class _Line:
    """The party's end of one connection. `query` and `gone` may be called in the party's thread."""

    def __init__(
        self, connection: socket.socket, loop: asyncio.AbstractEventLoop, most: int, patience: float
    ) -> None:
        self._connection, self._loop, self._most, self._patience = connection, loop, most, patience
        self._closed = False

    @property
    def gone(self) -> bool:
        """Whether the other side has ended the connection, even if some of its bytes are still unread."""
        return _hung_up(self._connection)

    def close(self) -> None:
        """Close the connection. A query still waits at it only if the server stops, which cancels it."""
        self._closed = True
        self._connection.close()

    async def begin(self) -> bytes:
        """The first bytes of a frame, or none if the other side ended the connection between two frames."""
        try:
            return await self._loop.sock_recv(self._connection, HEAD.size)
        except OSError as error:
            raise lost(error) from None

    async def frame(self, head: bytes, hold: Callable[[int], None] = lambda count: None) -> bytes:
        """The frame that begins with these bytes. hold: is called with the number of bytes as they come."""

        async def read() -> bytes:
            whole = await self._exactly(HEAD.size, head, lambda count: None)
            return await self._exactly(claimed(whole, self._most), b"", hold)

        return await self._soon(read())

    async def send(self, envelope: bytes) -> None:
        """Send a frame."""
        await self._soon(self._loop.sock_sendall(self._connection, framed(envelope)))

    def query(self, envelope: bytes, *, seconds: float) -> bytes:
        """In the party's thread: send an envelope, and wait for the answer on this connection."""
        coming = self._query(envelope, seconds)
        try:
            answer = asyncio.run_coroutine_threadsafe(coming, self._loop)
            while not wait([answer], timeout=_HEARS).done:
                if self._closed:  # a loop that has ended runs no coroutine
                    answer.cancel()
            return answer.result()
        except RuntimeError:  # the loop is closed
            coming.close()
        except CancelledError:
            pass
        raise refusal("Expected an answer, got the end of the connection on this side.")

    async def _query(self, envelope: bytes, seconds: float) -> bytes:
        if self._closed:
            raise asyncio.CancelledError
        await self.send(envelope)
        head = await self._soon(self.begin(), seconds)
        if not head:
            raise refusal("Expected an answer, got the end of the connection.")
        return await self.frame(head)

    async def _exactly(self, count: int, begun: bytes, hold: Callable[[int], None]) -> bytes:
        came = bytearray(begun)
        while len(came) < count:
            piece = await self._loop.sock_recv(self._connection, min(CHUNK, count - len(came)))
            if not piece:
                raise cut(count, len(came))
            hold(len(piece))
            came += piece
            await asyncio.sleep(0)  # `sock_recv` lets nobody else run while bytes wait
        return bytes(came)

    async def _soon(self, coming: Awaitable[T], seconds: float | None = None) -> T:
        """The result, if it comes in time; by default within the patience for one frame."""
        try:
            async with asyncio.timeout(self._patience if seconds is None else seconds):
                return await coming
        except OSError as error:  # a TimeoutError too
            raise lost(error) from None


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
