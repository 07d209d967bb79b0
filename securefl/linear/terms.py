"""The public parameters of one key, and the flooding noise and error bounds that follow from them.

Flooding. The evaluator of a CKKS score sees the score's encryption noise, which depends on the secret key. If
the key holder released exact integers, 64 openings would give every residue of the key. The key holder
therefore adds Gaussian noise with

    sigma = sqrt(12 tau) 2^(s/2) t,    s = 40,    t = 8 sigma_ct (s_w W sqrt(2/N) + 1)

where tau is the number of openings (`scores`), s_w the scale of the encoded weights, W the bound of their
norm and N the ring degree. t is eight standard deviations of the noise of an opened integer, taken over keys:
fresh noise of standard deviation sigma_ct per coefficient, multiplied by the weights, plus that of the
re-randomisation. In mode E (the query's weights are encrypted too) the noise of the encrypted weights,
multiplied by the features, is added. If the weights are in few slots, one key can make their noise up to 4.6
times as large (with probability 10^-9); the factor eight covers that. Over all tau openings the
Kullback-Leibler divergence between noise with and without the key's part is at most tau t^2 / (2 sigma^2). So
by Pinsker no party distinguishes them with an advantage above 2^-22.8.

The same holds for the low bits of a score (`pad_terms` has the rule). Encoding rounds each of N coefficients
of the vector by up to a half, which moves the opened integer by at most sqrt(N) / 2 times the norm of the
weights' coefficients. That is below t, since sigma_ct is above sqrt(N) / 5. So a score tells what its
real-valued product tells.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, hypot, log2, sqrt
from statistics import NormalDist
from typing import Final

from securefl.core.errors import ConfigError
from securefl.core.formats import prefix
from securefl.core.linear import LinearBounds
from securefl.he import gate
from securefl.he.flooding import FLOODING_BITS
from securefl.he.parameters import GUARD, Parameters, capacity

MISS: Final = 1e-6
"""The probability that any score of a reply lies outside its error bound."""
_GRID_BITS: Final = 44
_FREE_BITS: Final = 3
"""The spare bits of the modulus above any encoded value, for its sign and the evaluator's plaintext terms."""


@dataclass(frozen=True, kw_only=True)
class LinearTerms:
    """Public terms of one key: linear queries inside one set of bounds, and at most `scores` (tau) openings.

        >>> from securefl.he.parameters import COMPACT
        >>> from securefl.linear import LinearBounds, LinearTerms
        >>> bounds = LinearBounds(hidden_length=2, norm=2.0, weight_norm=2.0, row_norm=2.0, product=4.0)
        >>> terms = LinearTerms(parameters=COMPACT, bounds=bounds, scores=10)
        >>> terms.ciphertexts, terms.error_bound() < 0.01
        (1, True)

    Attributes:
        parameters: the ring parameters.
        bounds: the bounds of all queries of this key.
        scores: tau. The flooding is sized for it, against a semi-honest evaluator. It does not stop a
            malicious one.

    Raises:
        ConfigError: a score inside the bounds could wrap, or features or flooding do not fit the modulus.
    """

    parameters: Parameters
    bounds: LinearBounds
    scores: int

    def __post_init__(self) -> None:
        if self.scores < 1:
            raise ConfigError(f"Expected scores above 0, got {self.scores}.")
        if self.largest > (limit := capacity(self.parameters)):
            raise ConfigError(
                f"Expected products up to {limit:.3g}, which {self.parameters.name!r} holds, got bounds that "
                f"reach {self.largest:.3g}: tighten the query's bounds (of profiles: Bounds.mean, "
                "variance_high or weight), or use larger parameters."
            )
        # if the flooding fits, weights fit too, since it is more than 2^18 times as large
        if self.data_scale * self.feature_norm > self.parameters.modulus / 2**_FREE_BITS:
            raise ConfigError(
                f"Expected features that fit {self.parameters.name!r}, got bounds that reach a norm of "
                f"{self.feature_norm:.3g}: tighten the query's bounds (of profiles: Bounds.mean or "
                "variance_high)."
            )
        # Twelve deviations: a Gaussian exceeds them with a probability below 10^-32.
        if 12 * self.sigma > GUARD * self.parameters.modulus / 2:
            raise ConfigError(
                f"Expected flooding that fits {self.parameters.name!r}, got the flooding for {self.scores} "
                "scores: declare fewer scores for a key, smaller weights (of profiles: Bounds.weight), or "
                "larger parameters."
            )

    @property
    def hidden_length(self) -> int:
        """The number of a client's encrypted values."""
        return self.bounds.hidden_length

    @property
    def clear_length(self) -> int:
        """The number of a client's plaintext values."""
        return self.bounds.clear_length

    @property
    def row_length(self) -> int:
        """The number of values that are multiplied under encryption; in mode E, all values and a constant."""
        encrypted = self.parameters.encrypted_baseline
        return self.hidden_length + (self.clear_length + 1 if encrypted else 0)

    @property
    def ciphertexts(self) -> int:
        """The number of ciphertexts of a client's values."""
        return ceil(self.row_length / self.parameters.slots)

    @property
    def ciphertext_bytes(self) -> int:
        """The exact length of a client's message."""
        p = self.parameters
        return gate.TAG + self.ciphertexts * gate.residues_size(2, p.primes, p.poly_modulus_degree)

    @cached_property
    def weight_norm(self) -> float:
        """W, the largest norm of a query's row. An encrypted row has the clear weights too."""
        return self.bounds.row_norm if self.parameters.encrypted_baseline else self.bounds.weight_norm

    @cached_property
    def feature_norm(self) -> float:
        """The largest norm of a row of features."""
        own = self.bounds.norm
        return hypot(own, self.bounds.scale) if self.parameters.encrypted_baseline else own

    @cached_property
    def largest(self) -> float:
        """The largest |<row, w>| inside the bounds, in units of scale * number."""
        if self.parameters.encrypted_baseline:
            return self.feature_norm * self.weight_norm
        return self.bounds.product

    @cached_property
    def data_scale(self) -> int:
        """s_x: the parameters' scale, increased by the bits that the declared bounds leave of the modulus.

        The noise on a score is proportional to 1 / s_x. s_x s_w stays below the modulus, also for narrow
        bounds.
        """
        p = self.parameters
        if p.encrypted_baseline:
            return p.data_scale
        room = capacity(p) / self.largest
        room = min(room, p.modulus / (p.data_scale * self.feature_norm))
        # values far below 1 would leave room for more, but SEAL refuses a product of such a scale
        most = p.modulus.bit_length() - (p.data_scale * p.weight_scale).bit_length()
        return p.data_scale << max(0, min(floor(log2(room)) - _FREE_BITS, most))

    @property
    def modulus(self) -> int:
        return self.parameters.modulus

    @property
    def unit(self) -> float:
        """The value of one step of an opened integer in scale * number: (N/2) / (s_x s_w)."""
        return self.parameters.slots / (self.data_scale * self.parameters.weight_scale)

    @property
    def capacity(self) -> float:
        """The largest |<row, w>| that cannot wrap at this scale, in units of scale * number."""
        return capacity(self.parameters) * self.parameters.data_scale / self.data_scale

    @cached_property
    def noise_bound(self) -> float:
        """t: eight standard deviations of the noise of an opened integer, in integer steps."""
        p, n = self.parameters, self.parameters.poly_modulus_degree
        spread = p.weight_scale * self.weight_norm * sqrt(2 / n)
        if p.encrypted_baseline:
            # noise times noise, also of zero products, is less than 2^-54 of this: too little for a float
            spread += self.data_scale * self.feature_norm * sqrt(2 / n)
        return 8 * p.fresh_noise * (spread + 1)

    @cached_property
    def sigma(self) -> float:
        """The standard deviation of the flooding, in integer steps of the opened coefficient."""
        return sqrt(12 * self.scores) * 2 ** (FLOODING_BITS / 2) * self.noise_bound

    @cached_property
    def grid(self) -> int:
        """The power of two of which openings are multiples.

        It is a few 2^-44 of sigma: fine enough to add nothing to t, and coarser than the float from which the
        noise is drawn, so that every bit of a reply has noise.
        """
        return 1 << max(0, floor(log2(self.sigma)) - _GRID_BITS)

    def error_bound(self, together: int = 1, *, floods: int = 1) -> float:
        """The largest error of any of `together` scores of one reply, except with probability 1e-6.

        It covers flooding, encryption noise, rounding of weights and features, and the grid.

        Args:
            together: the number of scores for which the bound holds at once.
            floods: the number of parties that flood, 2 if the key holder reads the scores.
        """
        p = self.parameters
        # the upper quantile, as the lower one's opposite: 1 minus a tiny probability is 1 as a float
        quantile = -NormalDist().inv_cdf(MISS / (2 * together))
        features = self.feature_norm
        rounding = sqrt(p.slots / 12) * features / p.weight_scale
        rounding += sqrt(p.slots / 12) * self.weight_norm / self.data_scale
        floats = 2.0**-49 * self.weight_norm * features
        noise = (sqrt(floods) * self.sigma + self.noise_bound / 8) * self.unit
        return (quantile * (noise + rounding) + floods * self.grid * self.unit + floats) / self.bounds.scale

    def digest(self) -> bytes:
        """A digest of these terms. Parties with different terms refuse each other's messages."""
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        return hashlib.sha256(prefix("linear/terms") + self.text().encode()).digest()

    def text(self) -> str:
        """Canonical text, part of the digest."""
        bounds = self.bounds.text()
        return f"LinearTerms(parameters={self.parameters.text()}, bounds={bounds}, scores={self.scores})"


def flooded(value: int, terms: LinearTerms, rng: random.Random) -> int:
    """An integer mod Q with the key holder's noise, on the grid."""
    # In whole steps of the grid, since the noise's float has no random bits below it.
    grid = terms.grid
    noise = grid * round(terms.sigma / grid * rng.gauss(0.0, 1.0))
    return (value + noise + grid // 2) // grid * grid % terms.parameters.modulus
