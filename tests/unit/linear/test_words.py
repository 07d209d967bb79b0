"""Words: arithmetic modulo 2^64 and 2^128 is that of Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.every import every

from securefl.core.keys import SecretKey
from securefl.linear import words

BITS = pytest.mark.parametrize("bits", [64, 128])


def of(values: list[int], bits: int) -> words.Words:
    return words.unpacked(b"".join((one % 2**bits).to_bytes(bits // 8, "little") for one in values), bits)


def read(found: words.Words) -> list[int]:
    size, data = 8 * found.shape[1], words.packed(found)
    return [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]


@BITS
@given(pairs=st.lists(st.tuples(st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1)), max_size=30))
def test_sums_differences_and_products_wrap_as_integers_do(bits: int, pairs: list[tuple[int, int]]) -> None:
    one, other = ([pair[side] % 2**bits for pair in pairs] for side in (0, 1))
    left, right = of(one, bits), of(other, bits)
    assert read(words.plus(left, right)) == [(a + b) % 2**bits for a, b in zip(one, other, strict=True)]
    assert read(words.minus(left, right)) == [(a - b) % 2**bits for a, b in zip(one, other, strict=True)]
    assert words.product(left, right) == sum(a * b for a, b in zip(one, other, strict=True)) % 2**bits


@BITS
@given(values=st.lists(st.integers(-(2**53), 2**53), max_size=30), shift=st.integers(0, 70))
def test_whole_floats_become_their_residues_and_back(bits: int, values: list[int], shift: int) -> None:
    scale = 2.0 ** min(shift, bits - 56)
    floats = np.array(values, dtype=np.float64) * scale
    found = words.from_floats(floats, bits)
    assert read(found) == [int(one) % 2**bits for one in floats]
    assert words.to_floats(found).tolist() == floats.tolist()
    assert [words.centred(one, bits) for one in read(found)] == [int(one) for one in floats]


@BITS
def test_the_largest_words_add_up_without_a_carry_that_is_lost(bits: int) -> None:
    count = 70_000
    full = of([2**bits - 1] * count, bits)
    assert words.product(full, full) == count % 2**bits, "(-1)^2, as often"


@every("bits", [64, 128])
def test_no_word_of_a_keystream_comes_twice(bits: int) -> None:
    """A word that comes twice hides two entries, and shows their difference."""
    made = words.keystream(SecretKey(bytes(range(32))), 500, bits)
    assert len({words.packed(made[at : at + 1]) for at in range(500)}) == 500
