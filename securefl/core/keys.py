"""Types for secret keys, public keys, signatures, shares and commitments.

Secret and public values have different types, so that no function takes one for the other. Python cannot
erase memory. A `SecretKey` keeps its bytes out of logs, pickles and messages, but not out of a core dump.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import ClassVar, NoReturn, final

from securefl.core.errors import LocalProtocolError


class Guarded:
    """Base class of objects that hold a secret. They refuse to be pickled or copied.

    A pickle or a copy would put the secret in a second place unnoticed. Any object that contains a guarded
    object, at any depth, cannot be pickled or deep-copied either.
    """

    __slots__ = ()
    _instead: ClassVar[str] = "pass the object itself"

    def _refuse(self, *_: object) -> NoReturn:
        raise LocalProtocolError(f"A {type(self).__name__} is neither pickled nor copied; {self._instead}.")

    # copyreg or a subclass may call object.__reduce_ex__ directly. That method then calls __getstate__.
    __reduce__ = __reduce_ex__ = __getstate__ = __copy__ = __deepcopy__ = _refuse


@final
class SecretKey(Guarded):
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
        # the running time of == reveals how many bytes agree
        return hmac.compare_digest(self._secret, other._secret)

    __hash__ = None  # type: ignore[assignment]  # a hash would be a fingerprint of the secret

    def __repr__(self) -> str:
        return "SecretKey(<redacted>)"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Public key bytes, in the encoding of the primitive that made them."""

    raw: bytes

    def fingerprint(self) -> str:
        """Return 128 bits of the key's SHA-256 in hex, for people to compare."""
        return hashlib.sha256(self.raw).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Signature:
    """A detached signature."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Share:
    """A share of a secret: sealed for one receiver, or opened in the unmasking phase."""

    raw: bytes


@dataclass(frozen=True, slots=True)
class Commitment:
    """A nonce, or a hash of fresh secrets.

    It looks random to a party that does not know the secrets. It is never computed from data.
    """

    raw: bytes
