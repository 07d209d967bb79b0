"""The limits of a party's server, shared fairly between users: its places, and the memory for frames.

A user holds at most its share of the places, and of the bytes, while another user waits. What it holds above
its share gives way: an idle connection first, then a request that has not arrived whole, then one that waits
for its turn. A request that has begun never gives way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from time import monotonic

from securefl.deployment.framing import refusal


@dataclass(eq=False)
class Guest:
    """An admitted connection.

    Attributes:
        user: its number, from the kernel.
        idle: the time since which it has no request; infinity while it has one.
        since: the time at which its request began to arrive.
        whole: whether its request has arrived.
        held: bytes of its frames that arrived and are not answered.
        stops: gives its request up, and returns whether that was possible. It is not once the request is at
            work.
    """

    user: int
    idle: float
    since: float = 0.0
    whole: bool = False
    held: int = 0
    stops: Callable[[], bool] = lambda: True

    @property
    def busy(self) -> bool:
        return self.idle == inf


class Limits:
    """Limits the connections of a party and their memory. All calls come from one thread.

    Args:
        places: the most connections at a time.
        most: the most bytes that they hold together.
        turn_out: is called for a connection that loses its place, with the reason, or "" if it was idle.
    """

    def __init__(
        self,
        *,
        places: int,
        most: int,
        turn_out: Callable[[Guest, str], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._places, self._most, self._turn_out, self._clock = places, most, turn_out, clock
        self._guests: list[Guest] = []

    # Places -------------------------------------------------------------------------------------------

    def admit(self, user: int) -> Guest | None:
        """Admit a connection of this user. Returns None if no place can be made for it.

        If all places are taken, a connection of a user above its share gives way. That is so for the user's
        own connections too, but among these only for an idle one.
        """
        if len(self._guests) >= self._places and not self._make_place(user):
            return None
        guest = Guest(user, self._clock())
        self._guests.append(guest)
        return guest

    def _make_place(self, user: int) -> bool:
        held = Counter([user, *(guest.user for guest in self._guests)])
        share = max(1, self._places // len(held))
        above = [name for name, count in held.most_common() if count > share] or list(held)
        idle = [guest for guest in self._guests if guest.user in above and not guest.busy]
        if idle:
            self._end(min(idle, key=lambda guest: guest.idle), "")
            return True
        if held[user] > share:
            return False
        others = [name for name in above if held[name] > share]
        why = f"it held more than {share} of {self._places} places"
        return any(self._give_way(name, why) for name in others)

    # Memory -------------------------------------------------------------------------------------------

    def hold(self, guest: Guest, count: int) -> None:
        """Count bytes that a connection brings. RemoteProtocolError if there is no memory for them.

        If all together would exceed `most`, requests of a user above its share give way to a user within its.
        """
        if guest not in self._guests:
            raise refusal("Expected a connection with a place, got one that lost its place.")
        while (held := sum(each.held for each in self._guests)) + count > self._most:
            if not self._make_memory(guest.user, count):
                raise refusal(
                    f"Expected frames of at most {self._most} bytes on all connections together, got {count} "
                    f"more beside {held}. Send it again when the others are answered."
                )
        guest.held += count

    def _make_memory(self, user: int, count: int) -> bool:
        held = Counter({user: count})
        for guest in self._guests:
            held[guest.user] += guest.held
        users = [name for name, total in held.most_common() if total]
        share = self._most // len(users)
        if held[user] > share:
            return False
        others = [name for name in users if held[name] > share]
        why = f"it held more than {share} of {self._most} bytes"
        return any(self._give_way(name, why, least=1) for name in others)

    # Requests -----------------------------------------------------------------------------------------

    def begin(self, guest: Guest) -> bool:
        """Begin a request of a connection. Returns False if the connection lost its place meanwhile."""
        guest.idle, guest.since, guest.whole = inf, self._clock(), False
        return guest in self._guests

    def rest(self, guest: Guest) -> None:
        """End a request of a connection, and free its memory."""
        guest.idle, guest.held, guest.stops = self._clock(), 0, lambda: True

    def leave(self, guest: Guest) -> None:
        """Free a connection's place."""
        if guest in self._guests:
            self._guests.remove(guest)

    # Giving way ---------------------------------------------------------------------------------------

    def _give_way(self, user: int, why: str, *, least: int = 0) -> bool:
        """End the request of this user that costs it least and holds this many bytes, if there is one."""
        theirs = (
            guest for guest in self._guests if guest.user == user and guest.busy and guest.held >= least
        )
        for guest in _cheapest_first(theirs):
            if guest.stops():
                self._end(guest, f"another user waits, and {why}")
                return True
        return False

    def _end(self, guest: Guest, why: str) -> None:
        self._guests.remove(guest)
        self._turn_out(guest, why)


def _cheapest_first(guests: Iterable[Guest]) -> list[Guest]:
    """Requests that have not arrived, the oldest first; then those that wait, the newest first."""
    return sorted(guests, key=lambda guest: (guest.whole, -guest.since if guest.whole else guest.since))
