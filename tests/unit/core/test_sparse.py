"""Vectors without their zeros: one form for each vector, and no other bytes are read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from support.every import every

from securefl.core.sparse import dense, most_bytes, sparse


@given(some.lists(some.sampled_from([0, 0, 0, 1, -1, 7, 2**31 - 1, -(2**31)]), max_size=60))
def test_a_vector_comes_back(numbers: list[int]) -> None:
    vector = np.array(numbers, np.int32)
    data = sparse(vector)
    np.testing.assert_array_equal(dense(data, len(vector)), vector)
    assert len(data) <= most_bytes(len(vector))


@given(some.binary(max_size=24), some.integers(0, 20))
def test_bytes_that_are_read_are_those_that_are_written(data: bytes, size: int) -> None:
    try:
        vector = dense(data, size)
    except ValueError:
        return
    assert sparse(vector) == data


@given(some.integers(1, 400), some.floats(0, 0.1), some.integers(0, 2**32 - 1), some.sampled_from("1svc"))
def test_a_long_vector_with_few_values_comes_back(size: int, share: float, seed: int, values: str) -> None:
    rng = np.random.default_rng(seed)
    there = rng.random(10 * size) < share
    signs = rng.choice([-1, 1], 10 * size)
    common = signs * rng.choice([7, 2**31 - 1, 1, *range(9, 12)], 10 * size, p=[0.5, 0.3, 0.1, *[1 / 30] * 3])
    numbers = {"1": 1, "s": 77 * signs, "v": rng.integers(-9, 9, 10 * size), "c": common}[values]
    vector = (there * numbers).astype(np.int32)
    data = sparse(vector)
    np.testing.assert_array_equal(dense(data, len(vector)), vector)
    assert len(data) <= most_bytes(len(vector))
    for other in (data[:-1], data + b"\0", bytes([data[0] ^ 16]) + data[1:]):
        with pytest.raises(ValueError, match="Expected"):
            dense(other, len(vector))


def test_ones_take_a_bit_each() -> None:
    assert sparse(np.array([1, 0, 0, 1, 0, 0, 0, 0, 1], np.int32)) == bytes([0, 0b10010000, 0b10000000])
    assert len(sparse(np.arange(2, 82, dtype=np.int32))) == 1 + 10 + 320


def test_values_of_one_size_take_a_bit_each() -> None:
    vector = np.array([5, -5, 5, 0, 5, 5, -5, 5, 5], np.int32)
    assert sparse(vector) == bytes([1, 0b11101111, 0b10000000, 5, 0, 0, 0, 0b01000100])


def test_common_sizes_take_a_place_and_a_sign_each() -> None:
    """Of three tensors with a size each, and statistics of norms: nothing beside them takes four bytes."""
    vector = np.repeat(np.array([300, -20, 1], np.int32), 40)
    vector[::2] *= -1
    plain = np.concatenate([vector, [9, -8]]).astype(np.int32)
    data = sparse(plain)
    assert data[0] == 2
    head, table = 1 + -(-122 // 8), bytes([3]) + np.array([1, 20, 300], "<u4").tobytes()
    assert data[head : head + len(table)] == table
    places = "10" * 40 + "01" * 40 + "00" * 40 + "11" * 2
    signs = "".join("01"[int(value < 0)] for value in vector)
    bits = [own + "0" * (-len(own) % 8) for own in (places, signs)]
    body = b"".join(int(own, 2).to_bytes(len(own) // 8, "big") for own in bits)
    assert data[head + len(table) :] == body + np.array([9, -8], "<i4").tobytes()
    np.testing.assert_array_equal(dense(data, len(plain)), plain)


def golomb(places: list[int], b: int) -> str:
    """The gaps before these places, written bit by bit as Sattler et al. (2019), Algorithm 3, do."""
    bits, before = "", -1
    for place in places:
        q, r = divmod(place - before - 1, 2**b)
        bits, before = bits + "1" * q + "0" + (f"{r:0{b}b}" if b else ""), place
    return bits


def test_few_places_take_gaps_in_golomb_code() -> None:
    """At p = 0.01 b is 6 by Sattler's formula: 8.4 bits a place and not 100."""
    vector, places = (
        np.zeros(2000, np.int32),
        sorted(np.random.default_rng(3).choice(2000, 20, False).tolist()),
    )
    vector[places] = 1
    p = 20 / 2000
    b = 1 + int(np.floor(np.log2(np.log((np.sqrt(5) - 1) / 2) / np.log(1 - p))))
    assert b == 6
    bits = golomb(places, b)
    bits += "0" * (-len(bits) % 8)
    body = bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
    assert sparse(vector) == bytes([16, 20, 0, 0, 0]) + body
    assert len(body) < 25


@every(
    ("data", "said"),
    [
        (b"", "a width"),
        (bytes([2, 0]), "common magnitudes of 0 values"),
        (bytes([2, 0b10000000, 1, 5, 0, 0]), "common magnitudes of 1 values"),
        (bytes([2, 0b10000000, 1, 5, 0, 0, 0, 0]), "0 values that are not common"),
        (bytes([2, 0b10000000, 1, 0, 0, 0, 128, 0, 0]), "values of int32"),
        (bytes([2, 0b10000000, 1, 5, 0, 0, 0, 0, 0]), "one encoding"),
        (bytes([8, 0]), "a width"),
        (bytes([32, 0]), "a width"),
        (bytes([0]), "1 bytes of bits"),
        (bytes([0, 0b00000001]), "places below 4"),
        (bytes([0, 0b10000000, 0]), "0 bytes for 1 values"),
        (bytes([4, 0b10000000]), "4 bytes for 1 values"),
        (bytes([1, 0b11000000, 5, 0, 0, 0]), "5 bytes for 2 values"),
        (bytes([1, 0b11000000, 1, 0, 0, 128, 0]), "values of int32"),
        (bytes([1, 0b11000000, 0, 0, 0, 128, 0]), "values of int32"),
        (bytes([4, 0b10000000, 0, 0, 0, 0]), "one encoding"),
        (bytes([4, 0b10000000, 1, 0, 0, 0]), "one encoding"),
        (bytes([1, 0b11000000, 5, 0, 0, 0, 1]), "one encoding"),
        (bytes([4, 0]), "one encoding"),
        (bytes([16, 0, 0, 0]), "at most 4 places"),
        (bytes([16, 5, 0, 0, 0, 0]), "at most 4 places"),
        (bytes([16, 1, 0, 0, 0]), "gaps of 1 places, got 0"),
        (bytes([16, 1, 0, 0, 0, 0b11111111]), "gaps of 1 places, got 0"),
        (bytes([16, 1, 0, 0, 0, 0b11110000]), "places below 4"),
        (bytes([16, 1, 0, 0, 0, 0b10000000]), "one encoding"),
        (bytes([16, 255, 255, 255, 255]), "at most 4 places"),
    ],
)
def test_other_bytes_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dense(data, 4)
