"""Masking of vectors: the keystream of AES-256-CTR, added to or subtracted from machine words in place.

The key is a 32-byte seed that is used for nothing else. The upper half of the initial counter block is the
number of the vector, so one seed masks several vectors. The lower half is 2. Words are little-endian.
Arithmetic is modulo the word. A vector modulo 2^b is reduced once, after the last mask, since 2^b divides the
word's modulus.

Two modes of the library give this keystream. AES-GCM encrypts in counter mode, from its nonce with the block
number 2 (NIST SP 800-38D, 7.1), with the number of the vector as its nonce. On processors with AES on wide
registers the library runs GCM at 2.5 times the speed of CTR, its unused tag included; on others CTR is
faster. The first long mask of a process measures which.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM
from numpy.typing import NDArray

from securefl.core.errors import LocalProtocolError
from securefl.core.keys import SecretKey

Words = NDArray[np.uint32] | NDArray[np.uint64]

_BLOCK_BYTES: Final = 1 << 18
"""Long enough that the cost of calls is small, and three blocks fit in the second-level cache."""
_AT_ONCE: Final = 128
"""The most ciphers that are open at once, so that memory does not grow with the number of masks."""
_ZEROS: Final = bytes(_BLOCK_BYTES)
_SHORT_BYTES: Final = 1 << 16
"""Up to this length a process does not measure which mode is faster."""


def apply_masks(
    words: Words, vector: int, *, add: Sequence[SecretKey] = (), subtract: Sequence[SecretKey] = ()
) -> None:
    """Add the masks of some seeds to `words` and subtract the masks of others, in place.

    Args:
        words: (d,), contiguous, uint32 or uint64.
        vector: the number of the vector among the vectors that the seeds mask.
        add, subtract: 32-byte seeds. Each seed masks a vector number once.

    Raises:
        LocalProtocolError: if `words` has another type, shape or layout.

    >>> import numpy as np
    >>> from securefl.core.keys import SecretKey
    >>> from securefl.secagg import apply_masks
    >>> vector, seed = np.array([1, 2], np.uint32), SecretKey(bytes(32))
    >>> apply_masks(vector, 0, add=[seed])
    >>> apply_masks(vector, 0, subtract=[seed])
    >>> vector
    array([1, 2], dtype=uint32)
    """
    if words.dtype not in (np.uint32, np.uint64) or words.ndim != 1 or not words.flags.c_contiguous:
        raise LocalProtocolError(
            f"Expected a flat, contiguous uint32 or uint64 vector, got {words.dtype} of shape {words.shape}. "
            "Make it with `words`."
        )
    signed = [(seed, True) for seed in add] + [(seed, False) for seed in subtract]
    mode = _gcm(vector) if words.nbytes > _SHORT_BYTES and _gcm_is_faster() else _ctr(vector)
    for start in range(0, len(signed), _AT_ONCE):
        some = signed[start : start + _AT_ONCE]
        _apply_some(words, [(Cipher(AES(seed.reveal()), mode).encryptor(), plus) for seed, plus in some])


def _ctr(vector: int) -> CTR:
    """The mode that draws the keystream on every processor."""
    return CTR(vector.to_bytes(8, "big") + (2).to_bytes(8, "big"))


def _gcm(vector: int) -> GCM:
    """The mode that draws the same, up to 2^36 - 32 bytes. No tag is computed."""
    # A vector has fewer than 2^32 words of 8 bytes, so GCM's counter of 32 bits does not wrap around.
    return GCM(vector.to_bytes(8, "big") + bytes(4))


@cache
def _gcm_is_faster() -> bool:
    """Whether this machine draws a block faster in GCM. The answer changes no byte of a mask."""
    buffer: Any = np.empty(_BLOCK_BYTES + 16, np.uint8)

    def least(mode: CTR | GCM) -> int:
        """The least nanoseconds of four blocks: other work on the machine only adds."""
        stream, spent = Cipher(AES(bytes(32)), mode).encryptor(), []
        for _ in range(4):
            began = perf_counter_ns()
            stream.update_into(_ZEROS, buffer)
            spent.append(perf_counter_ns() - began)
        return min(spent)

    return least(_gcm(0)) < least(_ctr(0))


def _apply_some(words: Words, streams: Sequence[tuple[Any, bool]]) -> None:
    """Apply all streams in one pass over the vector, block by block, while the block is in the cache."""
    buffer = np.empty(_BLOCK_BYTES + 16, np.uint8)  # the library requires room for one more cipher block
    steps = [(stream.update_into, np.add if plus else np.subtract) for stream, plus in streams]
    length = _BLOCK_BYTES // words.itemsize
    for piece in (words[start : start + length] for start in range(0, len(words), length)):
        mask = buffer[: piece.nbytes].view(piece.dtype.newbyteorder("<"))
        zeros = memoryview(_ZEROS)[: piece.nbytes]
        for draw, combine in steps:
            draw(zeros, buffer)
            combine(piece, mask, piece)
