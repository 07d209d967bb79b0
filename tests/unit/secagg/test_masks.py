"""Masks: the keystream that the specification says, added and taken away in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from support.every import every
from support.tiny_secagg import agreement, entropy, integers

from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.keys import SecretKey
from securefl.secagg import Vector, masks
from securefl.secagg.packing import Masker

SEED = SecretKey(bytes(range(32)))


def keystream(seed: bytes, vector: int, count: int) -> bytes:
    """AES in counter mode, block by block from the bare cipher."""
    blocks = [vector.to_bytes(8, "big") + at.to_bytes(8, "big") for at in range(2, 2 - (-count // 16))]
    cipher = Cipher(AES(seed), ECB()).encryptor()
    return b"".join(cipher.update(block) for block in blocks)[:count]


@every("by_gcm", [False, True])
@every("dtype", [np.uint32, np.uint64])
@every("length", [1, 3, 1000, 40_000])
@every("vector", [0, 1, 7])
def test_a_mask_is_the_keystream_of_its_seed_and_vector(
    dtype: Any, length: int, vector: int, by_gcm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both modes of the library draw the same bytes, so the machine may take the faster one."""
    monkeypatch.setattr(masks, "_gcm_is_faster", lambda: by_gcm)
    words = np.zeros(length, dtype)
    masks.apply_masks(words, vector, add=[SEED])
    expected = keystream(bytes(range(32)), vector, words.nbytes)
    assert words.astype(words.dtype.newbyteorder("<")).tobytes() == expected


@every("dtype", [np.uint32, np.uint64])
def test_what_is_added_can_be_taken_away(dtype: Any) -> None:
    random = entropy("away")
    seeds = [SecretKey(random(32)) for _ in range(300)]  # more than are open at once
    start = np.arange(100, dtype=dtype)
    words = start.copy()
    masks.apply_masks(words, 3, add=seeds[:200], subtract=seeds[200:])
    assert (words != start).all()
    masks.apply_masks(words, 3, add=seeds[200:], subtract=seeds[:200])
    np.testing.assert_array_equal(words, start)


def test_only_flat_vectors_of_words_are_masked() -> None:
    for bad in (np.zeros(4, np.int32), np.zeros((2, 2), np.uint32), np.zeros(8, np.uint32)[::2]):
        with pytest.raises(LocalProtocolError):
            masks.apply_masks(bad, 0, add=[SEED])


VECTOR = Vector(name="v", length=20_000, bits=20, bound=100)


def test_a_mask_serves_once() -> None:
    masker = Masker((VECTOR,), [((SEED,), ())])
    masker(0, integers(1, VECTOR))
    with pytest.raises(LocalProtocolError, match="A mask serves once"):
        masker(0, integers(2, VECTOR))


@every("bad", [np.full(20_000, 101), np.full(20_000, -101), np.zeros(19_999, int), np.zeros(20_000)])
def test_values_outside_the_declared_vector_are_refused(bad: Any) -> None:
    masker = Masker((VECTOR,), [((SEED,), ())])
    with pytest.raises(LocalProtocolError):
        masker(0, bad)
    masker(0, integers(1, VECTOR))  # the refusal has not used the mask up


@every(("bound", "clients"), [(25, 5), (31, 4)])
def test_a_sum_that_reaches_the_edge_does_not_fit(bound: int, clients: int) -> None:
    """Four times 32 is 2^7: in 8 bits it would come back as its own negative."""
    fits = Vector(name="v", length=1, bits=8, bound=bound)
    assert agreement(clients, corrupt=0.0, vectors=(fits,)).vectors == (fits,)
    with pytest.raises(ConfigError, match=f"up to {clients * (bound + 1)} of {clients} clients"):
        agreement(clients, corrupt=0.0, vectors=(replace(fits, bound=bound + 1),))
