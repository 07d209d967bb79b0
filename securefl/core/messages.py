"""The messages between server, clients and key holder. Each class declares which party may send it.

server      --Broadcast, Order-->  client
client      --Contribution------>  server         (only Releases)
server      --OpenRequest------->  key holder
key holder  --OpenReply--------->  server

`OpenRequest` and `OpenReply` are sent only if numbers travel encrypted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefl.core.agreement import digest, fields
from securefl.core.release import Release
from securefl.core.wire import Header, encode, message


def client_name(number: int) -> str:
    """Return the party name of a client."""
    # Padded, so that a roster sorted by name is sorted by number, up to 10,000 clients.
    return f"client-{number:04d}"


REFUSED = b""
OVERHEAD = 4096
"""A generous bound on the bytes of headers, names and lengths of one message."""


@message("broadcast", version=1, sender="server")
@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """The model and public arrays. One encoding serves the whole cohort."""

    model: NDArray[np.float32]
    names: tuple[str, ...]
    arrays: tuple[NDArray[np.float64], ...]


@message("order", version=3, sender="server")
@dataclass(frozen=True, kw_only=True)
class Order:
    """The server's order to a client: the values that the client sends.

    Attributes:
        wants: names of the values that the client sends now.
        sums: names of the values that the client contributes to a hidden sum afterwards.
        initial: the number of the initial query, from 1; 0 for a query of the rounds.
        number: the number of the query within its round; 0 for an initial query.
        again: the number of retries of the sums after an answer was lost.
        members: numbers of the cohort's clients, ascending; if no value is hidden, this client's number only.
        draws: the number of draws of each member, at least 1.
        whole, most: the draws of the whole cohort, and the most draws of one client; 0 unless values are
            weighted by draws.
        records: n, if values are weighted by n_k / n; 0 otherwise.
    """

    wants: tuple[str, ...]
    sums: tuple[str, ...]
    initial: int
    number: int
    again: int
    members: tuple[int, ...]
    draws: tuple[int, ...]
    whole: int
    most: int
    records: int


def task(header: Header, order: Order, broadcast: Broadcast) -> bytes:
    """Return the digest (32 bytes) of order and broadcast. The signed agreement of a sum contains it."""
    return digest(b"task", b"", fields(encode(header, order), encode(header, broadcast)))


@message("contribution", version=1, sender="client")
@dataclass(frozen=True, kw_only=True)
class ContributionMessage:
    """A client's releases, in the sequence of `Order.wants`."""

    releases: tuple[Release, ...]


@message("open-request", version=2, sender="server")
@dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """The server's request to the key holder to open these items, in one turn. Turns count from 0."""

    turn: int
    items: tuple[bytes, ...]


@message("open-reply", version=2, sender="key-holder")
@dataclass(frozen=True, kw_only=True)
class OpenReply:
    """One reply for each item of the request, still blinded; `REFUSED` for an item that stays closed."""

    turn: int = 0
    items: tuple[bytes, ...]
