"""Randomness for privacy: ChaCha20 keyed by the operating system, never by an experiment's seed."""

from __future__ import annotations

import os
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from numpy.typing import NDArray

from securefl.core.keys import Guarded, SecretKey
from securefl.dp.ziggurat import normals


class Source(Guarded):
    """A stream of uniform words. Only tests inject a `key`; the same key gives the same noise.

    Normal variates are floats whose last bits are not exact. They are rounded to integers before anybody sees
    them, while the attack of Mironov (2012) is on released floats. Their steps are
    9e-16 deviations or less up to 4 deviations and a float's own beyond, and their tails end at 13.3. So no
    gap puts an integer out of reach (`ziggurat`).
    """

    def __init__(self, key: SecretKey | None = None) -> None:
        self._given = key

    # Both at the first word: most of the values that leave without noise have a source all the same.

    @cached_property
    def _key(self) -> SecretKey:
        # Seeds of torch and numpy are no source: whoever knows the seed of an experiment could take the noise
        # off.
        return self._given or SecretKey(os.urandom(32))

    @cached_property
    def _stream(self) -> CipherContext:
        # The key is used for one stream and never again, so the nonce may be zero.
        return Cipher(algorithms.ChaCha20(self._key.reveal(), bytes(16)), mode=None).encryptor()

    def restarted(self) -> Source:
        """The same stream from its first word: for a computation that failed, and of which nothing left."""
        return Source(self._key)

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` uniform 64-bit words."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")

    def normal(self, count: int) -> NDArray[np.float64]:
        """`count` standard normal variates."""
        return normals(count, self.words)
