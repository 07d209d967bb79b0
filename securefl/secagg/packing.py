"""Packing of vectors modulo 2^b: from words in memory to messages with b bits a value.

A word is uint32 up to b = 32, else uint64. Value i occupies the bits i*b .. i*b + b - 1 of the packed bytes
read as one little-endian number. The bits after the last value are zero. If b is the word's width, packing
copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.agreement import LEAST_BITS, MOST_BITS, Vector
from securefl.core.errors import CryptoError, LocalProtocolError
from securefl.core.hiding import Conceal
from securefl.core.keys import SecretKey
from securefl.secagg.masks import Words, apply_masks

_WIDE: Final = np.dtype("<u8")
_ROOM: Final = 8
"""Bytes behind packed values, so that the last ones are read and written as whole words too."""


def word(bits: int) -> np.dtype[Any]:
    """The little-endian word that holds a value modulo 2^bits."""
    if not LEAST_BITS <= bits <= MOST_BITS:
        raise LocalProtocolError(
            f"Expected {LEAST_BITS} to {MOST_BITS} bits a value, got {bits}. Change the vector's bits."
        )
    return np.dtype("<u4" if bits <= 32 else "<u8")


def words(integers: NDArray[Any], bits: int) -> Words:
    """Return integers as machine words, each modulo the word's size (not yet modulo 2^bits).

    Args:
        integers: (d,), any integer type.
        bits: 8 to 64.

    Returns:
        A new (d,) array: uint32 for up to 32 bits, else uint64.

    Raises:
        LocalProtocolError: if `integers` is not a flat array of integers, or `bits` is out of range.

    >>> import numpy as np
    >>> from securefl.secagg import words
    >>> words(np.array([1, -1]), 32)
    array([         1, 4294967295], dtype=uint32)
    """
    if integers.dtype.kind not in "iu" or integers.ndim != 1:
        raise LocalProtocolError(
            f"Expected a flat vector of integers, got {integers.dtype} of shape {integers.shape}. Round and "
            "flatten it."
        )
    fresh: Words = integers.astype(word(bits), casting="unsafe")
    return fresh


def reduce(vector: Words, bits: int) -> None:
    """Reduce each word modulo 2^bits, in place."""
    if bits < 8 * vector.itemsize:
        np.bitwise_and(vector, vector.dtype.type((1 << bits) - 1), out=vector)


def centred(vector: Words, bits: int) -> NDArray[np.int64]:
    """Return the integers of smallest magnitude that are congruent to the words modulo 2^bits.

    Args:
        vector: (d,) uint32 or uint64 words, such as a total of `Summed`.
        bits: 8 to 64, the bits of the `Vector`.

    Returns:
        (d,) int64.

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.secagg import centred
    >>> centred(np.array([1, 255], np.uint32), 8)
    array([ 1, -1])
    """
    # The shift up drops bits from 2^bits on. The shift down of a signed integer copies its sign bit.
    shift = np.int64(64 - bits)
    lifted: NDArray[np.int64] = (vector.astype(np.int64) << shift) >> shift
    return lifted


def packed_bytes(length: int, bits: int) -> int:
    """The number of bytes of a packed vector."""
    return -(-length * bits // 8)


def pack(vector: Words, bits: int) -> NDArray[np.uint8]:
    """Pack reduced words (d,) into uint8 (`packed_bytes`,). For 32 and 64 bits the result is a view.

    Raises LocalProtocolError if the words have another width than `bits` takes.
    """
    if vector.dtype != word(bits):
        raise LocalProtocolError(
            f"Expected words of {word(bits)} for {bits} bits, got {vector.dtype}. Make them with `words`."
        )
    if bits == 8 * vector.itemsize:
        return vector.view(np.uint8)
    size = packed_bytes(len(vector), bits)
    out = np.zeros(size + _ROOM, np.uint8)
    lanes = list(_lanes(out, len(vector), bits))
    for lane, shift, low, high in (*lanes[::2], *lanes[1::2]):
        shifted = vector[lane::8] << np.uint64(shift)
        if lane % 2 or bits < 32:
            low |= shifted
        else:  # from 32 bits on, the words of the even lanes do not overlap: writing takes half the time
            low[:] = shifted
        if high is not None:
            high |= (vector[lane::8] >> np.uint64(64 - shift)).astype(np.uint8)
    return out[:size]


def masked(
    vector: Vector,
    number: int,
    integers: NDArray[Any],
    *,
    add: Sequence[SecretKey],
    subtract: Sequence[SecretKey] = (),
) -> NDArray[np.uint8]:
    """Mask a vector and pack it.

    Args:
        vector: its length, bits and bound.
        number: the place of the vector among all vectors that the same seeds mask.
        integers: (length,), the client's values.
        add, subtract: the seeds of the masks.

    Raises:
        LocalProtocolError: if the length is another, or an integer is beyond the vector's bound.
    """
    if integers.shape != (vector.length,):
        raise LocalProtocolError(
            f"Expected {vector.length} integers for {vector.name!r}, got shape {integers.shape}. Pass the "
            "declared length."
        )
    if int(integers.max()) > vector.bound or int(integers.min()) < -vector.bound:
        # The message leaves the value out: an error may be logged, and a client's integers are private.
        raise LocalProtocolError(
            f"Expected magnitudes up to {vector.bound} in {vector.name!r}, got a larger one. Clip before "
            "masking."
        )
    fresh = words(integers, vector.bits)
    apply_masks(fresh, number, add=add, subtract=subtract)
    reduce(fresh, vector.bits)
    return pack(fresh, vector.bits)


def unpack(packed: NDArray[np.uint8], length: int, bits: int) -> Words:
    """Invert `pack`. The result is a view if `pack` gives one.

    Raises:
        CryptoError: if there are not `packed_bytes` bytes, or if bits after the last value are set.
    """
    if packed.dtype != np.uint8 or packed.shape != (packed_bytes(length, bits),):
        raise CryptoError(
            f"Expected {packed_bytes(length, bits)} bytes for {length} values of {bits} bits, got shape "
            f"{packed.shape} of {packed.dtype}."
        )
    if bits == 8 * word(bits).itemsize:
        return packed.view(word(bits))
    whole = np.zeros(len(packed) + _ROOM, np.uint8)
    whole[: len(packed)] = packed
    vector: Words = np.empty(length, word(bits))
    for lane, shift, low, high in _lanes(whole, length, bits):
        values = low >> np.uint64(shift)
        if high is not None:
            values |= high.astype(_WIDE) << np.uint64(64 - shift)
        vector[lane::8] = values & _WIDE.type((1 << bits) - 1)
    # Each vector has one encoding: this check refuses other bytes that would decode to it.
    used = length * bits - 8 * (len(packed) - 1)
    if used < 8 and int(packed[-1]) >> used:
        raise CryptoError("Expected zero bits after the last value, got a bit that is 1.")
    return vector


def _lanes(
    packed: NDArray[np.uint8], length: int, bits: int
) -> Iterator[tuple[int, int, NDArray[np.uint64], NDArray[np.uint8] | None]]:
    """The places of the values in packed bytes, for each lane: every eighth value, from the lane's number on.

    Eight values take `bits` bytes, so the values of a lane begin at one bit of bytes that are `bits` apart.
    Yields the lane, that bit (0 to 7), the eight bytes from there, and the ninth if a value reaches into it.
    """
    for lane in range(8):
        at, shift = divmod(lane * bits, 8)
        count = len(range(lane, length, 8))
        low = np.ndarray((count,), _WIDE, packed, at if count else 0, (bits,))
        beyond = shift + bits > 64
        high = np.ndarray((count,), np.uint8, packed, at + 8 if count else 0, (bits,)) if beyond else None
        yield lane, shift, low, high


Seeds = Sequence[SecretKey]


class Masker:
    """A function that masks each vector once. A second call for the same vector raises LocalProtocolError."""

    def __init__(self, vectors: Sequence[Vector], seeds: Iterable[tuple[Seeds, Seeds]]) -> None:
        """Take for each vector the seeds of the masks to add, and of those to subtract."""
        self._vectors, self._left = vectors, dict(enumerate(seeds))

    def by_name(self) -> dict[str, Conceal]:
        """A function for each vector, by its name."""
        return {vector.name: partial(self, number) for number, vector in enumerate(self._vectors)}

    def __call__(self, number: int, integers: NDArray[Any]) -> NDArray[np.uint8]:
        if number not in self._left:
            raise LocalProtocolError(
                f"Expected a vector that is not masked yet, got number {number}. A mask serves once: two "
                "vectors under one mask would reveal their difference."
            )
        add, subtract = self._left[number]
        hidden = masked(self._vectors[number], number, integers, add=add, subtract=subtract)
        # After the masking: a refused vector uses no mask.
        del self._left[number]
        return hidden
