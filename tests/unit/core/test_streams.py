"""Named random streams: the same name, the same numbers, for ever."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from securefl.core.entropy import Extract, drawn, fingerprint
from securefl.core.keys import SecretKey
from securefl.core.streams import public_seed, stream

labels = st.lists(st.one_of(st.integers(-9, 9), st.text("abc", min_size=1, max_size=3)), max_size=3)


def test_frozen_draws() -> None:
    """Made by this module at version 0.1.0; a change would change every published run."""
    assert stream(7, "selection", 12).integers(2**32, size=3).tolist() == [528865465, 3211979509, 1298937174]
    assert public_seed(7, "model") == 8149023724273111390


@given(st.integers(), labels, st.integers(), labels)
def test_names_differ_exactly_where_streams_do(a: int, some: list[str], b: int, others: list[str]) -> None:
    same = [str(x) for x in (a, *some)] == [str(x) for x in (b, *others)]
    drawn = [stream(s, *names).integers(2**63, size=2).tolist() for s, names in ((a, some), (b, others))]
    assert (drawn[0] == drawn[1]) == same


def test_one_stream_does_not_move_another_nor_the_global_one() -> None:
    before = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]  # noqa: NPY002
    first = stream(1, "a")
    first.normal(size=100)
    assert stream(1, "b").integers(2**63) == stream(1, "b").integers(2**63)
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]  # noqa: NPY002


def test_a_public_seed_is_a_positive_63_bit_integer() -> None:
    seeds = [public_seed(s, "x") for s in range(200)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == 200


def test_bytes_of_one_secret_differ_by_their_purpose() -> None:
    secrets, purposes = (SecretKey(bytes(32)), SecretKey(bytes(31) + b"s")), (b"one", b"two")
    both = [(secret, purpose) for secret in secrets for purpose in purposes]
    assert len({drawn(secret, purpose)(32) for secret, purpose in both}) == 4
    assert len({Extract(secret.reveal()).key(purpose).reveal() for secret, purpose in both}) == 4
    assert len({fingerprint(secret, purpose, b"content") for secret, purpose in both}) == 4
    assert drawn(*both[0])(32) == drawn(*both[0])(32)
    random = drawn(*both[0])
    assert random(32) != random(32)
