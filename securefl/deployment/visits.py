"""The server's side of its parties' visits: it asks parties to enter, and signs each turn for one visit.

A party draws a fresh visit as it enters a session. A turn names visit and number, and the server signs both
with the party's name and the session. So a turn that was kept back, changed or meant for another party has no
effect, and a party does not lose its place to a stranger in the server's place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.deployment.messages import (
    Enter,
    Entered,
    SignedTurn,
    Turn,
    decode_envelope,
    encode_envelope,
)
from securefl.storage.own_record import OwnRecord

SendAndReceive = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
"""Sends each party its request, and returns the replies that came in time, by party. It sets the deadline."""


@runtime_checkable
class Hurried(Protocol):
    """A SendAndReceive with a shorter deadline for requests to enter, which order no training.

    Without it a party that takes connections and never answers would hold up each round for the deadline of
    a whole training.
    """

    def enter(self, requests: Mapping[str, bytes], /) -> Mapping[str, bytes]: ...


class Visits:
    """The parties of one session that have entered it, each with its visit and the number of its next turn.

    Args:
        enter: the request with which parties enter.
        session: 32 bytes, which follow from the request.
        server: the server's lasting keys, as the roster lists them.
    """

    def __init__(self, exchange: SendAndReceive, enter: Enter, session: bytes, server: Identity) -> None:
        self._exchange = exchange.enter if isinstance(exchange, Hurried) else exchange
        self._request = encode_envelope(enter)
        self._session, self._server = session, server
        self._here: dict[str, tuple[bytes, int]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether this party has entered, as far as the server knows."""
        return name in self._here

    def enter(self, names: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
        """Ask parties to enter. Returns those that entered, and for each invalid reply the reason.

        A restarted party gets the same request, and takes part from the next round on. For a party that is in
        the session already nothing changes: it tells its visit and its number again.
        """
        replies = self._exchange(dict.fromkeys(names, self._request))
        entered, rejected_from = [], {}
        for name in names:
            if name not in replies:
                continue
            try:
                found = decode_envelope(replies[name], Entered, sender=name)
            except RemoteProtocolError as error:
                rejected_from[name] = str(error)
                continue
            self._here[name] = (found.visit, found.number)
            entered.append(name)
        return tuple(entered), rejected_from

    def leave(self, names: Iterable[str]) -> None:
        """Forget the visits of these parties. They get no turn until they have entered again."""
        for name in names:
            self._here.pop(name, None)

    def signed(self, name: str, turn: Turn) -> bytes:
        """The bytes of a turn for a party that has entered. Its next turn gets the next number."""
        visit, number = self._here[name]
        self._here[name] = (visit, number + 1)
        own = SignedTurn.of(
            turn, session=self._session, party=name, visit=visit, number=number, server=self._server
        )
        return encode_envelope(own)


def lasting_keys(record: OwnRecord) -> Identity:
    """The lasting keys of the server's record. Raises ConfigError if it has none."""
    if record.enrolled is None:
        raise ConfigError("Expected the server's enrolled keys in its record, got none. Enrol it.")
    return record.enrolled
