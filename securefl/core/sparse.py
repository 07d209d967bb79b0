"""Vectors of integers with many zeros, as bytes: a bit for each entry, and what is not 0.

| bytes | what |
|---|---|
| 1 | how many bytes a value has: 4, or 0 if all values are 1 |
| ceil(d / 8) | a bit for each entry, from the highest bit of the first byte on: whether it is not 0 |
| 4 n or 0 | the n values that are not 0, little-endian |
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_ONES: Final = 0
_VALUES: Final = 4


def sparse(numbers: NDArray[Any]) -> bytes:
    """A vector (d,) of int32."""
    there = numbers != 0
    values = numbers[there]
    ones = bool((values == 1).all())
    body = b"" if ones else values.astype("<i4").tobytes()
    return bytes([_ONES if ones else _VALUES]) + np.packbits(there).tobytes() + body


def most_bytes(size: int) -> int:
    """The most bytes that a vector of this length takes."""
    return 1 + -(-size // 8) + 4 * size


def dense(data: bytes, size: int) -> NDArray[np.int32]:
    """The vector (size,). Raises ValueError for bytes that `sparse` never makes of such a vector."""
    bits = -(-size // 8)
    width, mask, body = data[:1], data[1 : 1 + bits], data[1 + bits :]
    if width not in (bytes([_ONES]), bytes([_VALUES])) or len(mask) < bits:
        raise ValueError(f"Expected a width and {bits} bytes of bits for {size} entries, got others.")
    there = np.unpackbits(np.frombuffer(mask, np.uint8)).astype(np.bool_)
    count = int(there.sum())
    if there[size:].any() or len(body) != width[0] * count:
        raise ValueError(f"Expected {width[0]} bytes for each of {count} values, got {len(body)}.")
    values = np.frombuffer(body, "<i4") if width[0] else np.ones(count, np.int32)
    # One vector has one form. A choice between two could tell something.
    if width[0] and ((values == 0).any() or (values == 1).all()):
        raise ValueError("Expected values that are not 0, and not all 1, got others.")
    numbers = np.zeros(size, np.int32)
    numbers[there[:size]] = values
    return numbers
