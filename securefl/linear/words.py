"""Arithmetic modulo 2^64 and 2^128 on vectors of words.

A vector of n words is a uint64 array (n, 1) or (n, 2), the low half of a word first. Its bytes are the
words, little-endian. A negative integer is its residue.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from securefl.core.keys import SecretKey
from securefl.core.linear import Floats

Words = NDArray[np.uint64]
_HALF = 2.0**64
_LOW = np.uint64(2**32 - 1)
_LIMB = np.uint64(32)


def from_floats(values: Floats, bits: int) -> Words:
    """Whole numbers, float64 (n,), below 2^(bits - 1) in size, as words of `bits` bits."""
    if bits == 64:
        # Through int64, since a negative float has no defined value as uint64.
        return values.astype(np.int64).astype(np.uint64)[:, None]
    # By size first: beside a negative half a float64 has no room for the low bits.
    size = np.abs(values)
    high = np.floor(size / _HALF)
    # Both parts are exact: a float64 has 53 bits, and the division is by a power of two.
    whole = np.stack([(size - high * _HALF).astype(np.uint64), high.astype(np.uint64)], axis=1)
    negative = (values < 0)[:, None]
    return np.where(negative, minus(np.zeros_like(whole), whole), whole)


def to_floats(words: Words) -> Floats:
    """Words as signed numbers, float64 (n,), rounded above 2^53."""
    if words.shape[1] == 1:
        return words[:, 0].astype(np.int64).astype(np.float64)
    negative = words[:, 1].astype(np.int64) < 0
    size = np.where(negative[:, None], minus(np.zeros_like(words), words), words)
    return np.where(negative, -1.0, 1.0) * (size[:, 1] * _HALF + size[:, 0])


def packed(words: Words) -> bytes:
    """The bytes of a vector of words."""
    return words.astype("<u8").tobytes()


def unpacked(data: bytes, bits: int) -> Words:
    """The vector of words that these bytes hold. Their length is a multiple of bits / 8."""
    return np.frombuffer(data, dtype="<u8").astype(np.uint64).reshape(-1, bits // 64)


def keystream(key: SecretKey, count: int, bits: int) -> Words:
    """`count` uniform words that follow from a key. The key must be used for nothing else."""
    # The nonce is zero: the key is made for one message, so no keystream is used twice.
    stream = Cipher(algorithms.ChaCha20(key.reveal(), bytes(16)), mode=None).encryptor()
    return unpacked(stream.update(bytes(count * bits // 8)), bits)


def plus(one: Words, other: Words) -> Words:
    """The sum of two vectors, entry by entry."""
    total = one + other
    if total.shape[1] == 2:
        total[:, 1] += total[:, 0] < one[:, 0]
    return total


def minus(one: Words, other: Words) -> Words:
    """The difference of two vectors, entry by entry."""
    left = one - other
    if left.shape[1] == 2:
        left[:, 1] -= one[:, 0] < other[:, 0]
    return left


def product(one: Words, other: Words) -> int:
    """The inner product of two vectors of fewer than 2^31 words."""
    bits: int = 64 * one.shape[1]
    if bits == 64:
        return int((one[:, 0] * other[:, 0]).sum(dtype=np.uint64))
    total = 0
    for at, left in enumerate(_limbs(one)):
        for beside, right in enumerate(_limbs(other)):
            if at + beside < 4:
                # A product of two limbs has 64 bits, so its halves are summed apart.
                whole = left * right
                low = int((whole & _LOW).sum(dtype=np.uint64))
                high = int((whole >> _LIMB).sum(dtype=np.uint64))
                total += (low + (high << 32)) << 32 * (at + beside)
    return int(total % 2**bits)


def total(words: Words) -> int:
    """The sum of the sizes of all signed words, exactly."""
    negative = (words[:, -1].astype(np.int64) < 0)[:, None]
    size = np.where(negative, minus(np.zeros_like(words), words), words)
    return sum(int(limb.sum(dtype=np.uint64)) << (32 * at) for at, limb in enumerate(_limbs(size)))


def _limbs(words: Words) -> Iterator[Words]:
    for half in words.T:
        yield half & _LOW
        yield half >> _LIMB


def centred(word: int, bits: int) -> int:
    """The integer of smallest size that a word stands for."""
    return word - 2**bits if word >= 2 ** (bits - 1) else word
