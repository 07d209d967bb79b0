"""What each party sees, measured. Every test states its false alarm; keys and noise are fresh each run.

Tests that look at the same messages in several ways share them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import signal, stats
from support.tiny_he import BOUNDS, SIGNER, Quiet, keys, seeded

from securefl.core.linear import LinearQuery
from securefl.dp.moments import MeanVariance
from securefl.he import gate
from securefl.he.parameters import COMPACT, STRONG, Parameters
from securefl.he.ring import Ring
from securefl.linear.checked import Halves, key_factors, share_of
from securefl.linear.checks import Checks, encoded
from securefl.linear.encryptor import Encryptor
from securefl.linear.evaluator import LinearEvaluator
from securefl.linear.opener import Opener
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Anchor, Variant, divergence, features, linear_query

Q = 84
ALARM = 1e-7
ANCHOR = Anchor(np.zeros(Q), np.ones(Q))
CLIENT = MeanVariance(np.linspace(-1, 1, Q), np.ones(Q), 50)
# weights that differ by a factor of ten in norm
SMALL = MeanVariance(np.zeros(Q), np.full(Q, 2.5), 50)
LARGE = MeanVariance(np.zeros(Q), np.full(Q, 0.25), 50)
NORMS = {"small": SMALL, "large": LARGE}


def terms(parameters: Parameters, scores: int = 5000) -> LinearTerms:
    return LinearTerms(parameters=parameters, bounds=BOUNDS.linear(Q, Variant.FULL), scores=scores)


def integer(reply: bytes) -> int:
    return int.from_bytes(reply[gate.TAG :], "little")


def uniformity(shares: NDArray[np.float64], bins: int) -> float:
    """p-value of a chi-square test of values in [0, 1) against uniform."""
    counts = np.bincount((shares * bins).astype(int), minlength=bins)
    return float(stats.chisquare(counts).pvalue)


@cache
def requests(norm: str) -> list[bytes]:
    """320 requests made of one client's ciphertext, under weights of this norm."""
    public, made = keys(COMPACT).public, terms(COMPACT)
    evaluator = LinearEvaluator(public, made, SIGNER)
    hidden = features(CLIENT, ANCHOR, BOUNDS).split(Variant.FULL).hidden
    ciphertext = Encryptor(public, made).encrypt(hidden)
    baseline = evaluator.baseline(linear_query(NORMS[norm], ANCHOR, BOUNDS))
    return [evaluator.match(ciphertext, baseline).request for _ in range(320)]


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """Requests are 70 MB."""
    yield
    requests.cache_clear()


@cache
def opened(norm: str) -> NDArray[np.float64]:
    """What the key holder opens of these requests, without its noise, over the modulus."""
    opener = Opener(keys(COMPACT), terms(COMPACT), SIGNER.public, rng=Quiet())
    return np.array([integer(opener.open(r)) / COMPACT.modulus for r in requests(norm)])


def residue_shares(request: bytes, parameters: Parameters) -> NDArray[np.float64]:
    """All residues of a request's polynomial, divided by their primes, (primes, N)."""
    start = gate.TAG + gate.integer_size(parameters.modulus)
    n = parameters.poly_modulus_degree
    rows = gate.unpack(request[start:-64], 1, parameters.primes, n, sender="test")[0]
    shares: NDArray[np.float64] = rows / np.array(parameters.primes, dtype=np.float64)[:, None]
    return shares


@pytest.mark.parametrize("norm", NORMS)
def test_the_key_holder_sees_uniform_values_whatever_the_weights(norm: str) -> None:
    """Four p-values a case: false alarm 4e-7. The secret key is used, as the key holder would."""
    made = requests(norm)
    masked = np.array([integer(r[: gate.TAG + 12]) / COMPACT.modulus for r in made])
    assert uniformity(opened(norm), 16) > ALARM
    assert uniformity(masked, 16) > ALARM
    for row in np.concatenate([residue_shares(r, COMPACT) for r in made[:20]], axis=1):
        assert uniformity(row, 64) > ALARM


def test_the_second_polynomial_is_fresh_each_time() -> None:
    """A key holder with the client's ciphertext would divide by it; two requests must differ uniformly.

    False alarm 1e-7 a prime.
    """
    shares = [residue_shares(r, COMPACT) for r in requests("large")[:12]]
    pairs = zip(shares[::2], shares[1::2], strict=True)
    for row in np.concatenate([(a - b) % 1.0 for a, b in pairs], axis=1):
        assert uniformity(row, 64) > ALARM


def test_the_reply_alone_is_uniform() -> None:
    """Without its mask the evaluator's outbox tells nobody a score: false alarm 1e-7."""
    opener = Opener(keys(COMPACT), terms(COMPACT), SIGNER.public)
    answers = np.array([integer(opener.open(r)) / COMPACT.modulus for r in requests("small")])
    assert uniformity(answers, 16) > ALARM


@pytest.mark.parametrize("parameters", [STRONG, COMPACT], ids=lambda p: p.name)
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


def plain_requests(parameters: Parameters, made: LinearTerms, count: int) -> list[bytes]:
    """Well-formed requests without an evaluator: one random polynomial, another integer each time."""
    tag = gate.tag("request", keys(parameters).public.session, made.digest())
    rng, n = np.random.default_rng(7), parameters.poly_modulus_degree
    rows = np.array([[rng.integers(0, p, n, dtype=np.uint64) for p in parameters.primes]])
    end = gate.pack(rows, parameters.primes)
    size = gate.integer_size(parameters.modulus)
    plain = [tag + (i << 60).to_bytes(size, "little") + end for i in range(count)]
    return [message + SIGNER.sign(message).raw for message in plain]


SCORES = 800


@cache
def replies(parameters: Parameters) -> list[tuple[int, int]]:
    """To each of 800 requests the reply, and the same reply without its noise."""
    made = terms(parameters, SCORES)
    loud, quiet = (
        Opener(keys(parameters), made, SIGNER.public),
        Opener(keys(parameters), made, SIGNER.public, rng=Quiet()),
    )
    raw = plain_requests(parameters, made, SCORES)
    return [(integer(loud.open(r)), integer(quiet.open(r))) for r in raw]


@pytest.mark.parametrize("parameters", [STRONG, COMPACT], ids=lambda p: p.name)
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
    public = keys(parameters).public
    evaluator, client = LinearEvaluator(public, made, SIGNER), Encryptor(public, made)
    opener = Opener(keys(parameters), made, SIGNER.public, rng=Quiet())
    weights = linear_query(LARGE, ANCHOR, BOUNDS)
    baseline = evaluator.baseline(weights)
    noise = []
    for _ in range(count):
        blinded = evaluator.match(client.encrypt(np.zeros(made.hidden_length)), baseline)
        noise.append(float(parameters.centre(integer(opener.open(blinded.request)) - blinded.mask)))
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
    (weights,) = encoded(query, Checks(terms=made, context=b""), Ring.of(parameters)).astype(np.float64)
    turn = np.exp(1j * np.pi * np.arange(n) / n)
    powers = [np.abs(np.fft.fft(own * turn)) ** 2 for own in (keys(parameters).coefficients(), weights)]
    return float(np.mean(powers[0] * powers[1]) / (2 * n / 3 * np.sum(np.square(weights))))


@pytest.mark.parametrize("parameters", [STRONG, COMPACT], ids=lambda p: p.name)
def test_the_error_bound_is_not_loose(parameters: Parameters) -> None:
    """All scores lie inside it, and it is at most 20 times their root mean square. The flooding is seeded."""
    count, made = 100, terms(parameters)
    public = keys(parameters).public
    evaluator, client = LinearEvaluator(public, made, SIGNER), Encryptor(public, made)
    opener = Opener(keys(parameters), made, SIGNER.public, rng=seeded())
    ciphertext = client.encrypt(features(CLIENT, ANCHOR, BOUNDS).split(Variant.FULL).hidden)
    baseline = evaluator.baseline(linear_query(SMALL, ANCHOR, BOUNDS))
    errors = []
    for _ in range(count):
        blinded = evaluator.match(ciphertext, baseline)
        score = evaluator.unblind(blinded, opener.open(blinded.request))
        errors.append(score.value - divergence(CLIENT, SMALL))
    assert max(map(abs, errors)) <= made.error_bound()
    assert made.error_bound() < 20 * np.sqrt(np.mean(np.square(errors)))


def test_two_baselines_with_equal_scores_look_alike_to_the_key_holder() -> None:
    """Norms of the weights differ by ten; the openings' distributions are compared: false alarm 1e-7."""
    assert stats.ks_2samp(opened("small"), opened("large")).pvalue > ALARM


# Scores that the key holder reads, and batches -----------------------------------------------------


def addressed(base: MeanVariance, count: int) -> list[float]:
    """What the key holder reads, its own flooding taken away, in units of sigma around the true score."""
    public, made = keys(COMPACT).public, terms(COMPACT)
    evaluator, client = LinearEvaluator(public, made, SIGNER), Encryptor(public, made)
    opener = Opener(keys(COMPACT), made, SIGNER.public, rng=Quiet())
    ciphertext = client.encrypt(features(CLIENT, ANCHOR, BOUNDS).split(Variant.FULL).hidden)
    baseline, truth = evaluator.baseline(linear_query(base, ANCHOR, BOUNDS)), divergence(CLIENT, base)
    values = [opener.read(evaluator.addressed(ciphertext, baseline)).value for _ in range(count)]
    return [(value - truth) * Q / (made.sigma * made.unit) for value in values]


def test_scores_for_the_key_holder_do_not_show_the_norm_of_the_weights() -> None:
    """The evaluator's flooding has variance 1 whatever the weights: chi-square, 200 degrees, alarm 4e-7."""
    low, high = stats.chi2.ppf([ALARM, 1 - ALARM], 200)
    for base in (SMALL, LARGE):
        assert low < np.sum(np.square(addressed(base, 200))) < high


@pytest.mark.parametrize("kind", ["request", "addressed"])
def test_no_other_coefficient_can_be_decrypted(kind: str) -> None:
    """What would show a rotation's partial sums: a request holds its integers, and a polynomial c1.

    c1 s, which the key holder can compute, is uniform in every coefficient (false alarm 1e-7 each of two).
    """
    public = keys(COMPACT).public
    made = LinearTerms(parameters=COMPACT, bounds=BOUNDS.linear(Q, Variant.FULL), scores=50)
    evaluator, client = LinearEvaluator(public, made, SIGNER), Encryptor(public, made)
    ciphertext = client.encrypt(features(CLIENT, ANCHOR, BOUNDS).split(Variant.FULL).hidden)
    baseline = evaluator.baseline(linear_query(LARGE, ANCHOR, BOUNDS))
    if kind == "request":
        raw = evaluator.match(ciphertext, baseline).request
    else:
        raw = evaluator.addressed(ciphertext, baseline)
    size, n = gate.integer_size(COMPACT.modulus), COMPACT.poly_modulus_degree
    polynomial = raw[gate.TAG + size : -64]
    assert len(polynomial) == gate.residues_size(1, COMPACT.primes, n), "no first polynomial is sent"
    residues = gate.unpack(polynomial, 1, COMPACT.primes, n, sender="test")[0]
    secret = keys(COMPACT).coefficients()
    for row, prime in zip(residues, COMPACT.primes, strict=True):
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
    pair, made, ring = keys(COMPACT), terms(COMPACT), Ring.of(COMPACT)
    checks = Checks(terms=made, context=b"here")
    weights = encoded(linear_query(SMALL, ANCHOR, BOUNDS), checks, ring)
    factors, halves, shares = key_factors(weights, pair, checks, ring), [], []
    hidden = features(CLIENT, ANCHOR, BOUNDS).split(Variant.FULL).hidden
    encryptor = Encryptor(pair.public, made)
    for _ in range(320):
        half = Halves.of(encryptor.encrypt(hidden), checks).c1
        halves.append(gate.unpack(half, 1, COMPACT.primes, COMPACT.poly_modulus_degree, sender="test")[0])
        shares.append(share_of(factors, [halves[-1]], made, Quiet()) / COMPACT.modulus)
    assert uniformity(np.array(shares), 16) > ALARM
    sizes = np.array(COMPACT.primes, dtype=np.float64)[:, None]
    for row in np.concatenate([half / sizes for half in halves[:20]], axis=1):
        assert uniformity(row, 64) > ALARM
