"""Dealt pads: the scores of pads, and the key holder sees no weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from support.tiny_he import BOUNDS, profile

from securefl.core.agreement import u32
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import PublicKey
from securefl.core.signing import AgreementKey, SigningKey
from securefl.dp.moments import MeanVariance
from securefl.linear import words
from securefl.linear.dealt_pads import DealtKeyHolder, DealtServer, _spread, mask, pad_and_last
from securefl.linear.opener import Score
from securefl.linear.pad_terms import INDEX, KEY, SEED, PadTerms
from securefl.linear.pads import Masked, admit, framed
from securefl.matching.profiles import Anchor, Variant, divergence, features, linear_query

ORDER_8 = "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"
SIGNING, AGREEMENT = SigningKey.generate(), AgreementKey.generate()
NAME = "profile"


class Parties:
    def __init__(self, q: int = 10, variant: Variant = Variant.FULL, word_bits: int = 64) -> None:
        self.variant = variant
        bounds = BOUNDS.linear(q, variant)
        self.terms = PadTerms(bounds=bounds, context=b"1", word_bits=word_bits, dealt=True)
        self.anchor, self.base = Anchor(np.zeros(q), np.ones(q)), profile(99, q)
        self.query = linear_query(self.base, self.anchor, BOUNDS, variant)
        self.server = DealtServer(self.terms, 0, SIGNING, self.query)
        self.holder = self.fresh_holder()

    def fresh_holder(self, agreement: AgreementKey = AGREEMENT) -> DealtKeyHolder:
        return DealtKeyHolder(agreement, self.terms, (NAME,), 600, SIGNING.public)

    def masked(self, own: MeanVariance) -> Masked:
        split = features(own, self.anchor, BOUNDS).split(self.variant)
        return mask(split.hidden, split.clear, self.terms, NAME, AGREEMENT.public)

    def scores(self, masked: Sequence[Masked]) -> list[Score]:
        reply, size = self.holder.open(self.server.request(masked)), self.terms.word_bytes
        return [self.server.score(one, reply[at * size :][:size]) for at, one in enumerate(masked)]

    def request(self, fresh: PublicKey, delta: words.Words) -> bytes:
        """A request as a server makes it that does not follow the protocol."""
        body = u32(0) + fresh.raw + words.packed(delta)
        return body + SIGNING.sign(framed(self.terms, body)).raw


@pytest.mark.parametrize("word_bits", [64, 128])
@pytest.mark.parametrize("variant", Variant)
@pytest.mark.parametrize(("q", "clients"), [(1, 3), (84, 60), (4096, 2)])
def test_dealt_pads_give_the_divergence(q: int, clients: int, variant: Variant, word_bits: int) -> None:
    parties = Parties(q, variant, word_bits)
    owners = [profile(i, q) for i in range(clients)]
    for own, score in zip(owners, parties.scores([parties.masked(own) for own in owners]), strict=True):
        assert abs(score.value - divergence(own, parties.base)) <= score.error_bound


def test_a_message_passes_the_gate_at_its_exact_length() -> None:
    parties = Parties()
    made = parties.masked(profile(1, 10))
    assert len(made.packed) == parties.terms.message_bytes == 16 + 32 + 32 + 8 + 8 * 21
    found = admit(made.packed, made.clear, parties.terms, sender="ann")
    assert (found.packed, found.share, found.words) == (made.packed, made.share, made.words)
    with pytest.raises(RemoteProtocolError, match="bytes, got"):
        admit(made.packed[:-8], made.clear, parties.terms, sender="ann")


def test_what_the_key_holder_sees_of_the_weights_is_uniform() -> None:
    """The leading octets of 200 clients' shares, of one baseline; false alarm 1e-7."""
    parties = Parties()
    body = parties.server.request([parties.masked(profile(1, 10)) for _ in range(200)])[INDEX:-64]
    shares = [body[at + KEY : at + KEY + 168] for at in range(0, len(body), KEY + 168)]
    assert len(set(shares)) == len(shares) == 200
    top = np.concatenate([np.frombuffer(one, dtype=np.uint8)[7::8] for one in shares])
    assert stats.chisquare(np.bincount(top >> 4, minlength=16)).pvalue > 1e-7


def test_what_a_client_sends_is_uniform_and_its_share_too() -> None:
    """The words and the share <r, p> + t of 400 messages of one profile; false alarm 1e-7 each."""
    parties = Parties()
    sent = [parties.masked(profile(1, 10)) for _ in range(400)]
    for octets in (
        np.concatenate([np.frombuffer(m.words, dtype=np.uint8)[7::8] for m in sent]),
        np.array([m.share[-1] for m in sent]),
    ):
        assert stats.chisquare(np.bincount(octets >> 4, minlength=16)).pvalue > 1e-7


def test_a_malicious_server_reads_one_entry_and_not_two() -> None:
    """Shown as it is: nothing binds the weights. The second share of one fresh key is refused."""
    parties = Parties()
    masked, own = parties.masked(profile(1, 10)), profile(1, 10)
    hidden = features(own, parties.anchor, BOUNDS).split(Variant.FULL).hidden

    def one_entry(at: int) -> words.Words:
        return words.from_floats(np.eye(1, parties.terms.row, at)[0], 64)

    def entry(reply: bytes, at: int) -> float:
        share = int.from_bytes(masked.share[SEED:], "little") + int.from_bytes(reply, "little")
        whole = words.product(words.unpacked(masked.words, 64), one_entry(at))
        return words.centred((whole - share) % 2**64, 64) / parties.terms.data_scale

    spread = _spread(masked.share[:SEED], parties.terms)
    first = parties.holder.open(parties.request(masked.fresh, words.minus(one_entry(3), spread)))
    assert entry(first, 3) == pytest.approx(hidden[3], abs=1e-5)
    with pytest.raises(RemoteProtocolError, match="first request"):
        parties.holder.open(parties.request(masked.fresh, words.minus(one_entry(4), spread)))
    restarted = parties.fresh_holder(AgreementKey.generate())
    other = restarted.open(parties.request(masked.fresh, words.minus(one_entry(4), spread)))
    assert abs(entry(other, 4) - hidden[4]) > 1e3


def test_one_share_of_a_fresh_key_in_a_request() -> None:
    parties = Parties()
    masked = parties.masked(profile(1, 10))
    with pytest.raises(RemoteProtocolError, match="each fresh key once"):
        parties.holder.open(parties.server.request([masked, masked]))
    for weak in (bytes(32), b"\1" + bytes(31), bytes.fromhex(ORDER_8)):
        with pytest.raises(RemoteProtocolError, match="cannot be agreed"):
            parties.holder.open(parties.server.request([replace(masked, fresh=PublicKey(weak))]))
    told = replace(parties.terms, dealt=False)
    assert told.digest != parties.terms.digest
    assert told.place != parties.terms.place, "a message of one way is none of the other"


def test_a_second_share_under_another_encoding_of_a_fresh_key_opens_nothing() -> None:
    """X25519 ignores the highest bit, so two texts are one point. The pad's key has the text."""
    parties = Parties()
    victim = parties.masked(profile(1, 10))
    raw = victim.fresh.raw
    twin = replace(victim, fresh=PublicKey(raw[:31] + bytes([raw[31] ^ 0x80])))
    reply = parties.holder.open(parties.server.request([victim, twin]))
    assert parties.server.score(victim, reply[:8]).value == pytest.approx(
        divergence(profile(1, 10), parties.base), abs=1e-4
    )
    try:
        found = parties.server.score(twin, reply[8:]).value
    except RemoteProtocolError:  # outside the bounds
        found = np.inf
    assert abs(found - divergence(profile(1, 10), parties.base)) > 1


@pytest.mark.parametrize("word_bits", [64, 128])
def test_the_last_word_of_a_pad_is_none_of_the_others(word_bits: int) -> None:
    """It hides <r, p>. A word of r in its place would be known to whoever knows an entry of the vector."""
    terms = Parties(word_bits=word_bits).terms
    own = AgreementKey.generate()
    pad, last = pad_and_last(own, AGREEMENT.public, own.public, terms, NAME)
    size = terms.word_bytes
    raw = words.packed(pad)
    others = {int.from_bytes(raw[at : at + size], "little") for at in range(0, len(raw), size)}
    assert len(others) == len(pad) == terms.row
    assert last not in others
    assert (pad_and_last(AGREEMENT, own.public, own.public, terms, NAME)[0] == pad).all()


def test_a_dealt_pad_is_that_of_its_place_and_query() -> None:
    """Under one pad two vectors would show their difference."""
    terms, own = Parties().terms, AgreementKey.generate()
    asked = ((terms, NAME), (replace(terms, context=b"2"), NAME), (terms, "another"))
    made = [pad_and_last(own, AGREEMENT.public, own.public, *one) for one in asked]
    assert len({words.packed(pad) for pad, _ in made}) == len({last for _, last in made}) == 3
