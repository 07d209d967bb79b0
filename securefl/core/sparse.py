"""Compact encoding of integer vectors with many zeros: one bit for each entry, then the nonzero values.

| bytes | content |
|---|---|
| 1 | the number of bytes of a value: 4, or 0 if all nonzero values are 1 |
| ceil(d / 8) | one bit for each entry, 1 if it is not 0, from the highest bit of the first byte on |
| 4 n or 0 | the n nonzero values, little-endian |
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_ONES: Final = 0
_VALUES: Final = 4


def sparse(numbers: NDArray[Any]) -> bytes:
    """Encode a vector (d,) of int32."""
    there = numbers != 0
    values = numbers[there]
    ones = bool((values == 1).all())
    body = b"" if ones else values.astype("<i4").tobytes()
    return bytes([_ONES if ones else _VALUES]) + np.packbits(there).tobytes() + body


def most_bytes(size: int) -> int:
    """Return the largest number of bytes that a vector of this length takes."""
    return 1 + -(-size // 8) + 4 * size


def dense(data: bytes, size: int) -> NDArray[np.int32]:
    """Decode a vector (size,). Raises ValueError for bytes that `sparse` makes of no such vector."""
    bits = -(-size // 8)
    width, mask, body = data[:1], data[1 : 1 + bits], data[1 + bits :]
    if width not in (bytes([_ONES]), bytes([_VALUES])) or len(mask) < bits:
        raise ValueError(f"Expected a width and {bits} bytes of bits for {size} entries, got others.")
    there = np.unpackbits(np.frombuffer(mask, np.uint8)).astype(np.bool_)
    count = int(there.sum())
    if there[size:].any() or len(body) != width[0] * count:
        raise ValueError(f"Expected {width[0]} bytes for each of {count} values, got {len(body)}.")
    values = np.frombuffer(body, "<i4") if width[0] else np.ones(count, np.int32)
    # Each vector has exactly one encoding: a choice between two could carry hidden information.
    if width[0] and ((values == 0).any() or (values == 1).all()):
        raise ValueError("Expected values that are not 0, and not all 1, got others.")
    numbers = np.zeros(size, np.int32)
    numbers[there[:size]] = values
    return numbers
