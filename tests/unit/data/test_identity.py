"""Which records these are: the same for any order and split, another for any change."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.every import every

from securefl.data.identity import digest_of_clients, digest_of_records

X = np.arange(12.0, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])
WHOLE = digest_of_records([(X, Y)])


def test_order_and_split_do_not_matter() -> None:
    order = np.random.default_rng(0).permutation(6)
    assert digest_of_records([(X[order], Y[order])]) == WHOLE
    assert digest_of_records([(X[4:], Y[4:]), (X[:4], Y[:4])]) == WHOLE
    zeros = np.zeros((1, 2), np.float32)
    assert digest_of_records([(zeros, Y[:1])]) == digest_of_records([(-zeros, Y[:1])])


FOURTH = np.arange(6) == 3


@every(
    ("x", "y"),
    [
        (X[1:], Y[1:]),
        (X[[*range(6), 0]], Y[[*range(6), 0]]),
        (X + FOURTH[:, None].astype(np.float32), Y),
        (X, Y - FOURTH),
        (X, Y[[1, 0, 2, 3, 4, 5]]),
    ],
)
def test_any_change_of_a_record_matters(x: Any, y: Any) -> None:
    """One less, one twice, another value, another label, and two labels exchanged."""
    assert digest_of_records([(x, y)]) != WHOLE


def test_clients_are_told_by_their_records_and_not_by_their_places() -> None:
    a, b = (X[:2], Y[:2]), (X[2:], Y[2:])
    both = digest_of_clients([[a], [b]])
    assert digest_of_clients([[(X[5:], Y[5:]), (X[2:5], Y[2:5])], [a]]) == both
    assert digest_of_clients([[(X[:3], Y[:3])], [(X[3:], Y[3:])]]) != both
    assert digest_of_clients([[(X, Y)]]) not in (both, WHOLE)
