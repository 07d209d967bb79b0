"""How many clients a declared share of a cohort is: each share is rounded to the side that protects.

And how well one client's value can be guessed from a weighted sum of it and others. Take values of equal
spread that have nothing to do with each other, one with weight v and the others with weights w_j. The best
linear guess of the first from their sum explains the share

    v^2 / (v^2 + sum_j w_j^2)

of its variance, and errs by sqrt(1 - share) of its spread. Squares stand here since variances of independent
values add up. A bound on plain weights is too weak: one client of half the weight beside six small ones is
guessed with an error of 0.38 of its spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor, sqrt


def dropping(share: float, clients: int) -> int:
    """The most clients that may fall silent, rounded down: one more would be one too few in a sum."""
    return floor(exact(share) * clients)


def colluding(share: float, clients: int) -> int:
    """The most clients that may collude with the server, rounded up: a tenth of nine clients is one."""
    return ceil(exact(share) * clients)


def exact(share: float) -> Fraction:
    """The decimal number that was written: its binary neighbour can lie on the other side of an integer."""
    return Fraction(str(share))


def heaviest_share(weights: Sequence[int], beside: int) -> Fraction:
    """The largest squared share that any of these weights has beside the `beside` lightest of the others.

    The heaviest weight has it: the lightest others are least beside it. Exact, for weights of any size.
    1 if nothing stands beside it.
    """
    if min(weights) == max(weights):  # by far the most frequent, over cohorts of a thousand too
        return Fraction(1, 1 + min(max(0, beside), len(weights) - 1))
    ordered = sorted(weights)
    own = ordered[-1] ** 2
    return Fraction(own, own + sum(weight**2 for weight in ordered[:-1][: max(0, beside)]))


def share_within(least: int, largest: int, beside: int) -> Fraction:
    """The largest squared share that follows from public bounds alone: one largest beside the least."""
    return Fraction(largest**2, largest**2 + max(0, beside) * least**2)


def guess_error(share: float | Fraction) -> float:
    """The error of the best linear guess, in spreads of the guessed value: 0 is exact, 1 is no guess."""
    return sqrt(1 - share)
