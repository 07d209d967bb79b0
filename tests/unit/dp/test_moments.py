"""Moments and losses under noise: exact sensitivities, and profiles near the true ones."""

from __future__ import annotations

import math
import re
from math import sqrt

import numpy as np
import pytest
from support.every import every

from securefl.core.errors import ConfigError, DataError
from securefl.dp import calibration, gaussian
from securefl.dp.moments import STEP, Losses, Moments
from securefl.dp.noise import Source

MOMENTS = Moments(bound=3.0, square_bound=9.0)
CORNERS = (0.0, 3.0, -3.0, 1e300, -1e300, 5e-324, 1.7, math.nan, math.inf)


def differences(mechanism: Moments, q: int = 2) -> tuple[float, float]:
    """The largest change of the sums found by removing, and by replacing, one adversarial record."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(3, q))
    records = [np.array([a, b]) for a in CORNERS for b in CORNERS] + list(rng.normal(size=(40, q)) * 5)
    sums = [mechanism.sums(np.vstack([base, r])) for r in records]
    without = mechanism.sums(base)
    removed = max(float(np.linalg.norm((s - without).astype(float))) for s in sums)
    replaced = max(float(np.linalg.norm((s - t).astype(float))) for s in sums for t in sums)
    return removed * STEP, replaced * STEP


def test_no_record_moves_a_profile_by_more_than_its_sensitivity() -> None:
    removed, replaced = differences(MOMENTS)
    assert 0.95 * MOMENTS.sensitivity("add-remove") < removed <= MOMENTS.sensitivity("add-remove")
    assert removed < replaced <= MOMENTS.sensitivity("replace-one")


def test_no_replaced_record_moves_a_profile_by_more_than_the_root_of_six() -> None:
    """Squares are never negative, so those of two records are at most a right angle apart."""
    rng = np.random.default_rng(4)
    bound = MOMENTS.sensitivity("replace-one")
    assert bound == sqrt(6)
    directions = np.vstack([np.eye(3), -np.eye(3), np.ones((1, 3)), rng.normal(size=(40, 3))])
    with np.errstate(invalid="ignore"):  # 0 times infinity
        records = np.vstack([size * directions for size in (0.5, 3.0, 50.0, np.inf)])
        sums = [MOMENTS.sums(record[None]) for record in records]
    farthest = max(np.linalg.norm((a - b) * STEP) for a in sums for b in sums)
    assert 0.85 * bound < farthest <= bound


@every(("bound", "square_bound"), [(2.0, 0.5), (0.5, 0.25), (1e-3, 1e-6), (1e3, 1e-3)])
def test_bounds_below_one_hold_for_huge_records_too(bound: float, square_bound: float) -> None:
    """A record divided by a bound below 1 can leave the floats: it is clipped first."""
    made = Moments(bound=bound, square_bound=square_bound)
    base = np.zeros((2, 3))
    for value in (1e300, -1e300, 1e308, 1.4e154, 1e-300, np.finfo(float).max):
        for record in (np.full(3, value), np.array([value, 0.0, 1.0])):
            moved = made.sums(np.vstack([base, record])) - made.sums(base)
            assert np.linalg.norm(moved.astype(float)) * STEP <= made.sensitivity("add-remove")


def noised(sums: np.ndarray, sensitivity: float, multiplier: float) -> np.ndarray:
    """Sums with a rounded Gaussian on them, times STEP."""
    return (sums + gaussian.rounded(len(sums), multiplier * sensitivity / STEP, Source())) * STEP


def test_a_noised_profile_is_near_the_true_one() -> None:
    """At n = 5000 and z = 10 the noise of a mean is C sigma D / n; six of them are the tolerance."""
    x = np.clip(np.random.default_rng(1).normal(size=(5000, 4)) * 0.5, -1.4, 1.4)
    made = Moments(bound=3.0, square_bound=6.0)
    found = made.profile(noised(made.sums(x), made.sensitivity("add-remove"), 10.0))
    noise = 10 * 1.5 / 5000
    np.testing.assert_allclose(found.mean, x.mean(0), atol=6 * 3 * noise)
    np.testing.assert_allclose(found.variance, x.var(0), atol=6 * 8 * noise)
    assert abs(found.count - 5000) < 6 * 10 * 1.5 / 0.5


@every(("records", "features"), [(2000, 84), (500, 84)])
def test_the_errors_of_profiles_are_those_of_the_specification(records: int, features: int) -> None:
    """Specification of DP, 3: n 500, q 84, delta 1e-5: at epsilon 1 the error of the means is about 0.12
    standard deviations, at epsilon 8 about 0.02; at 2000 records a quarter of that."""
    x = np.random.default_rng(2).normal(size=(records, features))
    made = Moments(
        bound=float(np.quantile(np.linalg.norm(x, axis=1), 0.9)),
        square_bound=float(np.quantile(np.linalg.norm(x**2, axis=1), 0.9)),
    )
    for epsilon, told in ((1.0, 0.12), (8.0, 0.02)):
        multiplier = calibration.sigma(epsilon, 1e-5, releases=1, sensitivity=1.0)
        sums = [noised(made.sums(x), made.sensitivity("add-remove"), multiplier) for _ in range(5)]
        error = np.mean([np.abs(made.profile(s).mean - x.mean(0)).mean() for s in sums])
        assert error == pytest.approx(told * 500 / records, rel=0.35)


def test_what_noise_makes_impossible_is_still_a_profile() -> None:
    """A negative count, and second moments below the square of the first."""
    found = MOMENTS.profile(np.array([-3.0, 1.0, -1.0, -2.0, 5.0]))
    assert found.count == 1
    assert found.variance.min() == 1e-6
    assert Losses(bound=2.0).mean(np.array([-1.0, -4.0])) == 0.0
    assert Losses(bound=2.0).mean(np.array([0.1, 1e6])) == 2.0


def test_a_huge_noised_mean_has_the_least_variance_and_no_warning() -> None:
    """Its square is above the floats."""
    found = MOMENTS.profile(np.array([1.0, -1e300, 1.0]))
    assert found.mean[0] == -3e300 / 2
    assert found.variance[0] == 1e-6


@every(
    ("said", "wrong"),
    [("shape (4,)", np.ones(4)), ("shape (1, 3)", np.ones((1, 3))), ("1 of 3", [math.nan, 1, 1])],
)
def test_a_profile_is_of_finite_sums_of_an_odd_number(said: str, wrong: np.ndarray) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        MOMENTS.profile(wrong)


@every(("said", "wrong"), [("shape (1,)", np.ones(1)), ("shape (3,)", np.ones(3)), ("1 of 2", [1, math.inf])])
def test_a_mean_loss_is_of_two_finite_sums(said: str, wrong: np.ndarray) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        Losses(bound=2.0).mean(wrong)


def test_records_of_a_profile_are_rows() -> None:
    with pytest.raises(DataError, match=re.escape("(n, q), got shape (3,)")):
        MOMENTS.sums(np.ones(3))


def test_a_loss_moves_by_its_sensitivity_at_most() -> None:
    made = Losses(bound=2.0)
    base = made.sums(np.array([0.1, 0.5]))
    values = (0.0, 2.0, 1e300, -5.0, math.nan, math.inf)
    sums = [made.sums(np.array([0.1, 0.5, value])) for value in values]
    for one in sums:
        assert np.linalg.norm((one - base) * STEP) <= made.sensitivity("add-remove") == sqrt(1.25)
    for one in sums:
        for other in sums:
            assert np.linalg.norm((one - other) * STEP) <= made.sensitivity("replace-one")
    assert np.linalg.norm((sums[1] - base) * STEP) == made.sensitivity("add-remove")
    assert made.mean(made.sums(np.array([0.5, 1.5, 9.0])) * STEP) == pytest.approx(4 / 3, abs=1e-4)


@every("bounds", [(0.0, 1.0), (1.0, -1.0), (math.inf, 1.0), (math.nan, 1.0)])
def test_bounds_are_finite_and_positive(bounds: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="finite bounds"):
        Moments(bound=bounds[0], square_bound=bounds[1])


@every("bad", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_is_absent(bad: float) -> None:
    """A count of such records would tell how many there are, beside the sums that leave them out."""
    rows = np.array([[1.0, 2.0], [0.5, -1.0]])
    assert np.array_equal(MOMENTS.sums(np.vstack([rows, [bad, 1.0]])), MOMENTS.sums(rows))
    losses = Losses(bound=4.0)
    assert np.array_equal(losses.sums(np.array([1.0, bad, 2.0])), losses.sums(np.array([1.0, 2.0])))
