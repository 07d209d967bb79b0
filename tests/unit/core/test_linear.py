"""Linear queries: what bounds hold, what is refused, and a cosine on the ring that profiles use."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from support.every import every

from securefl.core.errors import ConfigError, DataError
from securefl.core.linear import LinearBounds, LinearQuery, Range

BOUNDS = LinearBounds(
    hidden_length=3,
    clear=(Range(2, 0, 4), Range(1, -1, 1)),
    norm=5,
    weight_norm=2,
    row_norm=3,
    product=10,
    scale=4,
    least=0,
    most=3,
)
QUERY = LinearQuery(BOUNDS, np.array([1.0, 0.0, -1.0]), np.array([0.5, 0.5, 2.0]), 1.0)


def test_a_number_is_the_inner_product_with_offset_over_scale() -> None:
    assert QUERY.number(np.array([3.0, 9.0, 1.0]), np.array([2.0, 4.0, 0.5])) == (2 + 3 + 1 + 1) / 4


@every(("number", "honest"), [(0, True), (-2e-6, False), (2.75, True), (2.8, False)])
def test_an_honest_number_is_in_range_and_its_product_within_bounds(number: float, honest: bool) -> None:
    assert QUERY.allows(number) is honest


@every("number", [nan, inf, -inf, 3.1, -0.1])
def test_what_no_honest_client_gives_is_not_allowed(number: float) -> None:
    assert not QUERY.allows(number)
    assert not BOUNDS.allows(number, 1e-3)


def test_a_range_is_as_wide_as_the_error_of_what_is_known() -> None:
    assert BOUNDS.allows(3.05, 0.1)
    assert not BOUNDS.allows(3.05, 0.01)


@every(
    ("clear", "held"),
    [
        ([0, 4, 1], True),
        ([0, 4.1, 1], False),
        ([0, 4, 1.1], False),
        ([-0.1, 4, 1], False),
        ([nan, 4, 1], False),
        ([0, 4], False),
        ([0, 4, 1, 1], False),
    ],
)
def test_each_clear_entry_is_held_to_its_own_range(clear: list[float], held: bool) -> None:
    assert BOUNDS.holds_clear(np.array(clear, dtype=np.float64)) is held


@every(
    ("hidden", "held"),
    [([3, 4, 0], True), ([3, 4, 0.1], False), ([3, 4], False), ([nan, 0, 0], False), ([inf, 0, 0], False)],
)
def test_a_hidden_part_is_held_to_the_norm(hidden: list[float], held: bool) -> None:
    with nullcontext() if held else pytest.raises(DataError, match="as declared"):
        BOUNDS.require_hidden(np.array(hidden, dtype=np.float64))


@every(
    "wrong",
    [
        {"hidden_length": 0},
        {"norm": 0},
        {"norm": nan},
        {"weight_norm": inf},
        {"row_norm": -1},
        {"product": 0},
        {"scale": 0},
        {"least": 3},
        {"least": nan},
    ],
)
def test_bounds_that_bound_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        replace(BOUNDS, **wrong)


@every("run", [(0, 0, 1), (1, 1, 0), (1, nan, 1), (1, 0, inf)])
def test_a_range_without_entries_or_end_is_refused(run: tuple[int, float, float]) -> None:
    with pytest.raises(ConfigError, match="low <= high"):
        Range(*run)


def test_a_query_has_the_lengths_of_its_bounds_and_finite_weights() -> None:
    with pytest.raises(ConfigError, match="3 hidden and 3 clear"):
        LinearQuery(BOUNDS, np.zeros(2), np.zeros(3))
    with pytest.raises(ConfigError, match="3 hidden and 3 clear"):
        LinearQuery(BOUNDS, np.zeros(3))
    for hidden, offset in ((nan, 0.0), (0.0, inf)):
        with pytest.raises(DataError, match="finite weights"):
            LinearQuery(BOUNDS, np.full(3, hidden), np.zeros(3), offset)


def test_weights_above_their_norm_are_not_multiplied_under_encryption() -> None:
    assert QUERY.row(encrypted=False).tolist() == [1, 0, -1]
    assert QUERY.row(encrypted=True).tolist() == [1, 0, -1, 0.5, 0.5, 2, 0.25]
    with pytest.raises(ConfigError, match=r"norm up to 2, got 2\.1"):
        replace(QUERY, hidden=np.array([2.1, 0, 0])).row(encrypted=False)
    with pytest.raises(ConfigError, match="norm up to 3"):
        replace(QUERY, offset=12.0).row(encrypted=True)


def test_bounds_that_differ_anywhere_have_other_texts() -> None:
    others = [
        replace(BOUNDS, **{name: getattr(BOUNDS, name) + 0.5})
        for name in ("norm", "weight_norm", "row_norm", "product", "scale", "least", "most")
    ]
    others += [replace(BOUNDS, hidden_length=4), replace(BOUNDS, clear=BOUNDS.clear[::-1])]
    assert len({one.text() for one in [BOUNDS, *others]}) == 10
    assert replace(BOUNDS, norm=5.0).text() == BOUNDS.text()
