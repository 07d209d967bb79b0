"""Secret and public values are different types, so that they cannot be confused.

Python cannot erase memory: a `SecretKey` keeps its bytes out of logs, pickles and messages,
not out of a core dump.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import NoReturn, final

from securefl.errors import LocalProtocolError


@final
class SecretKey:
    """Secret bytes: redacted when printed, never pickled or copied, compared in constant time."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes) or not secret:
            raise LocalProtocolError("Expected a secret of at least one byte, as bytes.")
        self._secret = secret

    def reveal(self) -> bytes:
        """The secret bytes, for the one primitive that needs them."""
        return self._secret

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SecretKey):
            return NotImplemented
        return hmac.compare_digest(self._secret, other._secret)

    __hash__ = None  # type: ignore[assignment]  # a hash would be a fingerprint of the secret

    def __repr__(self) -> str:
        return "SecretKey(<redacted>)"

    def _refuse(self, *_: object) -> NoReturn:
        raise LocalProtocolError("A SecretKey is neither pickled nor copied; pass the object itself.")

    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = _refuse


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Public key bytes, in the encoding of the primitive that made them."""

    raw: bytes

    def fingerprint(self) -> str:
        """128 bits of SHA-256 over the key in hex: for people to compare."""
        return hashlib.sha256(self.raw).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Signature:
    """A detached signature."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a secret: sealed for one receiver, or opened where the protocol asks for it."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Commitment:
    """A nonce, or a hash of fresh secrets: random to whoever does not know them, and never of data."""

    raw: bytes
