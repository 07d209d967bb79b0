"""What an evaluator gives to everybody: its public keys, signed by itself."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from securefl.core.errors import CryptoError, DataError
from securefl.core.keys import PublicKey, Signature
from securefl.core.signing import verify
from securefl.matching.document import Document
from securefl.matching.keys import hexadecimal

PUBLIC_KIND: Final = "evaluator-public"


@dataclass(frozen=True)
class EvaluatorPublic:
    """The evaluator's public keys: `sealing` (X25519) for clients, `signing` (Ed25519) for the key holder."""

    sealing: PublicKey
    signing: PublicKey

    @property
    def fingerprint(self) -> str:
        """32 hex digits. Every file for this evaluator, or from it, carries them."""
        return hashlib.sha256(self.sealing.raw + self.signing.raw).hexdigest()[:32]

    def to_document(self, signature: Signature) -> Document:
        header = {
            "session": self.fingerprint,
            "sealing": self.sealing.raw.hex(),
            "signing": self.signing.raw.hex(),
        }
        return Document(PUBLIC_KIND, header, signature.raw)

    @classmethod
    def from_document(cls, content: Document) -> EvaluatorPublic:
        """Raises DataError for a file that its evaluator did not sign."""
        sealing, signing = (hexadecimal(content.header.get(name), 32) for name in ("sealing", "signing"))
        found = cls(PublicKey(sealing), PublicKey(signing))
        if content.header.get("session") != found.fingerprint:
            raise DataError(
                "Expected the keys that the header names, got other keys of an evaluator. Get it again."
            )
        try:
            # Signed by the keys themselves: their maker holds them, and nothing is damaged. Only the
            # fingerprint, compared by another way, shows whose they are.
            verify(found.signing, Signature(content.body), evaluator_statement(sealing + signing))
        except CryptoError as error:
            raise DataError(
                f"Expected keys that their evaluator signed, got forged or damaged ones: {error} Get them "
                "again."
            ) from None
        return found


def evaluator_statement(keys: bytes) -> bytes:
    """The bytes that an evaluator signs of its own keys."""
    return b"securefl/matching/evaluator/1|" + keys
