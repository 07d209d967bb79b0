"""Packing to b bits: a bijection, tight, and the same bytes as one long little-endian number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.every import every

from securefl.core.errors import CryptoError, LocalProtocolError
from securefl.secagg.packing import centred, pack, packed_bytes, reduce, unpack, word, words


@given(st.integers(8, 64), st.integers(1, 40), st.integers(0, 2**32))
def test_packing_is_the_long_number_and_comes_back(bits: int, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2**bits - 1, length, dtype=np.uint64, endpoint=True)
    vector = values.astype(word(bits))
    packed = pack(vector, bits)
    number = sum(int(value) << (bits * at) for at, value in enumerate(values))
    assert packed.tobytes() == number.to_bytes(packed_bytes(length, bits), "little")
    np.testing.assert_array_equal(unpack(packed, length, bits), vector)


@every("bits", [32, 64])
def test_a_full_word_is_a_view(bits: int) -> None:
    vector = np.arange(5).astype(word(bits))
    assert np.shares_memory(pack(vector, bits), vector)


def test_up_to_32_bits_take_at_most_four_bytes() -> None:
    assert packed_bytes(1000, 32) == 4000
    assert packed_bytes(1000, 20) == 2500
    assert packed_bytes(3, 9) == 4


@given(st.integers(8, 64), st.integers(0, 2**32))
def test_signed_integers_come_back_from_their_residues(bits: int, seed: int) -> None:
    half = 1 << (bits - 1)
    values = np.random.default_rng(seed).integers(-half, half - 1, 9, endpoint=True)
    vector = words(values, bits)
    reduce(vector, bits)
    assert int(vector.max()) < 2**bits
    np.testing.assert_array_equal(centred(vector, bits), values)


def test_bytes_that_pack_gives_for_no_vector_are_refused() -> None:
    good = pack(np.array([1, 2, 3], np.uint32), 9)
    for bad in (good[:-1], np.append(good, np.uint8(0)), good.view(np.int8)):
        with pytest.raises(CryptoError, match="Expected 4 bytes"):
            unpack(bad, 3, 9)
    spoilt = good.copy()
    spoilt[-1] |= 0x80
    with pytest.raises(CryptoError, match="after the last value"):
        unpack(spoilt, 3, 9)


def test_wrong_calls_are_refused() -> None:
    for bits in (7, 65):
        with pytest.raises(LocalProtocolError, match="8 to 64 bits"):
            word(bits)
    with pytest.raises(LocalProtocolError, match="words"):
        pack(np.zeros(3, np.uint64), 20)
    with pytest.raises(LocalProtocolError, match="integers"):
        words(np.zeros(3), 20)
