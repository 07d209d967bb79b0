"""Key-holder pads: a client uploads 2q + 1 masked integers and needs no homomorphic library.

    client      x = round(s_x f);  y = x + PRG(k) mod 2^64, k agreed with the key holder by a fresh X25519 key
    evaluator   sends the key holder a signed, ordered list of the clients' fresh keys
    key holder  derives the same pads r and encrypts them under its own key, many clients in one ciphertext
    evaluator   multiplies them by the integer weights v = round(s_w w); requests <r, v>, masked
    key holder  rounds the decrypted value to <r, v> + mask mod 2^64, and sends that
    evaluator   <y, v> - <r, v> = <x, v>

Pads are whole numbers mod t = 2^64 at the scale Q / t of the modulus, so an opened value is rounded to an
exact integer. No noise of the key reaches the evaluator, and no flooding is needed against it. What each
party sees, and why it learns no more than its output:

* The evaluator sees y, which is uniform without the pads; the pads' ciphertexts, which are pseudorandom; and
  <x, v> exactly.
* The key holder sees which clients take part, and of each opened coefficient <r, v> + mask, uniform mod t
  since the mask is. The coefficient's noise depends on the weights. It lies under flooding 2^40 times as wide
  as the largest noise that the terms allow, so the flooding's width reveals nothing of the weights. The
  second polynomial is re-randomised. A client whose y did not arrive is not opened.
* A *malicious* evaluator can have sums of values that it made up opened, exactly. It gets the whole key in a
  few requests, at any cap. It is trusted to follow the protocol, and the key pair is for pads only.
* y travels sealed to the evaluator, since the key holder knows the pads. A key holder that shifts a pad
  learns one weight: it is semi-honest here.

The fresh key travels with y, so no pad is used twice and a client keeps no state.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from securefl.core.errors import CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.keys import Guarded, PublicKey, SecretKey, Signature
from securefl.core.linear import Floats
from securefl.core.signing import SIGNATURE_BYTES, AgreementKey, verify
from securefl.he import gate
from securefl.he.integers import coefficient_rows, products
from securefl.he.keys import KeyPair, agreed
from securefl.he.openings import Openings
from securefl.he.ring import Ring
from securefl.linear.pad_terms import KEY, PARAMETERS, PLACE, WORD_BITS, PadTerms

Words = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Masked:
    """A client's message: its fresh key, the masked integers, and the plaintext part of its vector.

    `place` is a tag of the terms for which the message was made. With pads derived for other terms, the
    result would be a wrong score.
    """

    place: bytes
    fresh: PublicKey
    words: bytes = field(repr=False)
    clear: Floats = field(repr=False)
    sender: str = "client"

    @property
    def packed(self) -> bytes:
        """All bytes without the clear values, which travel separately."""
        return self.place + self.fresh.raw + self.words


def mask(hidden: Floats, clear: Floats, terms: PadTerms, key_holder: PublicKey) -> Masked:
    """The client's part: mask its vector. The message must be sealed to the evaluator.

    Args:
        hidden: float64 (h,), inside the declared bounds.
        clear: float64 (c,), the plaintext part.
        terms: the terms of the exchange.
        key_holder: the key holder's X25519 key.

    Raises:
        LocalProtocolError: another length, or values outside the bounds.
    """
    if not terms.bounds.holds_hidden(hidden):
        raise LocalProtocolError(
            f"Expected {terms.row} hidden features inside the declared bounds, got others."
        )
    own = AgreementKey.generate()
    # Through int64, since a negative float has no defined value as uint64.
    words = np.rint(hidden * terms.data_scale).astype(np.int64).astype(np.uint64)
    masked = words + _pad(own, key_holder, own.public, terms)
    return Masked(terms.place, own.public, masked.astype("<u8").tobytes(), clear)


def admit(message: bytes, clear: Floats, terms: PadTerms, *, sender: str) -> Masked:
    """The gate: the message of a client, or RemoteProtocolError(sender).

    It refuses a weak fresh key, for which the key holder would refuse the whole list.
    """
    if len(message) != terms.message_bytes:
        raise _refusal(f"Expected {terms.message_bytes} bytes, got {len(message)}.", sender)
    place, fresh, words = (
        message[:PLACE],
        PublicKey(message[PLACE : PLACE + KEY]),
        message[PLACE + KEY :],
    )
    if place != terms.place:
        raise _refusal("Expected our tag, got the tag of another round, session or set of terms.", sender)
    try:
        AgreementKey.generate().agree(fresh, b"securefl/pad/1|gate")
    except CryptoError:
        raise _refusal("Expected a fresh key for key agreement, got a weak one.", sender) from None
    return Masked(place, fresh, words, clear, sender)


def _refusal(what: str, sender: str) -> RemoteProtocolError:
    return RemoteProtocolError(what, sender=sender, phase="gate")


def _pad(own: AgreementKey, other: PublicKey, fresh: PublicKey, terms: PadTerms) -> Words:
    """The pad of one fresh key: uniform words mod 2^64, the same on both sides."""
    key: SecretKey = own.agree(other, b"securefl/pad/1|" + fresh.raw + terms.digest)
    # The nonce is zero: the key is made for one message, so no keystream is used twice.
    stream = Cipher(algorithms.ChaCha20(key.reveal(), bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * terms.row)), dtype="<u8")


class PadKeyHolder(Guarded):
    """The key holder's part: it encrypts pads and opens masked sums.

    pair: of `PARAMETERS`, for pads only. openings: counts sums and repeats replies, in memory unless it is a
    file. ring: of `PARAMETERS`, if the caller has one.
    """

    def __init__(
        self,
        pair: KeyPair,
        agreement: AgreementKey,
        terms: PadTerms,
        evaluator: PublicKey,
        *,
        openings: Openings | None = None,
        ring: Ring | None = None,
    ) -> None:
        self._openings = openings or Openings()
        agreed(pair.public, PARAMETERS)
        self._agreement, self._terms, self._evaluator = agreement, terms, evaluator
        self._ring, self._secret = ring or Ring(PARAMETERS), pair.coefficients()
        self._encryptor = self._ring.encryptor(pair.public.residues())

    def encrypt(self, listed: bytes, *, sender: str = "evaluator") -> list[bytes]:
        """The pads of a signed list, as ciphertexts of `block` clients each, in the list's order."""
        keys = _signed(listed, b"pads", self._terms, self._evaluator, sender)
        if len(keys) % 32:
            raise RemoteProtocolError("Expected keys of 32 bytes, got a part.", sender=sender, phase="pads")
        fresh = [PublicKey(keys[i : i + 32]) for i in range(0, len(keys), 32)]
        # One key twice is one pad twice, and two clients under one pad reveal their difference.
        if len({one.raw for one in fresh}) < len(fresh):
            raise RemoteProtocolError(
                "Expected each fresh key once, got one twice.", sender=sender, phase="pads"
            )
        try:
            pads = [_pad(self._agreement, one, one, self._terms) for one in fresh]
        except CryptoError as error:
            raise RemoteProtocolError(str(error), sender=sender, phase="pads") from None
        block = self._terms.block
        return [self._encrypted(pads[i : i + block]) for i in range(0, len(pads), block)]

    def _encrypted(self, pads: list[Words]) -> bytes:
        plain = self._ring.plain(_scaled_residues(np.concatenate(pads)))
        zero = self._ring.zero(self._encryptor, 1.0)
        return gate.pack(self._ring.residues(self._ring.with_plain(zero, plain)), PARAMETERS.primes)

    def open(self, request: bytes, *, sender: str = "evaluator") -> bytes:
        """<r, v> + mask mod 2^64 of each client in a signed request, 8 bytes each.

        Exact by rounding: the same request again gets the same reply, and no reply contains noise of the key.
        The cap limits the number of openings. It does not protect the key (see the module).

        Raises:
            RemoteProtocolError: other bytes than a request's, or a request beyond the cap.
        """
        body = _signed(request, b"open", self._terms, self._evaluator, sender)
        degree, size = PARAMETERS.poly_modulus_degree, gate.integer_size(PARAMETERS.modulus)
        polynomial = gate.residues_size(1, PARAMETERS.primes, degree)
        places, rest = divmod(len(body) - polynomial, size + 2)
        if rest or not 0 < places <= self._terms.block:
            raise RemoteProtocolError(
                "Expected one polynomial and 1 to `block` places, got another length or number of places.",
                sender=sender,
                phase="pads",
            )
        second = gate.unpack(body[:polynomial], 1, PARAMETERS.primes, degree, sender=sender)[0]
        asked = []
        for i in range(places):
            item = body[polynomial + i * (size + 2) : polynomial + (i + 1) * (size + 2)]
            where = int.from_bytes(item[:2], "little")
            # Other coefficients mix the pads of two clients and are no client's sum.
            if (where + 1) % self._terms.row or where >= self._terms.block * self._terms.row:
                raise RemoteProtocolError(
                    "Expected the place of a sum, got another.", sender=sender, phase="pads"
                )
            asked.append((where, gate.unpack_integer(item[2:], PARAMETERS.modulus, sender=sender)))

        def reply() -> bytes:
            rows = coefficient_rows(self._secret, [where for where, _ in asked])
            sums = products(rows, second, PARAMETERS)
            return b"".join(_rounded(masked + own) for (_, masked), own in zip(asked, sums, strict=True))

        # The digest leaves the signature out, since its owner can make a second one for the same request.
        digest = hashlib.sha256(body).digest()
        return self._openings.once(digest, places, self._terms.openings, reply, sender=sender)


def _rounded(opened: int) -> bytes:
    """Decode a coefficient mod Q: the integer m mod 2^64 for which m Q / 2^64 is nearest, as 8 bytes."""
    number = (opened % PARAMETERS.modulus * 2**WORD_BITS + PARAMETERS.modulus // 2) // PARAMETERS.modulus
    return int(number % 2**WORD_BITS).to_bytes(8, "little")


def framed(kind: bytes, terms: PadTerms, body: bytes) -> bytes:
    """The bytes that the evaluator signs, with the kind of message and the terms."""
    return b"securefl/pads/1|" + kind + b"|" + terms.digest + b"|" + body


def _signed(message: bytes, kind: bytes, terms: PadTerms, evaluator: PublicKey, sender: str) -> bytes:
    body = message[:-SIGNATURE_BYTES]
    try:
        verify(evaluator, Signature(message[-SIGNATURE_BYTES:]), framed(kind, terms, body))
    except CryptoError as error:
        raise RemoteProtocolError(str(error), sender=sender, phase="pads") from None
    return body


def scaled(word: int) -> int:
    """The place in Q of a whole number mod 2^64."""
    return (word * PARAMETERS.modulus) >> WORD_BITS


@cache
def _octets() -> NDArray[np.uint64]:
    """The place in Q of each octet of a word, mod each prime: (primes, 8, 256)."""
    table = [
        [[scaled(v << 8 * j) % prime for v in range(256)] for j in range(8)] for prime in PARAMETERS.primes
    ]
    return np.array(table, dtype=np.uint64)


def _scaled_residues(words: Words) -> gate.Residues:
    """Words at their place in Q as residues (primes, N). Rounding octet by octet costs 8 units of noise."""
    rows = np.zeros((len(PARAMETERS.primes), PARAMETERS.poly_modulus_degree), dtype=np.uint64)
    octets = words.astype("<u8").view(np.uint8).reshape(len(words), 8)
    for row, tables, prime in zip(rows, _octets(), PARAMETERS.primes, strict=True):
        # eight residues of 60 bits sum to less than 2^64
        row[: len(words)] = sum(table[octets[:, j]] for j, table in enumerate(tables)) % np.uint64(prime)
    return rows


def integer_residues(coefficients: NDArray[Any]) -> gate.Residues:
    """Integers as residues (primes, N) of a polynomial that begins with them."""
    degree = PARAMETERS.poly_modulus_degree
    rows = np.zeros((len(PARAMETERS.primes), degree), dtype=np.uint64)
    for row, prime in zip(rows, PARAMETERS.primes, strict=True):
        row[: len(coefficients)] = (coefficients % prime).astype(np.uint64)
    return rows
