"""Batches: class sums in exact integers, isolation, counting; and baselines nobody but their owner reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.tiny_he import BOUNDS, SIGNER, converse, keys, profile, seeded

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.signing import SigningKey
from securefl.dp.moments import MeanVariance
from securefl.he import gate
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED, Parameters
from securefl.linear.batches import combine, cosines, places, rows
from securefl.linear.ckks import CiphertextScoring
from securefl.linear.encryptor import Encryptor, of_class, spread
from securefl.linear.evaluator import Arrived, Baseline, LinearEvaluator
from securefl.linear.isolation import MatchBatches, batch_terms
from securefl.linear.opener import Opener
from securefl.linear.scheme import Found, Sent
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Anchor, Bounds, Variant, divergence, features, linear_query

Q = 10
ANCHOR = Anchor(np.zeros(Q), np.ones(Q))
BASE = MeanVariance(np.linspace(1, -1, Q), np.linspace(2, 0.5, Q), 50)


class Parties:
    def __init__(
        self,
        parameters: Parameters = COMPACT,
        *,
        variant: Variant = Variant.FULL,
        classes: int = 4,
        scores: int = 500,
        q: int = Q,
    ) -> None:
        self.variant = variant
        self.terms = LinearTerms(
            parameters=parameters, bounds=BOUNDS.linear(q, variant), scores=scores, classes=classes
        )
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

    def junk(self, like: Arrived, sender: str = "mallory") -> Arrived:
        """A random ciphertext that is no score under this key.

        Of random ones 0.8 % look like a score (12 of 1,500 were counted), and keys differ from run to run.
        So the first of eight that does not is taken: none is found once in 10^16 runs.
        """
        baseline = self.baseline()
        for seed in range(8):
            raw = np.random.default_rng(seed).integers(0, 2**29 - 2**16, (2, 2, 4096), dtype=np.uint64)
            ciphertext = like.ciphertext[: gate.TAG] + gate.pack(raw, COMPACT.primes)
            one = Arrived(ciphertext, like.clear, sender)
            try:
                self.single(one, baseline)
            except RemoteProtocolError:
                return one
        raise AssertionError("Expected a random ciphertext that is no score, got eight that are.")


# The arithmetic ----------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [1, 2, 8, 32])
def test_integers_hold_the_class_sums(classes: int) -> None:
    """Against the canonical embedding, computed slot by slot: slot m is the value at the root to 3^m."""
    degree = 64
    rng = np.random.default_rng(classes)
    polynomial = [int(c) for c in rng.integers(-1000, 1000, degree)]
    slots = np.array(
        [
            sum(
                c * np.exp(2j * np.pi * pow(3, m, 2 * degree) * n / (2 * degree))
                for n, c in enumerate(polynomial)
            )
            for m in range(degree // 2)
        ]
    )
    expected = [slots[j::classes].sum().real for j in range(classes)]
    integers = combine([polynomial[n] for n in places(degree, classes)], 2**70)
    centred = np.array([float(d - 2**70 if d > 2**69 else d) for d in integers])
    np.testing.assert_allclose(cosines(classes) @ centred * degree / (2 * classes), expected, atol=1e-6)


@pytest.mark.parametrize("integers", [1, 4])
def test_rows_are_the_negacyclic_product(integers: int) -> None:
    rng = np.random.default_rng(3)
    secret, other = rng.integers(-1, 2, 16), rng.integers(-50, 50, 16)
    whole = np.convolve(other, secret)
    product = whole[:16] - np.concatenate([whole[16:], [0]])
    expected = combine([int(product[n]) for n in places(16, integers)], 10**9)
    assert [int(d) % 10**9 for d in rows(secret, integers) @ other] == expected


def test_values_are_laid_out_by_class() -> None:
    assert [part.tolist() for part in spread(np.arange(3.0), 1, 8, 2)] == [[0, 0, 1, 1, 2, 2]]
    assert [p.tolist() for p in of_class(np.array([1.0, 2, 3]), 2, 4, 2, 1)] == [[0, 1, 0, 2], [0, 3]]


# Batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", [COMPACT, STRONG], ids=lambda p: p.name)
@pytest.mark.parametrize("variant", Variant)
@pytest.mark.parametrize("members", [1, 3, 4])
def test_a_batch_gives_what_its_members_give_singly(
    parameters: Parameters, variant: Variant, members: int
) -> None:
    parties = Parties(parameters, variant=variant)
    baseline, owners = parties.baseline(), [profile(i, Q) for i in range(members)]
    arrived = [parties.arrived(own, f"client {i}") for i, own in enumerate(owners)]
    blinded = parties.evaluator.match_batch(arrived, baseline)
    scores = parties.evaluator.unblind_batch(blinded, parties.opener.open(blinded.request))
    assert blinded.senders == tuple(f"client {i}" for i in range(members))
    for score, own, one in zip(scores, owners, arrived, strict=True):
        assert abs(score.value - divergence(own, BASE)) <= score.error_bound
        assert abs(parties.single(one, baseline) - divergence(own, BASE)) <= parties.terms.error_bound()


@pytest.mark.parametrize("variant", Variant)
def test_a_baseline_with_weights_in_some_ciphertexts_alone_gives_scores_too(variant: Variant) -> None:
    """Where its means are the anchor's, as of units that are dead, the weights of means are zero."""
    q = 512
    parties = Parties(variant=variant, q=q)
    base = MeanVariance(np.zeros(q), np.full(q, 0.5), 50)
    baseline, owners = parties.baseline(base), [profile(i, q) for i in range(2)]
    arrived = [parties.arrived(own) for own in owners]
    blinded = parties.evaluator.match_batch(arrived, baseline)
    scores = parties.evaluator.unblind_batch(blinded, parties.opener.open(blinded.request))
    for own, one, score in zip(owners, arrived, scores, strict=True):
        assert abs(score.value - divergence(own, base)) <= score.error_bound
        assert abs(parties.single(one, baseline) - divergence(own, base)) <= parties.terms.error_bound()


def test_a_batch_counts_an_opening_for_every_class_and_a_repeated_one_none() -> None:
    parties = Parties(scores=9)
    one = parties.arrived(profile(1, Q))
    baseline = parties.baseline()
    first, second = (parties.evaluator.match_batch([one], baseline) for _ in range(2))
    assert parties.opener.open(first.request) == parties.opener.open(first.request)
    parties.opener.open(second.request)
    assert parties.opener.opened == 8
    with pytest.raises(RemoteProtocolError, match="used up"):
        parties.opener.open(parties.evaluator.match_batch([one], baseline).request)
    parties.single(one, baseline)
    assert parties.opener.opened == 9


def test_junk_in_a_batch_is_seen_and_its_members_opened_singly() -> None:
    """A junk ciphertext shifts all scores of its batch; alone, it shifts none but its own."""
    parties = Parties()
    baseline = parties.baseline()
    honest = [parties.arrived(profile(i, Q), f"client {i}") for i in range(3)]
    junk = parties.junk(honest[0])
    blinded = parties.evaluator.match_batch([*honest, junk], baseline)
    with pytest.raises(RemoteProtocolError, match="no honest client"):
        parties.evaluator.unblind_batch(blinded, parties.opener.open(blinded.request))
    for i, one in enumerate(honest):
        assert (
            abs(parties.single(one, baseline) - divergence(profile(i, Q), BASE))
            <= parties.terms.error_bound()
        )
    with pytest.raises(RemoteProtocolError, match="mallory"):
        parties.single(junk, baseline)


def scoring(parties: Parties, clients: int, told: dict[str, str]) -> CiphertextScoring:
    """One exchange under these parties' keys, in batches."""
    return CiphertextScoring(
        terms=parties.terms,
        public=parties.public,
        evaluator=parties.evaluator,
        queries={"profile": linear_query(BASE, ANCHOR, BOUNDS)},
        cohort=clients,
        report=told.__setitem__,
        first=MatchBatches,
    )


def test_many_are_matched_whatever_some_of_them_send() -> None:
    """Junk has its batch opened singly, and costs its sender alone."""
    parties, told = Parties(), dict[str, str]()
    exchange, owners = scoring(parties, 7, told), [profile(i, Q) for i in range(6)]
    arrived = [parties.arrived(own) for own in owners]
    good, junk = [one.ciphertext for one in arrived], parties.junk(arrived[0]).ciphertext
    spent = parties.opener.opened
    crowd = [*good[:2], junk, *good[2:]]
    turns: list[int] = []
    found = converse(
        exchange,
        parties.opener,
        told.__setitem__,
        [Sent(k, "profile", one, np.zeros(0)) for k, one in enumerate(crowd)],
        turns,
    )
    assert turns == [2, 4], "two batches; the members of the first one singly"
    assert set(told) == {"client-0002"}
    assert set(found.numbers) == {(k, "profile") for k in (0, 1, 3, 4, 5, 6)}
    for k, own in zip((0, 1, 3, 4, 5, 6), owners, strict=True):
        assert abs(found.numbers[k, "profile"] - divergence(own, BASE)) <= parties.terms.error_bound(8)
    assert parties.opener.opened - spent == 4 + 4 + 4, "a batch, its members singly, and the other batch"


def test_variances_outside_the_bounds_never_join_a_batch() -> None:
    parties, told = Parties(variant=Variant.MEAN_ONLY), dict[str, str]()
    exchange = scoring(parties, 2, told)
    query = linear_query(BASE, ANCHOR, BOUNDS, Variant.MEAN_ONLY)
    exchange = replace(exchange, queries={"profile": query})
    arrived = [parties.arrived(profile(k, Q)) for k in range(2)]
    clear = [np.full(Q + 1, 1e9), np.asarray(arrived[1].clear)]
    turns: list[int] = []
    sent = [
        Sent(k, "profile", one.ciphertext, own)
        for k, (one, own) in enumerate(zip(arrived, clear, strict=True))
    ]  # type: ignore[arg-type]
    assert set(converse(exchange, parties.opener, told.__setitem__, sent, turns).numbers) == {(1, "profile")}
    assert (turns, set(told)) == ([1], {"client-0000"})


def test_a_junk_reply_is_the_key_holders_doing_and_has_nothing_opened_again() -> None:
    parties, told = Parties(), dict[str, str]()
    exchange = scoring(parties, 3, told)
    owners = [parties.arrived(profile(k, Q)).ciphertext for k in range(3)]
    asked = exchange.score(tuple(Sent(k, "profile", one, np.zeros(0)) for k, one in enumerate(owners))).run()
    assert asked.then((b"junk",)).run() == Found({})
    assert set(told) == {"key-holder"}


@pytest.mark.parametrize(
    ("length", "clients", "size"),
    [(32, 60, 32), (32, 8, 8), (32, 7, 4), (32, 1, 1), (500, 60, 4), (600, 60, 2)],
)
def test_the_size_of_a_batch_follows_from_public_inputs(length: int, clients: int, size: int) -> None:
    """A client sends as much as alone; the count has room for every batch, and its members singly."""
    kind = BOUNDS.linear(length, Variant.FULL)
    found, alone = batch_terms(kind, STRONG, 3, clients), batch_terms(kind, STRONG, 3, 1)
    assert (found.classes, found.ciphertexts) == (size, alone.ciphertexts)
    batches = -(-clients // size)
    assert found.scores == 3 * (batches * size + (clients if size > 1 else 0))


@pytest.mark.parametrize(
    ("parameters", "bounds", "size"),
    [(COMPACT, BOUNDS, 16), (COMPACT, Bounds(), 2), (STRONG, Bounds(mean=1024.0), 1)],
)
def test_wide_bounds_leave_room_for_fewer_in_a_batch(
    parameters: Parameters, bounds: Bounds, size: int
) -> None:
    assert batch_terms(bounds.linear(32, Variant.FULL), parameters, 80, 60).classes == size


def test_batches_need_a_power_of_two_and_a_plaintext_baseline() -> None:
    for classes in (0, 3, 4096):
        with pytest.raises(ConfigError, match="power of two"):
            Parties(classes=classes)
    with pytest.raises(ConfigError, match="plaintext baseline"):
        Parties(STRONG_ENCRYPTED)
    parties = Parties(classes=2)
    with pytest.raises(ValueError, match="1 to 2 clients"):
        parties.evaluator.match_batch([parties.arrived(profile(0, Q))] * 3, parties.baseline())


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
    parties = Parties(STRONG_ENCRYPTED, variant=variant, classes=1, q=q)
    own, base = profile(1, q), profile(2, q)
    one, baseline = parties.arrived(own), parties.baseline(base)
    blinded = parties.evaluator.match(one.ciphertext, baseline, one.clear)
    score = parties.evaluator.unblind(blinded, parties.opener.open(blinded.request))
    assert abs(score.value - divergence(own, base)) <= score.error_bound < 1e-6
    addressed = parties.evaluator.addressed(one.ciphertext, baseline, one.clear)
    assert abs(parties.opener.read(addressed).value - divergence(own, base)) <= 2e-6


@pytest.mark.parametrize("q", [1, 511, 512, 2000, 2500])
def test_long_profiles_take_several_ciphertexts(q: int) -> None:
    parties = Parties(STRONG, classes=2, q=q)
    assert parties.terms.ciphertexts == -(-(2 * q + 1) * 2 // 4096)
    own, base = profile(1, q), profile(2, q)
    one, baseline = parties.arrived(own), parties.baseline(base)
    assert len(one.ciphertext) == parties.terms.ciphertext_bytes
    assert abs(parties.single(one, baseline) - divergence(own, base)) <= parties.terms.error_bound()


@pytest.mark.parametrize("parameters", [COMPACT, STRONG_ENCRYPTED], ids=lambda p: p.name)
def test_every_polynomial_of_a_request_is_fresh(parameters: Parameters) -> None:
    """The third one too: else a client that colludes with the key holder divides, and has the baseline."""
    parties = Parties(parameters, classes=1)
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
    parties = Parties(classes=1)
    one, baseline = parties.arrived(profile(1, Q)), parties.baseline()
    blind = parties.evaluator.match(one.ciphertext, baseline, one.clear).request
    addressed = parties.evaluator.addressed(one.ciphertext, baseline, one.clear)
    with pytest.raises(RemoteProtocolError):
        parties.opener.read(blind)
    with pytest.raises(RemoteProtocolError):
        parties.opener.open(addressed)


def test_a_ciphertext_is_no_baseline() -> None:
    parties = Parties(STRONG_ENCRYPTED, classes=1)
    with pytest.raises(RemoteProtocolError, match="another kind"):
        parties.evaluator.encrypted_baseline(parties.arrived(profile(1, Q)).ciphertext)
