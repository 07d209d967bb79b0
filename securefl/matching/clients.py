"""A client's signing key for checked openings, and the public half that the key holder is given."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar, Final

from securefl.core.errors import DataError
from securefl.core.formats import prefix
from securefl.core.keys import PublicKey, SecretKey, Signature
from securefl.core.signing import SigningKey, verify
from securefl.matching.document import Document
from securefl.matching.keys import hexadecimal, no_forgery

_OWN: Final = prefix("matching/client")


@dataclass(frozen=True)
class ClientPublic:
    """A client's public key (Ed25519). The key holder opens ciphertexts that its owner signed.

        >>> from securefl.matching import ClientKey
        >>> len(ClientKey.generate().public.fingerprint)
        32

    Raises nothing.
    """

    KIND: ClassVar = "client-public"
    signing: PublicKey

    @property
    def fingerprint(self) -> str:
        """32 hex digits, for people to compare."""
        return hashlib.sha256(_OWN + self.signing.raw).hexdigest()[:32]

    @classmethod
    def from_document(cls, content: Document) -> ClientPublic:
        """The key of a public file. Raises DataError unless its client signed it."""
        found = cls(PublicKey(hexadecimal(content.header.get("signing"), 32)))
        with no_forgery("a key that its client signed"):
            # Self-signed, as an evaluator's: only the fingerprint shows whose key it is.
            verify(found.signing, Signature(content.body), _OWN + found.signing.raw)
        return found


@dataclass(frozen=True)
class ClientKey:
    """A client's signing key, for any number of profiles.

        >>> from securefl.matching import ClientKey
        >>> own = ClientKey.generate()
        >>> ClientKey.from_document(own.to_documents()[0]).public == own.public
        True

    Raises:
        DataError: `from_document` raises it for a key that differs from its header's.
    """

    KIND: ClassVar = "client-key"
    signing: SigningKey

    @classmethod
    def generate(cls) -> ClientKey:
        """A fresh key, from the operating system's randomness."""
        return cls(SigningKey.generate())

    @property
    def public(self) -> ClientPublic:
        """The public half, for the key holder."""
        return ClientPublic(self.signing.public)

    def to_documents(self) -> tuple[Document, Document]:
        """The secret file and the public file."""
        own = self.public
        public = {"signing": own.signing.raw.hex()}
        signature = self.signing.sign(_OWN + own.signing.raw)
        secret = Document(self.KIND, {"fingerprint": own.fingerprint}, self.signing.secret.reveal())
        return secret, Document(own.KIND, public, signature.raw)

    @classmethod
    def from_document(cls, content: Document) -> ClientKey:
        """The key of a secret file. Raises DataError if it differs from the header's."""
        if len(content.body) != 32:
            raise DataError(f"Expected a client's key of 32 bytes, got {len(content.body)}. Restore it.")
        found = cls(SigningKey(SecretKey(content.body)))
        if content.header.get("fingerprint") != found.public.fingerprint:
            raise DataError("Expected the client's key that the header names, got another. Restore it.")
        return found
