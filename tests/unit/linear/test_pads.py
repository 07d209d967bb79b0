"""Pads: the same scores as ciphertexts, without a homomorphic key in any party's hands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from scipy import stats
from support.every import every
from support.tiny_he import BOUNDS, NOTHING, pad_holder, pad_request, pad_score, pad_server, profile

from securefl.core.agreement import u32
from securefl.core.errors import ConfigError, DataError, RemoteProtocolError
from securefl.core.keys import PublicKey
from securefl.core.linear import Floats, LinearBounds, LinearQuery
from securefl.core.messages import REFUSED
from securefl.core.signing import AgreementKey, SigningKey
from securefl.core.wire import Header, Limit
from securefl.dp.moments import MeanVariance
from securefl.he.keys import KeyPair
from securefl.linear import words
from securefl.linear.pad_terms import PadTerms
from securefl.linear.pads import admit, mask, pad_and_rest, rounded
from securefl.linear.scheme import OpeningMachine
from securefl.linear.turn import QueryKeyHolder, QueryServer, Score, framed
from securefl.matching.profiles import Anchor, Bounds, Variant, divergence, features, linear_query

SIGNING, AGREEMENT = SigningKey.generate(), AgreementKey.generate()
NAME, COHORT = "profile", 600


class Parties:
    """Server, key holder and clients of one exchange."""

    def __init__(
        self,
        q: int = 10,
        variant: Variant = Variant.FULL,
        context: bytes = b"1",
        word_bits: int = 64,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self.q, self.variant = q, variant
        self.terms = PadTerms(bounds=bounds.linear(q, variant), context=context, word_bits=word_bits)
        self.anchor, self.base = Anchor(np.zeros(q), np.ones(q)), profile(99, q)
        self.query = linear_query(self.base, self.anchor, bounds, variant)
        self.server = self.of(self.query)
        self.holder = self.fresh_holder()

    def of(self, query: LinearQuery, salt: bytes | None = None) -> QueryServer:
        return pad_server(self.terms, 0, NAME, SIGNING, query, salt=salt)

    def fresh_holder(self, agreement: AgreementKey = AGREEMENT) -> QueryKeyHolder:
        return pad_holder(agreement, self.terms, (NAME,), COHORT, SIGNING.public)

    def masked(self, own: MeanVariance, told: bytes | None = None) -> bytes:
        split = features(own, self.anchor, BOUNDS).split(self.variant)
        told = self.server.declared.told if told is None else told
        return mask(split.hidden, self.terms, NAME, told, AGREEMENT.public)

    def fresh(self, message: bytes) -> PublicKey:
        return admit(message, self.terms, sender="client").fresh

    def words(self, message: bytes) -> words.Words:
        return admit(message, self.terms, sender="client").words

    def request(self, fresh: Sequence[bytes]) -> bytes:
        """A request with these fresh keys, whatever they are."""
        head = self.server._index.to_bytes(4, "little") + self.server.declared.head
        return signed(self, head + b"".join(fresh))

    def scores(
        self, messages: Sequence[bytes], clear: Sequence[Floats] | None = None
    ) -> list[Score | RemoteProtocolError]:
        reply = self.holder.open(self.request([one[16:48] for one in messages]))
        beside = [NOTHING] * len(messages) if clear is None else clear
        return [self.score(one, reply, at, beside[at]) for at, one in enumerate(messages)]

    def score(self, message: bytes, reply: bytes, at: int, clear: Floats) -> Score | RemoteProtocolError:
        size = self.terms.word_bytes
        try:
            return pad_score(self.server, message, reply[at * size : (at + 1) * size], clear, "ann")
        except RemoteProtocolError as error:
            return error


def signed(parties: Parties, body: bytes) -> bytes:
    """A request as a server makes it that does not follow the protocol."""
    return body + SIGNING.sign(framed(parties.terms, body)).raw


def forged(
    parties: Parties, weights: words.Words, fresh: Sequence[PublicKey], salt: bytes = bytes(32)
) -> bytes:
    keys = b"".join(key.raw for key in fresh)
    return signed(parties, u32(0) + salt + words.packed(weights) + keys)


def value(score: Score | RemoteProtocolError) -> float:
    assert isinstance(score, Score), score
    return score.value


# Scores -------------------------------------------------------------------------------------------


@every("word_bits", [64, 128])
@every("variant", Variant)
@every(("q", "clients"), [(1, 3), (10, 5), (84, 500), (512, 8), (4096, 2)])
def test_pads_give_the_divergence(q: int, clients: int, variant: Variant, word_bits: int) -> None:
    """For any length: a pad is as long as its vector, and no ciphertext has to hold it."""
    parties = Parties(q, variant, word_bits=word_bits)
    owners = [profile(i, q) for i in range(clients)]
    clear = [features(own, parties.anchor, BOUNDS).split(variant).clear for own in owners]
    found = parties.scores([parties.masked(own) for own in owners], clear)
    assert len(found) == clients
    for own, score in zip(owners, found, strict=True):
        assert isinstance(score, Score)
        assert abs(score.value - divergence(own, parties.base)) <= score.error_bound
        assert score.error_bound < (1e-3 if word_bits == 64 else 1e-11)


# What each party sees -------------------------------------------------------------------------------


def test_what_a_client_sends_is_uniform_and_never_the_same() -> None:
    """Chi-square over the leading octets of 200 messages of one profile; false alarm 1e-7."""
    parties = Parties()
    sent = [parties.masked(profile(1, 10)) for _ in range(200)]
    assert len({m[48:] for m in sent}) == len({m[16:48] for m in sent}) == 200
    assert len(sent[0][16:]) == 8 * 21 + 32
    top = np.concatenate([np.frombuffer(m[48:], dtype=np.uint8)[7::8] for m in sent])
    assert stats.chisquare(np.bincount(top >> 4, minlength=16)).pvalue > 1e-7


def test_no_homomorphic_key_is_reachable_from_the_key_holder() -> None:
    """There is none to steal: attacks by openings read a `KeyPair`."""
    seen: set[int] = set()

    def reachable(thing: object) -> list[object]:
        if id(thing) in seen:
            return []
        seen.add(id(thing))
        inner = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
        if is_dataclass(thing):
            inner += [getattr(thing, one.name) for one in fields(thing)]
        if isinstance(thing, tuple | list | dict):
            inner += list(thing.values() if isinstance(thing, dict) else thing)
        return [thing, *(found for one in inner for found in reachable(one))]

    parties = Parties()
    parties.scores([parties.masked(profile(1, 10))])
    kinds = {type(one) for one in reachable(parties.holder)}
    assert AgreementKey in kinds
    assert KeyPair not in kinds


# A server that lies ---------------------------------------------------------------------------------


def other_sums(parties: Parties, masked: bytes, request: bytes) -> bool:
    """Whether this request opens nothing of the vector of `profile(1, 10)`, by an unrelated pad."""
    reply = parties.holder.open(request)
    weights = words.unpacked(request[36 : 36 + 8 * 21], 64)
    whole = words.product(parties.words(masked), weights)
    opened = words.centred((whole - int.from_bytes(reply, "little")) % 2**64, 64)
    own = features(profile(1, 10), parties.anchor, BOUNDS).split(parties.variant).hidden
    meant = words.centred(words.product(rounded(own, parties.terms), weights), 64)
    # Of an unrelated pad the difference is uniform, so it is as small as this in one of 2^23 runs.
    return abs(opened - meant) > 2**40


def test_other_weights_get_the_sum_of_an_unrelated_pad() -> None:
    """The server has a client's words, and asks the key holder for a sum with weights it never declared."""
    parties = Parties()
    masked = parties.masked(profile(1, 10))
    sharp = linear_query(MeanVariance(np.zeros(10), np.ones(10), 9), parties.anchor, BOUNDS)
    assert other_sums(parties, masked, pad_request(parties.of(sharp), [masked]))


def test_another_salt_gets_the_sum_of_an_unrelated_pad() -> None:
    parties = Parties()
    masked = parties.masked(profile(1, 10))
    assert other_sums(parties, masked, pad_request(parties.of(parties.query, salt=bytes(32)), [masked]))


def test_another_place_and_another_question_have_other_pads() -> None:
    """A message of an earlier round is no score in this one, and none of a question beside it."""
    before, now = Parties(context=b"round 1"), Parties(context=b"round 2")
    stale = before.masked(profile(1, 10))
    (score,) = now.scores([now.terms.place + stale[16:]])
    assert isinstance(score, RemoteProtocolError) or score.value > 1
    beside = Parties()
    beside.server = pad_server(beside.terms, 1, "beside", SIGNING, beside.query)
    beside.holder = pad_holder(AGREEMENT, beside.terms, (NAME, "beside"), COHORT, SIGNING.public)
    (score,) = beside.scores([beside.masked(profile(1, 10))])  # masked for "profile"
    assert isinstance(score, RemoteProtocolError) or score.value > 1


def test_clients_that_were_told_two_digests_have_one_score_between_them() -> None:
    """The server declares other weights to a victim: one request opens those of one digest alone."""
    parties = Parties()
    sharp = parties.of(linear_query(MeanVariance(np.zeros(10), np.ones(10), 9), parties.anchor, BOUNDS))
    masked = [parties.masked(profile(1, 10)), parties.masked(profile(1, 10), told=sharp.declared.told)]
    first, second = parties.scores(masked)
    assert value(first) == pytest.approx(divergence(profile(1, 10), parties.base), abs=1e-4)
    assert isinstance(second, RemoteProtocolError) or abs(second.value - value(first)) > 1
    with pytest.raises(RemoteProtocolError, match="equest of 'profile' again"):
        parties.holder.open(pad_request(sharp, [masked[1]]))


def test_a_second_request_of_one_query_is_refused_and_the_first_repeated() -> None:
    parties = Parties()
    masked = [parties.masked(profile(i, 10)) for i in range(3)]
    request = pad_request(parties.server, masked)
    reply = parties.holder.open(request)
    assert parties.holder.open(request) == reply
    for again in (pad_request(parties.server, masked[:1]), pad_request(parties.server, masked[::-1])):
        with pytest.raises(RemoteProtocolError, match="first request"):
            parties.holder.open(again)


def test_after_a_restart_the_key_holder_has_other_pads() -> None:
    """Its key is made with its process, so a restart, or a backup, forgets nothing that counts."""
    parties = Parties()
    masked = parties.masked(profile(1, 10))
    request = pad_request(parties.server, [masked])
    first = parties.holder.open(request)
    parties.holder = parties.fresh_holder(AgreementKey.generate())
    assert parties.holder.open(request) != first
    assert other_sums(parties, masked, request)


def unit_weights(parties: Parties, at: int) -> words.Words:
    own = np.zeros(parties.terms.row)
    own[at] = parties.terms.weight_scale
    return words.from_floats(own, 64)


@every("at", [0, 12, 20])
def test_weights_of_no_baseline_are_refused(at: int) -> None:
    """A coordinate alone: its half-weights are below those of any variance, its last is not -1/2."""
    parties = Parties()
    masked = parties.masked(profile(1, 10))
    with pytest.raises(RemoteProtocolError, match="Expected weights"):
        parties.holder.open(forged(parties, unit_weights(parties, at), [parties.fresh(masked)]))


def test_each_rule_on_the_form_of_weights_holds_at_its_edge() -> None:
    bounds = Bounds(mean=4.0, variance_low=0.1, variance_high=8.0, weight=8.0)
    parties = Parties(bounds=bounds)
    scale, fresh = parties.terms.weight_scale, [AgreementKey.generate().public]
    legal = np.rint(parties.query.hidden * scale)
    low, high = scale / (2 * bounds.variance_high), scale / (2 * bounds.variance_low)

    def changed(at: int, to: float) -> bytes:
        own = legal.copy()
        own[at] = to
        return forged(parties, words.from_floats(own, 64), fresh)

    for at, to in ((10, np.ceil(low)), (10, np.floor(high)), (20, -scale / 2)):
        assert parties.fresh_holder().open(changed(at, to)), "inside"
    longest = bounds.weight_norm(10) * scale
    refused = [(10, np.floor(low) - 2), (10, np.ceil(high) + 2), (20, -scale / 2 + 2), (20, 0.0)]
    for at, to in (*refused, (0, longest)):
        with pytest.raises(RemoteProtocolError, match="Expected weights"):
            parties.fresh_holder().open(changed(at, to))


def test_a_key_that_is_listed_twice_or_weak_is_refused() -> None:
    """One pad twice gives two sums of it; under a weak key everybody knows the pad."""
    parties = Parties()
    victim = parties.masked(profile(1, 10))
    with pytest.raises(RemoteProtocolError, match="each client once"):
        parties.holder.open(pad_request(parties.server, [victim, victim]))
    for weak in (bytes(32), b"\1" + bytes(31), bytes.fromhex(ORDER_8)):
        with pytest.raises(RemoteProtocolError, match="cannot be agreed"):
            parties.holder.open(parties.request([victim[16:48], weak]))
    assert parties.holder.open(pad_request(parties.server, [victim])), "a refused request is not the first"


def test_a_victim_s_fresh_key_in_another_encoding_has_another_pad() -> None:
    """X25519 ignores the highest bit, so two texts are one point. The pad's key has the text."""
    parties = Parties()
    victim = parties.masked(profile(1, 10))
    twin = victim[:47] + bytes([victim[47] ^ 0x80]) + victim[48:]
    assert len({AGREEMENT.agree(parties.fresh(one), b"").reveal() for one in (victim, twin)}) == 1, (
        "one point"
    )
    first, second = parties.scores([victim, twin])
    assert value(first) == pytest.approx(divergence(profile(1, 10), parties.base), abs=1e-4)
    assert isinstance(second, RemoteProtocolError) or abs(second.value - value(first)) > 1


def test_the_key_holder_does_what_its_server_signed_alone() -> None:
    parties = Parties()
    good = pad_request(parties.server, [parties.masked(profile(1, 10))])
    elsewhere = Parties(context=b"2").request([parties.masked(profile(1, 10))[16:48]])
    for bad in (bytes([good[0] ^ 1]) + good[1:], elsewhere, good[:-1] + bytes([good[-1] ^ 1])):
        with pytest.raises(RemoteProtocolError, match="signature"):
            parties.holder.open(bad)
    lengths = (b"", good[:-1], good + b"\0", good[:-96] + good[-64:])
    for bad in lengths:
        with pytest.raises(RemoteProtocolError, match="another length"):
            parties.holder.open(bad)
    crowd = pad_holder(AGREEMENT, parties.terms, (NAME,), 1, SIGNING.public)
    with pytest.raises(RemoteProtocolError, match="1 to 1 clients"):
        crowd.open(pad_request(parties.server, [parties.masked(profile(k, 10)) for k in range(2)]))
    for index in (1, 7, 2**32 - 1):
        with pytest.raises(RemoteProtocolError, match=f"number {index}"):
            parties.holder.open(signed(parties, u32(index) + good[4:-64]))


def test_a_request_that_is_refused_costs_its_query_alone() -> None:
    parties, told = Parties(), dict[str, str]()
    good = pad_request(parties.server, [parties.masked(profile(1, 10))])
    machine = OpeningMachine(
        header=Header(bytes(32), 1, 0, 0),
        most=Limit(0, 0),
        open_=parties.holder.open,
        report=told.__setitem__,
    )
    reply, refused = machine.opened((good, b"junk"))
    assert (len(reply), refused) == (8, REFUSED)
    assert set(told) == {"server"}


# A client that lies ---------------------------------------------------------------------------------


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


@every("spoil", BAD_MESSAGES.values())
def test_the_gate_refuses_by_name_what_no_client_makes(spoil: Callable[[bytes], bytes]) -> None:
    parties = Parties()
    made = parties.masked(profile(1, 10))
    with pytest.raises(RemoteProtocolError) as refused:
        admit(spoil(made), parties.terms, sender="mallory")
    assert (refused.value.sender, refused.value.phase) == ("mallory", "gate")


@every("variance", [1e9, -1.0, np.nan])
def test_clear_values_outside_the_bounds_are_no_score(variance: float) -> None:
    parties = Parties(variant=Variant.MEAN_ONLY)
    own = features(profile(1, 10), parties.anchor, BOUNDS).split(Variant.MEAN_ONLY).clear
    clear = np.concatenate([[variance], own[1:]])
    (refused,) = parties.scores([parties.masked(profile(1, 10))], [clear])
    assert isinstance(refused, RemoteProtocolError)
    assert (refused.sender, "inside the declared bounds" in str(refused)) == ("ann", True)


def test_a_claim_beyond_the_declared_bounds_is_no_score() -> None:
    """The last word, the log sum, weighs -1/2: less of it is a larger score, here 1.1 times the largest."""
    parties = Parties()
    made = parties.masked(profile(1, 10))
    own = np.frombuffer(made[48:], dtype="<u8").copy()
    far = 2.2 * BOUNDS.largest_product(10) * parties.terms.data_scale
    own[-1] -= np.uint64(int(far))
    (refused,) = parties.scores([made[:48] + own.tobytes()])
    assert isinstance(refused, RemoteProtocolError)
    assert (refused.sender, "no honest client" in str(refused)) == ("ann", True)


# Terms ----------------------------------------------------------------------------------------------


def test_bounds_that_leave_no_room_and_features_outside_them_are_refused() -> None:
    wide = Bounds(mean=1e6, variance_high=1e9).linear(512, Variant.FULL)
    with pytest.raises(ConfigError, match="room for fractions"):
        PadTerms(bounds=wide, context=b"")
    assert PadTerms(bounds=wide, context=b"", word_bits=128).error_bound < 0.1
    with pytest.raises(ConfigError, match="64 or 128 bits"):
        PadTerms(bounds=BOUNDS.linear(3, Variant.FULL), context=b"", word_bits=32)
    parties = Parties()
    for hidden in (np.zeros(3), np.full(21, np.nan), np.full(21, np.inf), np.full(21, 1e6)):
        with pytest.raises(DataError, match="as declared"):
            mask(hidden, parties.terms, NAME, bytes(32), AGREEMENT.public)
    loose = linear_query(MeanVariance(np.ones(10), np.full(10, 1e-5), 9), parties.anchor, BOUNDS)
    with pytest.raises(ConfigError, match="declare a larger norm"):
        parties.of(loose)


@every("word_bits", [64, 128])
@every(("norm", "weight_norm"), [(1e5, 1e25), (1e25, 1e5), (1e30, 1e30)])
def test_a_product_far_below_both_norms_is_refused(norm: float, weight_norm: float, word_bits: int) -> None:
    """At its scale a single entry would be longer than a word, and the score another number."""
    bounds = LinearBounds(hidden_length=2, norm=norm, weight_norm=weight_norm, row_norm=1.0, product=1e-10)
    with pytest.raises(ConfigError, match="nearer to the norms"):
        PadTerms(bounds=bounds, context=b"", word_bits=word_bits)


@every("word_bits", [64, 128])
@every("product", [2.0**-40, 2.0**-61, 2.0**-100, 2.0**-124, 2.0**-126])
def test_orthogonal_vectors_score_nothing_or_are_refused(product: float, word_bits: int) -> None:
    bounds = LinearBounds(hidden_length=2, norm=1.0, weight_norm=1.0, row_norm=1.0, product=product)
    try:
        terms = PadTerms(bounds=bounds, context=b"", word_bits=word_bits)
    except ConfigError:
        return
    query = LinearQuery(bounds, np.array([0.5, 0.5]))
    server = pad_server(terms, 0, NAME, SIGNING, query)
    holder = pad_holder(AGREEMENT, terms, (NAME,), 1, SIGNING.public)
    masked = mask(np.array([0.7, -0.7]), terms, NAME, server.declared.told, AGREEMENT.public)
    score = pad_score(server, masked, holder.open(pad_request(server, [masked])))
    assert abs(score.value) <= score.error_bound


def test_the_digest_of_weights_cannot_be_guessed() -> None:
    """Without a salt that nobody knows, a client tries baselines until one has the digest it was told."""
    parties = Parties()
    made = [parties.of(parties.query) for _ in range(2)]
    salts = [one.declared.head[:32] for one in made]
    assert len({one.declared.told for one in made} | {*salts} | {bytes(32)}) == 5
    assert parties.of(parties.query, salts[0]).declared.told == made[0].declared.told


def test_a_pad_is_bound_to_all_that_it_is_for() -> None:
    terms, own = Parties().terms, AgreementKey.generate()
    other, twin = AgreementKey.generate(), own.public.raw[:31] + bytes([own.public.raw[31] ^ 0x80])
    usual = (AGREEMENT.public, own.public, terms, NAME, bytes(32))
    changes = [
        (0, other.public),
        (1, PublicKey(twin)),
        (2, replace(terms, context=b"another")),
        (3, "another"),
        (4, b"t" * 32),
    ]
    asked = [usual, *((*usual[:at], value, *usual[at + 1 :]) for at, value in changes)]
    assert len({words.packed(pad_and_rest(own, *one)[0]) for one in asked}) == 6  # type: ignore[arg-type]
