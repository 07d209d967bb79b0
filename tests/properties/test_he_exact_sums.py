"""Encrypted sums equal clear ones bit for bit, whatever the lengths, bounds and survivors."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from support.tiny_he import SIGNER, keys

from securefl.he.openings import Openings
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED, Parameters
from securefl.sums.encrypted.parts import Place, SumEncryptor, SumEvaluator, SumOpener, SumTerms
from securefl.sums.encrypted.terms import Integers, plus

PLACE = Place(session=b"session", round=1, attempt=0, stage="train", name="update")
SPREADS = st.sampled_from(["uniform", "edges", "highest", "lowest"])


def terms_of(parameters: Parameters, length: int, bound: int, clients: int) -> SumTerms:
    return SumTerms(
        length=length, bound=bound, clients=clients, parameters=parameters, openings=2**24, place=PLACE
    )


def drawn(seed: int, clients: int, length: int, bound: int, spread: str) -> Integers:
    rng = np.random.default_rng(seed)
    match spread:
        case "uniform":
            return rng.integers(-bound, bound + 1, (clients, length))
        case "edges":
            return rng.choice(np.array([-bound, -1, 0, 1, bound]), (clients, length))
        case "highest":
            return np.full((clients, length), bound)
        case _:
            return np.full((clients, length), -bound)


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(
    parameters=st.sampled_from([STRONG, STRONG_ENCRYPTED]),
    length=st.integers(1, 20_000),
    bound=st.integers(1, 2**30),
    clients=st.integers(1, 60),
    lost=st.floats(0, 1),
    spread=SPREADS,
    seed=st.integers(0, 2**32),
)
@example(parameters=STRONG, length=20_000, bound=2**30, clients=60, lost=0.0, spread="edges", seed=1)
@example(parameters=STRONG, length=1, bound=1, clients=1, lost=0.0, spread="lowest", seed=1)
def test_encrypted_sums_are_exact_over_the_survivors(
    parameters: Parameters, length: int, bound: int, clients: int, lost: float, spread: str, seed: int
) -> None:
    terms, pair = terms_of(parameters, length, bound, clients), keys(parameters)
    survivors = max(1, round(clients * (1 - lost)))
    vectors = drawn(seed, survivors, length, bound, spread)
    client, evaluator = SumEncryptor(pair.public, terms), SumEvaluator(pair.public, terms, SIGNER)
    total = None
    for i, vector in enumerate(vectors):
        total = evaluator.add(total, client.encrypt(vector), sender=f"client {i}")
    assert total is not None
    store = Openings()
    blinded, request = evaluator.request(total)
    reply = SumOpener(pair, terms, SIGNER.public, openings=store).open(request)
    store.close()
    np.testing.assert_array_equal(evaluator.unblind(blinded, reply), vectors.sum(axis=0))


@settings(max_examples=150)
@given(
    parameters=st.sampled_from([STRONG, STRONG_ENCRYPTED, COMPACT]),
    length=st.integers(1, 30_000),
    bits=st.floats(0, 52),
    clients=st.integers(1, 60),
    spread=SPREADS,
    seed=st.integers(0, 2**32),
)
def test_coded_integers_add_up(
    parameters: Parameters, length: int, bits: float, clients: int, spread: str, seed: int
) -> None:
    """The coding alone, to the widest sums that fit: residues are below their primes, and 0 mod the first."""
    bound = int(2**bits)
    assume(2 * clients * bound + 1 <= parameters.primes[-1])
    terms = terms_of(parameters, length, bound, clients)
    vectors = drawn(seed, min(clients, 4), length, bound, spread)
    if spread in ("highest", "lowest"):
        vectors = np.repeat(vectors[:1], clients, axis=0)
    coded = [terms.encode(vector) for vector in vectors[:4]]
    total = coded[0]
    for i in range(1, len(vectors)):
        total = plus(total, coded[min(i, len(coded) - 1)], parameters.primes)
    assert not total[:, 0].any()
    assert (total < np.array(parameters.primes, dtype=np.uint64)[:, None]).all()
    np.testing.assert_array_equal(terms.decode(total[:, 1:]), vectors.sum(axis=0))
