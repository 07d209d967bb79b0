"""Key derivation and repeatable randomness from a party's stored secret.

A party may be restarted after it drew a message and before it recorded it. It must then send the same message
again, or none. So its draws for a place follow from a stored secret and the place. The same place gives the
same bytes. To a party without the secret, the bytes of another place look like fresh random bytes.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC

from securefl.core.keys import Guarded, SecretKey

_PIECE: Final = 1 << 30
"""The library takes less than 2^31 bytes at once."""
_SHA256: Final = SHA256()
_UNSALTED: Final = HMAC(bytes(32), _SHA256)
"""The public state in which HKDF without salt begins."""
Random = Callable[[int], bytes]
"""A function that returns this many uniform bytes."""


def derived(secret: SecretKey, purpose: bytes) -> SecretKey:
    """Derive 32 bytes for one purpose (HMAC-SHA-256). They reveal nothing about another purpose's bytes."""
    return SecretKey(hmac.digest(secret.reveal(), purpose, "sha256"))


class Extract(Guarded):
    """The secret half of HKDF-SHA-256 (RFC 5869, without salt), from a secret that need not be uniform.

    Any number of keys are derived from it, one block each. The keyed state of HMAC is made once and copied,
    which takes a third of a fresh one's time.
    """

    __slots__ = ("_keyed",)

    def __init__(self, shared: bytes) -> None:
        self._keyed = HMAC(_tag(_UNSALTED, shared), _SHA256)

    def key(self, purpose: bytes) -> SecretKey:
        """Derive 32 bytes for one purpose. They reveal nothing about another purpose's bytes."""
        return SecretKey(_tag(self._keyed, purpose + b"\x01"))


def _tag(keyed: HMAC, message: bytes) -> bytes:
    copied = keyed.copy()
    copied.update(message)
    return copied.finalize()


def drawn(secret: SecretKey, purpose: bytes) -> Random:
    """Return a stream of uniform bytes for one purpose (ChaCha20). Every call restarts the stream."""
    key = derived(secret, purpose).reveal()
    # each purpose has its own key, so the nonce may be zero
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return lambda count: stream.update(bytes(count))


def long_fingerprint(secret: SecretKey, purpose: bytes, content: memoryview) -> bytes:
    """As `fingerprint`, for a long content, in a tenth of its time: HMAC-SHA-256 over AES-256-GMAC.

    Both keys are of this purpose alone. Two contents of n bytes have one fingerprint with a probability of at
    most n / 2^128 for whoever does not know the secret.
    """
    mac = AESGCM(derived(secret, b"gmac|" + purpose).reveal())
    pieces = (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))
    # A key serves this content alone, and the tags leave under HMAC only, so the nonce may be zero.
    tags = b"".join(mac.encrypt(bytes(12), b"", piece) for piece in pieces)
    return fingerprint(secret, purpose, len(content).to_bytes(8, "little") + tags)


def fingerprint(secret: SecretKey, purpose: bytes, content: bytes) -> bytes:
    """Return 32 bytes that reveal nothing about the content without the secret (HMAC-SHA-256)."""
    return hmac.digest(derived(secret, purpose).reveal(), content, "sha256")
