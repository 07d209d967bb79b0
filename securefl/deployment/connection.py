"""The connection over a Unix socket between a party and the carrier of its frames on the same machine.

A frame on the connection has its length in front, eight bytes. The length is checked before memory is
allocated, and memory grows with the bytes that arrived, not with the claimed length. A frame must arrive
whole within a time limit.

An error on a connection ends that connection only. The party goes on (see `serving`).
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from time import monotonic

from securefl.core.errors import RemoteProtocolError

MOST = 2**30
"""The default limit of a frame in bytes."""
PATIENCE = 60.0
"""Seconds within which a frame must be received or sent whole."""
_LENGTH = struct.Struct("<Q")
_CHUNK = 2**20


def _unheld(count: int) -> None:
    """Count nothing. A carrier asked for the frame that comes, and the heads of frames are small."""


class Connection:
    """One connection, which carries whole frames both ways. Its methods raise RemoteProtocolError otherwise.

    Args:
        most: the longest frame.
        patience: seconds for one frame, from its first byte.
        until: the time by which all traffic on this connection must end, by `time.monotonic`.
        hold: is called with the number of bytes of a frame as they arrive. It raises if memory runs out.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        most: int = MOST,
        patience: float = PATIENCE,
        until: float = inf,
        hold: Callable[[int], None] = _unheld,
    ) -> None:
        self._connection = connection
        self._most = most
        self._patience = patience
        self._until = until
        self._hold = hold

    @property
    def gone(self) -> bool:
        """Whether the other side has ended the connection, even if some of its bytes are still unread."""
        poll = select.poll()
        poll.register(self._connection, 0)  # even without events, poll reports a hang-up
        return bool(poll.poll(0))

    def send(self, frame: bytes) -> None:
        """Send a frame."""
        until = self._end(self._patience)
        left = memoryview(_LENGTH.pack(len(frame)) + frame)
        try:
            while left:
                self._connection.settimeout(_left(until))
                left = left[self._connection.send(left) :]
        except OSError as error:
            raise _lost(error) from None

    def begins(self, *, wait: float | None = None) -> bool:
        """Wait until a frame begins. Returns False if the other side ends the connection between two frames.

        wait: seconds, by default without limit.
        """
        try:
            self._connection.settimeout(_left(self._end(wait)))
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except OSError as error:
            raise _lost(error) from None

    def frame(self) -> bytes:
        """Read the frame that begins."""
        until = self._end(self._patience)
        try:
            (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, until))
            if length > self._most:
                raise refusal(f"Expected a frame of at most {self._most} bytes, got a claim of {length}.")
            return self._exactly(length, until, self._hold)
        except OSError as error:
            raise _lost(error) from None

    def receive(self, *, wait: float | None = None) -> bytes | None:
        """The next frame, or None if the other side ended the connection."""
        return self.frame() if self.begins(wait=wait) else None

    def _exactly(self, count: int, until: float, hold: Callable[[int], None] = _unheld) -> bytes:
        came = bytearray()
        while len(came) < count:
            self._connection.settimeout(_left(until))
            piece = self._connection.recv(min(_CHUNK, count - len(came)))
            if not piece:
                raise refusal(f"Expected {count} more bytes of a frame, got {len(came)} and the end.")
            hold(len(piece))
            came += piece
        return bytes(came)

    def _end(self, seconds: float | None) -> float:
        return self._until if seconds is None else min(self._until, monotonic() + seconds)


def _left(until: float) -> float | None:
    """The seconds until then, or None if there is no limit."""
    if until == inf:
        return None
    left = until - monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left


def _lost(error: OSError) -> RemoteProtocolError:
    return refusal(f"Expected a whole frame in time, got: {error}.")


def refusal(text: str) -> RemoteProtocolError:
    """The error for an invalid or broken connection."""
    return RemoteProtocolError(text, sender="peer", phase="line")


# A carrier's side -----------------------------------------------------------------------------------


@contextmanager
def reached(path: Path | str, *, timeout: float, most: int = MOST) -> Iterator[Connection]:
    """Connect to the party at `path`. `timeout`: seconds for all traffic of the connection together.

    Raises RemoteProtocolError if no party runs there.
    """
    until = monotonic() + timeout
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(os.fspath(path))
        except PermissionError:
            raise refusal(
                f"Expected a socket that user {os.getuid()} may open, got {path}, which it may not. Put the "
                "user into the group of the party's folder, and name it to securefl party serve with --allow."
            ) from None
        except OSError as error:
            raise refusal(
                f"Expected a party at {path}, got: {error}. Start it: securefl party serve."
            ) from None
        yield Connection(connection, most=most, patience=timeout, until=until)


def send(path: Path | str, request: bytes, *, timeout: float, most: int = MOST) -> bytes:
    """Send a request frame to the party at `path`, and return its reply.

        >>> from securefl.deployment import send
        >>> from securefl.errors import RemoteProtocolError
        >>> try:
        ...     send("/nowhere/party.sock", b"", timeout=1)
        ... except RemoteProtocolError as error:
        ...     print(str(error).partition(", got")[0])
        peer in phase line: Expected a party at /nowhere/party.sock

    Args:
        path: of the party's socket.
        request: the frame.
        timeout: seconds for connecting, sending and receiving together.
        most: the longest reply in bytes.

    Returns:
        The reply frame.

    Raises:
        RemoteProtocolError: no party runs there, it refuses this user, or it does not reply in time.
    """
    with reached(path, timeout=timeout, most=most) as line:
        line.send(request)
        reply = line.receive()
    if reply is None:
        raise refusal(f"Expected a reply from the party at {path}, got the end of the connection.")
    return reply
