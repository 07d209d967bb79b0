"""Values on the public grid: the same integers whatever order weight and step are multiplied in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.every import every

from securefl.core.errors import DataError, LocalProtocolError, RemoteProtocolError
from securefl.core.grid import Grid


@every("step", [1.0, 2.0**-10, 2.0**-21])
@every("weight", [1.0, 0.1, 1 / 3, 7 / 60])
def test_one_product_gives_the_integers_of_two(step: float, weight: float) -> None:
    rng = np.random.default_rng(1)
    spread = rng.normal(size=20_000) * 10.0 ** rng.integers(-12, 2, 20_000)
    values = np.concatenate([spread, np.arange(-400, 400) * step / 2])  # ties too
    found = Grid(step=step).quantise(values, weight)
    assert np.array_equal(found, np.rint(weight * values / step).astype(np.int32))


@every("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_called_so(bad: float) -> None:
    with pytest.raises(DataError, match="not finite"):
        Grid().quantise(np.array([0.0, bad]))


@every("large", [513.0, -513.0, 1e308, -1e308])
def test_what_is_too_large_is_called_so(large: float) -> None:
    with pytest.raises(DataError, match="within"):
        Grid().quantise(np.array([0.0, large]))


def test_the_bound_itself_is_inside_and_the_next_number_is_not() -> None:
    grid = Grid()
    assert grid.quantise(np.array([grid.bound, -grid.bound])).tolist() == [grid.limit, -grid.limit]
    with pytest.raises(DataError, match="within"):
        grid.quantise(np.array([np.nextafter(grid.bound, np.inf)]))


def test_the_values_stay_as_they_are() -> None:
    values = np.array([1.0, 2.0])
    Grid().quantise(values, 0.5)
    assert values.tolist() == [1.0, 2.0]


@every("weight", [1.0, 0.1, 1 / 3])
def test_a_float32_is_off_by_its_own_rounding_at_most(weight: float) -> None:
    rng = np.random.default_rng(1)
    values = (rng.uniform(-500, 500, 20_000) * 10.0 ** rng.integers(-9, 1, 20_000)).astype(np.float32)
    exact = weight * values.astype(np.float64) * 2.0**21
    off = np.abs(Grid().quantise(values, weight) - exact)
    assert np.all(off <= 0.5 + 2.0**-23 * np.abs(exact))
    assert np.abs(exact).max() > 2**24  # where a float32 has no half steps any more


def test_a_float32_that_rounds_onto_the_bound_does_not_pass_it() -> None:
    grid = Grid(step=1.0, bound=2.0**31 - 1)
    assert grid.quantise(np.array([2.0**31 - 128], np.float32)).tolist() == [2**31 - 128]
    with pytest.raises(DataError, match="within"):
        grid.quantise(np.array([2.0**31], np.float32))


@every("dtype", [np.float32, np.float64])
@every("over", [-1, 0, 1, 2**16 + 1])
def test_blocks_are_the_whole_and_none_is_left_out(dtype: type[np.floating[Any]], over: int) -> None:
    values = np.random.default_rng(1).normal(size=2**16 + over).astype(dtype)
    whole = np.rint(values * float(0.3 * 2**21)).astype(np.int32)
    assert np.array_equal(Grid().quantise(values, 0.3), whole)
    values[-1] = np.inf
    with pytest.raises(DataError, match="not finite"):
        Grid().quantise(values)


def test_nothing_is_on_the_grid_as_nothing() -> None:
    assert Grid().quantise(np.zeros(0)).tolist() == []


@every("dtype", [np.float16, np.float32, np.float64])
def test_one_large_value_among_many_small_ones_is_found(dtype: type[np.floating[Any]]) -> None:
    """The norm shows at once that most blocks are within the bound, and never that this one is."""
    values = np.full(2**16, 0.01, dtype)
    values[1234] = 101
    with pytest.raises(DataError, match="within"):
        Grid(step=1.0, bound=100.0).quantise(values)
    values[1234] = 100
    assert Grid(step=1.0, bound=100.0).quantise(values).max() == 100


@every("large", [1e30, -1e30, 1e19])
@every("dtype", [np.float32, np.float64])
def test_a_training_that_diverged_is_refused_without_a_warning(
    large: float, dtype: type[np.floating[Any]]
) -> None:
    """Its norm overflows. Warnings are errors here."""
    with pytest.raises(DataError, match="within"):
        Grid().quantise(np.array([0.1, large], dtype), 0.5)


@every("weight", [0.0, -1.0, 1.5, 4.0, np.nan])
def test_a_weight_beyond_1_lets_no_product_beyond_the_limit(weight: float) -> None:
    """Of many small values and one at half of the bound, the norm is small."""
    values = np.zeros(2**16)
    values[0] = 49.9
    with pytest.raises(LocalProtocolError, match="weight"):
        Grid(step=1.0, bound=100.0).quantise(values, weight)


def test_half_precision_rounds_no_product() -> None:
    """A float16 is off by 2^-11 of itself: seven would add up beyond the room that a sum has for rounding."""
    values = np.array([64992.0], np.float16)
    assert Grid(step=1.0, bound=65000.0).quantise(values, 1 / 7).tolist() == [round(64992 / 7)]


@every("step", [0.1, 2.0**-21, 2.0**-7 / 3])
@every("bound", [0.1, 0.7, 3.0])
@every("dtype", [np.float16, np.float32, np.float64])
@every("weight", [1.0, 1 / 3])
def test_a_clipped_value_is_on_every_grid(
    step: float, bound: float, dtype: type[np.floating[Any]], weight: float
) -> None:
    """Whether or not the type represents the bound, and dividing by the step rounds."""
    grid = Grid(step=step, bound=bound)
    clipped = grid.clipped(np.array([7e3, -7e3, 0.05], dtype))
    assert clipped.dtype == dtype
    assert clipped[2] == dtype(0.05)
    high, low, _ = grid.quantise(clipped, weight).tolist()
    assert high == -low
    assert high <= grid.limit
    assert abs(high - weight * bound / step) <= 1 + 2.0**-10 * bound / step


def test_what_is_not_a_number_stays_so() -> None:
    assert np.isnan(Grid().clipped(np.array([np.nan]))).all()


def test_integers_of_a_peer_are_within_the_limit() -> None:
    grid = Grid(bound=4.0, step=0.5)
    edge = np.array([-grid.limit, grid.limit, 0], np.int32)
    assert grid.check(edge, 3, "client-0000") == grid.limit
    beyond = (grid.limit + 1, -grid.limit - 1, 2**31 - 1, -(2**31))
    for bad in (*(np.array([0, one, 0], np.int32) for one in beyond), edge[:2], edge.astype(np.int64)):
        with pytest.raises(RemoteProtocolError):
            grid.check(bad, 3, "client-0000")
