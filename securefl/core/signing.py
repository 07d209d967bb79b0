"""Signatures (Ed25519) and encryption to one receiver (X25519, HKDF-SHA-256, ChaCha20-Poly1305)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final, Protocol

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from securefl.core.entropy import Extract, derived
from securefl.core.errors import CryptoError
from securefl.core.formats import prefix
from securefl.core.keys import PublicKey, SecretKey, Signature

SIGNATURE_BYTES: Final = 64
_KEY_BYTES: Final = 32
Verify = Callable[[PublicKey, Signature, bytes], None]
Signed = Callable[[PublicKey, Signature, bytes], None]
"""A function that hears of a signature from the key that made it."""


@dataclass(frozen=True)
class SigningKey:
    """An Ed25519 key. The parties that check signatures get `public`.

    signed: hears of each signature that this key makes; None if nobody does.
    """

    secret: SecretKey
    signed: Signed | None = field(default=None, compare=False, repr=False)

    @classmethod
    def generate(cls) -> SigningKey:
        """Return a fresh key from the operating system's randomness."""
        return cls(SecretKey(os.urandom(_KEY_BYTES)))

    @cached_property
    def public(self) -> PublicKey:
        return PublicKey(self._own.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> Signature:
        signature = Signature(self._own.sign(message))
        if self.signed is not None:
            self.signed(self.public, signature, message)
        return signature

    @cached_property
    def _own(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret.reveal())


# y coordinates of the eight points whose order divides 8, as in libsodium's ge25519_has_small_order
_PRIME: Final = 2**255 - 19
_ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER: Final = {0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8}


def has_small_order(public: PublicKey) -> bool:
    """Whether an Ed25519 key is a point of small order, in any of its encodings."""
    # the top bit is the sign of x; y may be encoded without reduction modulo the prime
    y = int.from_bytes(public.raw, "little") & ~(1 << 255)
    return y % _PRIME in _SMALL_ORDER


# u coordinates of all points on X25519's curve and its twist whose order divides 8, as libsodium lists them
_WEAK_8: Final = 0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0
_WEAK_8_TOO: Final = 0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F
_WEAK: Final = {0, 1, _PRIME - 1, _WEAK_8, _WEAK_8_TOO}


def cannot_agree(public: PublicKey) -> bool:
    """Whether no key agrees with this X25519 key: it is a point of small order, in any of its encodings.

    `AgreementKey.agree` raises for exactly these keys.
    """
    # X25519 ignores the top bit, and reduces modulo the prime (RFC 7748, section 5)
    return (int.from_bytes(public.raw, "little") & ~(1 << 255)) % _PRIME in _WEAK


def verify(public: PublicKey, signature: Signature, message: bytes) -> None:
    """Raise CryptoError unless the owner of `public` signed this message.

    A key of small order is refused: one signature verifies under it for every message, so it has no owner.
    """
    if has_small_order(public):
        raise CryptoError("Expected a signing key, got a point of small order, under which anybody signs.")
    try:
        Ed25519PublicKey.from_public_bytes(public.raw).verify(signature.raw, message)
    except (InvalidSignature, ValueError):
        raise CryptoError("The signature is not that of the expected key.") from None


# Cached: in a cohort each member's public key serves in as many agreements as it has neighbours.
@lru_cache(maxsize=4096)
def _parsed(public: bytes) -> X25519PublicKey:
    return X25519PublicKey.from_public_bytes(public)


@dataclass(frozen=True)
class AgreementKey:
    """An X25519 key of a receiver of sealed messages, or of one side of a key agreement."""

    secret: SecretKey

    @classmethod
    def generate(cls) -> AgreementKey:
        """Return a fresh key from the operating system's randomness."""
        return cls(SecretKey(os.urandom(_KEY_BYTES)))

    @cached_property
    def public(self) -> PublicKey:
        return PublicKey(self._own.public_key().public_bytes_raw())

    def agree(self, other: PublicKey, purpose: bytes) -> SecretKey:
        """Return 32 bytes for one purpose that only the owners know. Raises CryptoError for a weak key."""
        try:
            shared = self._own.exchange(_parsed(other.raw))
        except ValueError:
            raise CryptoError("The other key cannot be agreed with.") from None
        return Extract(shared).key(purpose)

    @cached_property
    def _own(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.secret.reveal())


class Agree(Protocol):
    """A function that derives the secret which the owners of two keys share, for one purpose."""

    def __call__(self, own: AgreementKey, other: PublicKey, purpose: bytes, /) -> SecretKey: ...


def seal(to: PublicKey, plain: bytes, context: bytes, *, secret: SecretKey | None = None) -> bytes:
    """Encrypt `plain` for the owner of `to` alone, bound to `context`.

    The result is a fresh public key and the output of the AEAD. If a `secret` is given, the same arguments
    give the same bytes. The fresh key then follows from secret, receiver, context and plain text together, so
    that no key ever seals two messages. Raises CryptoError if the receiver's key is weak.
    """
    fresh = AgreementKey.generate() if secret is None else AgreementKey(_again(secret, to, plain, context))
    key = fresh.agree(to, _purpose(fresh.public, to))
    # each key is used once, so the nonce may be constant
    return fresh.public.raw + ChaCha20Poly1305(key.reveal()).encrypt(bytes(12), plain, context)


def unseal(own: AgreementKey, sealed: bytes, context: bytes) -> bytes:
    """Decrypt the output of `seal`. Raises CryptoError unless it was sealed to this key in this context."""
    fresh = PublicKey(sealed[:_KEY_BYTES])
    key = own.agree(fresh, _purpose(fresh, own.public))
    try:
        return ChaCha20Poly1305(key.reveal()).decrypt(bytes(12), sealed[_KEY_BYTES:], context)
    except InvalidTag:
        raise CryptoError("The message was not sealed to this key in this context.") from None


def _again(secret: SecretKey, to: PublicKey, plain: bytes, context: bytes) -> SecretKey:
    parts = (to.raw, hashlib.sha256(context).digest(), hashlib.sha256(plain).digest())
    return derived(secret, prefix("seal/again") + b"".join(parts))


def _purpose(fresh: PublicKey, to: PublicKey) -> bytes:
    # the derivation covers both keys, so that a sealed message cannot be passed on to another receiver
    return prefix("seal") + fresh.raw + to.raw
