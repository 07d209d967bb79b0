"""Test records that choose a setting: apart from those that measure it, by the content of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_study import text, world

from securefl.core.errors import ConfigError
from securefl.study import split_key
from securefl.study.config import Study, parse
from securefl.study.seeded import World

HALF = "validation = 0.5\n"
DPSGD = """
[dpsgd]
clip_norm = 1.0
noise_multiplier = 1.0
expected_batch = 16
optimizer = "sgd"
learning_rate = 0.1
sampling_rate = 0.1
steps = 2
"""


def of(more: str = "", **changes: Any) -> Study:
    return parse(text(**changes).replace('"digits"', f'"digits"\n{more}'))


def rows(x: Any) -> set[bytes]:
    return {row.tobytes() for row in x}


def both(more: str = HALF) -> tuple[World, World, World]:
    return world(of()), world(of(more)), world(of(more + 'test_on = "validation"\n'))


def test_what_chooses_and_what_measures_are_the_test_records_each_once() -> None:
    whole, measures, chooses = (here.problem.server_x for here in both())
    assert not rows(measures) & rows(chooses)
    assert rows(measures) | rows(chooses) == rows(whole)
    # Binomial(539, 1/2): six standard deviations are 70.
    assert abs(len(chooses) - 270) < 70


def test_a_record_that_chose_under_one_seed_measures_under_no_other() -> None:
    chose = rows(world(of(HALF + 'test_on = "validation"\n', seeds="[3]")).problem.server_x)
    for seed in ("[3]", "[4]", "[5]"):
        here = world(of(HALF, seeds=seed))
        assert not chose & rows(here.problem.server_x)


def test_what_clients_train_on_does_not_change() -> None:
    whole, measures, chooses = both()
    for one, other, third in zip(whole.records, measures.records, chooses.records, strict=True):
        assert np.array_equal(one[0], other[0])
        assert np.array_equal(one[0], third[0])


def test_held_out_records_are_parted_too() -> None:
    whole = world(of("holdout = 0.4\n"))
    _, measures, chooses = both("holdout = 0.4\n" + HALF)
    assert whole.held is not None
    assert measures.held is not None
    assert chooses.held is not None
    for all_of_them, one, other in zip(whole.held, measures.held, chooses.held, strict=True):
        assert rows(one[0]) | rows(other[0]) == rows(all_of_them[0])
        assert not rows(one[0]) & rows(other[0])


def test_the_sides_need_a_key_where_an_epsilon_is_claimed() -> None:
    assert split_key.needed(of(HALF, extra=DPSGD))
    assert not split_key.needed(of(extra=DPSGD))
    assert not split_key.needed(of(HALF))


@every(
    ("more", "said"),
    [
        ("validation = 1.0\n", "validation in"),
        ('test_on = "validation"\n', "`validation` beside test_on"),
        ('test_on = "train"\n', "test_on"),
    ],
)
def test_shares_and_words_out_of_range_are_refused(more: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        of(more)


def test_a_side_without_records_is_refused() -> None:
    with pytest.raises(ConfigError, match="on both sides"):
        world(of('validation = 1e-9\ntest_on = "validation"\n'))
