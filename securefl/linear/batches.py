"""Slot classes: many clients in one opened ciphertext, and the integers that hold their sums.

Every client repeats each of its values K times (slot i K + j holds value i). The evaluator multiplies client
j's ciphertext by weights that are zero outside the slots congruent to j modulo K, and adds the products. The
sum over a class is then a score. Slot m is an evaluation at a root with exponent 3^m. So the sums over
classes are those of the polynomial's part in the subring of degree 2K, whose coefficients are every
(N / 2K)-th one:

    sum of class j = (N / 2K) (d_0 + sum over 0 < i < K of d_i cos(2 pi i 3^j / 4K)),
    d_0 = c_0,   d_i = c_(i N / 2K) - c_(N - i N / 2K)

K exact integers carry K scores. No other part of the product is opened, and no rotation is needed.

Isolation: classes separate clients that are inside their declared bounds. A junk ciphertext shifts other
scores of its batch. So if a batch has a score that no honest client gives, its members are opened one by one,
and clients that do not trust each other are never opened together.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from securefl.he.integers import coefficient_rows


def combine(coefficients: list[int], modulus: int) -> list[int]:
    """d_0 .. d_(K-1) mod Q, from the 2K coefficients at multiples of N / 2K."""
    count = len(coefficients) // 2
    # Only the differences are masked and opened: K integers instead of 2 K.
    pairs = ((coefficients[i] - coefficients[2 * count - i]) % modulus for i in range(1, count))
    return [coefficients[0], *pairs]


def rows(secret: NDArray[np.int64], integers: int) -> NDArray[np.int64]:
    """D of shape (integers, N) with D @ c1 = d_0 .. d_(integers-1) of the polynomial c1 * secret.

    The coefficient n of c1 * s in Z[X] / (X^N + 1) is the sum over j of c1_j s_(n-j), with the sign changed
    if n - j is negative.
    """
    alone = coefficient_rows(secret, places(len(secret), integers))
    pairs = (alone[i] - alone[2 * integers - i] for i in range(1, integers))
    return np.stack([alone[0], *pairs])


def places(degree: int, integers: int) -> list[int]:
    """The coefficients that hold the integers: every (N / 2K)-th one; for a single integer only the first."""
    return [0] if integers == 1 else [i * (degree // (2 * integers)) for i in range(2 * integers)]


@cache
def cosines(classes: int) -> NDArray[np.float64]:
    """M of shape (K, K): N / 2K times M @ d are the sums of the classes."""
    # The cosines have period 4 K in 3^j, so reduced powers keep the angles exact.
    turns = np.array([pow(3, j, 4 * classes) for j in range(classes)])
    angles = 2 * np.pi * np.outer(turns, np.arange(classes)) / (4 * classes)
    return np.cos(angles)
