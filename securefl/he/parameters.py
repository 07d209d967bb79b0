"""Pinned CKKS parameter sets. No party takes parameters or a context from a peer.

The moduli are constants of this module. They have 128-bit security by the homomorphic encryption standard,
and SEAL refuses to build anything weaker.

CKKS encodes a vector of up to N/2 numbers, the slots, as a polynomial with N integer coefficients. A score is
the inner product <f, w> of a client's features and the server's weights: the sum over slots of feature times
weight. It is N/2 times the constant coefficient of the product, at scale data_scale * weight_scale. The two
scales differ, because the weights multiply the noise of the data, which decides how much flooding the scores
need. The weights are only rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt
from typing import Final

from securefl.core.errors import ConfigError

GUARD: Final = 1 / 8
"""The fraction of the modulus that is kept free for encryption noise, flooding and rounding."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """A CKKS parameter set. `primes` carry the data. `special_prime` only shrinks fresh noise.

    data_scale is the smallest scale of the features. `LinearTerms` takes a larger one if the declared bounds
    leave room.
    """

    name: str
    poly_modulus_degree: int
    primes: tuple[int, ...]
    special_prime: int
    data_scale: int
    weight_scale: int
    encrypted_baseline: bool = False
    """Mode E: the weights are encrypted too, so a product is a ciphertext of three polynomials."""

    def text(self) -> str:
        """Return the canonical text, a part of digests of terms. Its words and their order never change."""
        return (
            f"Parameters(name={self.name!r}, poly_modulus_degree={self.poly_modulus_degree}, "
            f"primes={self.primes}, special_prime={self.special_prime}, data_scale={self.data_scale}, "
            f"weight_scale={self.weight_scale}, encrypted_baseline={self.encrypted_baseline})"
        )

    @property
    def slots(self) -> int:
        return self.poly_modulus_degree // 2

    @cached_property
    def modulus(self) -> int:
        """Q, the product of the data primes."""
        return prod(self.primes)

    @property
    def unit(self) -> float:
        """The change of a score if the constant coefficient grows by 1: (N/2) / (s_x s_w)."""
        return self.slots / (self.data_scale * self.weight_scale)

    @property
    def polynomials(self) -> int:
        """The number of polynomials of a product."""
        return 3 if self.encrypted_baseline else 2

    @property
    def fresh_noise(self) -> float:
        """Standard deviation of a coefficient of fresh noise.

        SEAL divides a fresh ciphertext by the special prime. The noise is the rounding r0 + r1 s of its two
        polynomials, where s is the ternary secret.
        """
        return sqrt((1 + 2 * self.poly_modulus_degree / 3) / 12)

    @cached_property
    def _basis(self) -> tuple[int, ...]:
        # each is 1 modulo its own prime and 0 modulo the others
        return tuple((self.modulus // p) * pow(self.modulus // p, -1, p) for p in self.primes)

    def compose(self, residues: tuple[int, ...]) -> int:
        """The integer mod Q with these residues (Chinese remainder theorem)."""
        return sum(r * b for r, b in zip(residues, self._basis, strict=True)) % self.modulus

    def centre(self, value: int) -> int:
        """The representative of `value` mod Q nearest to zero."""
        value %= self.modulus
        return value - self.modulus if 2 * value > self.modulus else value


STRONG: Final = Parameters(
    name="strong",
    poly_modulus_degree=8192,
    primes=(1152921504606748673, 1152921504606830593),
    special_prime=1073692673,
    data_scale=2**60,
    weight_scale=2**40,
)
"""Bits [60, 60, 30]. The default. At the default bounds a score carries noise of about 1e-6."""

STRONG_ENCRYPTED: Final = Parameters(
    name="strong-encrypted",
    poly_modulus_degree=8192,
    primes=(1152921504606683137, 1152921504606748673, 1152921504606830593),
    special_prime=1073692673,
    data_scale=2**78,
    weight_scale=2**78,
    encrypted_baseline=True,
)
"""Bits [60, 60, 60, 30]: `strong` for mode E. A compact set has none: its noise would exceed the scores."""

STRONG_DECLARED: Final = Parameters(
    name="strong-declared",
    poly_modulus_degree=8192,
    primes=(1152921504606683137, 1152921504606748673, 1152921504606830593),
    special_prime=1073692673,
    data_scale=2**78,
    weight_scale=2**46,
)
"""Bits [60, 60, 60, 30], for plaintext weights in files: the default bounds are wider than `strong` holds."""

COMPACT: Final = Parameters(
    name="compact",
    poly_modulus_degree=4096,
    primes=(1152921504606830593, 536813569),
    special_prime=114689,
    data_scale=2**50,
    weight_scale=2**24,
)
"""Bits [60, 29, 17]. It takes under half the bytes, with noise of about 1e-4 on a score at tight bounds."""


_BY_NAME: Final = {"strong": STRONG, "compact": COMPACT}


def by_name(word: str) -> Parameters:
    """The parameter set that a configuration names. Raises ConfigError for any other word."""
    if word not in _BY_NAME:
        raise ConfigError(
            f"Expected 'strong' or 'compact' as encryption parameters, got {word!r}. Use one of these words. "
            "An encrypted baseline is for matching between files."
        )
    return _BY_NAME[word]


def capacity(parameters: Parameters) -> float:
    """The largest |<f, w>| that cannot wrap around the modulus."""
    # A score that wrapped around looks like any other in CKKS, so larger ones are refused beforehand.
    return (1 - GUARD) * parameters.modulus / 2 * parameters.unit
