"""Randomness for privacy: ChaCha20 keyed by the operating system, never by an experiment's seed."""

from __future__ import annotations

import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from scipy.special import ndtri

from securefl.core.keys import Guarded, SecretKey


class Source(Guarded):
    """A stream of uniform words. Only tests inject a `key`; the same key gives the same noise.

    Normal variates are floats whose last bits are not exact. They are rounded to integers before anybody sees
    them, while the attack of Mironov (2012) is on released floats. Their tails keep 53 significant bits of
    the probability and end at 12.6 standard deviations, so no gap between floats puts an integer out of
    reach.
    """

    def __init__(self, key: SecretKey | None = None) -> None:
        # The key is used for one stream and never again, so the nonce may be zero. Seeds of torch and numpy
        # are no source: whoever knows the seed of an experiment could take the noise off.
        self._key = key or SecretKey(os.urandom(32))
        self._stream = Cipher(algorithms.ChaCha20(self._key.reveal(), bytes(16)), mode=None).encryptor()

    def restarted(self) -> Source:
        """The same stream from its first word: for a computation that failed, and of which nothing left."""
        return Source(self._key)

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` uniform 64-bit words."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")

    def normal(self, count: int) -> NDArray[np.float64]:
        """`count` standard normal variates: a tail probability of 117 bits, inverted, and a random sign."""
        # A uniform float64 has a smallest step of 2^-53: inverted it ends at 8.2 deviations, and its tail has
        # gaps. The probability of a tail gets 53 bits of one word and 64 below them from another; the lowest
        # bit of the first word, which the probability does not use, is the sign.
        high, low = self.words(2 * count).reshape(2, count)
        fraction = (low.astype(np.float64) + 0.5) * 2.0**-64
        tail = ((high >> np.uint64(11)).astype(np.float64) + fraction) * 2.0**-54
        sign = 1.0 - 2.0 * (high & np.uint64(1)).astype(np.float64)
        normal: NDArray[np.float64] = sign * -ndtri(np.minimum(tail, 0.5))
        return normal
