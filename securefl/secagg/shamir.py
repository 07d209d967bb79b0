"""Shamir's secret sharing of 32-byte secrets over the prime 2^256 + 297 (Shamir 1979).

The prime is the smallest above 2^256. So every 32-byte string is a field element, and a share has 33 bytes,
little-endian. A holder's point is its number in the roster plus one. The secret is the polynomial's value at
zero. Fewer than `threshold` shares reveal nothing about it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from securefl.core.entropy import Random
from securefl.core.errors import CryptoError, LocalProtocolError

PRIME: Final = 2**256 + 297
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 33
_DRAW_BYTES: Final = 48
"""Reduced modulo the prime, 384 uniform bits are uniform up to 2^-127."""


def split(secret: bytes, points: Sequence[int], threshold: int, random: Random) -> tuple[bytes, ...]:
    """Return one share for each point. Any `threshold` shares reconstruct the secret.

    Args:
        secret: 32 bytes.
        points: distinct integers in 1 .. 2^32.
        threshold: the number of shares that reconstruct the secret.
        random: a source of uniform bytes.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(points):
        raise LocalProtocolError(
            f"Expected a secret of 32 bytes and a threshold within the {len(points)} holders, "
            f"got {len(secret)} bytes and {threshold}."
        )
    if len(set(points)) < len(points) or min(points) < 1 or max(points) > 2**32:
        raise LocalProtocolError(
            f"Expected distinct points from 1 to 2^32, got {list(points)}. Take each holder's number plus "
            "one: a share at 0 would be the secret."
        )
    drawn = random(_DRAW_BYTES * (threshold - 1))
    coefficients = [
        int.from_bytes(drawn[at : at + _DRAW_BYTES], "little") % PRIME
        for at in range(0, len(drawn), _DRAW_BYTES)
    ]
    polynomial = [*coefficients, int.from_bytes(secret, "little")]  # highest power first
    return tuple(_evaluate(polynomial, point).to_bytes(SHARE_BYTES, "little") for point in points)


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret, from the shares at the `threshold` smallest points.

    Raises:
        CryptoError: if there are too few shares, if one is no field element, or if no 32-byte secret fits.
    """
    points = tuple(sorted(shares))[:threshold]
    if len(points) < threshold:
        raise CryptoError(f"Expected {threshold} shares, got {len(points)}.")
    values = [parse(shares[point]) for point in points]
    weights = weights_at_zero(points)
    secret = sum(weight * value for weight, value in zip(weights, values, strict=True)) % PRIME
    if secret >= 1 << (8 * SECRET_BYTES):
        raise CryptoError(f"Expected shares of a secret of {SECRET_BYTES} bytes, got shares of no secret.")
    return secret.to_bytes(SECRET_BYTES, "little")


def parse(share: bytes) -> int:
    """The field element in a share. Raises CryptoError for other bytes."""
    value = int.from_bytes(share, "little")
    if len(share) != SHARE_BYTES or value >= PRIME:
        raise CryptoError(
            f"Expected a share of {SHARE_BYTES} bytes and a number below the prime, got {len(share)} bytes "
            "or a larger number."
        )
    return value


@lru_cache(maxsize=4096)
def weights_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights: the value at zero is the sum of weight times share."""
    # Cached by the points: in a complete graph one set of holders answers for every dealer.
    everything = math.prod(points) % PRIME
    return tuple(everything * inverse % PRIME for inverse in _inverses(_products(points)))


def _products(points: tuple[int, ...]) -> list[int]:
    """For each point, the product of its differences to the others, times the point."""
    values = np.array(points, np.int64)
    differences = values - values[:, None]
    np.fill_diagonal(differences, values)
    # As many factors as fit are multiplied as machine words. In Python alone, a sparse graph of 3,000 clients
    # would cost the server seconds.
    together = max(1, 62 // int(values.max()).bit_length())
    filled = np.ones((len(points), -len(points) % together), np.int64)
    factors = np.hstack([differences, filled]).reshape(len(points), -1, together).prod(axis=2)
    return [math.prod(row) for row in factors.tolist()]


def _inverses(values: Sequence[int]) -> list[int]:
    """The inverses modulo the prime, by one inversion for all (Montgomery 1987)."""
    before = [1]
    for value in values:
        before.append(before[-1] * value % PRIME)
    inverse, found = pow(before[-1], -1, PRIME), []
    for value, product in zip(reversed(values), reversed(before[:-1]), strict=True):
        found.append(inverse * product % PRIME)
        inverse = inverse * value % PRIME
    return found[::-1]


def _evaluate(polynomial: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in polynomial:
        value = (value * point + coefficient) % PRIME
    return value
