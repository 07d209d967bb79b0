"""Secret sharing: any threshold of the shares opens the secret, one fewer fits every secret."""

from __future__ import annotations

import gmpy2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.every import every
from support.tiny_secagg import entropy

from securefl.core.errors import CryptoError, LocalProtocolError
from securefl.secagg.shamir import PRIME, combine, parse, split, weights_at_zero

SECRET = bytes(range(32))


def test_the_field_is_that_of_the_smallest_prime_above_two_to_the_256() -> None:
    assert gmpy2.next_prime(2**256) == PRIME


@given(st.binary(min_size=32, max_size=32), st.integers(1, 8), st.integers(0, 4), st.data())
def test_any_threshold_of_the_shares_opens_the_secret(
    secret: bytes, threshold: int, more: int, data: st.DataObject
) -> None:
    points = data.draw(st.lists(st.integers(1, 2000), min_size=threshold + more, unique=True))
    shares = dict(zip(points, split(secret, points, threshold, entropy("any", len(points))), strict=True))
    assert {len(share) for share in shares.values()} == {33}
    chosen = data.draw(st.permutations(points))[:threshold]
    assert combine({point: shares[point] for point in chosen}, threshold) == secret


def test_exactly_the_threshold_is_used() -> None:
    shares = dict(enumerate(split(SECRET, range(1, 6), 3, entropy("exact")), start=1))
    spoilt = shares | {4: bytes(33), 5: bytes(33)}
    assert combine(spoilt, 3) == SECRET


def test_the_weights_are_computed_once_per_set() -> None:
    assert weights_at_zero((1, 2, 5)) is weights_at_zero((1, 2, 5))
    assert weights_at_zero((1, 2)) == (2, PRIME - 1)


def test_too_few_and_wrong_shares_are_refused() -> None:
    shares = dict(enumerate(split(SECRET, (1, 2, 3), 2, entropy("bad")), start=1))
    with pytest.raises(CryptoError, match="Expected 2 shares"):
        combine({1: shares[1]}, 2)
    for bad in (b"", bytes(32), PRIME.to_bytes(33, "little"), b"\xff" * 33):
        with pytest.raises(CryptoError, match="33 bytes"):
            parse(bad)
    with pytest.raises(CryptoError, match="no secret"):
        combine({1: (2**256).to_bytes(33, "little")}, 1)


@every(
    ("secret", "points", "threshold"),
    [
        (bytes(31), (1, 2), 2),
        (SECRET, (1, 2), 3),
        (SECRET, (1, 2), 0),
        (SECRET, (0, 1), 2),
        (SECRET, (1, 1), 2),
    ],
)
def test_a_wrong_call_is_refused(secret: bytes, points: tuple[int, ...], threshold: int) -> None:
    with pytest.raises(LocalProtocolError):
        split(secret, points, threshold, entropy("wrong"))


@every("threshold", [2, 3, 5])
def test_one_share_fewer_is_no_secret_of_a_smaller_threshold(threshold: int) -> None:
    shares = dict(enumerate(split(SECRET, range(1, 7), threshold, entropy("degree")), start=1))
    values = {point: int.from_bytes(shares[point], "little") for point in range(1, threshold)}
    weights = weights_at_zero(tuple(values))
    at_zero = sum(weight * value for weight, value in zip(weights, values.values(), strict=True)) % PRIME
    assert at_zero != int.from_bytes(SECRET, "little")
