"""What tests of encrypted matching share."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from securefl.core.signing import SigningKey
from securefl.dp.moments import MeanVariance
from securefl.he.keys import KeyPair
from securefl.he.parameters import Parameters
from securefl.matching.profiles import Bounds

SIGNER = SigningKey.generate()
BOUNDS = Bounds(mean=16, variance_high=64, weight=16)


class Quiet(random.Random):
    """Takes the flooding away, so that what lies under it can be looked at."""

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        return 0.0


def seeded() -> random.Random:
    """Flooding that repeats: a bound that one score in 10^6 exceeds then holds always or never."""
    return random.Random(1)


SURELY = 1.4
"""Under fresh flooding: one score in 10^6 exceeds its bound, and one in 10^11 exceeds 1.4 times its bound."""


def profile(seed: int, q: int) -> MeanVariance:
    rng = np.random.default_rng(seed)
    return MeanVariance(rng.normal(size=q), rng.uniform(0.2, 3, q), 50)


@cache
def keys(parameters: Parameters) -> KeyPair:
    return KeyPair.generate(parameters)
