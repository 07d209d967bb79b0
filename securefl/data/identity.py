"""Which records these are, however they are ordered and split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pair = tuple[NDArray[Any], NDArray[Any]]


def digest_of_records(parts: Iterable[Pair]) -> str:
    """SHA-256 of all records in these parts together, in hex.

    It is the same for any order of the records and for any way to part them, and another one if a record is
    added, removed or changed. So it tells anybody who knows all records but one whether that one is there:
    it is never published. -0.0 counts as 0.0.

    Args:
        parts: x, shape (n, ...), and y, shape (n, ...), of each part.
    """
    # Sorted digests of single records: a set has no order, and a record that is there twice counts twice.
    single = sorted(digest for x, y in parts for digest in _each(x, y))
    return hashlib.sha256(b"securefl records v1" + b"".join(single)).hexdigest()


def _each(x: NDArray[Any], y: NDArray[Any]) -> Iterator[bytes]:
    kind = f"{x.dtype.str} {x.shape[1:]} {y.dtype.str} {y.shape[1:]}".encode()
    for row, target in zip(np.ascontiguousarray(x), np.ascontiguousarray(y), strict=True):
        # Adding zero makes 0.0 of -0.0, which has other bytes, and leaves all else as it is.
        yield hashlib.sha256(kind + (row + row.dtype.type(0)).tobytes() + _plain(target)).digest()


def _plain(target: Any) -> bytes:
    return bytes((np.asarray(target) + np.asarray(target).dtype.type(0)).tobytes())
