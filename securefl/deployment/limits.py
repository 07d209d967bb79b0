"""The limits of a party's server: the number of connections, and the memory for their frames."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from threading import Lock
from time import monotonic

from securefl.deployment.connection import refusal


@dataclass(eq=False)
class Guest:
    """An admitted connection.

    Attributes:
        idle: the time since which it has no request; infinity while it has one.
        held: bytes of its frames that arrived and are not answered.
    """

    connection: socket.socket
    idle: float
    held: int = 0


class Limits:
    """Limits the number of a party's connections and their memory. It is safe between threads.

    Args:
        places: the most connections at a time.
        most: the most bytes that they hold together.
    """

    def __init__(self, *, places: int, most: int, clock: Callable[[], float] = monotonic) -> None:
        self._places, self._most, self._clock = places, most, clock
        self._guests: list[Guest] = []
        self._lock = Lock()

    def admit(self, connection: socket.socket) -> Guest | None:
        """Admit a connection. If there is no free place, the connection that is idle longest is ended.

        Returns None if all connections have a request.
        """
        with self._lock:
            if len(self._guests) >= self._places:
                longest = min(self._guests, key=lambda guest: guest.idle)
                if longest.idle == inf:
                    return None
                self._turn_out(longest)
            guest = Guest(connection, self._clock())
            self._guests.append(guest)
            return guest

    def begin(self, guest: Guest) -> bool:
        """Begin a request of a connection. Returns False if the connection lost its place meanwhile."""
        with self._lock:
            guest.idle = inf
            return guest in self._guests

    def hold(self, guest: Guest, count: int) -> None:
        """Count bytes that a connection brings. RemoteProtocolError if all together would exceed `most`."""
        with self._lock:
            held = sum(each.held for each in self._guests)
            if held + count > self._most:
                raise refusal(
                    f"Expected frames of at most {self._most} bytes on all connections together, got {count} "
                    f"more beside {held}. Send it again when the others are answered."
                )
            guest.held += count

    def rest(self, guest: Guest) -> None:
        """End a request of a connection, and free its memory."""
        with self._lock:
            guest.idle, guest.held = self._clock(), 0

    def leave(self, guest: Guest) -> None:
        """Free a connection's place, before the connection is closed."""
        with self._lock:
            if guest in self._guests:
                self._guests.remove(guest)

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            while self._guests:
                self._turn_out(self._guests[-1])

    def _turn_out(self, guest: Guest) -> None:
        self._guests.remove(guest)
        with suppress(OSError):
            guest.connection.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes the connection
