"""The messages of one exchange; who may send each is part of its class.

server      --Broadcast, Order-->  client
client      --Contribution------>  server         (only Releases)
server      --OpenRequest------->  key holder     (only where numbers travel encrypted)
key holder  --OpenReply--------->  server
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefl.core.agreement import digest, fields
from securefl.core.release import Release
from securefl.core.wire import Header, encode, message


def client_name(number: int) -> str:
    """The party name of a client."""
    # Padded: rosters are sorted by name, and so by number, up to 10,000 clients.
    return f"client-{number:04d}"


REFUSED = b""
OVERHEAD = 4096
"""Bytes of headers, names and lengths of one message, generously."""


@message("broadcast", version=1, sender="server")
@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """The model and public arrays, one encoding for the whole cohort."""

    model: NDArray[np.float32]
    names: tuple[str, ...]
    arrays: tuple[NDArray[np.float64], ...]


@message("order", version=3, sender="server")
@dataclass(frozen=True, kw_only=True)
class Order:
    """What a client is to send.

    Attributes:
        wants: names of the values it sends now.
        sums: names of the values that it gives to a hidden sum afterwards.
        initial: which introduction of its values this is, from 1; 0 for an Ask of the rounds.
        number: which Ask of its values this is within its round; 0 for an introduction.
        again: how often the sums were put anew after an answer was lost.
        members: numbers of the cohort, ascending; where nothing is hidden, this client's alone.
        draws: how often each of them was drawn, at least once.
        whole, most: all draws of the cohort, and the most of any client; 0 where values do not weigh by
            draws.
        records: n, where values weigh n_k / n; 0 where they do not.
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
    """Digest of all that a client was told here, 32 bytes: it stands in the signed agreement of a sum."""
    return digest(b"task", b"", fields(encode(header, order), encode(header, broadcast)))


@message("contribution", version=1, sender="client")
@dataclass(frozen=True, kw_only=True)
class ContributionMessage:
    """A client's releases, in the order of `Order.wants`."""

    releases: tuple[Release, ...]


@message("open-request", version=2, sender="server")
@dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """What the key holder is to open at one turn of an exchange of scores; turns count from 0."""

    turn: int
    items: tuple[bytes, ...]


@message("open-reply", version=2, sender="key-holder")
@dataclass(frozen=True, kw_only=True)
class OpenReply:
    """One reply per item of the request of that turn, still blinded; `REFUSED` for one it will not open."""

    turn: int = 0
    items: tuple[bytes, ...]
