"""Encryptions of zero that are made beforehand, each for one ciphertext.

A fresh ciphertext is a fresh encryption of zero plus the encoded message. The first part needs neither the
message nor the query, and takes about half of the time. So a party can make it while it waits.

Whoever has a zero and its ciphertext reads the message. Whoever has two ciphertexts of one zero reads the
difference of their messages. `Zeros` therefore gives no zero away, and uses each one once.
"""

from __future__ import annotations

import os
from typing import Any

from securefl.core.keys import Guarded
from securefl.he.gate import Residues
from securefl.he.keys import EncryptionKey
from securefl.he.ring import Ring


class Zeros(Guarded):
    """Encrypts under one key, with zeros that were prepared, or else with zeros of the moment.

        >>> import numpy as np
        >>> from securefl.he.keys import KeyPair
        >>> from securefl.he.parameters import COMPACT
        >>> from securefl.he.ring import Ring
        >>> from securefl.he.zeros import Zeros
        >>> ring = Ring.of(COMPACT)
        >>> zeros = Zeros(ring, KeyPair.generate(COMPACT).public, most=2)
        >>> zeros.prepare(), zeros.prepare(), len(zeros)
        (True, False, 2)
        >>> zeros.encrypt(ring.encode(np.ones(3), 2**20), 2**20).shape, len(zeros)
        ((2, 2, 4096), 1)

    Formal guarantees:
    - A zero is taken out before it is used. The message is added in the zero's own memory, so that no zero is
      left afterwards, also if the addition fails.
    - Zeros exist in this process's memory alone. A restarted process has none, and a forked one drops those
      of its parent, which has them still.
    - A ciphertext has the distribution of SEAL's `encrypt`, and of the same randomness the same bits.

    Args:
        ring: of the key's parameters.
        public: the key.
        most: the most zeros that are kept. Each takes 2 N words of 8 bytes for each prime: 256 KiB under
            strong parameters.

    Raises:
        RemoteProtocolError: the key's bytes are no key.
    """

    def __init__(self, ring: Ring, public: EncryptionKey, most: int) -> None:
        self._ring, self._most = ring, most
        self._encryptor = ring.encryptor(public.residues())
        self._process, self._ready = os.getpid(), list[Any]()

    def __len__(self) -> int:
        """The number of zeros that are prepared."""
        return len(self._own())

    def prepare(self) -> bool:
        """Prepare one zero if fewer than `most` are there. Returns whether another one is to be prepared."""
        ready = self._own()
        if len(ready) < self._most:
            ready.append(self._fresh())
        return len(ready) < self._most

    def encrypt(self, plain: Any, scale: float) -> Residues:
        """A fresh ciphertext's residues (2, primes, N) in NTT form, with a prepared zero if there is one.

        plain: encoded at this scale, by the ring.
        """
        ready = self._own()
        cipher = ready.pop() if ready else self._fresh()
        cipher.scale = scale  # zero is the same at any scale, and SEAL adds equal scales only
        return self._ring.residues(self._ring.with_plain(cipher, plain))

    def _own(self) -> list[Any]:
        if self._process != (process := os.getpid()):
            self._process, self._ready = process, []
        return self._ready

    def _fresh(self) -> Any:
        return self._ring.zero(self._encryptor, 1.0)
