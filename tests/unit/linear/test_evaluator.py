from __future__ import annotations

import numpy as np
import pytest
from support.tiny_he import BOUNDS, SIGNER, keys, seeded

from securefl.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from securefl.dp.moments import MeanVariance
from securefl.he import gate
from securefl.he.keys import KeyPair
from securefl.he.parameters import COMPACT
from securefl.linear.encryptor import Encryptor
from securefl.linear.evaluator import Baseline, Blinded, LinearEvaluator
from securefl.linear.opener import Opener
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Anchor, Split, Variant, divergence, features, linear_query

Q = 10
ANCHOR = Anchor(np.zeros(Q), np.ones(Q))
CLIENT = MeanVariance(np.linspace(-2, 2, Q), np.linspace(0.2, 3, Q), 50)
BASE = MeanVariance(np.linspace(1, -1, Q), np.linspace(2, 0.5, Q), 50)


class Parties:
    """The three parties of one key, with one client's features and one baseline at hand."""

    def __init__(
        self, variant: Variant = Variant.FULL, scores: int = 50, pair: KeyPair | None = None
    ) -> None:
        pair = pair or keys(COMPACT)
        self.terms = LinearTerms(parameters=COMPACT, bounds=BOUNDS.linear(Q, variant), scores=scores)
        self.client = Encryptor(pair.public, self.terms)
        self.evaluator = LinearEvaluator(pair.public, self.terms, SIGNER)
        self.opener = Opener(pair, self.terms, SIGNER.public, rng=seeded())
        self.split: Split = features(CLIENT, ANCHOR, BOUNDS).split(variant)
        self.baseline: Baseline = self.evaluator.baseline(linear_query(BASE, ANCHOR, BOUNDS, variant))

    def ciphertext(self) -> bytes:
        return self.client.encrypt(self.split.hidden)

    def blinded(self, ciphertext: bytes | None = None) -> Blinded:
        raw = ciphertext or self.ciphertext()
        return self.evaluator.match(raw, self.baseline, self.split.clear, sender="ann")


@pytest.mark.parametrize("variant", Variant)
def test_a_score_crosses_as_bytes(variant: Variant) -> None:
    parties = Parties(variant)
    blinded = parties.blinded()
    score = parties.evaluator.unblind(blinded, parties.opener.open(blinded.request))
    assert abs(score.value - divergence(CLIENT, BASE)) <= score.error_bound < 0.05


def test_two_encryptions_of_one_profile_differ_and_score_alike() -> None:
    parties = Parties()
    first, second = parties.ciphertext(), parties.ciphertext()
    differing = np.frombuffer(first, np.uint8)[16:] != np.frombuffer(second, np.uint8)[16:]
    assert differing.mean() > 0.9


def test_sizes_are_fixed() -> None:
    parties = Parties()
    blinded = parties.blinded()
    assert len(parties.ciphertext()) == 16 + 2 * 4096 * 12
    assert len(blinded.request) == 16 + 12 + 4096 * 12 + 64
    assert len(parties.opener.open(blinded.request)) == 16 + 12


def test_a_replayed_request_gets_the_stored_answer_and_counts_once() -> None:
    parties = Parties(scores=2)
    request = parties.blinded().request
    assert len({parties.opener.open(request) for _ in range(1000)}) == 1
    assert parties.opener.opened == 1


def test_openings_are_capped_at_tau_and_old_answers_remain() -> None:
    parties = Parties(scores=2)
    ciphertext = parties.ciphertext()
    requests = [parties.blinded(ciphertext).request for _ in range(3)]
    first, _ = (parties.opener.open(r) for r in requests[:2])
    with pytest.raises(RemoteProtocolError, match=r"evaluator .* 2 openings"):
        parties.opener.open(requests[2])
    assert parties.opener.open(requests[0]) == first
    assert parties.opener.opened == 2


def test_a_bad_request_costs_no_opening() -> None:
    parties = Parties(scores=1)
    request = parties.blinded().request
    with pytest.raises(RemoteProtocolError):
        parties.opener.open(request[:-1])
    parties.opener.open(request)


def test_blinded_does_not_print_its_mask() -> None:
    blinded = Parties().blinded()
    assert str(blinded.mask) not in repr(blinded)
    assert "ann" in repr(blinded)


def test_junk_is_refused_for_its_sender_and_leaves_other_scores_alone() -> None:
    parties = Parties()
    tag, rng = parties.ciphertext()[: gate.TAG], np.random.default_rng(5)

    def junk() -> Blinded:
        rows = [[rng.integers(0, p, 4096, dtype=np.uint64) for p in COMPACT.primes] for _ in range(2)]
        return parties.blinded(tag + gate.pack(np.array(rows), COMPACT.primes))

    bad, good = [junk() for _ in range(3)], parties.blinded()
    refused = 0
    for blinded in bad:
        try:
            parties.evaluator.unblind(blinded, parties.opener.open(blinded.request))
        except RemoteProtocolError as refusal:
            refused += (refusal.sender, refusal.phase) == ("ann", "score")
    # junk opens to something uniform in 1,000 times the declared range: three pass with 1e-9
    assert refused >= 1
    score = parties.evaluator.unblind(good, parties.opener.open(good.request))
    assert abs(score.value - divergence(CLIENT, BASE)) <= score.error_bound


@pytest.mark.parametrize("forged", [-5.0, 4e4])
def test_scores_that_no_clipped_profile_gives_are_dropped(forged: float) -> None:
    parties = Parties()
    weights = linear_query(BASE, ANCHOR, BOUNDS).hidden
    wanted = (forged * Q - linear_query(BASE, ANCHOR, BOUNDS).offset) / float(weights @ weights)
    encoded = parties.evaluator._ring.encode(wanted * weights, parties.terms.data_scale)
    lying = parties.evaluator._ring.encrypt(parties.evaluator._encryptor, encoded)
    blinded = parties.blinded(parties.ciphertext()[:16] + gate.pack(lying, COMPACT.primes))
    with pytest.raises(RemoteProtocolError, match="ann in phase score"):
        parties.evaluator.unblind(blinded, parties.opener.open(blinded.request))


def test_foreign_keys_kinds_and_terms_are_refused() -> None:
    parties, foreign = Parties(), Parties(pair=KeyPair.generate(COMPACT))
    other_terms = Parties(scores=51)
    for stranger in (foreign, other_terms):
        with pytest.raises(RemoteProtocolError, match="another kind, key or set"):
            parties.blinded(stranger.ciphertext())
        with pytest.raises(RemoteProtocolError, match="another kind, key or set"):
            parties.opener.open(stranger.blinded().request)
    blinded = parties.blinded()
    reply = parties.opener.open(blinded.request)
    with pytest.raises(RemoteProtocolError, match="key holder in phase gate"):
        foreign.evaluator.unblind(blinded, reply)


@pytest.mark.parametrize("damage", ["short", "long", "empty", "large", "transparent", "random", "text"])
def test_ciphertexts_pass_the_gate_or_cost_their_sender(damage: str) -> None:
    parties = Parties()
    raw = parties.ciphertext()
    bad = {
        "short": raw[:-1],
        "long": raw + b"\0",
        "empty": b"",
        "large": raw[:16] + b"\xff" * 8 + raw[24:],
        "transparent": raw[: 16 + 4096 * 12] + bytes(4096 * 12),
        "random": np.random.default_rng(0).bytes(len(raw)),
        "text": "x" * len(raw),
    }[damage]
    with pytest.raises(RemoteProtocolError, match="ann in phase gate") as refusal:
        parties.evaluator.match(bad, parties.baseline, sender="ann")  # type: ignore[arg-type]
    assert refusal.value.sender == "ann"


@pytest.mark.parametrize("damage", ["short", "long", "empty", "integer", "residue"])
def test_requests_and_replies_pass_the_gate(damage: str) -> None:
    parties = Parties()
    blinded = parties.blinded()
    reply = parties.opener.open(blinded.request)

    def bad(raw: bytes) -> bytes:
        place = 28 if damage == "residue" and len(raw) > 28 else 16
        large = raw[:place] + b"\xff" * 12 + raw[place + 12 :]
        return {"short": raw[:-1], "long": raw + b"\0", "empty": b""}.get(damage, large)

    with pytest.raises(RemoteProtocolError, match="evaluator in phase gate"):
        parties.opener.open(bad(blinded.request))
    with pytest.raises(RemoteProtocolError, match="key holder in phase gate"):
        parties.evaluator.unblind(blinded, bad(reply))


def test_plaintext_parts_are_checked() -> None:
    parties = Parties(Variant.MEAN_ONLY)
    ciphertext, clear = parties.ciphertext(), parties.split.clear
    for bad in (None, clear[:-1], np.full(Q + 1, np.nan), np.r_[1e9, clear[1:]], np.r_[clear[:-1], 1e6]):
        with pytest.raises(RemoteProtocolError, match=r"ann .*11 plaintext values"):
            parties.evaluator.match(ciphertext, parties.baseline, bad, sender="ann")


def test_weights_beyond_the_declared_norm_are_refused() -> None:
    evaluator, short = Parties().evaluator, Anchor(np.zeros(3), np.ones(3))
    sharp = MeanVariance(np.full(Q, 4.0), np.full(Q, 0.2), 5)
    with pytest.raises(ConfigError, match=r"Bounds.weight"):
        evaluator.baseline(linear_query(sharp, ANCHOR, BOUNDS))
    with pytest.raises(ConfigError, match=r"21 \+ 0 .*\(7 \+ 0"):
        evaluator.baseline(linear_query(MeanVariance(np.zeros(3), np.ones(3), 1), short, BOUNDS))


@pytest.mark.parametrize("hidden", [np.zeros(3), np.full(2 * Q + 1, np.nan), np.full(2 * Q + 1, 1e6)])
def test_the_client_encrypts_only_clipped_features(hidden: np.ndarray) -> None:
    with pytest.raises(LocalProtocolError, match="Clip them first"):
        Parties().client.encrypt(hidden)


def test_each_request_has_its_own_mask() -> None:
    """Without a mask the key holder reads the score; under one mask it reads differences of scores."""
    own = LinearTerms(parameters=COMPACT, bounds=BOUNDS.linear(Q, Variant.FULL), scores=50)
    client, evaluator = (
        Encryptor(keys(COMPACT).public, own),
        LinearEvaluator(keys(COMPACT).public, own, SIGNER),
    )
    split = features(CLIENT, ANCHOR, BOUNDS).split(Variant.FULL)
    baseline = evaluator.baseline(linear_query(BASE, ANCHOR, BOUNDS, Variant.FULL))
    message = client.encrypt(split.hidden)
    masks = [evaluator.match(message, baseline, split.clear).mask for _ in range(2)]
    assert len(set(masks)) == len(masks)
    assert all(2**32 < mask < COMPACT.modulus - 2**32 for mask in masks)
