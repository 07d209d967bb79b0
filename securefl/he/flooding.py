"""Flooding noise: Gaussian integers of large standard deviation in which every bit is random."""

from __future__ import annotations

import random
from math import floor, log2
from typing import Final

FLOODING_BITS: Final = 40
"""s: for tau openings, noise is at least 2^(s/2) sqrt(12 tau) times as wide as the value that it covers."""
_FLOAT_BITS: Final = 40


def wide_gaussian(sigma: float, rng: random.Random) -> int:
    """Draw an integer near N(0, sigma^2), for sigma of any size.

    A float has 53 bits. The low bits of a wide float are zero, and would reveal the value that it covers.
    So the bits below 2^-40 sigma are drawn uniformly.
    """
    low = max(0, floor(log2(max(sigma, 1.0))) - _FLOAT_BITS)
    coarse = round(rng.gauss(0.0, sigma / 2**low))
    return (coarse << low) + rng.randrange(1 << low)
