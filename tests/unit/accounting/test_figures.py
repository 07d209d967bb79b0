"""Each form of an epsilon: finite, infinite and not known."""

from __future__ import annotations

import json
from math import inf, nan

import numpy as np
from support.every import every

from securefl.accounting.figures import (
    above,
    asked_for,
    brief,
    in_words,
    plain,
    says_infinite,
    short,
    with_reason,
)


def test_a_finite_one_is_a_number_everywhere() -> None:
    assert brief(2.0) == "2.00"
    assert short(2.04) == in_words(2.04) == with_reason(2.04, "no noise") == "2.04"
    assert asked_for(0.1) == "0.1"
    assert plain(0.1) == 0.1


def test_an_infinite_one_says_so() -> None:
    assert brief(inf) == "∞"
    assert short(inf) == "infinite"
    assert in_words(inf) == "∞ (non-private)"
    assert with_reason(inf, "it leaves without noise") == "infinite (∞): it leaves without noise"
    assert asked_for(inf) == "none"


def test_what_is_not_known_is_no_number() -> None:
    assert in_words(nan) == "not known"
    assert with_reason(nan, "") == "no party is named in `adversaries`"


@every(("number", "text"), [(inf, "inf"), (-inf, "-inf"), (np.float64(inf), "inf")])
def test_json_has_no_infinity(number: float, text: str) -> None:
    assert json.loads(json.dumps(plain(number), allow_nan=False)) == text


@every("epsilon", [0.0, 3.5, inf, nan])
def test_words_tell_infinity_apart(epsilon: float) -> None:
    assert says_infinite(in_words(epsilon)) == (epsilon == inf)


def test_one_above_a_bound_never_reads_as_the_bound() -> None:
    assert above(2.5, 2.0) == "2.5"
    assert above(2.00000000001, 2.0) == "2.00000000001"
