"""Whose files an evaluator scores and a key holder opens, and what each opened score costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import pytest
from support.every import every
from support.tiny_he import owned

from securefl.accounting.ledger import Ledger, Terms
from securefl.core.errors import BudgetExceeded, ConfigError, DataError
from securefl.core.release import KEY_HOLDER, OTHERS, SERVER
from securefl.core.signing import seal
from securefl.matching import Evaluator, KeyHolder, NothingLeft, Options, Scores, Sealed
from securefl.matching.declared import declared_weights
from securefl.matching.document import Document
from securefl.matching.readers import Reader

Q = 6
PADS = Options(parameters="pads")
TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)


BASE = owned(99)


class Place:
    """A key holder, an evaluator, and files under pads."""

    def __init__(self, openings: int = 9) -> None:
        self.keys = KeyHolder.generate(openings=openings, parameters="pads")
        self.server = Evaluator.generate()

    def sealed(self, label: str, seed: int = 1, q: int = Q) -> Sealed:
        return owned(seed, q).encrypt(self.keys.public, self.server.public, label=label, options=PADS)

    def match(self, *files: Sealed, base: Any = BASE) -> Scores:
        return self.server.match(self.keys.public, base, files)


# The evaluator --------------------------------------------------------------------------------------


def test_a_profile_of_another_session_or_evaluator_is_not_scored() -> None:
    here, there = Place(), Place()
    there.server = here.server
    session = there.sealed("another session")
    there.server = Evaluator.generate()
    there.keys = here.keys
    evaluator = there.sealed("another evaluator")
    scores = here.match(session, here.sealed("ours"), evaluator)
    assert scores.labels == ["ours"]
    assert [one.place for one in scores.refused] == [0, 2]
    # A header that claims to be ours does not help: the seal binds it, and is for the other evaluator.
    header = {**evaluator.header, "evaluator": here.server.public.fingerprint}
    with pytest.raises(NothingLeft):
        here.match(replace(evaluator, header=header))


def test_a_profile_under_another_label_does_not_open() -> None:
    place = Place()
    own = place.sealed("ours")
    scores = place.match(replace(own, header={**own.header, "label": "theirs"}), own)
    assert scores.labels == ["ours"]


def test_a_label_that_comes_twice_is_scored_for_neither() -> None:
    place = Place()
    scores = place.match(place.sealed("a", 1), place.sealed("A", 2), place.sealed("b", 3))
    assert scores.labels == ["b"]
    assert [one.place for one in scores.refused] == [0, 1]
    with pytest.raises(NothingLeft, match=r"got 'a' of 2 profiles.*rename the file"):
        place.match(place.sealed("a", 1), place.sealed("a", 2))


def test_a_profile_of_another_length_is_not_scored() -> None:
    place = Place()
    scores = place.match(place.sealed("long", q=Q + 1), place.sealed("ours"))
    assert scores.labels == ["ours"]


def test_a_profile_of_other_options_than_the_evaluators_is_not_scored() -> None:
    """Under other bounds its hidden entries have another meaning, and another room."""
    place, other = Place(), replace(PADS, bounds=replace(PADS.bounds, weight=2.0))
    strange = owned(2).encrypt(place.keys.public, place.server.public, label="other", options=other)
    scores = place.server.match(place.keys.public, BASE, [strange, place.sealed("ours")], options=PADS)
    assert scores.labels == ["ours"]


def test_a_profile_is_no_baseline_and_a_baseline_no_profile() -> None:
    place = Place()
    own = place.sealed("ours")
    with pytest.raises(DataError):
        place.match(own, base=own)
    with pytest.raises(NothingLeft):
        place.match(replace(own, kind="encrypted-baseline"))


def test_more_profiles_than_openings_are_not_matched() -> None:
    place = Place(openings=2)
    files = [place.sealed(f"p{seed}", seed) for seed in range(4)]
    assert len(place.match(*files[:2]).labels) == 2
    for count in (3, 4):
        with pytest.raises(ConfigError):
            place.match(*files[:count])


# The key holder -------------------------------------------------------------------------------------


def test_scores_of_another_session_are_not_opened() -> None:
    """Nor those that another session's evaluator signed under the name of ours."""
    place = Place()
    scores = place.match(place.sealed("ours"))
    with pytest.raises(DataError):
        Place().keys.reveal(scores, place.server.public)
    with pytest.raises(DataError):
        place.keys.reveal(scores, Evaluator.generate().public)
    assert place.keys.reveal(scores, place.server.public).scores.keys() == {"ours"}


def test_a_score_is_charged_before_it_is_read_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place, charged = Place(), list[int]()
    scores = place.match(place.sealed("a", 1), place.sealed("b", 2))
    read = Reader.read
    with Ledger(None, TERMS) as ledger:

        def noted(self: Reader, request: bytes, label: str) -> Any:
            charged.append(len(ledger.rows()))
            return read(self, request, label)

        monkeypatch.setattr(Reader, "read", noted)
        found = place.keys.reveal(scores, place.server.public, ledger=ledger)
        assert charged == [1, 2]
        assert {row[7] for row in ledger.rows()} == {"committed"}
        for label in ("a", "b"):
            assert ledger.epsilon(label, KEY_HOLDER) == np.inf
            assert ledger.epsilon(label, SERVER) == ledger.epsilon(label, OTHERS) == 0
        assert place.keys.reveal(scores, place.server.public, ledger=ledger) == found
        assert len(ledger.rows()) == 2


def test_a_score_that_the_ledger_refuses_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    place, read = Place(), list[str]()
    scores = place.match(place.sealed("a"))
    monkeypatch.setattr(Reader, "read", lambda self, request, label: read.append(label))
    terms = replace(TERMS, budget=1.0, adversaries=(KEY_HOLDER,))
    with Ledger(None, terms) as ledger, pytest.raises(BudgetExceeded):
        place.keys.reveal(scores, place.server.public, ledger=ledger)
    assert read == []


# Under ciphertexts, where no tag binds a file to its place -------------------------------------------


@lru_cache
def holder(number: int) -> KeyHolder:
    return KeyHolder.generate(openings=9, parameters="strong")


MODE_E = Options(parameters="strong-encrypted")
EVALUATOR = Evaluator.generate()


def encrypted(label: str, *, number: int = 0, q: int = Q, options: Options = MODE_E) -> Sealed:
    return owned(1, q).encrypt(holder(number).public, EVALUATOR.public, label=label, options=options)


def base(number: int = 0) -> Sealed:
    return BASE.encrypt_baseline(holder(number).public, EVALUATOR.public, label="base", options=MODE_E)


def test_labels_that_were_swapped_after_the_evaluator_signed_are_not_opened() -> None:
    """Else each score would be another client's."""
    keys = holder(0)
    scores = EVALUATOR.match(keys.public, base(), [encrypted("a"), encrypted("b")])
    swapped = replace(scores, header={**scores.header, "labels": ["b", "a"]})
    with pytest.raises(DataError):
        keys.reveal(swapped, EVALUATOR.public)
    assert keys.reveal(scores, EVALUATOR.public).scores.keys() == {"a", "b"}


def test_ciphertexts_of_another_session_are_neither_scored_nor_opened() -> None:
    scores = EVALUATOR.match(holder(0).public, base(), [encrypted("theirs", number=1), encrypted("ours")])
    assert scores.labels == ["ours"]
    assert [one.label for one in scores.refused] == ["theirs"]
    with pytest.raises(DataError):
        holder(1).reveal(scores, EVALUATOR.public)


def test_ciphertexts_of_other_options_or_another_length_are_not_scored() -> None:
    other = replace(MODE_E, bounds=replace(MODE_E.bounds, weight=16.0))
    files = [encrypted("long", q=Q + 1), encrypted("other", options=other), encrypted("ours")]
    scores = EVALUATOR.match(holder(0).public, base(), files, options=MODE_E)
    assert scores.labels == ["ours"]


def test_an_encrypted_profile_is_no_baseline_and_a_baseline_no_profile() -> None:
    """The two have other scales: one in place of the other would be scored as something else."""
    public, own = holder(0).public, encrypted("ours")
    assert EVALUATOR.match(public, base(), [own, base()]).labels == ["ours"]
    with pytest.raises(DataError):
        EVALUATOR.match(public, own, [own])


def test_a_plaintext_baseline_is_not_taken_where_it_is_to_be_encrypted() -> None:
    with pytest.raises(DataError, match="encrypted baseline under --params strong-encrypted"):
        EVALUATOR.match(holder(0).public, BASE, [encrypted("ours")])
    with pytest.raises(ConfigError, match="no declared baseline under --params strong-encrypted"):
        EVALUATOR.declare(holder(0).public, BASE, options=MODE_E)


# Files under CKKS without a declaration ---------------------------------------------------

Checked = Literal["strong", "compact"]


def undeclared(of: Sealed | Scores, word: Checked) -> Mapping[str, Any]:
    """The header as of a file for which nothing was declared."""
    return {**of.header, "parameters": word}


def told(refusal: object) -> None:
    """Each way on."""
    assert all(word in str(refusal) for word in ("pads", "--declared", "strong-encrypted"))


@every("word", get_args(Checked))
def test_profiles_that_nothing_was_declared_for_are_refused(word: Checked) -> None:
    public, own, ours = holder(0).public, encrypted("former"), encrypted("ours")
    header = undeclared(own, word)
    message = EVALUATOR._unsealed(own)
    body = seal(EVALUATOR.public.sealing, message, Sealed(own.kind, header, b"").context())
    scores = EVALUATOR.match(public, base(), [Sealed(own.kind, header, body), ours])
    assert scores.labels == ["ours"]
    told(scores.refused[0].why)


@every("word", get_args(Checked))
def test_baselines_and_scores_that_nothing_was_declared_for_are_refused(word: Checked) -> None:
    keys, ours = holder(0), encrypted("ours")
    own = base()
    with pytest.raises(DataError) as refusal:
        EVALUATOR.match(keys.public, Sealed(own.kind, undeclared(own, word), own.body), [ours])
    told(refusal.value)
    scores = EVALUATOR.match(keys.public, own, [ours])
    header, body = undeclared(scores, word), scores.body[:-64]
    signature = EVALUATOR.signing.sign(Document("encrypted-scores", header, body).signed_part())
    with pytest.raises(DataError) as refusal:
        keys.reveal(Scores(header, body + signature.raw), EVALUATOR.public)
    told(refusal.value)
    assert keys.reveal(scores, EVALUATOR.public).scores.keys() == {"ours"}


# Keys -----------------------------------------------------------------------------------------------


def test_keys_are_for_one_opening_at_least_and_a_bounded_number() -> None:
    for openings in (-1, 0, 2**40 + 1):
        with pytest.raises(DataError):
            KeyHolder.generate(openings=openings, parameters="pads")
    assert KeyHolder.generate(openings=1, parameters="pads").public.openings == 1


def test_keys_of_other_files_are_refused() -> None:
    one, two = (KeyHolder.generate(openings=9, parameters="pads").to_document() for _ in range(2))
    with pytest.raises(DataError):
        KeyHolder.from_document(replace(one, body=one.body[:-32] + two.body[-32:]))
    mine, yours = (Evaluator.generate().to_documents()[0] for _ in range(2))
    with pytest.raises(DataError):
        Evaluator.from_document(replace(mine, body=yours.body))
    assert Evaluator.from_document(mine).public.fingerprint == mine.header["fingerprint"]


def test_two_baselines_have_two_salts() -> None:
    """Under one salt, whoever knows one baseline could try others against a declared digest."""
    place = Place()
    options = replace(PADS, declared=bytes(32).hex())
    terms = options.files(Q, place.keys.public, place.server.public.fingerprint).terms
    salts = {
        declared_weights(
            place.server.agreement, terms, PADS.query(base).linear(PADS.variant, PADS.bounds)
        ).head[:32]
        for base in (BASE, owned(98), BASE)
    }
    assert len(salts) == 2
