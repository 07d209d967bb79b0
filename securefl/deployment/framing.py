"""The framing of envelopes on a Unix socket: a length of eight bytes, little-endian, and the envelope.

The length is checked before memory is allocated, and memory grows with the bytes that arrived, not with the
claimed length. A frame must arrive whole within a time limit. Flower's messages carry envelopes as they are.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

from securefl.core.errors import RemoteProtocolError

MOST: Final = 2**30
"""The default limit of a frame in bytes."""
PATIENCE: Final = 60.0
"""Seconds within which a frame must be received or sent whole."""
_CHUNK: Final = 2**20
"""The most bytes that are read at a time."""
_HEAD: Final = struct.Struct("<Q")


class PeerSilent(RemoteProtocolError):
    """Raised if the other side is not there, has ended, or takes too long. It says nothing of its intent."""

    def __init__(self, text: str) -> None:
        super().__init__(text, sender="peer", phase="line")


def refusal(text: str) -> RemoteProtocolError:
    """The error for an invalid or broken connection."""
    return RemoteProtocolError(text, sender="peer", phase="line")


def _lost(error: OSError) -> RemoteProtocolError:
    """The error for a connection that broke, or took too long."""
    why = "it took too long" if isinstance(error, TimeoutError) else str(error)
    return PeerSilent(f"Expected a whole frame in time, got: {why}.")


class Connection:
    """One end of a connection, a relay's or a party's. It carries whole frames both ways, and waits.

    Its methods raise RemoteProtocolError if the other side sends anything else, or is too slow.

    Args:
        most: the longest frame.
        patience: seconds for one frame, from its first byte.
        until: the time by which all traffic on this connection must end, by `time.monotonic`.

    Attributes:
        ended: whether this side has ended it.
    """

    def __init__(
        self, connection: socket.socket, *, most: int = MOST, patience: float = PATIENCE, until: float = inf
    ) -> None:
        self._connection, self.ended = connection, False
        self._most, self._patience, self._until = most, patience, until

    def send(self, envelope: bytes) -> None:
        """Send a frame."""
        until = self._end(self._patience)
        left = memoryview(_HEAD.pack(len(envelope)) + envelope)
        try:
            while left:
                self._connection.settimeout(_left(until))
                left = left[self._connection.send(left) :]
        except OSError as error:
            raise _lost(error) from None

    def receive(
        self, *, wait: float | None = None, hold: Callable[[int], None] = lambda count: None
    ) -> bytes | None:
        """The next envelope, or None if the other side ended the connection between two frames.

        Args:
            wait: seconds until it begins, by default without limit.
            hold: is called with 0 as it begins, and then with the number of its bytes as they come.
        """
        try:
            self._connection.settimeout(_left(self._end(wait)))
            if not self._connection.recv(1, socket.MSG_PEEK):
                return None
            hold(0)
            until = self._end(self._patience)
            (length,) = _HEAD.unpack(self._exactly(_HEAD.size, until, lambda count: None))
            if length > self._most:
                raise refusal(f"Expected a frame of at most {self._most} bytes, got a claim of {length}.")
            return self._exactly(length, until, hold)
        except OSError as error:
            raise _lost(error) from None

    def query(self, envelope: bytes, *, seconds: float | None = None) -> bytes:
        """Send a frame, and return the next one of the other side. seconds: until that one begins."""
        self.send(envelope)
        answer = self.receive(wait=seconds)
        if answer is None:
            side = " on this side" if self.ended else ""
            raise PeerSilent(f"Expected an answer, got the end of the connection{side}.")
        return answer

    def _exactly(self, count: int, until: float, hold: Callable[[int], None]) -> bytes:
        came = bytearray()
        while len(came) < count:
            self._connection.settimeout(_left(until))
            piece = self._connection.recv(min(_CHUNK, count - len(came)))
            if not piece:
                raise PeerSilent(f"Expected {count} more bytes of a frame, got {len(came)} and the end.")
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
