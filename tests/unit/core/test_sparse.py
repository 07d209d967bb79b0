"""Vectors without their zeros: one form for each vector, and no other bytes are read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

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


def test_ones_take_a_bit_each() -> None:
    assert sparse(np.array([1, 0, 0, 1, 0, 0, 0, 0, 1], np.int32)) == bytes([0, 0b10010000, 0b10000000])
    assert len(sparse(np.full(80, 5, np.int32))) == 1 + 10 + 320


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "a width"),
        (bytes([2, 0]), "a width"),
        (bytes([0]), "1 bytes of bits"),
        (bytes([0, 0b00000001]), "0 bytes for each"),
        (bytes([0, 0b10000000, 0]), "0 bytes for each"),
        (bytes([4, 0b10000000]), "4 bytes for each"),
        (bytes([4, 0b10000000, 0, 0, 0, 0]), "not 0"),
        (bytes([4, 0b10000000, 1, 0, 0, 0]), "not all 1"),
        (bytes([4, 0]), "not all 1"),
    ],
    ids=[
        "nothing",
        "another width",
        "no bits",
        "a bit behind the end",
        "values of ones",
        "a value too few",
        "a zero as a value",
        "ones as values",
        "no value, with a width",
    ],
)
def test_other_bytes_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dense(data, 4)
