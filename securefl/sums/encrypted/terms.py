"""The public terms of an encrypted sum, and the coding of integers in a ciphertext.

Coding. The first prime p_0 of the modulus carries noise, the others carry integers: a coefficient that
holds x is 0 mod p_0 and x mod every other p_j (a multiple of p_0 in Z_Q, by the Chinese remainder theorem;
no rounding anywhere). Under noise e it decrypts to e mod p_0 and x + e mod p_j. With |e| < p_0 / 2 the first
residue *is* e, and subtracting it leaves x mod p_j exactly. The coding is linear, so sums and pads keep it.

Lanes. Sums lie within +-S, S = clients * bound. L of them share a residue as balanced digits to the base
2 S + 1, with base^L <= p_j, so digits of a sum never carry into each other and no sum wraps.

Flooding. As for scores (`linear.terms`): sigma = sqrt(12 tau) 2^(s/2) t with s = 40, tau every integer this
key opens, over all vectors, and t eight standard deviations of the noise of `clients` ciphertexts and one
more. By Pinsker, the key holder distinguishes all tau coefficients with the clients' noise from those without
it with an advantage of at most 2^-22.8.

Exactness. Decoding fails if |noise + flooding| reaches p_0 / 2, which `SumTerms` keeps ten sigma beyond the
noise. For a Gaussian that has probability 1.6e-23 for an integer and 5e-15 for 2^28 of them. Here it never
happens: the draws of `gaussians` end at 8.6 sigma, and the noise of a fresh ciphertext at N / 2 + 4 (half a
unit of rounding, for the special prime, in each polynomial, one of them times a ternary key).
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, log2, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from securefl.core.formats import prefix
from securefl.he.flooding import FLOODING_BITS
from securefl.he.gate import Residues
from securefl.he.parameters import Parameters

Integers = NDArray[np.int64]
MARGIN: Final = 10
"""Half of p_0 is at least this many sigma of flooding."""
_FLOAT_BITS: Final = 40


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of one sum. A ciphertext made for one place is refused at every other."""

    session: bytes
    round: int
    attempt: int
    stage: str
    name: str

    def text(self) -> str:
        """Canonical text, part of tags and digests. Its words and their order must not change."""
        return (
            f"Place(session={self.session!r}, round={self.round}, attempt={self.attempt}, "
            f"stage={self.stage!r}, name={self.name!r})"
        )


@dataclass(frozen=True, kw_only=True)
class SumTerms:
    """Public terms of one sum: vectors of `length` integers within +-bound, of at most `clients` clients.

    openings: tau, the most integers that the key opens over all its sums; see `integers`.

    Raises:
        ConfigError: a sum could wrap, or noise and flooding do not fit the first prime.
    """

    length: int
    bound: int
    clients: int
    parameters: Parameters
    openings: int
    place: Place

    def __post_init__(self) -> None:
        if min(self.length, self.bound, self.clients) < 1:
            raise ConfigError(
                f"Expected length, bound and clients above 0, got {self.length}, {self.bound} and "
                f"{self.clients}."
            )
        if self.lanes < 1:
            raise ConfigError(
                f"Expected sums up to {(min(self.payload) - 1) // 2}, which {self.parameters.name!r} holds, "
                f"got up to {self.largest}: declare a smaller bound, fewer clients or larger parameters."
            )
        if self.openings < self.integers:
            raise ConfigError(
                f"Expected openings for {self.integers} integers of a sum, got {self.openings}: declare more."
            )
        noise = (self.clients + 1) * self.parameters.poly_modulus_degree
        if 2 * (MARGIN * self.sigma + noise) > self.parameters.primes[0]:
            raise ConfigError(
                f"Expected flooding that fits {self.parameters.name!r}, got that for {self.openings} "
                f"integers of {self.clients} clients: declare fewer openings for a key, or fewer clients."
            )

    @property
    def payload(self) -> tuple[int, ...]:
        """The primes that carry integers."""
        return self.parameters.primes[1:]

    @property
    def largest(self) -> int:
        """S, the largest absolute value of a sum."""
        return self.clients * self.bound

    @cached_property
    def lanes(self) -> int:
        """L, the number of integers that share a residue."""
        base, count = 2 * self.largest + 1, 0
        while base ** (count + 1) <= min(self.payload):
            count += 1
        return count

    @property
    def ciphertexts(self) -> int:
        """The number of ciphertexts of a vector."""
        return ceil(self.length / (self.lanes * len(self.payload) * self.parameters.poly_modulus_degree))

    @property
    def integers(self) -> int:
        """The integers that one opening takes of tau: every residue of every coefficient, used or not."""
        return self.ciphertexts * len(self.payload) * self.parameters.poly_modulus_degree

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the flooding of a coefficient."""
        noise_bound = 8 * self.parameters.fresh_noise * sqrt(self.clients + 1)
        return sqrt(12 * self.openings) * 2 ** (FLOODING_BITS / 2) * noise_bound

    @cached_property
    def digest(self) -> bytes:
        """A digest of these terms and this place. Bytes that carry another digest are refused."""
        return hashlib.sha256(prefix("encrypted/terms") + self.text().encode()).digest()

    def text(self) -> str:
        """Canonical text, part of the digest. Its words and their order must not change."""
        return (
            f"SumTerms(length={self.length}, bound={self.bound}, clients={self.clients}, "
            f"parameters={self.parameters.text()}, openings={self.openings}, place={self.place.text()})"
        )

    # Coding -------------------------------------------------------------------------------------

    def encode(self, integers: Integers) -> Residues:
        """A vector, int64 (length,), as residues (ciphertexts, primes, N) of coefficients.

        Raises:
            LocalProtocolError: another dtype or shape, or an integer beyond the bound.
        """
        if integers.dtype != np.int64 or integers.shape != (self.length,):
            raise LocalProtocolError(
                f"Expected {self.length} int64 values, got {integers.dtype} of shape {integers.shape}."
            )
        # abs would not do: the absolute value of -2^63 is itself in int64
        if not (-self.bound <= int(integers.min()) and int(integers.max()) <= self.bound):
            raise LocalProtocolError(
                f"Expected integers within +-{self.bound}, got larger. Clip or scale them."
            )
        digits = np.zeros(self._shape, dtype=np.int64)
        digits.reshape(-1)[: self.length] = integers
        base = 2 * self.largest + 1
        words = np.zeros_like(digits[:, :, 0])
        # Horner's rule: with L balanced digits a word stays below base^L / 2, within half of every prime.
        for lane in reversed(range(self.lanes)):
            words = words * base + digits[:, :, lane]
        rows = np.zeros((self.ciphertexts, len(self.parameters.primes), words.shape[-1]), dtype=np.uint64)
        rows[:, 1:] = np.mod(words, np.array(self.payload, dtype=np.int64)[:, None])
        return rows

    def decode(self, words: Residues) -> Integers:
        """The inverse for sums, from words (ciphertexts, payload, N) below their primes: int64 (length,).

        Raises:
            RemoteProtocolError: the words are no sum of vectors within the bound. It names no sender, since a
                client or the key holder may have caused it.
        """
        rest = centred(words, self.payload)
        base, digits = 2 * self.largest + 1, np.zeros(self._shape, dtype=np.int64)
        for lane in range(self.lanes):
            digits[:, :, lane] = np.mod(rest + self.largest, base) - self.largest
            rest = (rest - digits[:, :, lane]) // base
        flat = digits.reshape(-1)
        # A rest, or a digit in an unused lane, shows that a vector or the reply was out of range, but not
        # which.
        if rest.any() or flat[self.length :].any():
            raise RemoteProtocolError(
                f"Expected a sum of {self.clients} vectors within +-{self.bound}, got another: the reply, or "
                "a client's vector, is out of range. Discard the round.",
                phase="sum",
            )
        return flat[: self.length].copy()

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        return (self.ciphertexts, len(self.payload), self.lanes, self.parameters.poly_modulus_degree)


def centred(residues: Residues, primes: tuple[int, ...]) -> Integers:
    """The representatives nearest to zero of residues (..., primes, N)."""
    signed, moduli = residues.astype(np.int64), np.array(primes, dtype=np.int64)[:, None]
    nearest: Integers = np.where(signed > moduli // 2, signed - moduli, signed)
    return nearest


def plus(left: Residues, right: Residues, primes: tuple[int, ...]) -> Residues:
    """left + right of shape (..., primes, N), mod primes below 2^63."""
    total = left + right
    # if the total is below the prime, the difference wraps to a larger number
    reduced: Residues = np.minimum(total, total - np.array(primes, dtype=np.uint64)[:, None])
    return reduced


def uniform(modulus: int, count: int, rng: random.Random) -> NDArray[np.uint64]:
    """`count` values uniform below `modulus`, by rejection: no bias."""
    # Cut to the bit length of the modulus first, so that less than half of the draws is rejected.
    mask = np.uint64((1 << modulus.bit_length()) - 1)
    kept = np.empty(0, dtype=np.uint64)
    while len(kept) < count:
        drawn = _words(count - len(kept), rng) & mask
        kept = np.concatenate([kept, drawn[drawn < modulus]])
    return kept


def gaussians(sigma: float, count: int, rng: random.Random) -> Integers:
    """`count` integers near N(0, sigma^2), sigma below 2^58, every bit of them random (see `flooding`)."""
    low = max(0, floor(log2(sigma)) - _FLOAT_BITS)
    # Box-Muller. Adding 1 keeps the logarithm finite, and with 53 bits ends the draws at 8.6 sigma.
    radius = np.sqrt(-2 * np.log(((_words(count, rng) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53))
    angle = (_words(count, rng) >> np.uint64(11)) * (2 * np.pi * 2.0**-53)
    coarse = np.rint(radius * np.cos(angle) * (sigma / 2**low)).astype(np.int64)
    fine = (_words(count, rng) & np.uint64((1 << low) - 1)).astype(np.int64)
    drawn: Integers = (coarse << low) + fine
    return drawn


def _words(count: int, rng: random.Random) -> NDArray[np.uint64]:
    return np.frombuffer(rng.randbytes(8 * count), dtype="<u8").astype(np.uint64)
