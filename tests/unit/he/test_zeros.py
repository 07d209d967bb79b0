"""Zeros that are encrypted beforehand: each becomes one ciphertext, and none is left."""

from __future__ import annotations

import os
import weakref
from functools import cache
from typing import Any

import numpy as np
import pytest
import tenseal.sealapi as sealapi
from support.every import every

from securefl.he import ring as ring_of
from securefl.he.gate import Residues
from securefl.he.integers import coefficient_rows, products
from securefl.he.keys import KeyPair
from securefl.he.parameters import COMPACT, STRONG, Parameters
from securefl.he.ring import Ring
from securefl.he.zeros import Zeros

SCALE = 2**40
ONE, OTHER = np.array([1.0, -2.5, 3.0]), np.array([4.0, 0.5, 0.25])
NOISE = 2.0**16
"""Above any fresh noise, and far below the first coefficient of a message, 2 / N times its sum at SCALE."""


@cache
def pair(parameters: Parameters = COMPACT) -> KeyPair:
    return KeyPair.generate(parameters)


def prepared(ring: Ring, most: int = 2) -> Zeros:
    own = Zeros(ring, pair().public, most)
    while own.prepare():
        pass
    return own


def encrypted(own: Zeros, ring: Ring, values: Any) -> Residues:
    return own.encrypt(ring.encode(values, SCALE), SCALE)


def opened(ring: Ring, cipher: Residues) -> float:
    """The sum of the encrypted values, from the first coefficient that the key holder decrypts."""
    p = ring.parameters
    whole = ring.coefficients(ring.ciphertext(cipher, 1.0))
    (masked,) = products(coefficient_rows(pair().coefficients(), [0]), whole[1], p)
    first = p.centre((p.compose(tuple(int(r) for r in whole[0, :, 0])) + masked) % p.modulus)
    return first * p.poly_modulus_degree / 2 / SCALE


class _FixedRandomness:
    """SEAL, but every encryption of a new ring draws the same numbers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sealapi, name)

    def EncryptionParameters(self, scheme: Any) -> Any:
        made: Any = sealapi.EncryptionParameters(scheme)
        made.set_random_generator(sealapi.Blake2xbPRNGFactory(list(range(8))))
        return made


@every("parameters", [STRONG, COMPACT])
def test_of_the_same_randomness_a_ciphertext_has_the_bits_of_seals_own(
    parameters: Parameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_of, "sealapi", _FixedRandomness())
    ring, public = Ring(parameters), pair(parameters).public  # a new one takes its randomness from here
    plain = ring.encode(ONE, SCALE)
    own = ring.encrypt(ring.encryptor(public.residues()), plain)
    zeros = Zeros(ring, public, most=1)
    zeros.prepare()
    for count in (1, 0):
        assert len(zeros) == count
        np.testing.assert_array_equal(zeros.encrypt(plain, SCALE), own)


def test_each_zero_becomes_one_ciphertext() -> None:
    """Two prepared ones and one of the moment. Reuse would leave two second polynomials alike."""
    ring = Ring.of(COMPACT)
    own = prepared(ring)
    messages = [ONE, OTHER, ONE]
    made, left = [], []
    for values in messages:
        made.append(encrypted(own, ring, values))
        left.append(len(own))
    assert left == [1, 0, 0]
    assert len({cipher[1].tobytes() for cipher in made}) == 3
    tolerance = NOISE * COMPACT.poly_modulus_degree / 2 / SCALE
    for cipher, values in zip(made, messages, strict=True):
        assert opened(ring, cipher) == pytest.approx(values.sum(), abs=tolerance)


def test_why_two_ciphertexts_of_one_zero_show_the_difference_of_their_messages() -> None:
    """The attack, without a key. It reads nothing of two ciphertexts of `Zeros`."""
    ring, primes = Ring.of(COMPACT), np.array(COMPACT.primes, dtype=np.uint64)[:, None]
    encryptor = ring.encryptor(pair().public.residues())
    zero = ring.residues(ring.zero(encryptor, 1.0))

    def of_one_zero(values: Any) -> Residues:
        cipher = ring.ciphertext(zero, float(SCALE))
        return ring.residues(ring.with_plain(cipher, ring.encode(values, SCALE)))

    def attack(one: Residues, other: Residues) -> bool:
        """Whether the difference is that of the two messages."""
        plain = np.array(ring.encoded(ONE, SCALE)), np.array(ring.encoded(OTHER, SCALE))
        transformed = [ring.transformed(each) for each in plain]
        found, truth = ((a + primes - b) % primes for a, b in ((one[0], other[0]), transformed))
        return np.array_equal(found, truth)

    assert attack(of_one_zero(ONE), of_one_zero(OTHER))
    own = prepared(ring)
    assert not attack(encrypted(own, ring, ONE), encrypted(own, ring, OTHER))


def spied(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """A list that grows by every zero that this ring makes from now on, without keeping it alive."""
    made: list[weakref.ref[Any]] = []
    make = ring.zero

    def zero(encryptor: Any, scale: float) -> Any:
        found = make(encryptor, scale)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(ring, "zero", zero)
    return made


def test_no_zero_is_left_after_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.of(COMPACT)
    made = spied(ring, monkeypatch)
    own = prepared(ring)
    assert [one() is not None for one in made] == [True, True]
    encrypted(own, ring, ONE)
    assert [one() is not None for one in made] == [True, False], "the second one was used"
    encrypted(own, ring, ONE)
    encrypted(own, ring, ONE)
    assert [one() is not None for one in made] == [False] * 3


def test_a_zero_whose_use_fails_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.of(COMPACT)
    own = prepared(ring)

    def full(cipher: Any) -> Residues:
        raise MemoryError

    monkeypatch.setattr(ring, "residues", full)
    with pytest.raises(MemoryError):
        encrypted(own, ring, ONE)
    assert len(own) == 1


def test_a_forked_process_has_none_of_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.of(COMPACT)
    made = spied(ring, monkeypatch)
    own = prepared(ring)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    encrypted(own, ring, ONE)
    assert len(made) == 3, "it made one of its own"
    assert len(own) == 0
    assert own.prepare()
    assert len(own) == 1


@every("most", [1, 3])
def test_no_more_are_kept_than_the_bound(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.of(COMPACT)
    made = spied(ring, monkeypatch)
    own = prepared(ring, most)
    assert not any(own.prepare() for _ in range(3))
    assert len(own) == len(made) == most
