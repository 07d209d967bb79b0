"""Randomness for privacy noise: ChaCha20 keyed by the operating system, never by an experiment's seed."""

from __future__ import annotations

import os
from threading import Lock
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from numpy.typing import NDArray

from securefl.core.errors import LocalProtocolError
from securefl.core.keys import Guarded, SecretKey
from securefl.dp.ziggurat import normals

_forks = 0
"""The forks between the first process and this one. The number of a process alone can come back."""


def _count() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count)


class _Stream(NamedTuple):
    """A key and its stream. Its lock is of one process, so that a child never waits for a parent's thread."""

    key: SecretKey
    words: CipherContext
    lock: Lock


class Source(Guarded):
    """A stream of uniform words and normal variates for noise.

        >>> from securefl.dp import Source
        >>> Source().words(4).shape, Source().normal(3).dtype
        ((4,), dtype('float64'))

    Without a `key`, the source has a secret of its own. After a fork, the child draws another one, so parent
    and child share no word. The same `key` gives the same noise, in a child too: a party keys its sources by
    a secret of its own, so that a round that is run again has the same noise. A child that goes on with the
    stream of a keyed source that had begun is refused, since the parent goes on with it too.

    Normal variates are floats whose last bits are not exact. They are rounded to integers before any party
    sees them, while the attack of Mironov (2012) needs released floats. Up to 4 deviations, variates are
    9e-16 deviations or less apart, and beyond that a float's own spacing. Their tails end at 13.3. So no gap
    puts an integer out of reach (`ziggurat`).

    Raises LocalProtocolError for a word of a keyed source that had begun before a fork, in the child.
    """

    def __init__(self, key: SecretKey | None = None) -> None:
        self._given = key
        self._begun: dict[tuple[int, int], _Stream] = {}

    @property
    def _stream(self) -> _Stream:
        # Made at the first word: values without noise have a source too and never use it.
        process = (os.getpid(), _forks)
        if (begun := self._begun.get(process)) is not None:
            return begun
        if self._begun and self._given is not None:
            raise LocalProtocolError(
                "Expected a source of noise that this process began, got one whose stream its parent began "
                "before a fork: both would draw the same noise. Make a source in the child, with a key of "
                "its own or none."
            )
        # Not from seeds of torch or numpy: a party that knows an experiment's seed could subtract the noise.
        key = self._given or SecretKey(os.urandom(32))
        # The key serves one stream only, so the nonce may be zero.
        words = Cipher(algorithms.ChaCha20(key.reveal(), bytes(16)), mode=None).encryptor()
        # In one step: of two threads that begin at once, both go on with the stream of the first.
        return self._begun.setdefault(process, _Stream(key, words, Lock()))

    def restarted(self) -> Source:
        """The same stream from its first word, to repeat a computation that failed and released nothing."""
        return Source(self._given or self._stream.key)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Draw uniform words.

        Args:
            count: how many, from 0.

        Returns:
            uint64 (count,), the next words of the ChaCha20 stream. It is read-only.

        Raises:
            LocalProtocolError: as for the class.
            ValueError: a negative count.
        """
        stream = self._stream
        with stream.lock:
            return np.frombuffer(stream.words.update(bytes(8 * count)), dtype="<u8")

    def normal(self, count: int) -> NDArray[np.float64]:
        """Draw standard normal variates. They are to be rounded before a party sees them: see the class.

        Args:
            count: how many, from 0.

        Returns:
            float64 (count,).

        Raises:
            LocalProtocolError: as for the class.
            ValueError: a negative count.
        """
        return normals(count, self.words)
