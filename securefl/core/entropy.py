"""Randomness that a party can draw a second time: its own secret, stretched for one purpose.

A party that is restarted between a message and its record must say the same again, or nothing. So its draws
for a place follow from a stored secret and from the place. The same place gives the same bytes. Another place
gives bytes that nobody can tell from fresh ones.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from securefl.core.keys import SecretKey

Random = Callable[[int], bytes]
"""Uniform bytes, as many as are asked for."""


def derived(secret: SecretKey, purpose: bytes) -> SecretKey:
    """32 bytes for one purpose (HMAC-SHA-256). The bytes of one purpose tell nothing of another's."""
    return SecretKey(hmac.digest(secret.reveal(), purpose, "sha256"))


def extracted(shared: bytes, purpose: bytes) -> SecretKey:
    """32 bytes for one purpose, from a shared secret that need not be uniform.

    One block of HKDF-SHA-256 (RFC 5869) without salt: a tenth of the library object's time.
    """
    return SecretKey(hmac.digest(hmac.digest(bytes(32), shared, "sha256"), purpose + b"\x01", "sha256"))


def drawn(secret: SecretKey, purpose: bytes) -> Random:
    """A stream of uniform bytes for one purpose (ChaCha20). It begins anew with every call of `drawn`."""
    key = derived(secret, purpose).reveal()
    # a key of its own for each purpose, so the nonce may be zero
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return lambda count: stream.update(bytes(count))


def fingerprint(secret: SecretKey, purpose: bytes, content: bytes) -> bytes:
    """32 bytes that say nothing of the content to anybody without the secret (HMAC-SHA-256)."""
    return hmac.digest(derived(secret, purpose).reveal(), content, "sha256")
