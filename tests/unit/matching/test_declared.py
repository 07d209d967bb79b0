"""Told pads in files: the evaluator declares its baseline, and no other one can be scored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_he import owned

from securefl.core.errors import ConfigError, DataError
from securefl.core.keys import Signature
from securefl.core.signing import seal, unseal
from securefl.linear import words
from securefl.linear.addressed import QUERY, TAG, PadFiles
from securefl.linear.pad_terms import KEY
from securefl.linear.turn import SALT, Declared, commitment
from securefl.matching import (
    Anchor,
    Bounds,
    Declaration,
    Evaluator,
    KeyHolder,
    NothingLeft,
    Options,
    Profile,
    Scores,
    Sealed,
    Variant,
    divergence,
)
from securefl.matching.document import Document
from securefl.matching.keys import pads_key
from securefl.matching.matchers import requests_context

Q = 6
PADS = Options(parameters="pads")


class Parties:
    """A key holder, an evaluator that declared its baseline, and profiles p0 and p1."""

    def __init__(self, options: Options = PADS) -> None:
        self.keys = KeyHolder.generate(openings=20, parameters="pads")
        self.server, self.base = Evaluator.generate(), owned(99)
        self.declaration = self.server.declare(self.keys.public, self.base, options=options)
        self.options = self.declaration.checked(self.keys.public, self.server.public)
        self.owners = [owned(i) for i in range(2)]
        self.sealed = [self.encrypt(own, f"p{i}", self.options) for i, own in enumerate(self.owners)]
        files = self.options.files(Q, self.keys.public, self.server.public.fingerprint)
        assert isinstance(files, PadFiles)
        self.files, self.terms = files, files.terms

    def encrypt(self, own: Profile, label: str, options: Options) -> Sealed:
        return own.encrypt(self.keys.public, self.server.public, label=label, options=options)

    def match(self, base: Profile | None = None) -> Scores:
        return self.server.match(self.keys.public, base or self.base, self.sealed)

    def plain(self, scores: Scores) -> bytes:
        return unseal(pads_key(self.keys.signing), scores.body[:-64], requests_context(scores.header))

    def signed(self, plain: bytes, **header: Any) -> Scores:
        """Scores that this evaluator signed, of these bytes."""
        made = {**self.match().header, **header}
        body = seal(self.keys.public.agreement, plain, requests_context(made))
        text = Document("encrypted-scores", made, body).signed_part()
        return Scores(made, body + self.server.signing.sign(text).raw)

    def head(self, weights: words.Words, salt: bytes = bytes(32)) -> bytes:
        return salt + words.packed(weights)

    def weights(self, base: Profile) -> words.Words:
        made = self.options.query(base).linear(self.options.variant, self.options.bounds)
        return self.terms.encoded(made)


@every("parameters", ["pads", "pads-128"])
@every("variant", Variant)
def test_scores_are_the_divergence(parameters: Any, variant: Variant) -> None:
    parties = Parties(Options(variant, parameters))
    scores = parties.match()
    found = parties.keys.reveal(scores, parties.server.public)
    assert not found.refused
    for i, own in enumerate(parties.owners):
        assert abs(found.scores[f"p{i}"] - divergence(own, parties.base)) <= found.error_bound
    assert found.error_bound < 1e-3
    assert parties.keys.reveal(parties.match(), parties.server.public) == found, "the same again"


def test_the_same_baseline_has_one_digest_and_another_another() -> None:
    parties = Parties()
    again = parties.server.declare(parties.keys.public, parties.base, options=PADS)
    other = parties.server.declare(parties.keys.public, owned(98), options=PADS)
    assert again.header == parties.declaration.header
    assert other.header["declared"] != again.header["declared"]
    stranger = Evaluator.generate().declare(parties.keys.public, parties.base, options=PADS)
    assert stranger.header["declared"] != again.header["declared"], "salted, so nobody else can try baselines"


def test_the_key_holder_learns_the_baseline() -> None:
    """Shown as it is: it stands before the requests."""
    parties = Parties()
    head = parties.plain(parties.match())[: parties.files.head_bytes]
    assert head[SALT:] == words.packed(parties.weights(parties.base))


def test_another_baseline_is_refused_by_the_evaluators_own_command() -> None:
    parties = Parties()
    with pytest.raises(ConfigError, match="declared to the clients"):
        parties.match(owned(98))


def test_a_malicious_evaluator_has_no_other_baseline_scored() -> None:
    """Its weights have another digest; with the header of before, and with one that fits them."""
    parties = Parties()
    plain, start = parties.plain(parties.match()), parties.files.head_bytes
    head = parties.head(parties.weights(owned(98)))
    with pytest.raises(DataError, match=r"weights .* declared"):
        parties.keys.reveal(parties.signed(head + plain[start:]), parties.server.public)
    own = commitment(parties.terms, QUERY, head[:SALT], head[SALT:]).hex()
    found = parties.keys.reveal(parties.signed(head + plain[start:], declared=own), parties.server.public)
    assert not found.scores
    assert all("made for us" in why for why in found.refused.values())
    salt = parties.head(parties.weights(parties.base), bytes([1]) * 32)
    with pytest.raises(DataError, match=r"weights .* declared"):
        parties.keys.reveal(parties.signed(salt + plain[start:]), parties.server.public)
    assert parties.keys.opened.opened == 0


@every("at", [0, Q, 2 * Q])
def test_weights_of_no_baseline_are_refused_though_they_were_declared(at: int) -> None:
    """One entry alone: the last weight is -1/2, and each half weight is above 0."""
    parties = Parties()
    entry = words.from_floats(np.eye(1, parties.terms.row, at)[0] * 2.0**8, 64)
    head = parties.head(entry)
    told = commitment(parties.terms, QUERY, bytes(32), words.packed(entry))
    parties.options = replace(parties.options, declared=told.hex())
    sealed = parties.encrypt(parties.owners[0], "p0", parties.options)
    message = unseal(parties.server.agreement, sealed.body, sealed.context())
    query = PADS.query(parties.base).linear(PADS.variant, PADS.bounds)
    bad = Declared(parties.terms, QUERY, query, told, head, entry, 0.0)
    item = parties.files.item(bad, message, np.zeros(0), "p0")
    forged = parties.signed(head + item, labels=["p0"], declared=told.hex())
    with pytest.raises(DataError, match="Expected weights"):
        parties.keys.reveal(forged, parties.server.public)


def test_a_swapped_label_and_a_fresh_key_twice_are_refused() -> None:
    parties = Parties()
    plain, start = parties.plain(parties.match()), parties.files.head_bytes
    swapped = parties.keys.reveal(parties.signed(plain, labels=["p1", "p0"]), parties.server.public)
    assert not swapped.scores
    size = parties.files.item_bytes
    assert size == KEY + 16 + 8
    twice = parties.signed(plain[: start + size] + plain[start : start + size])
    found = parties.keys.reveal(twice, parties.server.public)
    assert all("each fresh key once" in why for why in found.refused.values())
    weak = plain[:start] + bytes(32) + plain[start + 32 :]
    found = parties.keys.reveal(parties.signed(weak), parties.server.public)
    assert list(found.scores) == ["p1"]
    assert "cannot be agreed with" in found.refused["p0"]
    for cut in (plain[:-1], plain[:start], b""):
        with pytest.raises(DataError, match="requests of"):
            parties.keys.reveal(parties.signed(cut), parties.server.public)


def test_told_and_dealt_profiles_are_not_mixed() -> None:
    parties = Parties()
    dealt = parties.encrypt(owned(5), "p5", PADS)
    with pytest.raises(NothingLeft, match=r"options .*got declared"):
        parties.server.match(parties.keys.public, parties.base, [*parties.sealed, dealt])
    scores = parties.server.match(
        parties.keys.public, parties.base, [*parties.sealed, dealt], options=parties.options
    )
    assert scores.labels == ["p0", "p1"]
    scores = parties.server.match(parties.keys.public, parties.base, [*parties.sealed, dealt], options=PADS)
    assert scores.labels == ["p5"]
    assert "another declared" in scores.refused[0].why


def test_clients_that_were_told_two_digests_are_matched_apart() -> None:
    parties = Parties()
    other = parties.server.declare(parties.keys.public, owned(98), options=PADS)
    options = other.checked(parties.keys.public, parties.server.public)
    two = parties.encrypt(owned(5), "p5", options)
    with pytest.raises(NothingLeft):
        parties.server.match(parties.keys.public, parties.base, [*parties.sealed, two])
    scores = parties.server.match(parties.keys.public, owned(98), [two])
    found = parties.keys.reveal(scores, parties.server.public).scores
    assert found["p5"] == pytest.approx(divergence(owned(5), owned(98)), abs=1e-3)


# Declarations ----------------------------------------------------------------------------------------


def test_a_declaration_is_read_back() -> None:
    parties = Parties()
    raw = parties.declaration.to_document().to_bytes()
    again = Declaration.from_document(Document.from_bytes(raw, "declared-baseline"))
    assert again.checked(parties.keys.public, parties.server.public).declared == parties.options.declared
    assert str(parties.base.mean[0]) not in str(raw)


def test_declarations_of_others_are_refused() -> None:
    parties = Parties()
    keys, server = KeyHolder.generate(openings=1, parameters="pads"), Evaluator.generate()
    with pytest.raises(DataError, match="this key holder's session"):
        parties.declaration.checked(keys.public, parties.server.public)
    with pytest.raises(DataError, match="a declaration of this evaluator"):
        parties.declaration.checked(parties.keys.public, server.public)
    changed = {**parties.declaration.header, "declared": "0" * 64}
    with pytest.raises(DataError, match=r"declaration .*signed"):
        Declaration(changed, parties.declaration.signature).checked(
            parties.keys.public, parties.server.public
        )
    with pytest.raises(DataError, match=r"declaration .*signed"):
        Declaration(parties.declaration.header, Signature(b"")).checked(
            parties.keys.public, parties.server.public
        )
    empty = {name: value for name, value in parties.declaration.header.items() if name != "declared"}
    signed = Declaration.signed(
        parties.keys.public.session, parties.server.public, parties.server.signing, empty
    )
    with pytest.raises(DataError, match="with a digest of weights"):
        signed.checked(parties.keys.public, parties.server.public)


@every("declared", [None, 7, "", "0" * 63, "G" * 64, ["0" * 64]])
def test_a_header_whose_digest_is_none_is_refused(declared: object) -> None:
    with pytest.raises(DataError, match="declared in the file"):
        Options.from_header({**PADS.to_header(Q), "declared": declared})
    with pytest.raises(ConfigError, match="as 64 hex digits"):
        Options(declared=str(declared))


# The client's noise -------------------------------------------------------------------------------------


def test_the_client_adds_the_noise_of_a_declared_match() -> None:
    """The key holder reads a number with it, and the evaluator sees it under a pad alone."""
    parties = Parties()
    sealed = [parties.encrypt(parties.owners[0], f"p{i}", parties.options) for i in range(30)]
    terms, shares = parties.terms, []
    for one in sealed:
        raw = unseal(parties.server.agreement, one.body, one.context())
        share = raw[terms.message_bytes : -TAG]
        shares.append(words.centred(int.from_bytes(share, "little"), 64))
    assert min(map(abs, shares)) > terms.most_noise, "a false alarm in one of 10^5 runs"
    match = parties.server.match(parties.keys.public, parties.base, sealed[:20])
    found = parties.keys.reveal(match, parties.server.public)
    own = np.array(list(found.scores.values()))
    exact = divergence(parties.owners[0], parties.base)
    assert not found.refused
    assert len(set(own)) == 20
    assert np.ptp(own) > found.error_bound / 10
    assert (np.abs(own - exact) <= found.error_bound).all()


def test_a_baseline_that_is_nearly_one_element_is_not_declared() -> None:
    keys, server = KeyHolder.generate(openings=20, parameters="pads"), Evaluator.generate()
    mean = np.zeros(84)
    mean[5] = 60.0
    with pytest.raises(ConfigError, match="--spread 8"):
        server.declare(keys.public, Profile(mean, np.ones(84)), options=PADS)


# The evaluator's own word on the spread and the anchor ---------------------------------------------------

VICTIM, LARGE = 3, 84
NO_SPREADS: tuple[Any, ...] = (np.nan, np.inf, 0.5, "8")


def sharp(spread: float) -> tuple[Options, Profile]:
    """Options of a lying evaluator, and its baseline, of which one weight alone counts."""
    scale = np.full(LARGE, 1e9)
    scale[VICTIM] = 1.0
    bounds = Bounds(weight=4, spread=spread)
    mean, variance = np.zeros(LARGE), np.full(LARGE, bounds.variance_high) * scale**2
    mean[VICTIM] = -0.9 * bounds.weight_norm(LARGE) * bounds.variance_high
    return Options(bounds=bounds, anchor=Anchor(np.zeros(LARGE), scale)), Profile(mean, variance)


def test_a_client_agrees_to_the_spread_itself() -> None:
    keys, server = KeyHolder.generate(parameters="pads"), Evaluator.generate()
    options, base = sharp(1e6)
    declaration = server.declare(keys.public, base, options=options)
    for agreed in (None, 9e5):
        with pytest.raises(DataError, match="--spread 1e"):
            declaration.checked(keys.public, server.public, spread=agreed)
    for strange in NO_SPREADS:
        with pytest.raises(ConfigError, match="spread"):
            declaration.checked(keys.public, server.public, spread=strange)
    assert declaration.checked(keys.public, server.public, spread=1e6).bounds.spread == 1e6


def test_a_key_holder_agrees_to_the_spread_itself() -> None:
    """The client agreed, or is the evaluator's friend."""
    keys, server = KeyHolder.generate(parameters="pads"), Evaluator.generate()
    options, base = sharp(1e6)
    own = server.declare(keys.public, base, options=options).checked(keys.public, server.public, spread=1e6)
    sealed = owned(1, LARGE).encrypt(keys.public, server.public, label="p", options=own)
    scores = server.match(keys.public, base, [sealed])
    for agreed in (None, 9e5):
        with pytest.raises(DataError, match="--spread 1e"):
            keys.reveal(scores, server.public, spread=agreed)
    for strange in NO_SPREADS:
        with pytest.raises(ConfigError, match="spread"):
            keys.reveal(scores, server.public, spread=strange)
    assert set(keys.reveal(scores, server.public, spread=1e6).scores) == {"p"}


def test_an_anchor_is_compared_with_the_one_that_a_client_has() -> None:
    """Huge scales put all other elements at their bounds, whatever the spread is."""
    keys, server = KeyHolder.generate(parameters="pads"), Evaluator.generate()
    near = Anchor(np.zeros(Q), np.ones(Q))
    for declared, refused in ((None, True), (Anchor(near.centre, 2 * near.scale), True), (near, False)):
        told = server.declare(keys.public, owned(9), options=Options(anchor=declared))
        if refused:
            with pytest.raises(DataError, match="anchor"):
                told.checked(keys.public, server.public, anchor=near)
        else:
            assert told.checked(keys.public, server.public, anchor=near).anchor is not None
