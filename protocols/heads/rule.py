"""Which head, and how many features of it, at so many records and so much noise. Nothing private is read.

Everything follows from the records per unit of noise, n / s: n is the declared number of records, and s the
deviation of the noise in an entry of the total, for a value of sensitivity 1. s follows from epsilon, delta,
the place of the noise and the dropout that shares of it are sized for.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isqrt

from securefl.protocols.heads.solvers import Kind

MOST_VALUES = 2**20
"""Of one statistic. They take 4 MB a client."""
_MOMENTS_PAY = 200.0
"""Records a class per unit of noise from which second moments are worth their part of the noise."""
_FEW = 1.5
"""The same for each feature where these are few: there is less noise in fewer moments."""
_FEWEST = 64
"""Fewer features count as so many: what is added to the spectrum (`strength_of`) shrinks no further."""
_NARROW = 12.0
"""Prototypes keep so many features that the noise in a class sum is a share sqrt(1 / 12) of its length."""
_PER_FEATURE = 8.0
"""Records per unit of noise and feature of second moments."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A head, and the number of features that it uses."""

    head: Kind
    width: int


def choose(
    *, records: float, deviation: float, classes: int, features: int, ordered: bool, head: Kind | None = None
) -> Choice:
    """The head for this much noise, and its width.

    ordered: whether features come in order of importance, so that the first of them can be kept. Otherwise
        only features that would make the statistic too large are left out, by a random projection.
    head: one that was chosen already. Then the width alone is.
    """
    signal = records / deviation if deviation > 0 else inf
    each = signal / classes
    if head is None:
        head = "lda" if each >= min(_MOMENTS_PAY, _FEW * max(features, _FEWEST)) else "prototypes"
    most = features if head == "prototypes" else min(features, widest(classes))
    if not ordered:
        return Choice(head=head, width=most)
    worth = each**2 / _NARROW if head == "prototypes" else signal / _PER_FEATURE
    return Choice(head=head, width=int(min(most, max(worth, 2 * classes, 64))))


def widest(classes: int) -> int:
    """The most features whose class sums, counts and second moments fit into a statistic."""
    half = 2 * classes + 1  # k (k + 1) / 2 + C k + C <= MOST
    return max(1, (isqrt(half * half + 8 * (MOST_VALUES - classes)) - half) // 2)
