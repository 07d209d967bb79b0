"""What each party sees, measured. Every test states its false alarm; keys and noise are fresh each run.

Tests that look at the same messages in several ways share them.
"""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import signal, stats
from support.every import every
from support.tiny_he import BOUNDS, SIGNER, Checked, Quiet, keys, seeded

from securefl.core.linear import LinearQuery
from securefl.dp.moments import MeanVariance
from securefl.he import gate
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED, Parameters
from securefl.linear.checked import c1_of, key_factors, share_of
from securefl.linear.checks import Checks
from securefl.linear.encrypted import LinearEvaluator, Opener
from securefl.linear.encryptor import Encryptor, admitted
from securefl.linear.terms import LinearTerms, flooded
from securefl.matching.profiles import Anchor, Variant, divergence, features, linear_query

Q = 84
ALARM = 1e-7
ANCHOR = Anchor(np.zeros(Q), np.ones(Q))
CLIENT = MeanVariance(np.linspace(-1, 1, Q), np.ones(Q), 50)
# weights that differ by a factor of ten in norm
SMALL = MeanVariance(np.zeros(Q), np.full(Q, 2.5), 50)
LARGE = MeanVariance(np.zeros(Q), np.full(Q, 0.25), 50)


def terms(parameters: Parameters, scores: int = 5000) -> LinearTerms:
    return LinearTerms(parameters=parameters, bounds=BOUNDS.linear(Q, Variant.FULL), scores=scores)


def integer(reply: bytes) -> int:
    return int.from_bytes(reply[gate.TAG :], "little")


def uniformity(shares: NDArray[np.float64], bins: int) -> float:
    """p-value of a chi-square test of values in [0, 1) against uniform."""
    counts = np.bincount((shares * bins).astype(int), minlength=bins)
    return float(stats.chisquare(counts).pvalue)


@every("parameters", [STRONG, COMPACT])
def test_the_flooding_has_the_declared_variance(parameters: Parameters) -> None:
    """sigma^2 from the specification's formula; chi-square, 800 degrees, and two more: false alarm 4e-7."""
    made, n = terms(parameters, SCORES), parameters.poly_modulus_degree
    noise = np.array([float(parameters.centre(loud - quiet)) for loud, quiet in replies(parameters)])
    fresh = np.sqrt((1 + 2 * n / 3) / 12)
    t = 8 * fresh * np.sqrt(n / 2) * 16 * np.sqrt(Q) / (Q * made.data_scale)
    sigma = np.sqrt(12 * SCORES) * 2**20 * t * Q / made.unit
    low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], SCORES)
    assert low < np.sum((noise / sigma) ** 2) < high
    assert abs(np.sum(noise / sigma)) < 5.4 * np.sqrt(SCORES)
    assert stats.kstest(noise / sigma, "norm").pvalue > ALARM


SCORES = 800


@cache
def replies(parameters: Parameters) -> list[tuple[int, int]]:
    """Of each of 800 integers the opening, and the same without its noise."""
    made, values = terms(parameters, SCORES), [i << 60 for i in range(SCORES)]
    loud, quiet = random.SystemRandom(), Quiet()
    return [(flooded(one, made, loud), flooded(one, made, quiet)) for one in values]


@every("parameters", [STRONG, COMPACT])
def test_no_bit_of_a_reply_comes_without_noise(parameters: Parameters) -> None:
    """Replies lie on the grid, and the lowest bits above it are uniform: false alarm 1e-7."""
    made = terms(parameters, SCORES)
    wrapped = {k * parameters.modulus % made.grid for k in (-1, 0, 1)}
    assert all(loud % made.grid in wrapped for loud, _ in replies(parameters))
    steps = [parameters.centre(loud - quiet) // made.grid for loud, quiet in replies(parameters)]
    assert uniformity(np.array([step % 16 / 16 for step in steps]), 16) > ALARM


@pytest.mark.parametrize("parameters", [STRONG, COMPACT], ids=lambda p: p.name)
def test_the_encryption_noise_is_what_t_claims(parameters: Parameters) -> None:
    """Encrypted zeros times weights of known norm leave the noise alone.

    Its variance against (t/8)^2 for that norm, times what this very key moves it by: chi-square with 200
    degrees, false alarm 2e-7.
    """
    count, made = 200, terms(parameters)
    weights = linear_query(LARGE, ANCHOR, BOUNDS)
    checks, pair, noise = Checks(terms=made, context=b""), keys(parameters), []
    coefficients, client = checks.encoded(weights), Encryptor(pair.public, made)
    own, held = checks.factors(coefficients), key_factors(coefficients, pair, checks)
    tag = gate.tag("ciphertext", pair.public.session, made.digest())
    for _ in range(count):
        (part,) = admitted(client.encrypt(np.zeros(made.hidden_length)), tag, made, sender="test")
        opened = share_of(held, [part[1]], made, Quiet()) + share_of(own, [part[0]], made, Quiet())
        noise.append(float(parameters.centre(opened)))
    share = float(np.linalg.norm(weights.hidden)) / made.weight_norm
    low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], count)
    found = np.sum((np.array(noise) / (share * made.noise_bound / 8)) ** 2)
    assert low < found / of_key(parameters, weights) < high


def of_key(parameters: Parameters, query: LinearQuery) -> float:
    """|s w|^2 of this key and these weights as polynomials, over its mean over keys, 2 N / 3 |w|^2.

    A fresh ciphertext's noise is a rounding of each of its polynomials, one of them times s. The weights
    stand in few slots, and each key has other values there.
    """
    n, made = parameters.poly_modulus_degree, terms(parameters)
    (weights,) = Checks(terms=made, context=b"").encoded(query).astype(np.float64)
    turn = np.exp(1j * np.pi * np.arange(n) / n)
    powers = [np.abs(np.fft.fft(own * turn)) ** 2 for own in (keys(parameters).coefficients(), weights)]
    return float(np.mean(powers[0] * powers[1]) / (2 * n / 3 * np.sum(np.square(weights))))


@pytest.mark.parametrize("parameters", [STRONG, COMPACT], ids=lambda p: p.name)
def test_the_error_bound_is_not_loose(parameters: Parameters) -> None:
    """All scores lie inside it, and it is at most 20 times their root mean square. The flooding is seeded."""
    made = terms(parameters)
    parties, rng = Checked(parameters, linear_query(SMALL, ANCHOR, BOUNDS), scores=5000), seeded()
    message = parties.message(features(CLIENT, ANCHOR, BOUNDS).split(Variant.FULL).hidden)
    arrived = parties.arrived(message)
    request, errors = parties.server.request([arrived]), []
    for _ in range(100):
        reply = parties.holder(rng).open(request)
        (opened,) = parties.server.opened([arrived], reply, sender="key holder")
        assert opened is not None
        errors.append(parties.server.score(arrived, opened).value - divergence(CLIENT, SMALL))
    assert max(map(abs, errors)) <= made.error_bound()
    assert made.error_bound() < 20 * np.sqrt(np.mean(np.square(errors)))


# Scores that the key holder reads -------------------------------------------------------------------


class Addressing:
    """An encrypted baseline and one client, under one key."""

    def __init__(self, base: MeanVariance) -> None:
        pair, self.terms = keys(STRONG_ENCRYPTED), terms(STRONG_ENCRYPTED)
        self.evaluator, client = (
            LinearEvaluator(pair.public, self.terms, SIGNER),
            Encryptor(pair.public, self.terms),
        )
        self.opener = Opener(pair, self.terms, SIGNER.public, rng=Quiet())
        self.ciphertext = client.encrypt(features(CLIENT, ANCHOR, BOUNDS).split(Variant.FULL).hidden)
        asked = linear_query(base, ANCHOR, BOUNDS)
        self.baseline = self.evaluator.encrypted_baseline(client.encrypt_baseline(asked))

    def request(self) -> bytes:
        return self.evaluator.addressed(self.ciphertext, self.baseline)


def test_scores_for_the_key_holder_do_not_show_the_norm_of_the_weights() -> None:
    """The evaluator's flooding has variance 1 whatever the weights: chi-square, 40 degrees, alarm 4e-7.

    What the key holder reads, its own flooding taken away, in units of sigma around the true score.
    """
    low, high = stats.chi2.ppf([ALARM, 1 - ALARM], 40)
    for base in (SMALL, LARGE):
        parties, truth = Addressing(base), divergence(CLIENT, base)
        values = np.array([parties.opener.read(parties.request()).value for _ in range(40)])
        unit = parties.terms.sigma * parties.terms.unit
        assert low < np.sum(np.square((values - truth) * Q / unit)) < high


def test_no_other_coefficient_can_be_decrypted() -> None:
    """What would show a rotation's partial sums: a request holds one integer, and the polynomials c1 and c2.

    c1 s and c2 s, which the key holder can compute, are uniform in every coefficient (false alarm 1e-7 each).
    """
    p, raw = STRONG_ENCRYPTED, Addressing(LARGE).request()
    size, n = gate.integer_size(p.modulus), p.poly_modulus_degree
    rest = raw[gate.TAG + size : -64]
    assert len(rest) == gate.residues_size(2, p.primes, n), "no first polynomial is sent"
    secret = keys(p).coefficients()
    for polynomial in gate.unpack(rest, 2, p.primes, n, sender="test"):
        for row, prime in zip(polynomial, p.primes, strict=True):
            products = fftconvolve_mod(row, secret, prime)
            assert uniformity(products / float(prime), 64) > ALARM


def fftconvolve_mod(row: NDArray[np.uint64], secret: NDArray[np.int64], prime: int) -> NDArray[np.float64]:
    """row * secret mod X^N + 1 and the prime, exactly, in pieces of 15 bits."""
    n = len(row)
    total = np.zeros(n, dtype=object)
    for shift in range(0, 60, 15):
        piece = ((row >> np.uint64(shift)) & np.uint64(0x7FFF)).astype(np.int64)
        whole = np.rint(signal.fftconvolve(piece, secret)).astype(np.int64)
        folded = whole[:n].copy()
        folded[: n - 1] -= whole[n:]
        total = (total + folded.astype(object) * (1 << shift)) % prime
    return total.astype(np.float64)


def test_the_half_that_is_checked_says_nothing_of_the_vector() -> None:
    """The key holder gets c1 and the weights: c1 is uniform, and so is its product with them and the key.

    False alarm 1e-7 for the product and for each prime.
    """
    pair, made = keys(COMPACT), terms(COMPACT)
    checks = Checks(terms=made, context=b"here")
    weights = checks.encoded(linear_query(SMALL, ANCHOR, BOUNDS))
    factors, halves, shares = key_factors(weights, pair, checks), [], []
    hidden = features(CLIENT, ANCHOR, BOUNDS).split(Variant.FULL).hidden
    encryptor = Encryptor(pair.public, made)
    for _ in range(320):
        half = c1_of(encryptor.encrypt(hidden), checks)
        halves.append(gate.unpack(half, 1, COMPACT.primes, COMPACT.poly_modulus_degree, sender="test")[0])
        shares.append(share_of(factors, [halves[-1]], made, Quiet()) / COMPACT.modulus)
    assert uniformity(np.array(shares), 16) > ALARM
    sizes = np.array(COMPACT.primes, dtype=np.float64)[:, None]
    for row in np.concatenate([half / sizes for half in halves[:20]], axis=1):
        assert uniformity(row, 64) > ALARM
