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

from securefl.release import Release
from securefl.wire import message


def client_name(number: int) -> str:
    """The party name of a client."""
    return f"client-{number:04d}"


REFUSED = b""


@message("broadcast", version=1, sender="server")
@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """The model and public arrays, one encoding for the whole cohort."""

    model: NDArray[np.float32]
    names: tuple[str, ...]
    arrays: tuple[NDArray[np.float64], ...]


@message("order", version=1, sender="server")
@dataclass(frozen=True, kw_only=True)
class Order:
    """What this client is to send, and its public weight in the sums."""

    wants: tuple[str, ...]
    weight: float


@message("contribution", version=1, sender="client")
@dataclass(frozen=True, kw_only=True)
class Contribution:
    """A client's releases, in the order of `Order.wants`."""

    releases: tuple[Release, ...]


@message("open-request", version=1, sender="server")
@dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """Blinded ciphertexts, one per number."""

    items: tuple[bytes, ...]


@message("open-reply", version=1, sender="key-holder")
@dataclass(frozen=True, kw_only=True)
class OpenReply:
    """One flooded, still blinded integer per item of the request; `REFUSED` for one it will not open."""

    items: tuple[bytes, ...]
