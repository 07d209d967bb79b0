"""The Gaussian process over loss changes, against its definition with whole covariances."""

from __future__ import annotations

import numpy as np
import pytest

from securefl.algorithm.queries import Floats
from securefl.protocols.fedcor.process import (
    RIDGE,
    covariance,
    fit,
    grouped,
    most_informative,
    plane,
    slope,
)

N, D = 12, 3


def drawn(seed: int = 0, clients: int = N, dimension: int = D) -> Floats:
    return np.random.default_rng(seed).standard_normal((dimension, clients)) / np.sqrt(dimension)


def changes(samples: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).normal(0, 0.3, (samples, N))


def surprise(x: Floats, y: Floats, weights: Floats) -> float:
    """The weighted negative log likelihood of the changes without its constant, unknown ones left out."""
    total = 0.0
    for row, weight in zip(y, weights, strict=True):
        seen = ~np.isnan(row)
        sigma, own = covariance(x)[np.ix_(seen, seen)], row[seen]
        total += 0.5 * weight * float(own @ np.linalg.solve(sigma, own) + np.linalg.slogdet(sigma)[1])
    return total


def test_slope_is_the_gradient_of_surprise() -> None:
    x, weights = drawn(), np.array([1.0, 0.7, 0.4])
    y = changes(3)
    y[1, 4] = np.nan
    found, step = slope(x, grouped(y, weights)), 1e-6
    for place in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[place] = step
        numeric = (surprise(x + moved, y, weights) - surprise(x - moved, y, weights)) / (2 * step)
        assert found[place] == pytest.approx(numeric, rel=1e-4, abs=1e-3)


def test_a_fit_finds_who_changes_together() -> None:
    """Two groups whose losses move against each other come apart in the embeddings."""
    rng = np.random.default_rng(3)
    sign = np.repeat([1.0, -1.0], N // 2)
    y = rng.normal(0, 0.5, (10, 1)) * sign + rng.normal(0, 0.01, (10, N))
    alike, least = [], []
    for steps in (0, 150, 1000):
        x = fit(drawn(), y, np.ones(10), steps=steps, learning_rate=0.01)
        sigma = covariance(x)
        scale = np.sqrt(np.diag(sigma))
        alike.append(float((sigma / np.outer(scale, scale) * np.outer(sign, sign)).mean()))
        least.append(surprise(x, y, np.ones(10)))
    assert sorted(alike) == alike
    assert sorted(least, reverse=True) == least
    assert alike[-1] > alike[0] + 0.2


def test_changes_that_say_nothing_move_no_embedding() -> None:
    """All losses equal, or none known."""
    x = drawn()
    for y in (np.zeros((2, N)), np.full((2, N), np.nan)):
        assert grouped(y, np.ones(2)) == []
        assert np.array_equal(fit(x, y, np.ones(2), steps=50, learning_rate=0.01), x)


def test_a_fit_that_diverges_leaves_the_embedding() -> None:
    x = drawn()
    with np.errstate(all="ignore"):
        found = fit(x, np.full((1, N), 1e200), np.ones(1), steps=5, learning_rate=0.01)
    assert np.array_equal(found, x)


def by_definition(sigma: Floats, shares: Floats, scale: Floats, count: int) -> list[int]:
    """Algorithm 1, line by line: every client's posterior mean is worked out."""
    mean, chosen = np.zeros(len(sigma)), list[int]()
    for _ in range(count):
        best, least = -1, np.inf
        for k in set(range(len(sigma))) - set(chosen):
            predicted = mean[k] - scale[k] * np.sqrt(sigma[k, k])
            posterior = mean + sigma[:, k] / sigma[k, k] * (predicted - mean[k])
            if shares @ posterior < least - 1e-12:
                best, least, after = k, shares @ posterior, posterior
        chosen.append(best)
        mean, sigma = after, sigma - np.outer(sigma[:, best], sigma[best]) / sigma[best, best]
    return chosen


def test_the_choice_is_that_of_algorithm_1() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sigma, shares = covariance(drawn(seed)), rng.dirichlet(np.ones(N))
        scale = 0.9 ** rng.integers(0, 4, N)
        mine = most_informative(sigma, shares, 5, scale=scale)
        assert mine == by_definition(sigma, shares, scale, 5), seed


def test_of_two_alike_one_is_chosen() -> None:
    x = np.zeros((2, 4))
    x[0, :2], x[1, 2:] = 1.0, 0.9
    chosen = most_informative(covariance(x), np.full(4, 0.25), 2)
    assert {k // 2 for k in chosen} == {0, 1}


def test_only_who_is_allowed_is_chosen_and_fewer_if_fewer_are() -> None:
    allowed = np.zeros(N, bool)
    allowed[[2, 5]] = True
    sigma = covariance(drawn())
    assert set(most_informative(sigma, np.full(N, 1 / N), 4, allowed=allowed)) == {2, 5}
    assert most_informative(sigma, np.full(N, 1 / N), 4, allowed=np.zeros(N, bool)) == []


def test_the_plane_has_the_main_directions() -> None:
    x = drawn()
    flat = plane(x)
    _, values, _ = np.linalg.svd(x)
    np.testing.assert_allclose(np.linalg.norm(flat, axis=1), values[:2])
    assert np.array_equal(plane(-x), flat)
    assert np.array_equal(plane(x[:1])[1], np.zeros(N))
    assert RIDGE == 1e-4
