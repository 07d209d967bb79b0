"""How many clients a declared share of a cohort is: each share is rounded to the side that protects."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor


def dropping(share: float, clients: int) -> int:
    """The most clients that may fall silent, rounded down: one more would be one too few in a sum."""
    return floor(exact(share) * clients)


def colluding(share: float, clients: int) -> int:
    """The most clients that may collude with the server, rounded up: a tenth of nine clients is one."""
    return ceil(exact(share) * clients)


def exact(share: float) -> Fraction:
    """The decimal number that was written: its binary neighbour can lie on the other side of an integer."""
    return Fraction(str(share))
