"""Encrypted weights, whose score the key holder reads: noise, what hides it, gates, counts and bad scores."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.every import every
from support.tiny_he import BOUNDS, SIGNER, Quiet, keys, profile, seeded

from securefl.core.errors import ConfigError, DataError, RemoteProtocolError
from securefl.core.signing import SigningKey
from securefl.dp.moments import MeanVariance
from securefl.he import gate
from securefl.he.integers import coefficient_rows
from securefl.he.keys import KeyPair
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED, Parameters
from securefl.linear.encrypted import LinearEvaluator, Opener
from securefl.linear.encryptor import Encryptor
from securefl.linear.terms import LinearTerms, flooded
from securefl.matching.profiles import Anchor, Bounds, Variant, features, linear_query

Q, P = 10, STRONG_ENCRYPTED
ANCHOR = Anchor(np.zeros(Q), np.ones(Q))
CLIENT, BASE = profile(1, Q), profile(2, Q)


def terms(bounds: Bounds = BOUNDS, scores: int = 500) -> LinearTerms:
    return LinearTerms(parameters=P, bounds=bounds.linear(Q, Variant.FULL), scores=scores)


class Parties:
    """The three parties of one key, with one client's features and one baseline at hand."""

    def __init__(
        self,
        variant: Variant = Variant.FULL,
        scores: int = 500,
        pair: KeyPair | None = None,
        rng: Any = None,
    ) -> None:
        self.pair = pair or keys(P)
        self.terms = LinearTerms(parameters=P, bounds=BOUNDS.linear(Q, variant), scores=scores)
        self.client = Encryptor(self.pair.public, self.terms)
        self.evaluator = LinearEvaluator(self.pair.public, self.terms, SIGNER, rng=rng)
        self.opener = Opener(self.pair, self.terms, SIGNER.public, rng=seeded())
        self.split = features(CLIENT, ANCHOR, BOUNDS).split(variant)
        self.message = self.client.encrypt_baseline(linear_query(BASE, ANCHOR, BOUNDS, variant))
        self.baseline = self.evaluator.encrypted_baseline(self.message)

    def ciphertext(self) -> bytes:
        return self.client.encrypt(self.split.hidden)

    def request(self, ciphertext: bytes | None = None) -> bytes:
        raw = ciphertext or self.ciphertext()
        return self.evaluator.addressed(raw, self.baseline, self.split.clear, sender="ann")


def test_rows_are_the_negacyclic_product() -> None:
    rng = np.random.default_rng(3)
    secret, other = rng.integers(-1, 2, 16), rng.integers(-50, 50, 16)
    whole = np.convolve(other, secret)
    product = whole[:16] - np.concatenate([whole[16:], [0]])
    assert (coefficient_rows(secret, list(range(16))) @ other == product).all()


def test_weights_in_plaintext_are_not_opened_unchecked() -> None:
    """By neither party: they are declared first, and their openings are checked."""
    for parameters in (STRONG, COMPACT):
        pair = keys(parameters)
        made = LinearTerms(parameters=parameters, bounds=BOUNDS.linear(Q, Variant.FULL), scores=9)
        with pytest.raises(ConfigError, match="declared first"):
            LinearEvaluator(pair.public, made, SIGNER)
        with pytest.raises(ConfigError, match="declared first"):
            Opener(pair, made, SIGNER.public)


# Noise ------------------------------------------------------------------------------------------


def test_the_noise_of_encrypted_weights_is_what_the_bound_takes_it_for() -> None:
    """Features at their bounds and the least weights: noise is nearly all the weights', times the features.

    t is eight standard deviations over keys. Features stand in few slots, so for one key it may be up to 4.6
    times as large, or smaller. False alarm 3e-9, from two million simulated keys. Without the weights' noise
    the bound would be 20 times smaller.
    """
    made, public = terms(), keys(P).public
    client = Encryptor(public, made)
    # Its own noise away, so that what is left is the encryption's.
    evaluator = LinearEvaluator(public, made, SIGNER, rng=Silent())
    opener = Opener(keys(P), made, SIGNER.public, rng=Quiet())
    far = MeanVariance(np.full(Q, BOUNDS.mean), np.full(Q, BOUNDS.variance_high), 1)
    asked = linear_query(MeanVariance(np.zeros(Q), np.full(Q, BOUNDS.variance_high), 1), ANCHOR, BOUNDS)
    hidden = features(far, ANCHOR, BOUNDS).split(Variant.FULL).hidden
    opened = []
    for _ in range(60):
        baseline = evaluator.encrypted_baseline(client.encrypt_baseline(asked))
        request = evaluator.addressed(client.encrypt(hidden), baseline)
        opened.append(P.centre(int.from_bytes(opener.opening(request, "x")[2](), "little")))
    middle = sum(opened) // len(opened)
    deviation = float(np.std([float(one - middle) for one in opened]))
    assert made.noise_bound / 8 / 4 < deviation < made.noise_bound / 8 * 4.6


class Silent(Quiet):
    """Takes the low bits of wide noise away too."""

    def randrange(self, *given: Any) -> int:
        return 0


@every("bounds", [BOUNDS, Bounds(mean=1, variance_high=2, weight=300)])
def test_the_bound_on_noise_in_mode_e_is_that_of_the_specification(bounds: Bounds) -> None:
    n, s = 8192, 2.0**78
    features = sqrt(bounds.feature_norm(Q) ** 2 + Q**2)
    spread = s * (bounds.weight * sqrt(Q) + features) * sqrt(2 / n)
    assert terms(bounds).noise_bound == pytest.approx(8 * sqrt((1 + 2 * n / 3) / 12) * spread, rel=1e-9)


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


def test_a_request_holds_a_fresh_zero_and_a_product_of_two_others() -> None:
    parties = Parties()
    parties.evaluator._ring = ring = Watched(parties.evaluator._ring)  # type: ignore[assignment]
    parties.request()
    alone, first, second = ring.zeros
    assert any(one is alone for one in ring.summed)
    assert first is not second
    assert ring.pairs[-1][0] is first
    assert ring.pairs[-1][1] is second
    assert any(one is first for one in ring.summed), "the product, in place of its first factor"


def test_every_polynomial_of_a_request_is_fresh() -> None:
    """The third one too: else a client that colludes with the key holder divides, and has the baseline."""
    parties, size = Parties(), gate.integer_size(P.modulus)
    ciphertext = parties.ciphertext()
    first, second = (
        gate.unpack(raw[gate.TAG + size : -64], 2, P.primes, P.poly_modulus_degree, sender="test")
        for raw in (parties.request(ciphertext), parties.request(ciphertext))
    )
    for a, b in zip(first, second, strict=True):
        for prime, x, y in zip(P.primes, a, b, strict=True):
            # differences are uniform: the mean of 8192 of them is within 8 standard deviations of 1/2
            shares = ((x.astype(object) - y.astype(object)) % prime / prime).astype(float)
            assert abs(shares.mean() - 0.5) < 8 / np.sqrt(12 * len(shares))
            assert (x != y).mean() > 0.999


@every("parameters", [COMPACT, P])
def test_an_opening_has_its_flooding(parameters: Parameters) -> None:
    """Its deviation and its mean by chi-square and by t, from a seed, with chances of 1e-7; on the grid."""
    made = LinearTerms(parameters=parameters, bounds=BOUNDS.linear(Q, Variant.FULL), scores=500)
    p, rng, value = parameters, seeded(), 5 * made.grid + 1
    noise = np.array([p.centre(flooded(value, made, rng)) - 5 * made.grid for _ in range(4000)])
    noise = noise.astype(float) / made.sigma
    low, high = stats.chi2.ppf([5e-8, 1 - 5e-8], len(noise))
    assert low < np.sum(noise**2) < high
    assert abs(noise.mean()) < 5.4 / sqrt(len(noise))
    assert {p.centre(flooded(value, made, rng)) % made.grid for _ in range(50)} == {0}


def test_an_addressed_request_has_the_evaluators_noise() -> None:
    """What the key holder opens without its own noise: it would show the weights' norm, but for this one."""
    parties = Parties(rng=seeded())
    opener, ciphertext = Opener(keys(P), parties.terms, SIGNER.public, rng=Quiet()), parties.ciphertext()
    opened = []
    for _ in range(60):
        whole = opener.opening(parties.request(ciphertext), "x")[2]()
        opened.append(float(P.centre(int.from_bytes(whole, "little"))))
    low, high = stats.chi2.ppf([5e-8, 1 - 5e-8], len(opened) - 1)
    assert low < np.sum((np.array(opened) - np.mean(opened)) ** 2) / parties.terms.sigma**2 < high


# Scores that are none ----------------------------------------------------------------------------


def claimed(made: LinearTerms, value: float) -> bytes:
    """What an evaluator could sign: a request that opens to this score, whatever the key."""
    size = gate.residues_size(P.polynomials - 1, P.primes, P.poly_modulus_degree)
    integer = round(value * made.bounds.scale / made.unit) % P.modulus
    raw = gate.tag("addressed", keys(P).public.session, made.digest())
    raw += gate.pack_integer(integer, P.modulus) + bytes(size)
    return raw + SIGNER.sign(raw).raw


def test_negative_and_too_large_scores_are_not_read() -> None:
    made = terms()
    opener = Opener(keys(P), made, SIGNER.public, rng=seeded())
    largest, bound = made.capacity / Q, made.error_bound(floods=2)
    for value in (0.0, 1.0, 0.99 * largest):
        score = opener.read(claimed(made, value))
        assert abs(score.value - value) <= score.error_bound
    for value in (-3 * bound, -0.5 * largest, 1.01 * largest, 1.13 * largest):
        with pytest.raises(RemoteProtocolError, match="no honest client"):
            opener.read(claimed(made, value))


# Gates and counts --------------------------------------------------------------------------------


def test_two_encryptions_of_one_profile_differ_and_sizes_are_fixed() -> None:
    parties = Parties()
    first, second = parties.ciphertext(), parties.ciphertext()
    assert (np.frombuffer(first, np.uint8)[16:] != np.frombuffer(second, np.uint8)[16:]).mean() > 0.9
    assert len(first) == 16 + 2 * 8192 * 24
    assert len(parties.request()) == 16 + 23 + 2 * 8192 * 24 + 64


def test_a_replayed_request_is_read_alike_and_counts_once() -> None:
    parties = Parties(scores=2)
    request = parties.request()
    assert len({parties.opener.read(request).value for _ in range(100)}) == 1
    assert parties.opener.opened == 1


def test_openings_are_capped_at_tau_and_old_answers_remain() -> None:
    parties = Parties(scores=2)
    ciphertext = parties.ciphertext()
    requests = [parties.request(ciphertext) for _ in range(3)]
    first, _ = (parties.opener.read(r) for r in requests[:2])
    with pytest.raises(RemoteProtocolError, match=r"evaluator .* 2 openings"):
        parties.opener.read(requests[2])
    assert parties.opener.read(requests[0]) == first
    assert parties.opener.opened == 2


def test_requests_are_opened_for_the_evaluator_that_signed_them_alone() -> None:
    parties = Parties()
    other = LinearEvaluator(keys(P).public, parties.terms, SigningKey.generate())
    foreign = other.addressed(parties.ciphertext(), other.encrypted_baseline(parties.message))
    mine = parties.request()
    for request in (foreign, mine[:-1] + bytes([mine[-1] ^ 1])):
        with pytest.raises(RemoteProtocolError, match="signature"):
            parties.opener.read(request)
    assert parties.opener.opened == 0


def test_foreign_keys_kinds_and_terms_are_refused() -> None:
    parties = Parties()
    for stranger in (Parties(pair=KeyPair.generate(P)), Parties(scores=51)):
        with pytest.raises(RemoteProtocolError, match="another kind, key or set"):
            parties.request(stranger.ciphertext())
        with pytest.raises(RemoteProtocolError, match="another kind, key or set"):
            parties.opener.read(stranger.request())
        with pytest.raises(RemoteProtocolError, match="another kind"):
            parties.evaluator.encrypted_baseline(stranger.message)
    with pytest.raises(RemoteProtocolError, match="another kind"):
        parties.evaluator.encrypted_baseline(parties.ciphertext())


@every("damage", ["short", "long", "empty", "large", "transparent", "random", "text"])
def test_ciphertexts_pass_the_gate_or_cost_their_sender(damage: str) -> None:
    parties = Parties()
    raw, half = parties.ciphertext(), 8192 * 24
    bad = {
        "short": raw[:-1],
        "long": raw + b"\0",
        "empty": b"",
        "large": raw[:16] + b"\xff" * 8 + raw[24:],
        "transparent": raw[: 16 + half] + bytes(half),
        "random": np.random.default_rng(0).bytes(len(raw)),
        "text": "x" * len(raw),
    }[damage]
    with pytest.raises(RemoteProtocolError, match="ann in phase gate") as refusal:
        parties.evaluator.addressed(bad, parties.baseline, sender="ann")  # type: ignore[arg-type]
    assert refusal.value.sender == "ann"


@every("damage", ["short", "long", "empty", "integer", "residue"])
def test_requests_pass_the_gate(damage: str) -> None:
    """A request that is refused costs no opening."""
    parties = Parties(scores=1)
    raw = parties.request()
    place = 16 + 23 if damage == "residue" else 16
    large = raw[:place] + b"\xff" * 23 + raw[place + 23 : -64]
    bad = {"short": raw[:-1], "long": raw + b"\0", "empty": b""}.get(damage)
    with pytest.raises(RemoteProtocolError, match="evaluator in phase gate"):
        parties.opener.read(large + SIGNER.sign(large).raw if bad is None else bad)
    assert parties.opener.read(raw)


def test_plaintext_parts_are_checked() -> None:
    parties = Parties(Variant.MEAN_ONLY)
    ciphertext, clear = parties.ciphertext(), parties.split.clear
    for bad in (None, clear[:-1], np.full(Q + 1, np.nan), np.r_[1e9, clear[1:]], np.r_[clear[:-1], 1e6]):
        with pytest.raises(RemoteProtocolError, match=r"ann .*11 plaintext values"):
            parties.evaluator.addressed(ciphertext, parties.baseline, bad, sender="ann")


def test_weights_beyond_the_declared_norm_are_refused() -> None:
    client, short = Parties().client, Anchor(np.zeros(3), np.ones(3))
    sharp = MeanVariance(np.full(Q, 4.0), np.full(Q, 0.2), 5)
    with pytest.raises(ConfigError, match=r"Bounds.weight"):
        client.encrypt_baseline(linear_query(sharp, ANCHOR, BOUNDS))
    with pytest.raises(ConfigError, match=r"21 \+ 0 .*\(7 \+ 0"):
        client.encrypt_baseline(linear_query(MeanVariance(np.zeros(3), np.ones(3), 1), short, BOUNDS))


@every("hidden", [np.zeros(3), np.full(2 * Q + 1, np.nan), np.full(2 * Q + 1, 1e6)])
def test_the_client_encrypts_only_clipped_features(hidden: np.ndarray) -> None:
    with pytest.raises(DataError, match="Clip them first"):
        Parties().client.encrypt(hidden)
