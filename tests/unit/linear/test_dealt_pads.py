"""Dealt pads, which files take: the pad of one message. `matching/test_pad_files.py` has the rest."""

from __future__ import annotations

from dataclasses import replace

from support.every import every
from support.tiny_he import BOUNDS

from securefl.core.signing import AgreementKey
from securefl.linear import words
from securefl.linear.addressed import pad_and_last
from securefl.linear.pad_terms import PadTerms
from securefl.matching.profiles import Variant

AGREEMENT = AgreementKey.generate()
NAME = "profile"
TERMS = PadTerms(bounds=BOUNDS.linear(10, Variant.FULL), context=b"1", dealt=True)


@every("word_bits", [64, 128])
def test_the_last_word_of_a_pad_is_none_of_the_others(word_bits: int) -> None:
    """It hides <r, p>. A word of r in its place would be known to whoever knows an entry of the vector."""
    terms = replace(TERMS, word_bits=word_bits)
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
    terms, own = TERMS, AgreementKey.generate()
    asked = ((terms, NAME), (replace(terms, context=b"2"), NAME), (terms, "another"))
    made = [pad_and_last(own, AGREEMENT.public, own.public, *one) for one in asked]
    assert len({words.packed(pad) for pad, _ in made}) == len({last for _, last in made}) == 3


def test_a_message_of_one_way_is_none_of_the_other() -> None:
    told = replace(TERMS, dealt=False)
    assert (told.digest != TERMS.digest, told.place != TERMS.place) == (True, True)
