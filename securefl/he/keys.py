"""The key holder's CKKS key pair. No keys for rotation or relinearisation exist.

The package encodes both halves itself. The public key is raw residues, which `gate` checks before SEAL reads
them. The secret key is a polynomial with coefficients -1, 0 and 1. Public bytes are loaded into a context
that this process made. So they cannot bring other parameters or a hidden secret, and no public object can
decrypt.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.keys import PublicKey, SecretKey
from securefl.he import gate
from securefl.he.gate import Residues
from securefl.he.parameters import Parameters
from securefl.he.ring import Ring


@dataclass(frozen=True)
class EncryptionKey:
    """A public key and the pinned parameters it is for. The key's bytes are checked by `residues`."""

    parameters: Parameters
    key: PublicKey

    @cached_property
    def session(self) -> bytes:
        """32 bytes: SHA-256 of the public key and the name of its parameters."""
        return hashlib.sha256(self.parameters.name.encode() + b"|" + self.key.raw).digest()

    def residues(self) -> Residues:
        """The key's ring elements, (2, primes + 1, N). Raises RemoteProtocolError for other bytes."""
        p, sender = self.parameters, "key holder"
        residues = gate.unpack(
            self.key.raw, 2, (*p.primes, p.special_prime), p.poly_modulus_degree, sender=sender
        )
        # If either half is zero, a message encrypted with the key is readable by anyone.
        for halves in (residues, residues[::-1]):
            gate.not_transparent(halves, sender=sender)
        return residues


def checked(parameters: Parameters, raw: bytes) -> EncryptionKey:
    """The public key in bytes that its owner signed. Raises CryptoError for bytes that are no key."""
    # The owner may have signed any bytes. A later check would blame the party that uses the key.
    key = EncryptionKey(parameters, PublicKey(raw))
    try:
        key.residues()
    except RemoteProtocolError as error:
        raise CryptoError(f"Expected a public key, got other bytes: {error}") from None
    return key


@dataclass(frozen=True)
class KeyPair:
    """The key holder's key pair. It never sends `secret`, and sends `public` to all parties."""

    public: EncryptionKey
    secret: SecretKey

    @classmethod
    def generate(cls, parameters: Parameters) -> KeyPair:
        """A fresh pair for one session, from the operating system's randomness."""
        public, secret = Ring.of(parameters).generate()
        raw = gate.pack(public, (*parameters.primes, parameters.special_prime))
        # Coefficients -1, 0, 1 are stored as bytes 0, 1, 2, so that all keys have one length.
        ternary = (secret + 1).astype(np.uint8).tobytes()
        return cls(EncryptionKey(parameters, PublicKey(raw)), SecretKey(ternary))

    def stored(self) -> bytes:
        """Both halves as bytes, for a file that only the key holder can read."""
        return self.secret.reveal() + self.public.key.raw

    @classmethod
    def restored(cls, stored: bytes, parameters: Parameters) -> KeyPair:
        """The inverse of `stored`."""
        secret, public = stored[: parameters.poly_modulus_degree], stored[parameters.poly_modulus_degree :]
        return cls(EncryptionKey(parameters, PublicKey(public)), SecretKey(secret))

    def coefficients(self) -> NDArray[np.int64]:
        """The secret polynomial, shape (N,), values -1, 0, 1."""
        secret = np.frombuffer(self.secret.reveal(), dtype=np.uint8).astype(np.int64) - 1
        if len(secret) != self.public.parameters.poly_modulus_degree or secret.max() > 1:
            raise LocalProtocolError(
                "Expected a secret key of the public key's parameters, got one of others. Read both from one "
                "file."
            )
        return secret


def agreed(public: EncryptionKey, parameters: Parameters) -> EncryptionKey:
    """Return `public` if it is for these parameters, or raise ConfigError."""
    if public.parameters != parameters:
        raise ConfigError(
            f"Expected a key for the terms' parameters {parameters.name!r}, got one for "
            f"{public.parameters.name!r}. Make both for the same parameters."
        )
    return public
