"""The key holder's public keys: one for each parameter set, signed, and what a session is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from securefl.core.errors import CryptoError, DataError
from securefl.core.keys import PublicKey, Signature
from securefl.core.signing import SIGNATURE_BYTES, verify
from securefl.he import gate
from securefl.he.keys import EncryptionKey
from securefl.he.parameters import COMPACT, STRONG_ENCRYPTED, Parameters
from securefl.matching.document import Document

SETS: Final[tuple[Parameters, ...]] = (STRONG_ENCRYPTED, COMPACT)
KIND: Final = "public-key"


def key_bytes(parameters: Parameters) -> int:
    """Length of a public key of these parameters."""
    primes = (*parameters.primes, parameters.special_prime)
    return gate.residues_size(2, primes, parameters.poly_modulus_degree)


@dataclass(frozen=True, eq=False)
class PublicKeys:
    """What the key holder gives to everybody.

    raw: the encryption keys of `SETS`, one after the other. signing: its Ed25519 key. openings: how many
    scores the keys will ever open, which limits volume and protects the key from nobody. signature: of the
    key holder, over all of these.
    """

    raw: bytes
    signing: PublicKey
    openings: int
    signature: Signature

    def __post_init__(self) -> None:
        if len(self.raw) != sum(map(key_bytes, SETS)) or not 1 <= self.openings <= 2**40:
            raise DataError("These are no public keys of a key holder.")
        try:
            verify(self.signing, self.signature, statement(self.raw, self.openings))
        except CryptoError as error:
            raise DataError(f"The public key is forged or damaged: {error}") from None

    @cached_property
    def session(self) -> str:
        """64 hex digits that name the keys; every other file carries them."""
        return hashlib.sha256(self.signing.raw + statement(self.raw, self.openings)).hexdigest()

    @property
    def fingerprint(self) -> str:
        """The first 128 bits of the session in hex, for people to compare: fewer could be met by search."""
        return self.session[:32]

    def of(self, parameters: Parameters) -> EncryptionKey:
        start = sum(key_bytes(one) for one in SETS[: SETS.index(parameters)])
        return EncryptionKey(parameters, PublicKey(self.raw[start : start + key_bytes(parameters)]))

    def to_document(self) -> Document:
        header: dict[str, Any] = {
            "session": self.session,
            "openings": self.openings,
            "signing": self.signing.raw.hex(),
        }
        return Document(KIND, header, self.raw + self.signature.raw)

    @classmethod
    def from_document(cls, content: Document) -> PublicKeys:
        """Raises DataError for a file that the key holder did not sign so."""
        openings, signing = content.header.get("openings"), hexadecimal(content.header.get("signing"), 32)
        if type(openings) is not int:
            raise DataError("The public key does not say how many openings it is for.")
        body = content.body
        found = cls(body[:-SIGNATURE_BYTES], PublicKey(signing), openings, Signature(body[-SIGNATURE_BYTES:]))
        if found.session != content.header.get("session"):
            raise DataError("The public key is not that of the session its header names.")
        return found


def statement(raw: bytes, openings: int) -> bytes:
    """What the key holder signs: its encryption keys, and how often it will open."""
    return b"securefl/matching/keys/1|" + openings.to_bytes(8, "big") + raw


def hexadecimal(text: object, size: int) -> bytes:
    """`size` bytes in hex; DataError for anything else."""
    try:
        raw = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        raw = b""
    if len(raw) != size:
        raise DataError(f"Expected {size} bytes in hexadecimal in the file's header.")
    return raw
