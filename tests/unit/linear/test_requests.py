"""Requests of a server: junk costs its sender alone; and baselines that nobody but their owner reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from support.tiny_he import BOUNDS, SIGNER, keys, profile, seeded

from securefl.core.errors import RemoteProtocolError
from securefl.core.signing import SigningKey
from securefl.dp.moments import MeanVariance
from securefl.he import gate
from securefl.he.integers import coefficient_rows
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED, Parameters
from securefl.linear.encryptor import Encryptor
from securefl.linear.evaluator import Baseline, LinearEvaluator
from securefl.linear.opener import Opener
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Anchor, Variant, divergence, features, linear_query

Q = 10
ANCHOR = Anchor(np.zeros(Q), np.ones(Q))
BASE = MeanVariance(np.linspace(1, -1, Q), np.linspace(2, 0.5, Q), 50)


class Arrived(NamedTuple):
    ciphertext: bytes
    clear: np.ndarray
    sender: str


class Parties:
    def __init__(
        self,
        parameters: Parameters = COMPACT,
        *,
        variant: Variant = Variant.FULL,
        scores: int = 500,
        q: int = Q,
    ) -> None:
        self.variant = variant
        self.terms = LinearTerms(parameters=parameters, bounds=BOUNDS.linear(q, variant), scores=scores)
        pair = keys(parameters)
        self.public = pair.public
        self.client = Encryptor(pair.public, self.terms)
        self.evaluator = LinearEvaluator(pair.public, self.terms, SIGNER)
        self.opener = Opener(pair, self.terms, SIGNER.public, rng=seeded())
        self.anchor = Anchor(np.zeros(q), np.ones(q))

    def arrived(self, own: MeanVariance, sender: str = "ann") -> Arrived:
        split = features(own, self.anchor, BOUNDS).split(self.variant)
        return Arrived(self.client.encrypt(split.hidden), split.clear, sender)

    def baseline(self, base: MeanVariance = BASE) -> Baseline:
        asked = linear_query(base, self.anchor, BOUNDS, self.variant)
        if self.terms.parameters.encrypted_baseline:
            return self.evaluator.encrypted_baseline(self.client.encrypt_baseline(asked))
        return self.evaluator.baseline(asked)

    def single(self, one: Arrived, baseline: Baseline) -> float:
        blinded = self.evaluator.match(one.ciphertext, baseline, one.clear, sender=one.sender)
        return self.evaluator.unblind(blinded, self.opener.open(blinded.request)).value


def test_rows_are_the_negacyclic_product() -> None:
    rng = np.random.default_rng(3)
    secret, other = rng.integers(-1, 2, 16), rng.integers(-50, 50, 16)
    whole = np.convolve(other, secret)
    product = whole[:16] - np.concatenate([whole[16:], [0]])
    assert (coefficient_rows(secret, list(range(16))) @ other == product).all()


@pytest.mark.parametrize("variant", Variant)
def test_a_baseline_with_weights_in_some_ciphertexts_alone_gives_scores_too(variant: Variant) -> None:
    """Where its means are the anchor's, as of units that are dead, the weights of means are zero."""
    q = 2100
    parties = Parties(variant=variant, q=q)
    base = MeanVariance(np.zeros(q), np.full(q, 0.5), 50)
    own, baseline = profile(0, q), parties.baseline(base)
    assert (
        abs(parties.single(parties.arrived(own), baseline) - divergence(own, base))
        <= parties.terms.error_bound()
    )


def test_requests_are_opened_for_the_evaluator_that_signed_them_alone() -> None:
    parties = Parties()
    other = LinearEvaluator(keys(COMPACT).public, parties.terms, SigningKey.generate())
    one = parties.arrived(profile(1, Q))
    foreign = other.match(one.ciphertext, other.baseline(linear_query(BASE, ANCHOR, BOUNDS)), one.clear)
    mine = parties.evaluator.match(one.ciphertext, parties.baseline(), one.clear)
    for request in (foreign.request, mine.request[:-1] + bytes([mine.request[-1] ^ 1])):
        with pytest.raises(RemoteProtocolError, match="signature"):
            parties.opener.open(request)
    assert parties.opener.opened == 0


# Encrypted baselines and scores for the key holder's eyes ----------------------------------------


@pytest.mark.parametrize("variant", Variant)
@pytest.mark.parametrize("q", [1, Q, 2500])
def test_an_encrypted_baseline_gives_what_a_plaintext_one_gives(variant: Variant, q: int) -> None:
    """q = 2500 takes two ciphertexts."""
    parties = Parties(STRONG_ENCRYPTED, variant=variant, q=q)
    own, base = profile(1, q), profile(2, q)
    one, baseline = parties.arrived(own), parties.baseline(base)
    blinded = parties.evaluator.match(one.ciphertext, baseline, one.clear)
    score = parties.evaluator.unblind(blinded, parties.opener.open(blinded.request))
    assert abs(score.value - divergence(own, base)) <= score.error_bound < 1e-6
    addressed = parties.evaluator.addressed(one.ciphertext, baseline, one.clear)
    assert abs(parties.opener.read(addressed).value - divergence(own, base)) <= 2e-6


@pytest.mark.parametrize("q", [1, 2047, 2048, 2500])
def test_long_profiles_take_several_ciphertexts(q: int) -> None:
    parties = Parties(STRONG, q=q)
    assert parties.terms.ciphertexts == -(-(2 * q + 1) // 4096)
    own, base = profile(1, q), profile(2, q)
    one, baseline = parties.arrived(own), parties.baseline(base)
    assert len(one.ciphertext) == parties.terms.ciphertext_bytes
    assert abs(parties.single(one, baseline) - divergence(own, base)) <= parties.terms.error_bound()


@pytest.mark.parametrize("parameters", [COMPACT, STRONG_ENCRYPTED], ids=lambda p: p.name)
def test_every_polynomial_of_a_request_is_fresh(parameters: Parameters) -> None:
    """The third one too: else a client that colludes with the key holder divides, and has the baseline."""
    parties = Parties(parameters)
    one, baseline = parties.arrived(profile(1, Q)), parties.baseline()
    p, size = parameters, gate.integer_size(parameters.modulus)
    made = [parties.evaluator.match(one.ciphertext, baseline, one.clear).request for _ in range(2)]
    count = p.polynomials - 1
    first, second = (
        gate.unpack(raw[gate.TAG + size : -64], count, p.primes, p.poly_modulus_degree, sender="test")
        for raw in made
    )
    assert count == (2 if parameters.encrypted_baseline else 1)
    for a, b in zip(first, second, strict=True):
        for prime, x, y in zip(p.primes, a, b, strict=True):
            # differences are uniform: the mean of 4096 of them is within 8 standard deviations of 1/2
            shares = ((x.astype(object) - y.astype(object)) % prime / prime).astype(float)
            assert abs(shares.mean() - 0.5) < 8 / np.sqrt(12 * len(shares))
            assert (x != y).mean() > 0.999


def test_addressed_and_blind_requests_are_no_substitutes() -> None:
    parties = Parties()
    one, baseline = parties.arrived(profile(1, Q)), parties.baseline()
    blind = parties.evaluator.match(one.ciphertext, baseline, one.clear).request
    addressed = parties.evaluator.addressed(one.ciphertext, baseline, one.clear)
    with pytest.raises(RemoteProtocolError):
        parties.opener.read(blind)
    with pytest.raises(RemoteProtocolError):
        parties.opener.open(addressed)


def test_a_ciphertext_is_no_baseline() -> None:
    parties = Parties(STRONG_ENCRYPTED)
    with pytest.raises(RemoteProtocolError, match="another kind"):
        parties.evaluator.encrypted_baseline(parties.arrived(profile(1, Q)).ciphertext)
