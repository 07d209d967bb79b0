"""What seeds say: the interval of a mean, and whether one system is ahead of others by more than chance.

Two systems are compared by Wilcoxon's signed-rank test, both sides, seed by seed. Several p-values are
adjusted for their number by Holm's method (1979). A sentence calls a difference significant if p is below
LEVEL. Where no outcome of the seeds could be significant there is no p.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securefl.report.pages import number_text

CONFIDENCE: Final = 0.95
"""Of every interval in figures and tables."""
LEVEL: Final = 0.05
"""Adjusted p-values below it are called significant."""
_ALL_SIGNS: Final = 2**20
"""Up to twenty seeds the test counts every pattern of signs, so p is exact, also with ties."""


def student(values: ArrayLike) -> tuple[float, float]:
    """The mean, and half the width of the 95 % confidence interval by Student's t.

    The mean of no value is nan, and so is the half width for fewer than two values.
    """
    known = np.asarray(values, dtype=np.float64)
    # One value has no standard deviation. Figures leave out a band of nan; a band of 0 would claim certainty.
    if len(known) < 2:
        return (float(known[0]) if len(known) else math.nan), math.nan
    from scipy.stats import t  # late, as below

    quantile = float(t.ppf((1 + CONFIDENCE) / 2, len(known) - 1))
    return float(known.mean()), quantile * float(known.std(ddof=1)) / math.sqrt(len(known))


def with_interval(values: Sequence[float]) -> str:
    """The mean over the seeds with its 95 % interval. An interval of two says little: both stand there."""
    mean, half = student(values)
    if len(values) == 2:
        return f"{number_text(mean, 3)} ({', '.join(number_text(value, 3) for value in values)})"
    return number_text(mean, 3) + ("" if math.isnan(half) else f" ± {number_text(half, 3)}")


def unequal(gaps: ArrayLike) -> NDArray[np.float64]:
    """The gaps that are not 0, to six digits: those that differ by rounding alone are equal.

    A gap below 1e-9 is 0. Files have values of nine decimals.
    """
    known = np.round(np.asarray(gaps, dtype=np.float64), 9)
    return np.array([float(f"{gap:.6g}") for gap in known[known != 0]])


def signed_rank(gaps: ArrayLike) -> float:
    """Two-sided p of Wilcoxon's signed-rank test over pairs. gaps: the difference of each seed's pair.

    Pairs without a difference are left out. If fewer than two pairs remain, p is 1.
    """
    differences = unequal(gaps)
    if len(differences) < 2:
        return 1.0
    from scipy.stats import PermutationMethod, wilcoxon  # late: it takes longer to load than all else here

    # Above twenty pairs the patterns are drawn, always the same ones.
    every = PermutationMethod(n_resamples=_ALL_SIGNS, rng=np.random.default_rng(0))
    return float(wilcoxon(differences, method=every).pvalue)


def rank_biserial(gaps: ArrayLike) -> float:
    """The effect size of the signed-rank test (Kerby 2014): from -1 (all pairs below 0) to 1 (all above).

    It is the difference of the two sums of ranks over their sum. Pairs without a difference are left out. If
    fewer than two remain, it is nan: of one pair it is always 1 or -1.
    """
    differences = unequal(gaps)
    if len(differences) < 2:
        return math.nan
    from scipy.stats import rankdata  # late, as above

    ranks = rankdata(np.abs(differences))
    return float(ranks @ np.sign(differences) / ranks.sum())


def adjusted(gaps: Mapping[str, ArrayLike]) -> tuple[dict[str, float], int]:
    """The p-values of several signed-rank tests, adjusted by Holm's method, where they can be below LEVEL.

    Args:
        gaps: by the test's name, the difference of each pair of seeds.

    Returns:
        The adjusted p by name, without the tests that could not be significant whatever the signs of all
        gaps; and the number of pairs with a difference with which each test could, if all tests had one. The
        family is all tests with a difference in any pair, also those without a p. One without any difference
        tests nothing.

    Raises:
        Nothing.
    """
    apart = {name: own for name, own in gaps.items() if len(unequal(own))}
    # Of further seeds, those without a difference so far may have one: then they count in the family.
    needed = least_pairs(max(1, len(gaps)))
    # Holm's p grows with each p of the family, so that of all least ones is the least for each test.
    least = holm([least_p(len(unequal(own))) for own in apart.values()])
    p = holm([signed_rank(own) for own in apart.values()])
    return {name: own for name, own, low in zip(apart, p, least, strict=True) if low < LEVEL}, needed


def least_p(seeds: int) -> float:
    """The smallest p of the test with this many pairs: two patterns (all signs equal) of 2^seeds."""
    return float(min(1.0, 2.0 ** (1 - seeds)))


def least_pairs(tests: int) -> int:
    """The pairs of seeds that a signed-rank test needs to have a p below `LEVEL` as the first of so many.

    Holm's rule multiplies the first p by their number.
    """
    return next(pairs for pairs in count(1) if tests * least_p(pairs) < LEVEL)


def holm(p: Sequence[float]) -> tuple[float, ...]:
    """Holm's adjustment of n p-values: the k-th smallest times n - k + 1, none below a smaller one's.

    If all differences are chance, the probability of one adjusted p below a level is at most that level,
    whatever the dependence of the tests.
    """
    order = np.argsort(p, kind="stable")
    grown = np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1))
    found = np.empty(len(p))
    found[order] = np.minimum(grown, 1.0)
    return tuple(map(float, found))


def listed(names: Sequence[str]) -> str:
    """The names in words, the last one behind "and"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
