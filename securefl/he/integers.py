"""Exact computation of single coefficients of a polynomial's product with the secret key, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefl.he.gate import Residues
from securefl.he.parameters import Parameters

_LIMB = 20


def coefficient_rows(secret: NDArray[np.int64], at: list[int]) -> NDArray[np.int64]:
    """Rows of shape (len(at), N) that give the coefficients `at` of a polynomial times the secret."""
    degree = len(secret)
    # Multiplication modulo X^N + 1: a coefficient that wraps around changes its sign.
    twice = np.concatenate([-secret, secret])
    # row n reads s_n, s_(n-1), ..., s_0, -s_(N-1), ..., -s_(n+1)
    return np.stack([twice[n + 1 : n + 1 + degree][::-1] for n in at])


def products(rows: NDArray[np.int64], polynomial: Residues, parameters: Parameters) -> list[int]:
    """rows @ polynomial mod Q, exactly."""
    # Residues have up to 60 bits. In halves of 32 bits, sums over N coefficients -1, 0 or 1 fit in an int64.
    low = (polynomial & np.uint64(0xFFFFFFFF)).astype(np.int64)
    high = (polynomial >> np.uint64(32)).astype(np.int64)
    sums = [(rows @ low[i], rows @ high[i]) for i in range(len(polynomial))]
    return [
        parameters.compose(tuple(int(a[row]) + (int(b[row]) << 32) for a, b in sums))
        for row in range(len(rows))
    ]


def inner(left: Residues, right: Residues, primes: tuple[int, ...]) -> list[int]:
    """The inner product of two arrays (primes, N) modulo each prime, exactly. N is at most 8192."""
    # In limbs of 20 bits, sums over 8192 products stay below 2^53, where float64 is exact, in any order.
    a, b = _limbs(left), _limbs(right)
    found = []
    for i, prime in enumerate(primes):
        sums = a[:, i] @ b[:, i].T
        parts = (int(sums[j, k]) << _LIMB * (j + k) for j in range(3) for k in range(3))
        found.append(sum(parts) % prime)
    return found


def _limbs(residues: Residues) -> NDArray[np.float64]:
    """Three limbs of 20 bits of each residue, shape (3, *shape)."""
    mask = np.uint64(2**_LIMB - 1)
    return np.stack([(residues >> np.uint64(_LIMB * i)) & mask for i in range(3)]).astype(np.float64)
