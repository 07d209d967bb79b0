"""Compact encoding of integer vectors with many zeros: the places of the nonzero values, then the values.

| bytes | content |
|---|---|
| 1 | the form of the places (0 or 16), plus the form of the values (0, 1, 2 or 4) |
| ceil(d / 8) | form 0: one bit for each entry, 1 if it is not 0, from the highest bit of the first byte on |
| 4 + ceil(bits / 8) | form 16: n, little-endian, and the gaps between the places in Golomb code |
| 0 | form 0: all nonzero values are 1 |
| 4 + ceil(n / 8) | form 1: their one magnitude, little-endian, and a bit for each value, 1 if it is below 0 |
| 1 + 4 k + ceil(n w / 8) + ceil(m / 8) + 4 (n - m) | form 2: k; k magnitudes, ascending; for each value the |
|  | place of its magnitude among them, or k, in w = bits(k) bits; for each of the m values with such a |
|  | magnitude a bit, 1 if it is below 0; the other values |
| 4 n | form 4: the n nonzero values, little-endian |

A gap is the number of zeros before a nonzero value. In Golomb code with the parameter 2^b it is gap >> b
ones, a zero, and the b lowest bits of the gap. b follows from n and d as in Sattler et al. (2019). The
shorter form is taken: form 16 if it is shorter than form 0, form 1 if it is shorter than form 4, and form 2
if it is shorter than half of form 4. Its k magnitudes are those that 32 values or more have, the 255 least of
them at most.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

_GAPS: Final = 16
_ONES, _EQUAL, _COMMON, _VALUES = 0, 1, 2, 4
_FORMS: Final = frozenset({_ONES, _EQUAL, _COMMON, _VALUES})
_OFTEN: Final = 32
"""A magnitude of form 2 has at least as many values: it takes fewer bytes than they do."""


def sparse(numbers: NDArray[Any]) -> bytes:
    """Encode a vector (d,) of int32."""
    there = np.flatnonzero(numbers)
    bits = np.packbits(numbers != 0)
    form, places = 0, bits.tobytes()
    if 4 + _golomb_bytes(there, len(numbers)) < len(bits):
        form, places = _GAPS, len(there).to_bytes(4, "little") + _golomb(there, len(numbers))
    values, body = _values(numbers[there].astype(np.int64))
    return bytes([form + values]) + places + body


def most_bytes(size: int) -> int:
    """Return the largest number of bytes that a vector of this length takes."""
    return 1 + -(-size // 8) + 4 * size


def dense(data: bytes, size: int) -> NDArray[np.int32]:
    """Decode a vector (size,). Raises ValueError for bytes that `sparse` makes of no such vector."""
    width = data[0] & ~_GAPS if data else -1
    if width not in _FORMS:
        raise ValueError(f"Expected a width and the places of {size} entries, got the width {width}.")
    there, body = _ungapped(data[1:], size) if data[0] & _GAPS else _unpacked(data[1:], size)
    numbers = np.zeros(size, np.int32)
    numbers[there] = _read(body, width, len(there))
    # Each vector has exactly one encoding: a choice between two could carry hidden information.
    if sparse(numbers) != data:
        raise ValueError(
            f"Expected the one encoding of a vector of {size} entries, got a longer or unordered one."
        )
    return numbers


# Values ------------------------------------------------------------------------------------------


def _values(values: Integers) -> tuple[int, bytes]:
    """The form of nonzero values (n,), and their bytes."""
    sizes = np.abs(values)
    if (values == 1).all():
        return _ONES, b""
    if (sizes == sizes[0]).all() and 4 + -(-len(values) // 8) < 4 * len(values):
        return _EQUAL, int(sizes[0]).to_bytes(4, "little") + np.packbits(values < 0).tobytes()
    if common := _common(values, sizes):
        return _COMMON, common
    return _VALUES, values.astype("<i4").tobytes()


def _common(values: Integers, sizes: Integers) -> bytes:
    """The values (n,) in form 2. No bytes if they would be as many as half of those of form 4."""
    found, counts = np.unique(sizes, return_counts=True)
    often = np.flatnonzero(counts >= _OFTEN)[:255]
    table, n, m = found[often], len(values), int(counts[often].sum())
    k, width = len(table), len(table).bit_length()
    if 1 + 4 * k + -(-n * width // 8) + -(-m // 8) + 4 * (n - m) >= 2 * n:
        return b""
    there = np.searchsorted(table, sizes)
    known = np.isin(sizes, table)
    there[~known] = k
    places = np.packbits(np.unpackbits(there.astype(np.uint8)[:, None], axis=1)[:, 8 - width :])
    signs = np.packbits(values[known] < 0)
    rest = values[~known].astype("<i4")
    return bytes([k]) + table.astype("<u4").tobytes() + places.tobytes() + signs.tobytes() + rest.tobytes()


def _read_common(body: bytes, count: int) -> Integers:
    """The values (count,) of form 2."""
    k = body[0] if body else 0
    width = k.bit_length()
    places = 1 + 4 * k
    signs = places + -(-count * width // 8)
    if not k or len(body) < signs:
        raise ValueError(f"Expected common magnitudes of {count} values, got {len(body)} bytes.")
    bits = np.unpackbits(np.frombuffer(body[places:signs], np.uint8))[: count * width].reshape(count, width)
    there = np.packbits(np.pad(bits, ((0, 0), (8 - width, 0))), axis=1)[:, 0]
    known = there < k
    rest = signs + -(-int(known.sum()) // 8)
    if len(body) != rest + 4 * int((~known).sum()):
        raise ValueError(f"Expected {int((~known).sum())} values that are not common, got {len(body)} bytes.")
    table = np.frombuffer(body[1:places], "<u4").astype(np.int64)
    below = np.unpackbits(np.frombuffer(body[signs:rest], np.uint8))[: int(known.sum())].astype(np.bool_)
    found = np.zeros(count, np.int64)
    found[known] = np.where(below, -1, 1) * table[there[known]]
    found[~known] = np.frombuffer(body[rest:], "<i4")
    return found


def _read(body: bytes, width: int, count: int) -> Integers:
    """The values (count,) of this form."""
    if width == _COMMON:
        return _within(_read_common(body, count))
    expected = {_ONES: 0, _EQUAL: 4 + -(-count // 8), _VALUES: 4 * count}[width]
    if len(body) != expected:
        raise ValueError(f"Expected {expected} bytes for {count} values, got {len(body)}.")
    if width == _ONES:
        return np.ones(count, np.int64)
    if width == _VALUES:
        return np.frombuffer(body, "<i4").astype(np.int64)
    size = int.from_bytes(body[:4], "little")
    below = np.unpackbits(np.frombuffer(body[4:], np.uint8))[:count].astype(np.bool_)
    return _within(np.where(below, -size, size).astype(np.int64))


def _within(found: Integers) -> Integers:
    """These values. Raises ValueError unless they are of int32."""
    if len(found) and not -(2**31) <= found.min() <= found.max() < 2**31:
        raise ValueError(f"Expected values of int32, got {found.min()} to {found.max()}.")
    return found


# Places ------------------------------------------------------------------------------------------


def _unpacked(data: bytes, size: int) -> tuple[Integers, bytes]:
    """The places that one bit for each entry marks, and the bytes behind the bits."""
    bits = -(-size // 8)
    if len(data) < bits:
        raise ValueError(f"Expected {bits} bytes of bits for {size} entries, got {len(data)}.")
    there = np.flatnonzero(np.unpackbits(np.frombuffer(data[:bits], np.uint8)))
    if len(there) and there[-1] >= size:
        raise ValueError(f"Expected places below {size}, got {there[-1]}.")
    return there, data[bits:]


def _parameter(count: int, size: int) -> int:
    """b of the Golomb code of `count` places among `size`, in whole numbers: all machines find the same."""
    # 1 + floor(log2(0.4812 / p)) with p = count / size. Sattler's formula tends to it for small p.
    return (4812 * size // (10000 * count)).bit_length() if count else 0


def _gaps(there: Integers) -> Integers:
    return np.diff(there, prepend=-1) - 1


def _golomb_bytes(there: Integers, size: int) -> int:
    """The bytes of the gaps between these places."""
    b = _parameter(len(there), size)
    return -(-(int((_gaps(there) >> b).sum()) + len(there) * (1 + b)) // 8)


def _golomb(there: Integers, size: int) -> bytes:
    """The gaps between these places, bit by bit."""
    b, gaps = _parameter(len(there), size), _gaps(there)
    stops = np.cumsum((gaps >> b) + 1 + b) - b - 1
    bits = np.ones(8 * _golomb_bytes(there, size), np.bool_)
    bits[int(stops[-1]) + 1 + b if len(there) else 0 :] = False
    bits[stops] = False
    for bit in range(b):
        bits[stops + 1 + bit] = (gaps >> (b - 1 - bit)) & 1
    return np.packbits(bits).tobytes()


def _ungapped(data: bytes, size: int) -> tuple[Integers, bytes]:
    """The places whose gaps these bytes begin with, and the bytes behind them."""
    count = int.from_bytes(data[:4], "little")
    if len(data) < 4 or count > size:
        raise ValueError(f"Expected the gaps of at most {size} places, got {len(data)} bytes for {count}.")
    b = _parameter(count, size)
    bits = np.unpackbits(np.frombuffer(data[4:], np.uint8))
    written, ones, ends, at = bits.tobytes(), [], [], 0
    for place in range(count):
        zero = written.find(0, at)
        if zero < 0 or zero + 1 + b > len(bits):
            raise ValueError(f"Expected the gaps of {count} places, got {place}.")
        ones.append(zero - at)
        ends.append(at := zero + 1 + b)
    gaps = np.array(ones, np.int64) << b
    for bit in range(b):
        gaps += bits[np.array(ends, np.int64) - 1 - bit].astype(np.int64) << bit
    there = np.cumsum(gaps + 1) - 1
    if count and there[-1] >= size:
        raise ValueError(f"Expected places below {size}, got {there[-1]}.")
    return there, data[4 + -(-at // 8) :]
