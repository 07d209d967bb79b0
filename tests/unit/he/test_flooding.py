"""Wide noise: as wide as it is said to be, and random in every bit."""

from __future__ import annotations

import random

import numpy as np
from scipy import stats
from support.every import every

from securefl.he.flooding import wide_gaussian


@every("sigma", [2.0**45, 2.0**70, 2.0**110])
def test_every_bit_of_flooding_is_random(sigma: float) -> None:
    """A wide float's low bits are zero, and would show the value below. From a seed; chances of 1e-7 each."""
    rng = random.Random(11)
    drawn = [wide_gaussian(sigma, rng) for _ in range(6000)]
    low = np.bincount([number % 32 for number in drawn], minlength=32)
    assert stats.chisquare(low).pvalue > 1e-7
    least, most = stats.chi2.ppf([5e-8, 1 - 5e-8], len(drawn))
    assert least < sum((number / sigma) ** 2 for number in drawn) < most
