"""Randomness for privacy noise: ChaCha20 keyed by the operating system, never by an experiment's seed."""

from __future__ import annotations

import os
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from numpy.typing import NDArray

from securefl.core.keys import Guarded, SecretKey
from securefl.dp.ziggurat import normals


class Source(Guarded):
    """A stream of uniform words and normal variates for noise.

        >>> from securefl.dp import Source
        >>> Source().words(4).shape, Source().normal(3).dtype
        ((4,), dtype('float64'))

    Only tests inject a `key`. The same key gives the same noise.

    Normal variates are floats whose last bits are not exact. They are rounded to integers before any party
    sees them, while the attack of Mironov (2012) needs released floats. Up to 4 deviations, variates are
    9e-16 deviations or less apart, and beyond that a float's own spacing. Their tails end at 13.3. So no gap
    puts an integer out of reach (`ziggurat`).

    Raises nothing.
    """

    def __init__(self, key: SecretKey | None = None) -> None:
        self._given = key

    # Key and stream are made at the first word: values without noise have a source too and never use it.

    @cached_property
    def _key(self) -> SecretKey:
        # Not from seeds of torch or numpy: a party that knows an experiment's seed could subtract the noise.
        return self._given or SecretKey(os.urandom(32))

    @cached_property
    def _stream(self) -> CipherContext:
        # The key serves one stream only, so the nonce may be zero.
        return Cipher(algorithms.ChaCha20(self._key.reveal(), bytes(16)), mode=None).encryptor()

    def restarted(self) -> Source:
        """The same stream from its first word, to repeat a computation that failed and released nothing."""
        return Source(self._key)

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` uniform 64-bit words, uint64 (count,)."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")

    def normal(self, count: int) -> NDArray[np.float64]:
        """`count` standard normal variates, float64 (count,)."""
        return normals(count, self.words)
