"""Public keys of a matching: the key holder's, one per parameter set and one for pads, and the evaluator's.

The key holder signs its keys, and a hash of the homomorphic ones and its signing key names the session. The
key for pads is signed for that session. An evaluator signs its own public keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

from securefl.core.entropy import derived
from securefl.core.errors import CryptoError, DataError
from securefl.core.formats import prefix
from securefl.core.keys import PublicKey, Signature
from securefl.core.signing import SIGNATURE_BYTES, AgreementKey, SigningKey, verify
from securefl.he import gate
from securefl.he.keys import EncryptionKey
from securefl.he.parameters import COMPACT, STRONG_DECLARED, STRONG_ENCRYPTED, Parameters
from securefl.matching.document import Document

# All sets are in every public file, so that a client may choose any without the key holder. A set has a key
# of its own: that of an encrypted baseline opens unchecked requests, and the others never do.
SETS: Final[tuple[Parameters, ...]] = (STRONG_ENCRYPTED, COMPACT, STRONG_DECLARED)
_PADS: Final = prefix("matching/pads")


def key_bytes(parameters: Parameters) -> int:
    """The length of a public key of these parameters."""
    primes = (*parameters.primes, parameters.special_prime)
    return gate.residues_size(2, primes, parameters.poly_modulus_degree)


@dataclass(frozen=True, eq=False)
class PublicKeys:
    """The key holder's public keys, for all parties.

        >>> from securefl.matching import KeyHolder
        >>> public = KeyHolder.generate(openings=10).public
        >>> repr(public) == f"PublicKeys(fingerprint={public.session[:32]!r}, openings=10)"
        True

    Attributes:
        raw: the encryption keys of `SETS`, one after the other. Empty for a key of pads alone.
        signing: the key holder's Ed25519 key.
        openings: the most scores that the keys ever open. It limits the volume and does not protect the key.
        signature: the key holder's signature over all of these.
        pads: the key holder's X25519 key for pads, 32 bytes, and its signature for this session.

    Raises:
        DataError: keys of another length, an impossible number of openings, or a wrong signature.
    """

    KIND: ClassVar = "public-key"
    raw: bytes
    signing: PublicKey
    openings: int
    signature: Signature
    pads: bytes

    def __post_init__(self) -> None:
        if len(self.raw) not in (0, sum(map(key_bytes, SETS))) or not 1 <= self.openings <= 2**40:
            raise DataError(
                f"Expected a key holder's keys of {sum(map(key_bytes, SETS))} bytes for 1 to 2^40 openings, "
                f"got {len(self.raw)} bytes for {self.openings}. Get the file again."
            )
        with no_forgery("a public key that its holder signed"):
            verify(self.signing, self.signature, statement(self.raw, self.openings))
            signature = Signature(self.pads[-SIGNATURE_BYTES:])
            verify(self.signing, signature, pads_statement(self.session, self.agreement.raw))

    def __repr__(self) -> str:
        return f"PublicKeys(fingerprint={self.fingerprint!r}, openings={self.openings})"

    @cached_property
    def session(self) -> str:
        """64 hex digits that name the keys. Every other file contains them."""
        return session_of(self.signing, self.raw, self.openings)

    @property
    def fingerprint(self) -> str:
        """The first 128 bits of the session in hex, for people to compare."""
        # with fewer bits a search could find other keys with the same fingerprint
        return self.session[:32]

    def of(self, parameters: Parameters) -> EncryptionKey:
        """The encryption key of this parameter set. Raises DataError for a key of pads alone."""
        if not self.raw:
            raise DataError(
                "Expected a key holder's key for ciphertexts, got one for pads alone. Give all parties "
                "--params pads or pads-128, or ask for a key that securefl keygen makes with --params strong."
            )
        start = sum(key_bytes(one) for one in SETS[: SETS.index(parameters)])
        return EncryptionKey(parameters, PublicKey(self.raw[start : start + key_bytes(parameters)]))

    @property
    def agreement(self) -> PublicKey:
        """The X25519 key for pads, to which requests are sealed too."""
        return PublicKey(self.pads[:-SIGNATURE_BYTES])

    def to_document(self) -> Document:
        header: dict[str, Any] = {
            "openings": self.openings,
            "signing": self.signing.raw.hex(),
            "pads": self.pads.hex(),
        }
        return Document(self.KIND, header, self.raw + self.signature.raw)

    @classmethod
    def from_document(cls, content: Document) -> PublicKeys:
        """The keys of a public file. Raises DataError unless the key holder signed it in this form."""
        openings, signing = content.header.get("openings"), hexadecimal(content.header.get("signing"), 32)
        if type(openings) is not int:
            raise DataError(
                f"Expected a whole number of openings in the public key, got {type(openings).__name__}. Get "
                "the file again."
            )
        pads = hexadecimal(content.header.get("pads"), 32 + SIGNATURE_BYTES)
        raw, signature = content.body[:-SIGNATURE_BYTES], Signature(content.body[-SIGNATURE_BYTES:])
        return cls(raw, PublicKey(signing), openings, signature, pads)


@contextmanager
def no_forgery(what: str) -> Iterator[None]:
    """Raises DataError if a signature does not hold. what: the file, and who should have signed it."""
    try:
        yield
    except CryptoError as error:
        raise DataError(f"Expected {what}, got a forged or damaged one: {error} Get it again.") from None


def statement(raw: bytes, openings: int) -> bytes:
    """The bytes that the key holder signs: its encryption keys and the number of openings."""
    return prefix("matching/keys") + openings.to_bytes(8, "big") + raw


def session_of(signing: PublicKey, raw: bytes, openings: int) -> str:
    """The name of a session: a hash of the key holder's keys and of their number of openings."""
    return hashlib.sha256(signing.raw + statement(raw, openings)).hexdigest()


def pads_statement(session: str, key: bytes) -> bytes:
    """The bytes that the key holder signs: its key for pads, and the session that the key is for."""
    return _PADS + bytes.fromhex(session) + key


def pads_key(signing: SigningKey) -> AgreementKey:
    """The key holder's X25519 key for pads. It follows from the signing key: no file holds it."""
    return AgreementKey(derived(signing.secret, _PADS))


def hexadecimal(text: object, size: int) -> bytes:
    """`size` bytes from their hex digits. Raises DataError for all other texts."""
    try:
        raw = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        raw = b""
    if len(raw) != size:
        raise DataError(f"Expected {size} bytes in hexadecimal in the file's header.")
    return raw


@dataclass(frozen=True)
class EvaluatorPublic:
    """The evaluator's public keys: `sealing` (X25519) for clients, `signing` (Ed25519) for the key holder.

        >>> from securefl.matching import Evaluator
        >>> len(Evaluator.generate().public.fingerprint)
        32

    Raises nothing.
    """

    KIND: ClassVar = "evaluator-public"
    sealing: PublicKey
    signing: PublicKey

    @property
    def fingerprint(self) -> str:
        """32 hex digits. Every file for this evaluator, or from it, contains them."""
        return hashlib.sha256(self.sealing.raw + self.signing.raw).hexdigest()[:32]

    def to_document(self, signature: Signature) -> Document:
        header = {"sealing": self.sealing.raw.hex(), "signing": self.signing.raw.hex()}
        return Document(self.KIND, header, signature.raw)

    @classmethod
    def from_document(cls, content: Document) -> EvaluatorPublic:
        """The keys of a public file. Raises DataError unless their evaluator signed it."""
        sealing, signing = (hexadecimal(content.header.get(name), 32) for name in ("sealing", "signing"))
        found = cls(PublicKey(sealing), PublicKey(signing))
        with no_forgery("an evaluator's keys that it signed"):
            # Self-signed: the maker holds the keys, and nothing is damaged. Only the fingerprint, compared
            # over another channel, shows whose keys they are.
            verify(found.signing, Signature(content.body), evaluator_statement(sealing + signing))
        return found


def require_ours(header: Mapping[str, Any], session: str, evaluator: EvaluatorPublic, what: str) -> None:
    """Raises DataError unless a file is of this session and evaluator. what: the file, for the message."""
    for name, own, whose in (
        ("session", session, "key holder's session"),
        ("evaluator", evaluator.fingerprint, "evaluator"),
    ):
        if header.get(name) != own:
            raise DataError(
                f"Expected {what} of this {whose}, got that of another {whose}. Have it made for this one."
            )


def evaluator_statement(keys: bytes) -> bytes:
    """The bytes that an evaluator signs of its own keys."""
    return prefix("matching/evaluator") + keys
