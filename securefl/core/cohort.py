"""Numbers of dropped and colluding clients in a cohort, and bounds on one client's weight in a sum.

A declared fraction of a cohort is rounded to the side that protects the clients.

The weight bound says how well the server can guess one client's value from a weighted sum. Take independent
values of equal standard deviation, one with weight v and the others with weights w_j. The best linear guess
of the first value from the sum explains the fraction

    v^2 / (v^2 + sum_j w_j^2)

of its variance, and has an RMS error of sqrt(1 - fraction) of its standard deviation. The weights are squared
because variances of independent values add up. A bound on plain weights is too weak: if one client has half
of the weight and six small clients have the rest, its value is guessed with an error of 0.38 of its standard
deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, sqrt


def dropping(share: float, clients: int) -> int:
    """Return the largest number of clients that may drop out, rounded down so that enough clients survive."""
    return floor(exact(share) * clients)


def colluding(share: float, clients: int) -> int:
    """Return the largest number of clients that may collude with the server, rounded up: 0.1 of 9 is 1."""
    return ceil(exact(share) * clients)


@lru_cache(maxsize=64)
def exact(share: float) -> Fraction:
    """Return the decimal number as written. Its binary value can lie on the other side of an integer."""
    return Fraction(str(share))


def heaviest_share(weights: Sequence[int], beside: int) -> Fraction:
    """Return the largest squared fraction of one weight beside the `beside` lightest of the other weights.

    The heaviest weight has the largest fraction. The result is exact for integers of any size. It is 1 if no
    other weight is there.
    """
    if min(weights) == max(weights):  # the usual case, also in cohorts of a thousand clients
        return Fraction(1, 1 + min(max(0, beside), len(weights) - 1))
    ordered = sorted(weights)
    own = ordered[-1] ** 2
    return Fraction(own, own + sum(weight**2 for weight in ordered[:-1][: max(0, beside)]))


def share_within(least: int, largest: int, beside: int) -> Fraction:
    """Return the largest squared fraction within public bounds: one `largest` weight beside `least` ones."""
    return Fraction(largest**2, largest**2 + max(0, beside) * least**2)


def guess_error(share: float | Fraction) -> float:
    """The RMS error of the best linear guess, in standard deviations: 0 is exact, 1 is no guess."""
    return sqrt(1 - share)
