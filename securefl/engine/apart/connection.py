"""The Unix socket between a party and whoever carries its frames on the same machine.

A frame on the line has its length in front, eight bytes. The length is checked before anything is made for
it, and memory grows with what came, not with what was claimed. A frame must come whole within a time.

Whatever goes wrong on a connection ends that connection. The party does not notice (see `serving`).
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
"""The longest frame in bytes, unless somebody says otherwise."""
PATIENCE = 60.0
"""Seconds in which a frame must have come, or gone, whole."""
_LENGTH = struct.Struct("<Q")
_CHUNK = 2**20


def _unheld(count: int) -> None:
    """Count nothing: a carrier has asked for what comes, and the heads of frames are small."""


class Connection:
    """One connection: whole frames, each way. RemoteProtocolError for whatever is not one.

    Args:
        most: the longest frame.
        patience: seconds for one frame, from its first byte.
        until: when everything on this line must be over, by `time.monotonic`.
        hold: is told how many bytes of a frame came, as they come. It raises where there is no room for them.
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
        """Whether the other side has ended the connection, even if bytes of it are still to be read."""
        poll = select.poll()
        poll.register(self._connection, 0)  # asked for nothing, it still tells of an end
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
        """Wait until a frame begins. False where the other side ends the connection between two frames.

        wait: seconds, by default without end.
        """
        try:
            self._connection.settimeout(_left(self._end(wait)))
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except OSError as error:
            raise _lost(error) from None

    def frame(self) -> bytes:
        """The frame that begins."""
        until = self._end(self._patience)
        try:
            (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, until))
            if length > self._most:
                raise refusal(f"Expected a frame of at most {self._most} bytes, got a claim of {length}.")
            return self._exactly(length, until, self._hold)
        except OSError as error:
            raise _lost(error) from None

    def receive(self, *, wait: float | None = None) -> bytes | None:
        """The next frame, or None, as for `begins`."""
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
    """The seconds until then, None for no end."""
    if until == inf:
        return None
    left = until - monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left


def _lost(error: OSError) -> RemoteProtocolError:
    return refusal(f"Expected a whole frame in time, got: {error}.")


def refusal(text: str) -> RemoteProtocolError:
    """The error for what is wrong on a line."""
    return RemoteProtocolError(text, sender="peer", phase="line")


# A carrier's side -----------------------------------------------------------------------------------


@contextmanager
def reached(path: Path | str, *, timeout: float, most: int = MOST) -> Iterator[Connection]:
    """A line to the party at `path`. `timeout`: seconds for everything on it, together.

    Raises RemoteProtocolError for a party that does not run.
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
    """A party's reply to a request. `timeout`: seconds for all of it.

    Raises RemoteProtocolError for a party that does not run, lets this user not in, or does not answer.
    """
    with reached(path, timeout=timeout, most=most) as line:
        line.send(request)
        reply = line.receive()
    if reply is None:
        raise refusal(f"Expected a reply from the party at {path}, got the end of the connection.")
    return reply
