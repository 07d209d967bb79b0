"""The terms of checked openings, and the weights as integers that these terms bound.

`checked` has the protocol. Weights are sent as the coefficients of their encoded polynomials, and not as
numbers: two machines may encode one number differently, and every coefficient must be the same on both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from securefl.core.agreement import fields
from securefl.core.errors import ConfigError
from securefl.core.formats import prefix
from securefl.core.linear import LinearQuery, spread_of, too_sharp
from securefl.core.signing import SIGNATURE_BYTES
from securefl.he import gate
from securefl.he.ring import Ring
from securefl.linear.encryptor import spread, weight_row
from securefl.linear.pad_terms import INDEX, SALT
from securefl.linear.terms import LinearTerms

Coefficients = NDArray[np.int64]
"""The weights as integers, shape (ciphertexts, N): the coefficients of their encoded polynomials."""
NUMBER = 4
"""The bytes of a client's number in a request."""


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
    def place(self) -> bytes:
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
    def head_bytes(self) -> int:
        """Exact length of what a request has before its clients."""
        return INDEX + SALT + self.weights_bytes

    def request_bytes(self, clients: int) -> int:
        """Exact length of a request for this many clients."""
        return self.head_bytes + self.entry_bytes * clients + SIGNATURE_BYTES

    @property
    def share_bytes(self) -> int:
        """Exact length of a share, an integer mod Q. All bits set stand for a share that was refused."""
        return gate.integer_size(self.terms.parameters.modulus)

    def reply_bytes(self, clients: int) -> int:
        """Exact length of the reply for this many clients."""
        return gate.TAG + self.share_bytes * clients

    def reply_tag(self, key: bytes) -> bytes:
        """The first bytes of a reply under this key."""
        return gate.tag("checked-reply", key, self.terms.digest())


def encoded(query: LinearQuery, checks: Checks, ring: Ring) -> Coefficients:
    """A query's weights as integers.

    Raises ConfigError for a query of other bounds, or for weights outside them.
    """
    terms, p = checks.terms, checks.terms.parameters
    parts = spread(weight_row(query, terms), terms.ciphertexts, p.slots)
    first, half = p.primes[0], p.primes[0] // 2
    # Weights stay below half the first prime (`Checks`), so its residues alone give their integers.
    rows = [ring.encoded(part, p.weight_scale)[0].astype(np.int64) for part in parts]
    found = np.stack([np.where(row > half, row - first, row) for row in rows])
    if (wrong := form(found, checks)) is not None:
        raise ConfigError(f"{wrong} Use a public anchor nearer to the baseline, or wider bounds.")
    return found


def packed(weights: Coefficients, checks: Checks) -> bytes:
    """Weights as bytes: little-endian, in two's complement, `weight_bytes` each."""
    octets = np.ascontiguousarray(weights, dtype="<i8").view(np.uint8).reshape(-1, 8)
    return octets[:, : checks.weight_bytes].tobytes()


def unpacked(raw: bytes, checks: Checks) -> Coefficients:
    """The inverse of `packed`."""
    p, width = checks.terms.parameters, checks.weight_bytes
    octets = np.frombuffer(raw, dtype=np.uint8).reshape(-1, width)
    wide = np.repeat((octets[:, -1:] >> 7) * np.uint8(255), 8, axis=1)
    wide[:, :width] = octets
    return wide.view("<i8").astype(np.int64).reshape(checks.terms.ciphertexts, p.poly_modulus_degree)


def form(weights: Coefficients, checks: Checks) -> str | None:
    """Why these integers are the weights of no query inside the bounds. None if they may be."""
    terms, p, bounds = checks.terms, checks.terms.parameters, checks.terms.bounds
    if not float(np.linalg.norm(weights.astype(np.float64))) <= checks.largest * (1 + 1e-9):
        return f"Expected weights of norm up to {bounds.weight_norm:.3g}, got longer ones."
    slots = np.concatenate([_slots(part) for part in weights]) / p.weight_scale
    # A coefficient is rounded by up to a half, and a slot is a sum of N of them with factors of size 1.
    slack = p.poly_modulus_degree / (2 * p.weight_scale) + 1e-12 * bounds.weight_norm
    beside = np.concatenate([slots.imag, slots.real[terms.hidden_length :]])
    if not (np.abs(beside) <= slack).all():
        return f"Expected {terms.hidden_length} weights, got numbers beside them."
    real = slots.real[: terms.hidden_length]
    if not real.any():
        return "Expected a weight that is not 0, got none."
    if not spread_of(real) <= bounds.spread * (1 + 1e-9):
        return too_sharp(real, bounds)
    at = 0
    for run in bounds.weights:
        own = slots.real[at : at + run.count]
        if not ((own >= run.low - slack) & (own <= run.high + slack)).all():
            return (
                f"Expected weights {at} to {at + run.count - 1} from {run.low:g} to {run.high:g}, got others."
            )
        at += run.count
    return None


def _slots(coefficients: NDArray[np.int64]) -> NDArray[np.complex128]:
    """The slots of a polynomial: its values at the roots with the exponents 3^m."""
    degree = len(coefficients)
    turned = coefficients * np.exp(1j * np.pi * np.arange(degree) / degree)
    values = np.fft.ifft(turned) * degree  # entry k: the value at the root with the exponent 2 k + 1
    exponents = [1]
    for _ in range(degree // 2 - 1):
        exponents.append(exponents[-1] * 3 % (2 * degree))
    return np.asarray(values[(np.array(exponents) - 1) // 2])
