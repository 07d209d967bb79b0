"""What all parties declare in public before the first score, and everything that follows from it.

Flooding (specification, section 2). The evaluator of a CKKS score sees the score's encryption noise, which
depends on the secret key: with exact integers released, 64 openings gave every residue of the key. The key
holder therefore adds Gaussian noise with

    sigma = sqrt(12 tau) 2^(s/2) t,    s = 40,    t = 8 sigma_ct (s_w W sqrt(2/N) + 1)

where t bounds the noise of the opened coefficient: fresh noise of standard deviation sigma_ct per
coefficient, multiplied by weights of norm at most W, plus that of the re-randomisation. Over all tau openings
the Kullback-Leibler divergence between noise with and without the key's part is at most
tau t^2 / (2 sigma^2), so by Pinsker nobody tells them apart with an advantage above 2^-22.8.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import floor, log2, sqrt
from statistics import NormalDist
from typing import Final

from securefl.errors import ConfigError
from securefl.he.parameters import GUARD, Parameters, capacity
from securefl.profiles import Bounds, Variant

FLOODING_BITS: Final = 40
MISS: Final = 1e-6
"""Probability with which any score of a reply may lie outside its error bound."""
_GRID_BITS: Final = 44


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Public terms of one key: profiles of `length` elements, at most `scores` (tau) openings in all.

    Raises ConfigError if a score inside the bounds could wrap, or the profile does not fit.
    """

    parameters: Parameters
    bounds: Bounds
    length: int
    variant: Variant
    scores: int

    def __post_init__(self) -> None:
        if self.length < 1 or self.scores < 1:
            raise ConfigError(f"Expected length and scores above 0, {self.length} and {self.scores} came.")
        if self.hidden_length > self.parameters.slots:
            raise ConfigError(
                f"{self.hidden_length} hidden values do not fit the {self.parameters.slots} slots of "
                f"{self.parameters.name!r}; use larger parameters or a smaller layer."
            )
        if self.largest > (limit := capacity(self.parameters)):
            raise ConfigError(
                f"Scores inside the declared bounds reach q * div = {self.largest:.3g}, "
                f"{self.parameters.name!r} holds {limit:.3g}: tighten Bounds.mean, "
                "variance_high or weight, or use larger parameters."
            )
        if 12 * self.sigma > GUARD * self.parameters.modulus / 2:
            raise ConfigError(
                f"The flooding for {self.scores} scores does not fit {self.parameters.name!r}: "
                "declare fewer scores for a key, a smaller Bounds.weight, or larger parameters."
            )

    @property
    def hidden_length(self) -> int:
        """Number of encrypted values of a profile."""
        return 2 * self.length + (self.variant is Variant.FULL)

    @property
    def clear_length(self) -> int:
        """Number of values sent in plaintext beside them."""
        return 0 if self.variant is Variant.FULL else self.length + 1

    @cached_property
    def weight_norm(self) -> float:
        """W, the largest norm of a baseline's weights."""
        return self.bounds.weight_norm(self.length)

    @cached_property
    def largest(self) -> float:
        """Largest |<hidden, w>| inside the bounds, in units of q * div."""
        return self.bounds.largest_product(self.length)

    @cached_property
    def noise_bound(self) -> float:
        """t: eight standard deviations of the noise of the opened coefficient, in integer steps."""
        n = self.parameters.poly_modulus_degree
        spread = self.parameters.weight_scale * self.weight_norm * sqrt(2 / n)
        return 8 * self.parameters.fresh_noise * (spread + 1)

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the flooding, in integer steps of the opened coefficient."""
        return sqrt(12 * self.scores) * 2 ** (FLOODING_BITS / 2) * self.noise_bound

    @cached_property
    def grid(self) -> int:
        """Openings are multiples of this power of two.

        A few 2^-44 of sigma: fine enough to add nothing to t, and coarser than the float the noise is drawn
        as, so that no bit of a reply comes without noise.
        """
        return 1 << max(0, floor(log2(self.sigma)) - _GRID_BITS)

    def error_bound(self, together: int = 1) -> float:
        """Largest |released div - div| of all `together` scores of a reply, but with probability 1e-6.

        Flooding and encryption noise, rounding of weights and features, and the grid.
        """
        p = self.parameters
        quantile = NormalDist().inv_cdf(1 - MISS / (2 * together))
        features = self.bounds.feature_norm(self.length)
        rounding = sqrt(p.slots / 12) * features / p.weight_scale
        floats = 2.0**-49 * self.weight_norm * features
        noise = (self.sigma + self.noise_bound / 8) * p.unit
        return (quantile * (noise + rounding) + self.grid * p.unit + floats) / self.length

    def digest(self) -> bytes:
        """Binds bytes to these terms: two parties with different terms refuse each other's messages."""
        return hashlib.sha256(f"securefl/he/terms/1|{self!r}".encode()).digest()
