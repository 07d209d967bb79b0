"""Files under pads: what each party sees, and what comes of messages that nobody honest makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.every import every
from support.tiny_he import owned

from securefl.core.errors import ConfigError, CryptoError, DataError, RemoteProtocolError
from securefl.core.linear import LinearQuery
from securefl.core.signing import AgreementKey, seal, unseal
from securefl.he.openings import Openings
from securefl.linear import words
from securefl.linear.addressed import QUERY, TAG, PadFiles, pad_and_last, share_of_client
from securefl.linear.pad_terms import KEY, PLACE, SEED
from securefl.linear.pads import Masked, admit
from securefl.linear.turn import Declared
from securefl.matching import (
    Bounds,
    Evaluator,
    KeyHolder,
    NothingLeft,
    Options,
    Profile,
    PublicKeys,
    Scores,
    Sealed,
    Variant,
    divergence,
)
from securefl.matching.document import Document
from securefl.matching.keys import pads_key, pads_statement, statement
from securefl.matching.matched import Matched
from securefl.matching.matchers import requests_context

Q = 6
PADS = Options(parameters="pads")
WEAK = bytes(32)
AT = KEY + TAG
"""Where a request has its share of the weights."""


class Parties:
    """A key holder of pads alone, an evaluator, and profiles p0, p1 and so on."""

    def __init__(self, clients: int = 2, options: Options = PADS, openings: int = 100) -> None:
        self.keys = KeyHolder.generate(openings=openings, parameters="pads")
        self.server, self.options, self.base = Evaluator.generate(), options, owned(99)
        self.owners = [owned(i) for i in range(clients)]
        self.sealed = [self.encrypt(own, f"p{i}") for i, own in enumerate(self.owners)]
        files = options.files(Q, self.keys.public, self.server.public.fingerprint)
        assert isinstance(files, PadFiles)
        self.files, self.terms = files, files.terms

    def encrypt(self, own: Profile, label: str) -> Sealed:
        return own.encrypt(self.keys.public, self.server.public, label=label, options=self.options)

    def match(self, sealed: list[Sealed] | None = None, **more: Any) -> Scores:
        return self.server.match(self.keys.public, self.base, sealed or self.sealed, **more)

    def query(self) -> LinearQuery:
        return self.options.query(self.base).linear(self.options.variant, self.options.bounds)

    def message(self, one: Sealed) -> bytes:
        return unseal(self.server.agreement, one.body, one.context())

    def resealed(self, one: Sealed, message: bytes) -> Sealed:
        """The file of a client that made this message."""
        return Sealed(one.kind, one.header, seal(self.server.public.sealing, message, one.context()))

    def masked(self, one: Sealed) -> Masked:
        return admit(self.message(one)[:-TAG], self.terms, sender="p")

    def item(self, one: Sealed, weights: words.Words, query: LinearQuery | None = None) -> bytes:
        """A request for one word, with any weights: what an evaluator makes that breaks the protocol."""
        plain = query or LinearQuery(self.terms.bounds, np.zeros(self.terms.row))
        lying = Declared(self.terms, QUERY, plain, b"", b"", weights, 0.0)
        return self.files.item(lying, self.message(one), np.zeros(0), "p")

    def forged(self, items: list[tuple[str, bytes]], **header: Any) -> Scores:
        """Scores that this evaluator signed, of these requests."""
        made = {
            "session": self.keys.public.session,
            "evaluator": self.server.public.fingerprint,
            "labels": [label for label, _ in items],
            **self.options.to_header(Q),
            **header,
        }
        plain = b"".join(item for _, item in items)
        return self.signed(made, seal(self.keys.public.agreement, plain, requests_context(made)))

    def signed(self, header: dict[str, Any], body: bytes) -> Scores:
        content = Document("encrypted-scores", header, body)
        return Scores(header, body + self.server.signing.sign(content.signed_part()).raw)

    def items(self, scores: Scores) -> list[bytes]:
        """The requests of a file, as the key holder unseals them."""
        context = requests_context(scores.header)
        plain = unseal(pads_key(self.keys.signing), scores.body[:-64], context)
        size = self.files.item_bytes
        return [plain[at : at + size] for at in range(0, len(plain), size)]

    def one_entry(self, at: int) -> words.Words:
        """So large that the client's noise is nothing beside it."""
        return words.from_floats(1024 * self.terms.weight_scale * np.eye(self.terms.row)[at], 64)


# Scores -------------------------------------------------------------------------------------------


@every("parameters", ["pads", "pads-128"])
@every("variant", Variant)
@every("alone", [True, False])
def test_scores_are_the_divergence(parameters: Any, variant: Variant, alone: bool) -> None:
    keys = KeyHolder.generate(openings=10, parameters=parameters if alone else "strong")
    server, options = Evaluator.generate(), Options(variant, parameters)
    owners, base = [owned(i, 84) for i in range(3)], owned(99, 84)
    sealed = [
        own.encrypt(keys.public, server.public, label=f"p{i}", options=options)
        for i, own in enumerate(owners)
    ]
    found = keys.reveal(server.match(keys.public, base, sealed), server.public)
    assert not found.refused
    for i, own in enumerate(owners):
        assert abs(found.scores[f"p{i}"] - divergence(own, base)) <= found.error_bound
    assert found.error_bound == options.error_bound(84, 10) < (2.5e-3 if parameters == "pads" else 1e-8)


def test_a_profile_that_is_encrypted_again_has_other_noise_and_one_that_is_read_again_has_not() -> None:
    """The client adds it: the key holder reads the sum, and cannot take off what it does not know."""
    parties = Parties(clients=1)
    own = parties.owners[0]
    scores = [parties.match([parties.encrypt(own, "p0")]) for _ in range(2)]
    first, second = (parties.keys.reveal(one, parties.server.public).scores["p0"] for one in scores)
    assert first != second
    assert parties.keys.reveal(scores[0], parties.server.public).scores["p0"] == first


def test_no_profile_at_the_least_divergence_is_refused_for_its_noise() -> None:
    parties = Parties(clients=1)
    sealed = [parties.encrypt(parties.base, f"p{i}") for i in range(40)]
    found = parties.keys.reveal(parties.match(sealed), parties.server.public)
    assert not found.refused
    assert min(found.scores.values()) < 0 < max(found.scores.values())
    assert max(map(abs, found.scores.values())) <= found.error_bound


@every("offset", [-1e30, 1e30])
def test_a_constant_that_would_wrap_is_refused(offset: float) -> None:
    parties = Parties()
    query = replace(parties.query(), offset=offset)
    with pytest.raises(RemoteProtocolError, match="makes it wrap"):
        parties.item(parties.sealed[0], parties.terms.encoded(query), query)


def test_a_baseline_whose_constant_would_wrap_is_refused() -> None:
    narrow = Options(parameters="pads", bounds=Bounds(mean=0.01, variance_low=0.5, variance_high=1))
    parties = Parties(options=narrow)
    parties.base = Profile(np.full(Q, 31.0), np.ones(Q))
    with pytest.raises(ConfigError, match="makes them wrap"):
        parties.match()


# What each party sees ------------------------------------------------------------------------------


def test_no_party_has_a_homomorphic_key() -> None:
    parties = Parties()
    assert parties.keys.public.raw == b""
    assert parties.keys.secrets == ()
    assert len(parties.keys.to_document().body) == 64 + 32, "a signature, and one secret"
    assert len(parties.keys.public.to_document().to_bytes()) < 600
    with pytest.raises(DataError, match="one for pads alone"):
        owned(1).encrypt(
            parties.keys.public, parties.server.public, options=Options(parameters="strong-encrypted")
        )


def test_what_the_evaluator_gets_is_uniform() -> None:
    """Words and share <r, p> + t of 300 files of one profile; false alarm 1e-7 each."""
    parties = Parties(clients=0)
    masked = [parties.masked(parties.encrypt(owned(1), "p")) for _ in range(300)]
    assert len({one.fresh.raw for one in masked}) == 300
    for octets in (
        np.concatenate([np.frombuffer(words.packed(one.words), dtype=np.uint8)[7::8] for one in masked]),
        np.array([one.share[-1] for one in masked]),
    ):
        assert stats.chisquare(np.bincount(octets >> 4, minlength=16)).pvalue > 1e-7


def test_what_the_key_holder_gets_of_the_baseline_is_uniform() -> None:
    """The shares of 200 requests of one baseline; false alarm 1e-7."""
    parties = Parties(clients=200, openings=200)
    shares = [one[AT:-8] for one in parties.items(parties.match())]
    assert len(set(shares)) == 200
    top = np.concatenate([np.frombuffer(one, dtype=np.uint8)[7::8] for one in shares])
    assert stats.chisquare(np.bincount(top >> 4, minlength=16)).pvalue > 1e-7


def test_the_key_holder_and_a_client_together_learn_the_baseline() -> None:
    """Shown as it is: the client knows its part of the weights, the key holder the other one."""
    parties = Parties()
    item, rho = parties.items(parties.match())[0], parties.masked(parties.sealed[0]).share[:SEED]
    other = words.unpacked(item[AT:-8], 64)
    weights = words.plus(other, share_of_client(rho, parties.terms))
    assert np.array_equal(weights, parties.terms.encoded(parties.query()))


def test_key_holder_and_evaluator_together_read_every_profile() -> None:
    parties = Parties()
    masked = parties.masked(parties.sealed[0])
    pad, _ = pad_and_last(pads_key(parties.keys.signing), masked.fresh, masked.fresh, parties.terms, "p0")
    hidden = words.to_floats(words.minus(masked.words, pad)) / parties.terms.data_scale
    own = PADS.features(parties.owners[0]).split(Variant.FULL).hidden
    assert np.allclose(hidden, own, atol=1e-3)


def test_an_observer_and_a_client_learn_nothing_of_the_requests() -> None:
    """They are sealed to the key holder: the client's share of the weights is of no use without the other."""
    parties = Parties()
    scores = parties.match()
    item = parties.items(scores)[0]
    assert item[AT:-8] not in scores.body
    assert parties.match().body != scores.body, "sealed with fresh keys"


def test_a_malicious_evaluator_has_the_key_holder_read_one_entry_and_learns_none() -> None:
    """Shown as it is: nothing binds the weights. The number is the key holder's, and it is one."""
    parties = Parties()
    hidden = PADS.features(parties.owners[0]).split(Variant.FULL).hidden
    first, second = (parties.item(parties.sealed[0], parties.one_entry(at)) for at in (Q, Q + 1))
    found = parties.keys.reveal(parties.forged([("p0", first)]), parties.server.public)
    entry = found.scores["p0"] * Q / 1024
    assert entry == pytest.approx(hidden[Q], abs=1e-4), "mu^2 + s of the first element"
    found = parties.keys.reveal(parties.forged([("p0", second)]), parties.server.public)
    assert not found.scores
    assert "scored once" in found.refused["p0"]


# What is refused -----------------------------------------------------------------------------------


def test_one_fresh_key_in_two_profiles_is_scored_for_neither() -> None:
    """A client that has a victim's message, and lists its key as its own."""
    parties = Parties(clients=3)
    stolen = parties.message(parties.sealed[0])[PLACE : PLACE + KEY]
    own = parties.message(parties.sealed[1])
    copied = parties.resealed(parties.sealed[1], own[:PLACE] + stolen + own[PLACE + KEY :])
    scores = parties.match([parties.sealed[0], copied, parties.sealed[2]])
    assert scores.labels == ["p2"]
    assert [one.label for one in scores.refused] == ["p0", "p1"]
    assert all("a fresh key of its own" in one.why for one in scores.refused)
    with pytest.raises(NothingLeft, match="a fresh key of its own"):
        parties.match([parties.sealed[0], copied])


def test_one_fresh_key_twice_in_a_request_is_read_for_neither() -> None:
    parties = Parties()
    twice = [("a", parties.item(parties.sealed[0], parties.one_entry(at))) for at in (1, 2)]
    good = parties.items(parties.match())[1]
    found = parties.keys.reveal(
        parties.forged([("p0", twice[0][1]), ("b", twice[1][1]), ("p1", good)]), parties.server.public
    )
    assert list(found.scores) == ["p1"]
    assert all("each fresh key once" in found.refused[label] for label in ("p0", "b"))
    assert parties.keys.opened.opened == 1


def test_a_second_share_under_another_encoding_of_a_fresh_key_opens_nothing() -> None:
    """X25519 ignores the highest bit, so two texts are one point. The pad's key and the tag have the text."""
    parties = Parties()
    own = parties.message(parties.sealed[0])
    twin = own[: PLACE + KEY - 1] + bytes([own[PLACE + KEY - 1] ^ 0x80]) + own[PLACE + KEY :]
    scores = parties.match([parties.resealed(parties.sealed[0], twin), parties.sealed[1]])
    found = parties.keys.reveal(scores, parties.server.public)
    assert list(found.scores) == ["p1"]
    assert "made for us, this server and 'p0'" in found.refused["p0"]


@every("fresh", [WEAK, b"\1" + bytes(31), (2**255 - 19).to_bytes(32, "little")])
def test_a_fresh_key_of_small_order_costs_its_own_score(fresh: bytes) -> None:
    parties = Parties()
    own = parties.message(parties.sealed[0])
    weak = parties.resealed(parties.sealed[0], own[:PLACE] + fresh + own[PLACE + KEY :])
    scores = parties.match([weak, parties.sealed[1]])
    assert scores.labels == ["p1"]
    assert "got a weak one" in scores.refused[0].why
    good = parties.items(scores)[0]
    forged = parties.forged([("p0", fresh + good[KEY:]), ("p1", good)])
    found = parties.keys.reveal(forged, parties.server.public)
    assert list(found.scores) == ["p1"]
    assert "cannot be agreed with" in found.refused["p0"]
    assert parties.keys.opened.opened == 1, "nothing is on record for it"


def test_another_evaluators_request_is_refused() -> None:
    """Even if the first evaluator gave it the message: the pad is for one evaluator."""
    parties, other = Parties(), Evaluator.generate()
    with pytest.raises(NothingLeft, match="of another evaluator"):
        other.match(parties.keys.public, parties.base, parties.sealed)
    item = parties.items(parties.match())[0]
    first, parties.server = parties.server, other
    found = parties.keys.reveal(parties.forged([("p0", item)]), other.public)
    assert "made for us, this server and 'p0'" in found.refused["p0"]
    with pytest.raises(DataError, match="another evaluator"):
        parties.keys.reveal(parties.forged([("p0", item)]), first.public)


def test_a_swapped_label_is_refused_and_the_right_one_is_read_after_it() -> None:
    """The evaluator cannot list one client's score under another's label, unlike that of a ciphertext."""
    parties = Parties()
    one, two = parties.items(parties.match())
    found = parties.keys.reveal(parties.forged([("p1", one), ("p0", two)]), parties.server.public)
    assert not found.scores
    assert all(
        f"this server and {label!r}, got one for others" in found.refused[label] for label in ("p0", "p1")
    )
    assert parties.keys.opened.opened == 0
    again = parties.keys.reveal(parties.forged([("p0", one), ("p1", two)]), parties.server.public)
    assert list(again.scores) == ["p0", "p1"]


def test_words_of_another_length_than_the_header_says() -> None:
    """A header that says 64 bits over words of 128, from a client and from an evaluator."""
    parties, wide = Parties(), Parties(options=Options(parameters="pads-128", bounds=Bounds()))
    long = parties.resealed(parties.sealed[0], wide.message(wide.sealed[0]))
    scores = parties.match([long, parties.sealed[1]])
    assert scores.labels == ["p1"]
    assert "got" in scores.refused[0].why
    items = [("p0", bytes(wide.files.item_bytes))]
    with pytest.raises(DataError, match="requests of"):
        parties.keys.reveal(parties.forged(items), parties.server.public)
    other = Sealed("encrypted-profile", {**wide.sealed[0].header, "parameters": "pads"}, wide.sealed[0].body)
    with pytest.raises(NothingLeft, match="not sealed to this key"):
        wide.match([other])


def test_profiles_under_pads_and_under_ciphertexts_are_not_mixed() -> None:
    keys, server = KeyHolder.generate(openings=9, parameters="strong"), Evaluator.generate()
    sealed = [
        owned(i).encrypt(keys.public, server.public, label=f"p{i}", options=Options(parameters=word))
        for i, word in enumerate(("pads", "pads-128", "strong-encrypted"))
    ]
    with pytest.raises(NothingLeft, match="Expected the same options"):
        server.match(keys.public, owned(99), sealed)
    scores = server.match(keys.public, owned(99), sealed, options=Options(parameters="pads-128"))
    assert scores.labels == ["p1"]
    assert list(keys.reveal(scores, server.public).scores) == ["p1"]


def test_an_encrypted_baseline_has_no_pads() -> None:
    parties, whole = Parties(), KeyHolder.generate(openings=9, parameters="strong")
    with pytest.raises(DataError, match=r"got pads\. Under pads"):
        parties.base.encrypt_baseline(parties.keys.public, parties.server.public, options=PADS)
    base = owned(9).encrypt_baseline(
        whole.public, parties.server.public, options=Options(parameters="strong-encrypted")
    )
    sealed = owned(1).encrypt(whole.public, parties.server.public, options=PADS)
    with pytest.raises(DataError, match=r"plaintext .*params pads"):
        parties.server.match(whole.public, base, [sealed])


def test_weights_outside_the_bounds_are_refused() -> None:
    parties = Parties()
    parties.base = Profile(np.full(Q, 50.0), np.full(Q, 0.01))
    with pytest.raises(ConfigError, match="--weight-bound 32, got"):
        parties.match()
    negative = words.from_floats(np.concatenate([np.zeros(Q), np.full(Q, -1e9), [0.0]]), 64)
    forged = parties.item(parties.sealed[0], negative)
    found = parties.keys.reveal(parties.forged([("p0", forged)]), parties.server.public)
    assert "inside the declared bounds" in found.refused["p0"]


@every("cut", [slice(0, -1), slice(0, 0), slice(0, -100)])
def test_a_message_or_request_of_another_length(cut: slice) -> None:
    parties = Parties()
    short = parties.resealed(parties.sealed[0], parties.message(parties.sealed[0])[cut])
    assert parties.match([short, parties.sealed[1]]).labels == ["p1"]
    good = parties.items(parties.match())[0]
    with pytest.raises(DataError, match="requests of"):
        parties.keys.reveal(parties.forged([("p0", good[cut])]), parties.server.public)


def test_requests_that_were_sealed_to_another_key_or_header() -> None:
    parties = Parties()
    scores = parties.match()
    changed = {**scores.header, "labels": ["p1", "p0"]}
    with pytest.raises(DataError, match="not sealed to this key"):
        parties.keys.reveal(parties.signed(changed, scores.body[:-64]), parties.server.public)
    other = seal(AgreementKey.generate().public, bytes(10), requests_context(scores.header))
    for body in (other, b"", bytes(31), bytes(48)):
        with pytest.raises(DataError):
            parties.keys.reveal(parties.signed(dict(scores.header), body), parties.server.public)
    with pytest.raises(DataError, match="the evaluator signed"):
        parties.keys.reveal(
            Scores(scores.header, scores.body[:-1] + bytes([scores.body[-1] ^ 1])), parties.server.public
        )


# Once ------------------------------------------------------------------------------------------------


def test_a_second_baseline_is_refused_by_the_evaluator_itself(tmp_path: Path) -> None:
    """Two requests of one profile would show the key holder the difference of the two baselines."""
    parties = Parties()
    record = Matched(tmp_path / "m.sqlite")
    first = parties.match(matched=record)
    parties.base = owned(98)
    fresh = parties.encrypt(owned(5), "p5")
    record.close()
    again = Matched(tmp_path / "m.sqlite")
    scores = parties.match([*parties.sealed, fresh], matched=again)
    assert scores.labels == ["p5"]
    assert all("no other baseline" in one.why for one in scores.refused)
    parties.base = owned(99)
    assert parties.items(parties.match(matched=again)) == parties.items(first), (
        "the same one may be sent again"
    )


def test_without_that_record_the_key_holder_learns_the_difference_and_refuses_the_score() -> None:
    parties = Parties()
    one = parties.items(parties.match())[0]
    before = parties.terms.encoded(parties.query())
    parties.keys.reveal(parties.match(), parties.server.public)
    parties.base = owned(98)
    scores = parties.match(matched=Matched())
    two = parties.items(scores)[0]
    deltas = (words.unpacked(item[AT:-8], 64) for item in (two, one))
    assert np.array_equal(words.minus(*deltas), words.minus(parties.terms.encoded(parties.query()), before))
    found = parties.keys.reveal(scores, parties.server.public)
    assert not found.scores
    assert all("scored once" in why for why in found.refused.values())


def test_a_second_request_is_refused_after_a_restart_and_the_first_gets_its_answer(tmp_path: Path) -> None:
    parties = Parties()
    count = Openings(tmp_path / "o.sqlite")
    scores = parties.match()
    first = parties.keys.reveal(scores, parties.server.public, openings=count)
    count.close()
    restored, count = KeyHolder.from_document(parties.keys.to_document()), Openings(tmp_path / "o.sqlite")
    assert restored.reveal(scores, parties.server.public, openings=count) == first
    assert restored.reveal(parties.match(), parties.server.public, openings=count) == first
    second = parties.forged([("p0", parties.item(parties.sealed[0], parties.one_entry(3)))])
    found = restored.reveal(second, parties.server.public, openings=count)
    assert "scored once" in found.refused["p0"]
    assert count.opened == 2
    count.close()


def test_the_cap_counts_scores() -> None:
    parties = Parties(clients=3, openings=3)
    extra = parties.encrypt(owned(7), "p7")
    assert len(parties.keys.reveal(parties.match(), parties.server.public).scores) == 3
    found = parties.keys.reveal(parties.match([extra, parties.sealed[0]]), parties.server.public)
    assert list(found.scores) == ["p0"], "on record"
    assert "used up" in found.refused["p7"]
    with pytest.raises(ConfigError, match="at most 3 profiles"):
        parties.match([*parties.sealed, extra])


# Keys ------------------------------------------------------------------------------------------------


def test_keys_without_one_for_pads_are_refused() -> None:
    keys = KeyHolder.generate(openings=9, parameters="strong")
    older = {name: value for name, value in keys.public.to_document().header.items() if name != "pads"}
    public = Document("public-key", older, keys.public.to_document().body)
    secret = Document("secret-key", older, keys.to_document().body)
    for read in (lambda: PublicKeys.from_document(public), lambda: KeyHolder.from_document(secret)):
        with pytest.raises(DataError, match="96 bytes in hexadecimal"):
            read()


@every("spoil", ["another key", "another session", "another signer", "no hexadecimal", "none"])
def test_a_key_for_pads_that_its_holder_did_not_sign_is_refused(spoil: str) -> None:
    keys, other = (KeyHolder.generate(openings=9, parameters="pads") for _ in range(2))
    agreement = keys.public.agreement.raw
    said = {
        "another key": other.public.agreement.raw + keys.public.pads[32:],
        "another session": agreement + keys.signing.sign(pads_statement(other.public.session, agreement)).raw,
        "another signer": agreement + other.signing.sign(pads_statement(keys.public.session, agreement)).raw,
        "no hexadecimal": b"",
        "none": b"",
    }[spoil]
    content = keys.public.to_document()
    header = {**content.header, "pads": said.hex() or "x"}
    if spoil == "none":
        del header["pads"]
    with pytest.raises(DataError):
        PublicKeys.from_document(Document("public-key", header, content.body))
    with pytest.raises(DataError):
        KeyHolder.from_document(Document("secret-key", header, keys.to_document().body))


def test_a_key_holder_that_announces_another_key_is_refused() -> None:
    keys, other = KeyHolder.generate(openings=9, parameters="pads"), AgreementKey.generate().public.raw
    pads = other + keys.signing.sign(pads_statement(keys.public.session, other)).raw
    header = {**keys.to_document().header, "pads": pads.hex()}
    with pytest.raises(DataError, match="fits its public key"):
        KeyHolder.from_document(Document("secret-key", header, keys.to_document().body))


def test_a_weak_key_for_pads_is_refused_though_its_holder_signed_it() -> None:
    keys, server = KeyHolder.generate(openings=9, parameters="pads"), Evaluator.generate()
    pads = WEAK + keys.signing.sign(pads_statement(keys.public.session, WEAK)).raw
    signature = keys.signing.sign(statement(b"", 9))
    public = PublicKeys(b"", keys.signing.public, 9, signature, pads)
    with pytest.raises(CryptoError, match="cannot be agreed with"):
        owned(1).encrypt(public, server.public, options=PADS)


def test_keys_of_another_length_are_none() -> None:
    keys = KeyHolder.generate(openings=9, parameters="pads")
    with pytest.raises(DataError, match="a key holder's keys of"):
        PublicKeys(bytes(9), keys.signing.public, 9, keys.public.signature, keys.public.pads)


def test_bounds_without_room_name_what_would_fit() -> None:
    wide = Options(parameters="pads", bounds=Bounds(mean=1e6, variance_high=1e9, weight=1e6))
    with pytest.raises(ConfigError, match="--params pads-128") as refusal:
        wide.error_bound(100, 10)
    assert "--openings" not in str(refusal.value)
    assert Options(parameters="pads-128", bounds=wide.bounds).error_bound(100, 10) < 1e4


def test_terms_of_files_are_those_of_one_session_and_evaluator() -> None:
    one, two = Parties(clients=0), Parties(clients=0)
    files = [
        PADS.files(Q, keys.public, server.public.fingerprint)
        for keys in (one.keys, two.keys)
        for server in (one.server, two.server)
    ]
    assert len({each.terms.digest for each in files}) == len(files) == 4
