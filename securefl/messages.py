"""The messages of one exchange, and of an encrypted sum; who may send each is part of its class.

server      --Broadcast, Order-->  client
client      --Contribution------>  server         (only Releases)
server      --OpenRequest------->  key holder     (only where numbers travel encrypted)
key holder  --OpenReply--------->  server
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securefl.agreement import digest, fields
from securefl.keys import Commitment, Signature
from securefl.release import Release
from securefl.wire import Header, encode, message


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


@message("order", version=2, sender="server")
@dataclass(frozen=True, kw_only=True)
class Order:
    """What a client is to send.

    Attributes:
        wants: names of the values it sends now.
        sums: names of the values that it gives to a hidden sum afterwards.
        introduction: which introduction of its values this is, from 1; 0 for an Ask of the rounds.
        again: how often the sums were put anew after an answer was lost.
        members: numbers of the cohort, ascending; where nothing is hidden, this client's alone.
        draws: how often each of them was drawn, at least once.
        whole, most: all draws of the cohort, and the most of any client; 0 where values do not weigh by
            draws.
        records: n, where values weigh n_k / n; 0 where they do not.
    """

    wants: tuple[str, ...]
    sums: tuple[str, ...]
    introduction: int
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
class Contribution:
    """A client's releases, in the order of `Order.wants`."""

    releases: tuple[Release, ...]


@message("encrypted-input", version=1, sender="client")
@dataclass(frozen=True, kw_only=True)
class EncryptedInput:
    """One encrypted release per vector, and a signature over the agreement and the ciphertexts."""

    releases: tuple[Release, ...]
    signature: Signature


@message("sum-request", version=1, sender="server")
@dataclass(frozen=True, kw_only=True)
class SumRequest:
    """Blinded totals to be opened, and what shows the key holder that a cohort stands behind them.

    Attributes:
        items: one blinded total per vector.
        task: digest of what the cohort was told.
        members: numbers in the pinned roster of whose inputs are said to be in the totals, ascending.
        inputs: digest of each member's ciphertexts.
        signatures: each member's, over the agreement and that digest.
    """

    items: tuple[bytes, ...]
    task: bytes
    members: tuple[int, ...]
    inputs: tuple[Commitment, ...]
    signatures: tuple[Signature, ...]


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
