"""The messages between server, clients and key holder. Each class declares which party may send it.

server      --Broadcast, Order-->  client
client      --Contribution------>  server         (only Releases)
server      --OpenRequest------->  key holder
key holder  --OpenReply--------->  server

`OpenRequest` and `OpenReply` are sent only if numbers travel encrypted.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from securefl.core.agreement import digest, fields
from securefl.core.errors import ConfigError
from securefl.core.release import Release
from securefl.core.wire import Header, encode, message


def client_name(number: int) -> str:
    """Return the party name of a client."""
    # Padded, so that a roster sorted by name is sorted by number, up to 10,000 clients.
    return f"client-{number:04d}"


REFUSED = b""
OVERHEAD = 4096
"""A generous bound on the bytes of headers, names and lengths of one message."""


@message("broadcast", sender="server")
@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """The model and public arrays. One encoding serves the whole cohort."""

    model: NDArray[np.float32]
    names: tuple[str, ...]
    arrays: tuple[NDArray[np.float64], ...]


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """The clients of a hidden sum, and how often each was drawn. An order names them by `digest`.

    The server tells the list to each party once, in its call to the exchange. The party holds the list
    against its roster, and each order against the list. So an order has one length in cohorts of all sizes.

    Attributes:
        members: numbers of the clients, ascending.
        draws: the number of draws of each member, at least 1.

    Raises:
        ConfigError: if there is no member, if numbers do not ascend from 0 on, or if a draw is missing.
    """

    members: tuple[int, ...]
    draws: tuple[int, ...]

    def __post_init__(self) -> None:
        listed = len(self.members) == len(self.draws) > 0 and self.members[0] >= 0
        rising = all(low < high for low, high in pairwise(self.members))
        if not listed or not rising or min(self.draws) < 1:
            raise ConfigError("Expected ascending members of a cohort, each drawn once or more.")

    @cached_property
    def digest(self) -> bytes:
        """32 bytes. Another cohort, or other draws, have another digest."""
        numbers = (len(self.members), *self.members, *self.draws)
        return digest(b"cohort", b"", struct.pack(f"<{len(numbers)}Q", *numbers))

    @cached_property
    def draws_of(self) -> Mapping[int, int]:
        """The draws of each member, by its number."""
        return dict(zip(self.members, self.draws, strict=True))


@message("order", sender="server")
@dataclass(frozen=True, kw_only=True)
class Order:
    """The server's order to a client: the values that the client sends.

    Attributes:
        wants: names of the values that the client sends now.
        sums: names of the values that the client contributes to a hidden sum afterwards.
        initial: the number of the initial query, from 1; 0 for a query of the rounds.
        number: the number of the query within its round; 0 for an initial query.
        again: the number of retries of the sums after an answer was lost.
        cohort: the digest of the `Cohort` of hidden sums, which the call at this place told; empty if no sum
            is hidden.
        draws: the number of draws of this client; 0 if a sum is hidden, since the cohort has them.
        whole, most: the draws of the whole cohort, and the most draws of one client; 0 unless values are
            weighted by draws.
        records: n, if values are weighted by n_k / n; 0 otherwise.
        lengths: of the values in `wants` that are summed; they are the first ones there. A client that
            does not take part sends so many zeros.
    """

    wants: tuple[str, ...]
    sums: tuple[str, ...]
    initial: int
    number: int
    again: int
    cohort: bytes
    draws: int
    whole: int
    most: int
    records: int
    lengths: tuple[int, ...]


def task(header: Header, order: Order, broadcast: Broadcast) -> bytes:
    """Return the digest (32 bytes) of order and broadcast. The signed agreement of a sum contains it."""
    return digest(b"task", b"", fields(encode(header, order), encode(header, broadcast)))


@message("contribution", sender="client")
@dataclass(frozen=True, kw_only=True)
class ContributionMessage:
    """A client's releases, in the sequence of `Order.wants`."""

    releases: tuple[Release, ...]


@message("open-request", sender="server")
@dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """The server's request to the key holder to open these items."""

    items: tuple[bytes, ...]


@message("open-reply", sender="key-holder")
@dataclass(frozen=True, kw_only=True)
class OpenReply:
    """One reply for each item of the request, still blinded; `REFUSED` for an item that stays closed."""

    items: tuple[bytes, ...]
