"""How much room a party has for those who connect: places, and memory for what they send."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from threading import Lock
from time import monotonic

from securefl.engine.apart.connection import refusal


@dataclass(eq=False)
class Guest:
    """A connection that has a place.

    Attributes:
        idle: since when it has no request; infinity while it has one.
        held: bytes of frames that came and are not answered.
    """

    connection: socket.socket
    idle: float
    held: int = 0


class Limits:
    """The places of a party and its memory, counted over all connections; safe between their threads.

    Args:
        places: how many connections there may be.
        most: bytes that they may hold together.
    """

    def __init__(self, *, places: int, most: int, clock: Callable[[], float] = monotonic) -> None:
        self._places, self._most, self._clock = places, most, clock
        self._guests: list[Guest] = []
        self._lock = Lock()

    def admit(self, connection: socket.socket) -> Guest | None:
        """Give a connection a place: a free one, or that of whoever is idle longest, whose connection ends.

        None where all have a request.
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
        """A request of a guest begins. False if the guest has lost its place meanwhile."""
        with self._lock:
            guest.idle = inf
            return guest in self._guests

    def hold(self, guest: Guest, count: int) -> None:
        """A guest brings so many bytes. RemoteProtocolError if all guests would hold more than they may."""
        with self._lock:
            held = sum(each.held for each in self._guests)
            if held + count > self._most:
                raise refusal(
                    f"Expected frames of at most {self._most} bytes on all connections together, got {count} "
                    f"more beside {held}. Send it again when the others are answered."
                )
            guest.held += count

    def rest(self, guest: Guest) -> None:
        """A request of a guest is answered."""
        with self._lock:
            guest.idle, guest.held = self._clock(), 0

    def leave(self, guest: Guest) -> None:
        """A guest gives its place back, before its connection is closed."""
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
            guest.connection.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
