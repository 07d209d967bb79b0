"""Clipping and the grid: no record is longer than its bound, whatever stands in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.every import every

from securefl.core.errors import ConfigError, DataError
from securefl.dp import clipping

ANY = st.floats(allow_nan=True, allow_infinity=True, width=64)
RECORDS = arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 4)), elements=ANY)


@given(RECORDS, st.floats(1e-6, 1e6))
def test_clipped_records_are_finite_and_inside(records: np.ndarray, bound: float) -> None:
    kept = records[clipping.finite(records)]
    assert np.isfinite(kept).all()
    inside = clipping.clip_l2(kept, bound)
    assert np.isfinite(inside).all()
    assert (np.linalg.norm(inside / bound, axis=1) <= 1 + 1e-12).all()
    small = np.abs(kept).max(axis=1) < bound / 2 * (1 - 1e-9)  # of four entries: certainly inside
    assert np.array_equal(inside[small], kept[small])


@settings(max_examples=300)
@given(RECORDS, st.sampled_from([2.0**-10, 1.0, 0.3]), st.integers(1, 2**20))
def test_grid_integers_never_exceed_their_limit(records: np.ndarray, step: float, limit: int) -> None:
    """Exact integer sensitivity, for huge, subnormal and ordinary records alike."""
    kept = records[clipping.finite(records)]
    integers = clipping.to_grid(kept, step, limit)
    assert integers.dtype == np.int64
    assert all(sum(int(v) ** 2 for v in row) <= limit**2 for row in integers)


@every("bound", [0.0, -1.0, math.nan, math.inf])
def test_bounds_are_positive(bound: float) -> None:
    with pytest.raises(ConfigError):
        clipping.clip_l2(np.ones((1, 1)), bound)


def test_a_grid_takes_no_record_that_is_not_finite_and_no_limit_that_overflows() -> None:
    for value in (np.inf, np.nan):
        with pytest.raises(DataError, match="finite records"):
            clipping.to_grid(np.full((1, 2), value), 1.0, 10)
    with pytest.raises(ConfigError, match="below 2"):
        clipping.to_grid(np.ones((1, 2)), 1.0, 2**31)


def test_the_grid_puts_rows_no_further_apart_than_their_spread() -> None:
    """Rows of whole numbers about the limit, as sums are that are scaled down."""
    rng, farthest = np.random.default_rng(0), 0.0
    for _ in range(400):
        m, limit = int(rng.integers(1, 40)), int(rng.integers(1, 5000))
        row = rng.normal(size=m)
        row *= rng.choice([0.5, 0.999, 1.0, 1.001, 3.0, 1000.0]) * limit / np.linalg.norm(row)
        beside = row + rng.normal(size=m) * rng.choice([0.1, 1.0, 100.0])
        rows = np.rint([row, beside])
        one, other = clipping.to_grid(rows, 1.0, limit)
        moved = np.linalg.norm(one - other) - np.linalg.norm(rows[0] - rows[1])
        assert moved <= clipping.spread(m, limit)
        farthest = max(farthest, float(moved))
    assert farthest > 0.1, "without truncation it would be 0"


@every("limit", [2**27, 2**31 - 1])
def test_a_row_at_the_limit_is_within_it_as_integers(limit: int) -> None:
    """The attack: the square of its norm is one too large, which float64 cannot tell apart."""
    ((large, small),) = clipping.to_grid(np.array([[limit, 1.0]]), 1.0, limit).tolist()
    assert limit**2 * (1 - 2.0**-18) < large**2 + small**2 <= limit**2
