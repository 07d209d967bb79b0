"""Digests of a set of records and of a set of clients. They depend on no order and no division into parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from numpy.typing import NDArray

from securefl.core.formats import prefix

Pair = tuple[NDArray[Any], NDArray[Any]]


def digest_of_records(parts: Iterable[Pair]) -> str:
    """SHA-256 of all records of all parts, in hex.

    The digest does not depend on the order of the records or on their division into parts. It changes if a
    record is added, removed or changed. So an adversary that knows all records but one can test a guess of
    that record: the digest must not be published. -0.0 counts as 0.0.

    Args:
        parts: x, shape (n, ...), and y, shape (n, ...), of each part.
    """
    # Sorting the digests of single records removes their order. A record that occurs twice counts twice.
    single = sorted(digest for x, y in parts for digest in _each(x, y))
    return hashlib.sha256(prefix("data/records") + b"".join(single)).hexdigest()


def digest_of_clients(clients: Iterable[Iterable[Pair]]) -> str:
    """SHA-256 of the digests of all clients' records, in hex.

    It does not depend on the order of the clients. It changes if a record is added, removed or changed, and
    if it moves to another client. Like `digest_of_records` it must not be published.

    Args:
        clients: for each client, the parts (x, y) of its records.
    """
    single = "".join(sorted(digest_of_records(parts) for parts in clients))
    return hashlib.sha256(prefix("data/clients") + single.encode()).hexdigest()


def _each(x: NDArray[Any], y: NDArray[Any]) -> Iterator[bytes]:
    kind = f"{x.dtype.str} {x.shape[1:]} {y.dtype.str} {y.shape[1:]}".encode()
    # Adding zero turns -0.0, which has other bytes, into 0.0 and changes no other number.
    zero, none = x.dtype.type(0), y.dtype.type(0)
    for row, target in zip(x, y, strict=True):
        yield hashlib.sha256(kind + (row + zero).tobytes() + (target + none).tobytes()).digest()
