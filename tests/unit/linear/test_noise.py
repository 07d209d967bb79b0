"""Noise and what hides it, in mode E; and scores that are none."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.tiny_he import BOUNDS, SIGNER, Quiet, keys, seeded

from securefl.core.errors import RemoteProtocolError
from securefl.dp.moments import MeanVariance
from securefl.he import gate
from securefl.he.parameters import COMPACT, STRONG_ENCRYPTED, Parameters
from securefl.linear.encryptor import Encryptor
from securefl.linear.evaluator import LinearEvaluator
from securefl.linear.opener import Opener, flooded
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Anchor, Bounds, Variant, features, linear_query

Q = 10
ANCHOR = Anchor(np.zeros(Q), np.ones(Q))


def terms(parameters: Parameters, bounds: Bounds = BOUNDS) -> LinearTerms:
    return LinearTerms(parameters=parameters, bounds=bounds.linear(Q, Variant.FULL), scores=500)


# Mode E ------------------------------------------------------------------------------------------


def test_the_noise_of_encrypted_weights_is_what_the_bound_takes_it_for() -> None:
    """Features at their bounds and the least weights: noise is nearly all the weights', times the features.

    t is eight standard deviations over keys. Features stand in few slots, so for one key it may be up to 4.6
    times as large, or smaller. False alarm 3e-9, from two million simulated keys. Without the weights' noise
    the bound would be 20 times smaller.
    """
    made, public = terms(STRONG_ENCRYPTED), keys(STRONG_ENCRYPTED).public
    client, evaluator = Encryptor(public, made), LinearEvaluator(public, made, SIGNER)
    opener = Opener(keys(STRONG_ENCRYPTED), made, SIGNER.public, rng=Quiet())
    far = MeanVariance(np.full(Q, BOUNDS.mean), np.full(Q, BOUNDS.variance_high), 1)
    asked = linear_query(MeanVariance(np.zeros(Q), np.full(Q, BOUNDS.variance_high), 1), ANCHOR, BOUNDS)
    hidden = features(far, ANCHOR, BOUNDS).split(Variant.FULL).hidden
    opened = []
    for _ in range(60):
        baseline = evaluator.encrypted_baseline(client.encrypt_baseline(asked))
        blinded = evaluator.match(client.encrypt(hidden), baseline)
        reply = int.from_bytes(opener.open(blinded.request)[gate.TAG :], "little")
        opened.append(made.parameters.centre(reply - blinded.mask))
    middle = sum(opened) // len(opened)
    deviation = float(np.std([float(one - middle) for one in opened]))
    assert made.noise_bound / 8 / 4 < deviation < made.noise_bound / 8 * 4.6


@pytest.mark.parametrize("bounds", [BOUNDS, Bounds(mean=1, variance_high=2, weight=300)])
def test_the_bound_on_noise_in_mode_e_is_that_of_the_specification(bounds: Bounds) -> None:
    made = terms(STRONG_ENCRYPTED, bounds)
    n, s = 8192, 2.0**78
    features = sqrt(bounds.feature_norm(Q) ** 2 + Q**2)
    spread = s * (bounds.weight * sqrt(Q) + features) * sqrt(2 / n)
    assert made.noise_bound == pytest.approx(8 * sqrt((1 + 2 * n / 3) / 12) * spread, rel=1e-9)


class Watched:
    """A ring that remembers which zeros it made and what was multiplied and added."""

    def __init__(self, ring: Any) -> None:
        self._ring, self.zeros, self.pairs, self.summed = ring, [], [], []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ring, name)

    def zero(self, encryptor: Any, scale: float) -> Any:
        self.zeros.append(self._ring.zero(encryptor, scale))
        return self.zeros[-1]

    def multiplied(self, cipher: Any, other: Any) -> Any:
        self.pairs.append((cipher, other))
        return self._ring.multiplied(cipher, other)

    def total(self, ciphers: Any) -> Any:
        self.summed = list(ciphers)
        return self._ring.total(ciphers)


@pytest.mark.parametrize("parameters", [STRONG_ENCRYPTED, COMPACT], ids=lambda p: p.name)
@pytest.mark.parametrize("kind", ["blind", "addressed"])
def test_a_request_holds_a_fresh_zero_and_in_mode_e_a_product_of_two_others(
    parameters: Parameters, kind: str
) -> None:
    made, public = terms(parameters), keys(parameters).public
    client, evaluator = Encryptor(public, made), LinearEvaluator(public, made, SIGNER)
    asked = linear_query(MeanVariance(np.zeros(Q), np.ones(Q), 1), ANCHOR, BOUNDS)
    baseline = (
        evaluator.encrypted_baseline(client.encrypt_baseline(asked))
        if parameters.encrypted_baseline
        else evaluator.baseline(asked)
    )
    message = client.encrypt(
        features(MeanVariance(np.zeros(Q), np.ones(Q), 1), ANCHOR, BOUNDS).split(Variant.FULL).hidden
    )
    ring = Watched(evaluator._ring)
    evaluator._ring = ring
    (evaluator.match if kind == "blind" else evaluator.addressed)(message, baseline)
    alone, *pair = ring.zeros
    assert any(one is alone for one in ring.summed)
    if parameters.encrypted_baseline:
        first, second = pair
        assert first is not second
        assert ring.pairs[-1][0] is first
        assert ring.pairs[-1][1] is second
        assert any(one is first for one in ring.summed), "the product, in place of its first factor"
    else:
        assert not pair


# Scores that are none ----------------------------------------------------------------------------


def addressed(made: LinearTerms, value: float) -> bytes:
    """What an evaluator could sign: a request that opens to this score, whatever the key."""
    p = made.parameters
    size = gate.residues_size(p.polynomials - 1, p.primes, p.poly_modulus_degree)
    integer = round(value * made.bounds.scale / made.unit) % p.modulus
    tag = gate.tag("addressed", keys(p).public.session, made.digest())
    raw = tag + gate.pack_integer(integer, p.modulus) + bytes(size)
    return raw + SIGNER.sign(raw).raw


@pytest.mark.parametrize("parameters", [STRONG_ENCRYPTED, COMPACT], ids=lambda p: p.name)
def test_negative_and_too_large_scores_are_not_read(parameters: Parameters) -> None:
    made = terms(parameters)
    opener = Opener(keys(parameters), made, SIGNER.public, rng=seeded())
    largest, bound = made.capacity / Q, made.error_bound(floods=2)
    for value in (0.0, 1.0, 0.99 * largest):
        score = opener.read(addressed(made, value))
        assert abs(score.value - value) <= score.error_bound
    for value in (-3 * bound, -0.5 * largest, 1.01 * largest, 1.13 * largest):
        with pytest.raises(RemoteProtocolError, match="no honest client"):
            opener.read(addressed(made, value))


def test_addressed_scores_that_could_wrap_are_not_asked_for() -> None:
    """The constant of a baseline far from the anchor exceeds any product: with it a score would wrap."""
    bounds = Bounds(mean=1, variance_low=0.5, variance_high=512, weight=512)
    made, public = terms(COMPACT, bounds), keys(COMPACT).public
    client, evaluator = Encryptor(public, made), LinearEvaluator(public, made, SIGNER)
    opener = Opener(keys(COMPACT), made, SIGNER.public, rng=seeded())
    message = client.encrypt(
        features(MeanVariance(np.ones(Q), np.full(Q, 512.0), 1), ANCHOR, bounds).split(Variant.FULL).hidden
    )
    read = 0
    for weight in np.linspace(1, 500, 40):
        asked = linear_query(MeanVariance(np.full(Q, -512.0 * weight), np.full(Q, 512.0), 1), ANCHOR, bounds)
        baseline = evaluator.baseline(asked)
        if asked.offset + made.largest > made.capacity:
            with pytest.raises(RemoteProtocolError, match=r"ann .* could wrap"):
                evaluator.addressed(message, baseline, sender="ann")
            continue
        score = opener.read(evaluator.addressed(message, baseline, sender="ann"))
        assert abs(score.value - (1.0 + 512.0 * weight) ** 2 / 1024) <= score.error_bound
        read += 1
    assert 5 <= read <= 35


# The flooding itself -----------------------------------------------------------------------------


def test_an_opening_has_its_flooding() -> None:
    """Its deviation and its mean by chi-square and by t, from a seed, with chances of 1e-7; on the grid."""
    made, rng = terms(COMPACT), seeded()
    p, value = made.parameters, 5 * made.grid + 1
    noise = np.array([p.centre(flooded(value, made, rng)) - 5 * made.grid for _ in range(4000)]) / made.sigma
    low, high = stats.chi2.ppf([5e-8, 1 - 5e-8], len(noise))
    assert low < np.sum(noise**2) < high
    assert abs(noise.mean()) < 5.4 / sqrt(len(noise))
    assert {p.centre(flooded(value, made, rng)) % made.grid for _ in range(50)} == {0}


def test_an_addressed_request_has_the_evaluators_noise() -> None:
    """What the key holder opens without its own noise: it would show the weights' norm, but for this one."""
    made, public = terms(COMPACT), keys(COMPACT).public
    client, evaluator = Encryptor(public, made), LinearEvaluator(public, made, SIGNER, rng=seeded())
    opener = Opener(keys(COMPACT), made, SIGNER.public, rng=Quiet())
    own = MeanVariance(np.zeros(Q), np.ones(Q), 1)
    baseline = evaluator.baseline(linear_query(own, ANCHOR, BOUNDS))
    message = client.encrypt(features(own, ANCHOR, BOUNDS).split(Variant.FULL).hidden)
    opened = []
    for _ in range(60):
        whole = opener._opened(evaluator.addressed(message, baseline), "addressed", "x")
        opened.append(float(made.parameters.centre(int.from_bytes(whole, "little"))))
    low, high = stats.chi2.ppf([5e-8, 1 - 5e-8], len(opened) - 1)
    assert low < np.sum((np.array(opened) - np.mean(opened)) ** 2) / made.sigma**2 < high
