"""The terms of checked openings, and the weights as integers that these terms bound.

`checked` has the protocol. Weights are sent as the coefficients of their encoded polynomials, and not as
numbers: two machines may encode one number differently, and every coefficient must be the same on both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.agreement import fields
from securefl.core.errors import ConfigError
from securefl.core.formats import prefix
from securefl.core.linear import LinearBounds, LinearQuery
from securefl.core.signing import SIGNATURE_BYTES
from securefl.he import gate
from securefl.he.gate import Residues
from securefl.he.ring import Ring
from securefl.linear.encryptor import spread, weight_row
from securefl.linear.terms import LinearTerms
from securefl.linear.turn import wrong_weights

Coefficients = NDArray[np.int64]
"""The weights as integers, shape (ciphertexts, N): the coefficients of their encoded polynomials."""
NUMBER: Final = 4
"""The bytes of a client's number in a request."""
_C1: Final = prefix("checked/c1")


@dataclass(frozen=True, kw_only=True)
class Checks:
    """What the digests of one exchange bind: the terms of its key, and the place.

    Attributes:
        terms: of the key, with plaintext weights.
        context: the session and the place of the exchange.

    Raises:
        ConfigError: terms of an encrypted baseline, which cannot be checked, or weights that do not fit the
            first prime.
    """

    commits: ClassVar[bytes] = b"checked"
    requests: ClassVar[str] = "checked/request"
    sign: ClassVar[int] = 1
    name_bytes: ClassVar[int] = NUMBER

    terms: LinearTerms
    context: bytes

    def __post_init__(self) -> None:
        p = self.terms.parameters
        if p.encrypted_baseline:
            raise ConfigError("Expected plaintext weights, which alone can be checked.")
        if 2 * self.largest >= p.primes[0]:
            raise ConfigError(
                f"Expected weights that fit a prime of {p.name!r}, got a norm of up to "
                f"{self.terms.bounds.weight_norm:.3g}: declare smaller weights (of profiles: Bounds.weight)."
            )

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name terms and place."""
        whole = fields(self.terms.digest(), self.context)
        return hashlib.sha256(prefix("checked/place") + whole).digest()

    @cached_property
    def largest(self) -> float:
        """The largest norm of `Coefficients`: of the weights, and half a unit more for each of them."""
        p = self.terms.parameters
        own = p.weight_scale * self.terms.bounds.weight_norm * sqrt(2 / p.poly_modulus_degree)
        return own + sqrt(p.poly_modulus_degree * self.terms.ciphertexts) / 2

    @property
    def weight_bytes(self) -> int:
        """The bytes of one coefficient of the weights, with its sign."""
        return (int(self.largest).bit_length() + 8) // 8

    @property
    def weights_bytes(self) -> int:
        """The bytes of all of them."""
        return self.weight_bytes * self.terms.ciphertexts * self.terms.parameters.poly_modulus_degree

    @property
    def half_bytes(self) -> int:
        """The bytes of one half of all ciphertexts of a client: every c0, or every c1."""
        p = self.terms.parameters
        return self.terms.ciphertexts * gate.residues_size(1, p.primes, p.poly_modulus_degree)

    @property
    def message_bytes(self) -> int:
        """Exact length of a client's message."""
        return self.terms.ciphertext_bytes + SIGNATURE_BYTES

    @property
    def entry_bytes(self) -> int:
        """Exact length of what a request has for each client."""
        return NUMBER + SIGNATURE_BYTES + self.half_bytes

    @property
    def bounds(self) -> LinearBounds:
        return self.terms.bounds

    @property
    def modulus(self) -> int:
        return self.terms.parameters.modulus

    @property
    def unit(self) -> float:
        return self.terms.unit

    @property
    def capacity(self) -> float:
        return self.terms.capacity

    @property
    def _ring(self) -> Ring:
        return Ring.of(self.terms.parameters)

    @property
    def answer_bytes(self) -> int:
        """Exact length of a share, an integer mod Q. All bits set stand for a share that was refused."""
        return gate.integer_size(self.terms.parameters.modulus)

    def reply_tag(self, key: bytes) -> bytes:
        """The first bytes of a reply under this key."""
        return gate.tag("checked-reply", key, self.terms.digest())

    def encoded(self, query: LinearQuery) -> Coefficients:
        """A query's weights as integers.

        Raises ConfigError for a query of other bounds, or for weights outside them.
        """
        terms, p, ring = self.terms, self.terms.parameters, self._ring
        parts = spread(weight_row(query, terms), terms.ciphertexts, p.slots)
        first, half = p.primes[0], p.primes[0] // 2
        # Weights stay below half the first prime (`Checks`), so its residues alone give their integers.
        rows = [ring.encoded(part, p.weight_scale)[0].astype(np.int64) for part in parts]
        found = np.stack([np.where(row > half, row - first, row) for row in rows])
        if (wrong := self.form(found)) is not None:
            raise ConfigError(f"{wrong} Use a public anchor nearer to the baseline, or wider bounds.")
        return found

    def packed(self, weights: Coefficients) -> bytes:
        """Weights as bytes: little-endian, in two's complement, `weight_bytes` each."""
        octets = np.ascontiguousarray(weights, dtype="<i8").view(np.uint8).reshape(-1, 8)
        return octets[:, : self.weight_bytes].tobytes()

    def unpacked(self, raw: bytes) -> Coefficients:
        """The inverse of `packed`."""
        p, width = self.terms.parameters, self.weight_bytes
        octets = np.frombuffer(raw, dtype=np.uint8).reshape(-1, width)
        wide = np.repeat((octets[:, -1:] >> 7) * np.uint8(255), 8, axis=1)
        wide[:, :width] = octets
        return wide.view("<i8").astype(np.int64).reshape(self.terms.ciphertexts, p.poly_modulus_degree)

    def form(self, weights: Coefficients) -> str | None:
        """Why these integers are the weights of no query inside the bounds. None if they may be."""
        terms, p, bounds = self.terms, self.terms.parameters, self.terms.bounds
        if not float(np.linalg.norm(weights.astype(np.float64))) <= self.largest * (1 + 1e-9):
            return f"Expected weights of norm up to {bounds.weight_norm:.3g}, got longer ones."
        slots = np.concatenate([_slots(part) for part in weights]) / p.weight_scale
        # A coefficient is rounded by up to a half, and a slot is a sum of N of them with factors of size 1.
        slack = p.poly_modulus_degree / (2 * p.weight_scale) + 1e-12 * bounds.weight_norm
        beside = np.concatenate([slots.imag, slots.real[terms.hidden_length :]])
        if not (np.abs(beside) <= slack).all():
            return f"Expected {terms.hidden_length} weights, got numbers beside them."
        real = slots.real[: terms.hidden_length]
        return wrong_weights(real, bounds, lambda size: slack)

    def factors(self, weights: Coefficients) -> list[Residues]:
        """The weights' polynomials in NTT form, one (primes, N) array per ciphertext."""
        primes = np.array(self.terms.parameters.primes, dtype=np.int64)[:, None]
        return [self._ring.transformed((part % primes).astype(np.uint64)) for part in weights]

    def short(self, entry: bytes) -> bytes:
        """The entry with the hash of its c1."""
        at = NUMBER + SIGNATURE_BYTES
        return entry[:at] + hash_of(entry[at:])

    def error_of(self, query: LinearQuery, weights: Coefficients) -> float:
        return self.terms.error_bound()


def hash_of(c1: bytes) -> bytes:
    """SHA-256 of every c1 of a client, which it signs.

    Nothing is made of c0 that leaves the server: a key holder that made its key so that c1 shows the
    encryption's randomness would try guesses of the vector against it.
    """
    found = hashlib.sha256(_C1)
    found.update(c1)
    return found.digest()


def _slots(coefficients: NDArray[np.int64]) -> NDArray[np.complex128]:
    """The slots of a polynomial: its values at the roots with the exponents 3^m."""
    degree = len(coefficients)
    turned = coefficients * np.exp(1j * np.pi * np.arange(degree) / degree)
    values = np.fft.ifft(turned) * degree  # entry k: the value at the root with the exponent 2 k + 1
    exponents = [1]
    for _ in range(degree // 2 - 1):
        exponents.append(exponents[-1] * 3 % (2 * degree))
    return np.asarray(values[(np.array(exponents) - 1) // 2])
