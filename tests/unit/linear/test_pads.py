"""Pads: the same scores as ciphertexts, from clients without a homomorphic library."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from support.tiny_he import BOUNDS, keys, profile

from securefl.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from securefl.core.messages import REFUSED
from securefl.core.signing import AgreementKey, SigningKey
from securefl.dp.moments import MeanVariance
from securefl.he import gate
from securefl.he.flooding import wide_gaussian
from securefl.he.integers import coefficient_rows, products
from securefl.he.ring import Ring
from securefl.linear import pads as module
from securefl.linear.opener import Score
from securefl.linear.pad_terms import PARAMETERS, PadTerms
from securefl.linear.padded import OpensPads, PadEvaluator
from securefl.linear.pads import Masked, PadKeyHolder, admit, mask
from securefl.matching.profiles import Anchor, Bounds, Variant, divergence, features, linear_query

SIGNING, AGREEMENT = SigningKey.generate(), AgreementKey.generate()


class Parties:
    def __init__(self, q: int = 10, variant: Variant = Variant.FULL, context: bytes = b"1") -> None:
        self.q, self.variant = q, variant
        self.terms = PadTerms(bounds=BOUNDS.linear(q, variant), context=context, openings=10**6)
        self.anchor, self.base = Anchor(np.zeros(q), np.ones(q)), profile(99, q)
        asked = linear_query(self.base, self.anchor, BOUNDS, variant)
        self.evaluator = PadEvaluator(keys(PARAMETERS).public, self.terms, SIGNING, asked)
        self.holder = PadKeyHolder(keys(PARAMETERS), AGREEMENT, self.terms, SIGNING.public)

    def masked(self, own: MeanVariance) -> Masked:
        split = features(own, self.anchor, BOUNDS).split(self.variant)
        return mask(split.hidden, split.clear, self.terms, AGREEMENT.public)

    def scores(
        self, masked: Sequence[Masked], gone: frozenset[int] = frozenset()
    ) -> dict[int, Score | RemoteProtocolError]:
        found: dict[int, Score | RemoteProtocolError] = {}
        size = self.terms.block
        for block, ciphertext in enumerate(self.holder.encrypt(self.evaluator.list(masked))):
            first = block * size
            there = [None if first + i in gone else m for i, m in enumerate(masked[first : first + size])]
            opening = self.evaluator.request(ciphertext, first, there)
            found |= self.evaluator.scores(opening, self.holder.open(opening.request), masked)
        return found


@pytest.mark.parametrize("variant", Variant)
@pytest.mark.parametrize(("q", "clients"), [(1, 3), (10, 5), (84, 60), (512, 8)])
def test_pads_give_the_divergence(q: int, clients: int, variant: Variant) -> None:
    """60 clients at q = 84 and 8 at 512 take two ciphertexts."""
    parties = Parties(q, variant)
    owners = [profile(i, q) for i in range(clients)]
    found = parties.scores([parties.masked(own) for own in owners])
    assert sorted(found) == list(range(clients))
    for i, own in enumerate(owners):
        score = found[i]
        assert isinstance(score, Score)
        assert abs(score.value - divergence(own, parties.base)) <= min(score.error_bound, 1e-4)


def test_a_client_that_is_gone_is_not_opened_and_others_are_as_before() -> None:
    parties = Parties()
    owners = [profile(i, 10) for i in range(4)]
    found = parties.scores([parties.masked(own) for own in owners], frozenset({0, 2}))
    assert sorted(found) == [1, 3]
    for i in (1, 3):
        score = found[i]
        assert isinstance(score, Score)
        assert abs(score.value - divergence(owners[i], parties.base)) < 1e-5


def test_what_a_client_sends_is_uniform_and_never_the_same() -> None:
    """Chi-square over the leading octets of 200 messages of one profile; false alarm 1e-7."""
    parties = Parties()
    sent = [parties.masked(profile(1, 10)) for _ in range(200)]
    assert len({m.words for m in sent}) == len({m.fresh.raw for m in sent}) == 200
    assert len(sent[0].words) + len(sent[0].fresh.raw) == 8 * 21 + 32
    top = np.concatenate([np.frombuffer(m.words, dtype=np.uint8)[7::8] for m in sent])
    assert stats.chisquare(np.bincount(top >> 4, minlength=16)).pvalue > 1e-7


def test_what_the_key_holder_opens_is_uniform_whatever_the_score() -> None:
    """The sums it rounds to, for one profile and baseline, 390 at a time; false alarm 1e-7."""
    parties = Parties()
    masked = [parties.masked(profile(1, 10)) for _ in range(parties.terms.block)]
    (ciphertext,) = parties.holder.encrypt(parties.evaluator.list(masked))
    opening = parties.evaluator.request(ciphertext, 0, masked)
    sums = np.frombuffer(parties.holder.open(opening.request), dtype="<u8")
    assert stats.chisquare(np.bincount((sums >> np.uint64(60)).astype(int), minlength=16)).pvalue > 1e-7
    assert parties.holder.open(opening.request) == sums.tobytes(), "exact: no fresh noise to average out"


class Crowded(Parties):
    """A full list, with its ciphertext of pads."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(PARAMETERS)
        self.crowd = [self.masked(profile(1, 10)) for _ in range(self.terms.block)]
        (self.pads,) = self.holder.encrypt(self.evaluator.list(self.crowd))


def below_the_sums(parties: Crowded, base: MeanVariance) -> tuple[list[int], list[int]]:
    """What the key holder has when it opens a full list for this baseline: sums, and what it rounds off."""
    evaluator = PadEvaluator(
        keys(PARAMETERS).public,
        parties.terms,
        SIGNING,
        linear_query(base, parties.anchor, BOUNDS),
        ring=parties.ring,
    )
    body = evaluator.request(parties.pads, 0, parties.crowd).request[:-64]
    size, p = gate.integer_size(PARAMETERS.modulus), PARAMETERS
    start = gate.residues_size(1, p.primes, p.poly_modulus_degree)
    second = gate.unpack(body[:start], 1, p.primes, p.poly_modulus_degree, sender="test")[0]
    items = [body[at : at + size + 2] for at in range(start, len(body), size + 2)]
    rows = coefficient_rows(
        keys(PARAMETERS).coefficients(), [int.from_bytes(item[:2], "little") for item in items]
    )
    opened = [
        (int.from_bytes(item[2:], "little") + own) % p.modulus
        for item, own in zip(items, products(rows, second, p), strict=True)
    ]
    sums = [(one * 2**64 + p.modulus // 2) // p.modulus for one in opened]
    return [own % 2**64 for own in sums], [
        one - module.scaled(own) for one, own in zip(opened, sums, strict=True)
    ]


def test_what_the_key_holder_rounds_off_is_as_wide_whatever_the_baseline() -> None:
    """It sees the flooding by itself: were that as wide as the weights are long, it would read their norm.

    Two baselines whose norms differ by a factor above ten; 390 draws each; false alarm below 1e-6.
    """
    parties = Crowded()
    near = MeanVariance(np.zeros(10), np.ones(10), 50)
    far = MeanVariance(np.full(10, 3.0), np.full(10, 0.3), 50)
    widths = [float(np.std(np.array(below_the_sums(parties, base)[1], dtype=float))) for base in (near, far)]
    assert widths[0] / widths[1] == pytest.approx(1, abs=0.3)


def test_a_sum_is_masked_anew_in_each_request() -> None:
    """The key holder knows the pads: of one sum without a mask it has an equation on the weights."""
    parties = Crowded()
    (first, _), (second, _) = (below_the_sums(parties, parties.base) for _ in range(2))
    assert not set(first) & set(second)


def test_the_second_polynomial_of_a_request_is_fresh() -> None:
    """Were it the pads' one times the weights, the key holder, which made that one, would divide."""
    parties, p = Crowded(), PARAMETERS
    size = gate.residues_size(1, p.primes, p.poly_modulus_degree)
    requests = [parties.evaluator.request(parties.pads, 0, parties.crowd).request for _ in range(2)]
    first, second = (
        gate.unpack(one[:size], 1, p.primes, p.poly_modulus_degree, sender="test")[0] for one in requests
    )
    assert (first != second).mean() > 0.99


def test_another_context_has_other_pads() -> None:
    """A message of an earlier round is no score in this one."""
    before, now = Parties(context=b"round 1"), Parties(context=b"round 2")
    stale = before.masked(profile(1, 10))
    assert isinstance(now.scores([stale])[0], RemoteProtocolError)
    relabelled = now.scores([replace(stale, place=now.terms.place)])[0]
    assert isinstance(relabelled, RemoteProtocolError) or relabelled.value > 1


def test_a_masked_row_that_was_changed_costs_its_sender_alone() -> None:
    """What unmasks to junk cannot be told from a claim; it is far off, or refused where it is no score."""
    parties = Parties()
    good = parties.masked(profile(1, 10))
    spoilt = [replace(parties.masked(profile(2, 10)), words=bytes(len(good.words))) for _ in range(20)]
    cut = replace(parties.masked(profile(3, 10)), words=good.words[:-8], sender="short")
    found = parties.scores([good, *spoilt, cut])
    first, *junk, short = (found[i] for i in range(22))
    assert isinstance(first, Score)
    assert abs(first.value - divergence(profile(1, 10), parties.base)) < 1e-5
    assert all(isinstance(one, RemoteProtocolError) or one.value > 1 for one in junk)
    assert any(isinstance(one, RemoteProtocolError) for one in junk)
    assert isinstance(short, RemoteProtocolError)
    assert short.sender == "short"


@pytest.mark.parametrize("what", ["list", "request"])
@pytest.mark.parametrize("damage", ["flip", "cut", "foreign"])
def test_the_key_holder_does_what_its_evaluator_signed_alone(what: str, damage: str) -> None:
    parties = Parties()
    masked = [parties.masked(profile(1, 10))]
    listed = parties.evaluator.list(masked)
    (ciphertext,) = parties.holder.encrypt(listed)
    made = listed if what == "list" else parties.evaluator.request(ciphertext, 0, masked).request
    match damage:
        case "flip":
            bad = bytes([made[0] ^ 1]) + made[1:]
        case "cut":
            bad = made[:-1]
        case _:
            bad = Parties(context=b"2").evaluator.list(masked) if what == "list" else listed
    act = parties.holder.encrypt if what == "list" else parties.holder.open
    with pytest.raises(RemoteProtocolError, match="signature"):
        act(bad)


def test_pads_from_the_key_holder_pass_the_gate() -> None:
    parties = Parties()
    masked = [parties.masked(profile(1, 10))]
    (ciphertext,) = parties.holder.encrypt(parties.evaluator.list(masked))
    for bad in (
        b"",
        ciphertext[:-1],
        b"\xff" * len(ciphertext),
        ciphertext[: len(ciphertext) // 2] + bytes(len(ciphertext) // 2),
    ):
        with pytest.raises(RemoteProtocolError):
            parties.evaluator.request(bad, 0, masked)
    opening = parties.evaluator.request(ciphertext, 0, masked)
    with pytest.raises(RemoteProtocolError, match="one sum for each"):
        parties.evaluator.scores(opening, b"1234", masked)


def test_openings_of_pads_are_counted_and_capped_and_of_sums_alone() -> None:
    parties = Parties()
    few = replace(parties.terms, openings=3)
    evaluator = PadEvaluator(
        keys(PARAMETERS).public, few, SIGNING, linear_query(parties.base, parties.anchor, BOUNDS)
    )
    holder = PadKeyHolder(keys(PARAMETERS), AGREEMENT, few, SIGNING.public)
    masked = [parties.masked(profile(1, 10)), parties.masked(profile(2, 10))]
    (ciphertext,) = holder.encrypt(evaluator.list(masked))
    first, second = (evaluator.request(ciphertext, 0, masked) for _ in range(2))
    assert holder.open(first.request) == holder.open(first.request)
    with pytest.raises(RemoteProtocolError, match="used up"):
        holder.open(second.request)
    for place in (0, 19, 21, 390 * 21, 391 * 21 - 1):  # the sums are at 20, 41, ... of 390 clients
        body = bytearray(first.request[:-64])
        at = len(body) - 2 * 25  # two items of a place and an integer of 23 octets
        body[at : at + 2] = place.to_bytes(2, "little")
        with pytest.raises(RemoteProtocolError, match="place of a sum"):
            holder.open(evaluator._sign(b"open", bytes(body)))
    item = first.request[:-64][-25:]
    for items in (b"", item * (few.block + 1), item + b"\0"):
        with pytest.raises(RemoteProtocolError, match="one polynomial and 1 to"):
            holder.open(evaluator._sign(b"open", first.request[: -64 - 50] + items))


def test_the_flooding_of_pads_hides_every_bit_of_the_noise() -> None:
    """What the key holder sees beside the rounded sum: its low 14 bits are uniform; false alarm 1e-7.

    They were not when the flooding was one float: a guessed baseline could be confirmed by them.
    """
    lows = [wide_gaussian(2.0**75, random.SystemRandom()) % 2**14 for _ in range(20_000)]
    assert stats.chisquare(np.bincount(np.array(lows) >> 8, minlength=64)).pvalue > 1e-7
    assert np.std(
        [wide_gaussian(2.0**75, random.SystemRandom()) / 2**75 for _ in range(5000)]
    ) == pytest.approx(1, abs=0.07)
    assert {wide_gaussian(0.4, random.SystemRandom()) for _ in range(200)} <= set(range(-4, 5))


def test_bounds_that_leave_no_room_and_features_outside_them_are_refused() -> None:
    with pytest.raises(ConfigError, match="room for fractions"):
        PadTerms(
            bounds=Bounds(mean=1e6, variance_high=1e9).linear(512, Variant.FULL),
            context=b"",
            openings=10**6,
        )
    with pytest.raises(ConfigError, match="at most 8192 masked integers"):
        PadTerms(bounds=BOUNDS.linear(4096, Variant.FULL), context=b"", openings=1)
    parties = Parties()
    for hidden in (np.zeros(3), np.full(21, np.nan), np.full(21, 1e6)):
        with pytest.raises(LocalProtocolError, match="inside the declared bounds"):
            mask(hidden, np.zeros(0), parties.terms, AGREEMENT.public)
    loose = linear_query(MeanVariance(np.ones(10), np.full(10, 1e-5), 9), parties.anchor, BOUNDS)
    with pytest.raises(ConfigError, match="declare a larger norm"):
        PadEvaluator(keys(PARAMETERS).public, parties.terms, SIGNING, loose)


def test_a_word_at_its_place_in_the_modulus_is_rounded_by_less_than_its_noise() -> None:
    words = np.random.default_rng(1).integers(0, 2**64, 500, dtype=np.uint64)
    found = module._scaled_residues(words)[:, :500]
    for column, word in zip(found.T, words, strict=True):
        exact = (int(word) * PARAMETERS.modulus) >> 64
        composed = PARAMETERS.compose(tuple(int(r) for r in column))
        assert 0 <= (exact - composed) % PARAMETERS.modulus <= 8


# The message of a client, and the lists of a server -------------------------------------------------


def test_a_message_is_place_key_and_words_of_exact_length() -> None:
    parties = Parties()
    made = parties.masked(profile(1, 10))
    assert len(made.packed) == parties.terms.message_bytes == 16 + 32 + 8 * 21
    found = admit(made.packed, made.clear, parties.terms, sender="ann")
    assert (found.packed, found.sender) == (made.packed, "ann")


ORDER_8 = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"
BAD_MESSAGES = {
    "empty": lambda good: b"",
    "a word short": lambda good: good[:-8],
    "a byte more": lambda good: good + b"\0",
    "of another place": lambda good: bytes(16) + good[16:],
    "all-zero key": lambda good: good[:16] + bytes(32) + good[48:],
    "order one": lambda good: good[:16] + b"\1" + bytes(31) + good[48:],
    "order eight": lambda good: good[:16] + bytes.fromhex(ORDER_8) + good[48:],
    "zero, written as the prime": lambda good: good[:16] + (2**255 - 19).to_bytes(32, "little") + good[48:],
}


@pytest.mark.parametrize("spoil", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_the_gate_refuses_by_name_what_no_client_makes(spoil: Callable[[bytes], bytes]) -> None:
    parties = Parties()
    made = parties.masked(profile(1, 10))
    with pytest.raises(RemoteProtocolError) as refused:
        admit(spoil(made.packed), made.clear, parties.terms, sender="mallory")
    assert (refused.value.sender, refused.value.phase) == ("mallory", "gate")


def test_the_key_holder_encrypts_each_pad_once() -> None:
    """A pad that stands in a list twice would be used twice."""
    parties = Parties()
    masked = parties.masked(profile(1, 10))
    with pytest.raises(RemoteProtocolError, match="each fresh key once"):
        parties.holder.encrypt(parties.evaluator.list([masked, masked]))


def test_the_key_holder_gives_one_ciphertext_a_list_and_tells_why_not() -> None:
    parties, told = Parties(q=512), dict[str, str]()
    opens = OpensPads(parties.holder, told.__setitem__)
    masked = [parties.masked(profile(i, 512)) for i in range(parties.terms.block + 1)]
    fitting, long = parties.evaluator.list(masked[:-1]), parties.evaluator.list(masked)
    pads, refused, junk = opens.open(0, (fitting, long, b"junk"))
    assert (bool(pads), refused, junk) == (True, REFUSED, REFUSED)
    assert set(told) == {"server"}
    opening = parties.evaluator.request(pads, 0, masked[:-1])
    assert opens.open(1, (opening.request, fitting)) == (parties.holder.open(opening.request), REFUSED)


@pytest.mark.parametrize("variance", [1e9, -1.0, np.nan])
def test_clear_values_outside_the_bounds_are_no_score(variance: float) -> None:
    parties = Parties(variant=Variant.MEAN_ONLY)
    made = parties.masked(profile(1, 10))
    clear = np.concatenate([[variance], made.clear[1:]])
    refused = parties.scores([replace(made, clear=clear, sender="ann")])[0]
    assert isinstance(refused, RemoteProtocolError)
    assert (refused.sender, "inside the declared bounds" in str(refused)) == ("ann", True)


def test_a_claim_beyond_the_declared_bounds_is_no_score() -> None:
    """The last word, the log sum, weighs -1/2: less of it is a larger score, here 1.1 times the largest."""
    parties = Parties()
    made = parties.masked(profile(1, 10))
    words = np.frombuffer(made.words, dtype="<u8").copy()
    far = 2.2 * BOUNDS.largest_product(10) * parties.terms.data_scale
    words[-1] -= np.uint64(int(far))
    refused = parties.scores([replace(made, words=words.tobytes(), sender="ann")])[0]
    assert isinstance(refused, RemoteProtocolError)
    assert (refused.sender, "no honest client" in str(refused)) == ("ann", True)
