from __future__ import annotations

import numpy as np
import pytest

from securefl.core.errors import RemoteProtocolError
from securefl.he import gate
from securefl.he.parameters import COMPACT, STRONG, Parameters

SETS = pytest.mark.parametrize("parameters", [STRONG, COMPACT], ids=lambda p: p.name)


def drawn(parameters: Parameters, polynomials: int = 2) -> gate.Residues:
    rng = np.random.default_rng(1)
    rows = [
        [rng.integers(0, p, parameters.poly_modulus_degree, dtype=np.uint64) for p in parameters.primes]
        for _ in range(polynomials)
    ]
    return np.array(rows)


def opened(raw: bytes, parameters: Parameters) -> gate.Residues:
    return gate.unpack(raw, 2, parameters.primes, parameters.poly_modulus_degree, sender="mallory")


@SETS
def test_residues_survive_and_take_no_more_bytes_than_their_primes(parameters: Parameters) -> None:
    residues = drawn(parameters)
    raw = gate.pack(residues, parameters.primes)
    widths = [(prime.bit_length() + 7) // 8 for prime in parameters.primes[:2]]
    assert len(raw) == 2 * parameters.poly_modulus_degree * sum(widths)
    np.testing.assert_array_equal(opened(raw, parameters), residues)


def test_the_byte_layout_is_frozen() -> None:
    residues = np.array([[[1, 2], [3, 4]]], dtype=np.uint64)
    assert gate.pack(residues, (1 << 59, 300)).hex() == "0100000000000000" + "0200000000000000" + "03000400"


@SETS
def test_lengths_and_types_are_exact(parameters: Parameters) -> None:
    raw = gate.pack(drawn(parameters), parameters.primes)
    for bad in (b"", raw[:-1], raw + b"\0", raw[:16], raw * 2):
        with pytest.raises(RemoteProtocolError, match="mallory in phase gate"):
            opened(bad, parameters)
    with pytest.raises(RemoteProtocolError, match="as bytes"):
        opened(bytearray(raw), parameters)  # type: ignore[arg-type]


@SETS
@pytest.mark.parametrize("place", [(0, 0, 0), (0, 1, -1), (1, 0, 7), (1, 1, 100)])
def test_residues_at_or_above_their_prime_are_refused(
    parameters: Parameters, place: tuple[int, int, int]
) -> None:
    residues = drawn(parameters)
    prime = parameters.primes[place[1]]
    residues[place] = prime - 1
    opened(gate.pack(residues, parameters.primes), parameters)
    for bad in (prime, (1 << 8 * gate.integer_size(prime)) - 1):
        residues[place] = bad
        with pytest.raises(RemoteProtocolError, match="residues below"):
            opened(gate.pack(residues, parameters.primes), parameters)


def test_transparent_ciphertexts_are_refused_even_modulo_one_prime() -> None:
    residues = drawn(STRONG)
    gate.not_transparent(residues, sender="c")
    residues[1, 1] = 0
    with pytest.raises(RemoteProtocolError, match="transparent"):
        gate.not_transparent(residues, sender="c")


def test_integers_are_below_their_modulus_and_of_exact_length() -> None:
    q = STRONG.modulus
    assert gate.unpack_integer(gate.pack_integer(q - 1, q), q, sender="s") == q - 1
    for bad in (q.to_bytes(15, "little"), b"", bytes(14), bytes(16)):
        with pytest.raises(RemoteProtocolError):
            gate.unpack_integer(bad, q, sender="s")


def test_tags_separate_kinds_keys_and_terms() -> None:
    tags = {gate.tag(k, s * 32, t) for k in ("request", "reply") for s in (b"1", b"2") for t in (b"a", b"b")}
    assert len(tags) == 8
    tag = gate.tag("reply", b"1", b"2")
    assert gate.body(tag + b"xy", tag, 2, sender="s") == b"xy"
    with pytest.raises(RemoteProtocolError, match="key or set of terms"):
        gate.body(bytes(16) + b"xy", tag, 2, sender="s")
