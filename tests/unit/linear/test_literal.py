from __future__ import annotations

import numpy as np
import pytest
from support.every import every
from support.literal_divergence import literal_divergence

from securefl.core.errors import ConfigError
from securefl.dp.moments import MeanVariance
from securefl.matching.profiles import divergence

# measured: 1.3e-5 at divergence 1, 2.8e-4 where every variance sits at an end of the range; times 3
RANDOM, WORST = 4e-5, 9e-4


def drawn(rng: np.random.Generator, low: float, high: float, q: int = 84) -> MeanVariance:
    return MeanVariance(np.sqrt(low) * rng.normal(size=q), rng.uniform(low, high, q), 100)


@pytest.mark.parametrize(("low", "high"), [(1.0, 10.0), pytest.param(2e-3, 2e-2, marks=pytest.mark.slow)])
def test_the_literal_route_agrees_with_the_plain_divergence(low: float, high: float) -> None:
    rng = np.random.default_rng(1)
    client, base = drawn(rng, low, high), drawn(rng, low, high)
    got = literal_divergence(client, base, low=low, high=high, degree=15)
    assert got == pytest.approx(divergence(client, base), abs=RANDOM)


@pytest.mark.slow
def test_every_end_of_the_range_and_which_side_is_the_baseline() -> None:
    client = MeanVariance(np.zeros(1), np.full(1, 10.0), 10)
    base = MeanVariance(np.ones(1), np.full(1, 1.0), 10)
    for a, b in ((client, base), (base, client)):
        got = literal_divergence(a, b, low=1.0, high=10.0, degree=15)
        assert got == pytest.approx(divergence(a, b), abs=WORST)
    assert abs(divergence(client, base) - divergence(base, client)) > 1


def test_the_largest_declared_means_do_not_wrap_around() -> None:
    mean = np.array([24.0, -24.0])  # the bound itself, low * high = 1
    client = MeanVariance(mean, np.array([0.8, 1.25]), 10)
    base = MeanVariance(-mean, np.array([0.8, 1.25]), 10)
    got = literal_divergence(client, base, low=0.8, high=1.25, degree=15)
    assert got == pytest.approx(divergence(client, base), rel=1e-5)


def refused(
    variance: float, *, mean: float = 0.0, low: float = 1.0, high: float = 10.0, degree: int = 15
) -> str:
    inside = MeanVariance(np.zeros(1), np.array([low]), 10)
    with pytest.raises(ConfigError) as caught:
        literal_divergence(
            MeanVariance(np.array([mean]), np.array([variance]), 10),
            inside,
            low=low,
            high=high,
            degree=degree,
        )
    return str(caught.value)


@every("variance", [0.0, 0.999, 10.01])
def test_a_variance_outside_the_range_is_refused(variance: float) -> None:
    assert "lie outside" in refused(variance)


def test_a_baseline_outside_the_range_is_refused() -> None:
    client, base = (MeanVariance(np.zeros(1), np.array([s]), 10) for s in (2.0, 11.0))
    with pytest.raises(ConfigError, match="lie outside"):
        literal_divergence(client, base, low=1.0, high=10.0, degree=15)


@every(("low", "high"), [(1.0, 10.01), (2.0, 1.0), (1.0, 1.0), (0.0, 1.0), (1e-7, 1e-6), (1.0, float("nan"))])
def test_a_range_that_the_polynomials_cannot_cover_is_refused(low: float, high: float) -> None:
    assert "low < high" in refused(1.0, low=low, high=high)


@every("degree", [0, 16])
def test_a_degree_beyond_the_levels_is_refused(degree: int) -> None:
    assert "degree" in refused(1.0, degree=degree)


def test_means_that_could_wrap_around_are_refused() -> None:
    assert "wrap around" in refused(1.0, mean=-43.0)  # bound: 24 * 10 ** (1 / 4) = 42.7


def test_profiles_of_different_lengths_are_refused() -> None:
    client, base = (MeanVariance(np.zeros(q), np.ones(q), 10) for q in (1, 2))
    with pytest.raises(ConfigError, match="one length"):
        literal_divergence(client, base, low=1.0, high=10.0, degree=15)
