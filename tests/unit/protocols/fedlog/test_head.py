"""FedLog's head: the one stationary point of a strictly concave objective, found exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.every import every

from securefl.core.errors import DataError
from securefl.protocols.fedlog.head import Prior, gradient, objective, probabilities, solve


def statistic(classes: int, features: int, records: int, seed: int, noise: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features - 1)) / np.sqrt(features)
    labels = rng.integers(classes, size=records)
    phi = np.hstack(
        [np.ones((records, 1)), np.tanh(centres[labels] + rng.normal(size=(records, features - 1)))]
    )
    total = np.zeros((classes, features))
    np.add.at(total, labels, phi)
    return total + noise * rng.normal(size=total.shape)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.floats(1e-6, 1e6))
def test_any_statistic_has_a_head(seed: int, classes: int, size: float) -> None:
    """Noisy, huge, tiny, with empty rows: the stationary point is found and is a maximum."""
    rng = np.random.default_rng(seed)
    t = size * rng.normal(size=(classes, 4))
    t[rng.random(classes) < 0.3] = 0.0
    t[0, 0] += 1 + np.abs(t[:, 0]).sum()
    eta = solve(t)
    n = 1 + t[:, 0].sum()
    energy = np.sum(eta**2, axis=1).max() / 4  # whose last digits are those of the probabilities
    assert np.abs(gradient(eta, t)).max() < (1e-9 + 1e-14 * energy) * max(n, np.abs(t).max())
    for _ in range(5):
        other = eta + rng.normal(size=eta.shape) * 10.0 ** rng.integers(-4, 1)
        assert objective(other, t) <= objective(eta, t) + 1e-9 * abs(objective(eta, t))


def test_gradient_descent_ends_where_the_solver_is() -> None:
    """The reference of the paper's code: Adam on the objective, from zero, for as long as it takes."""
    t = statistic(4, 6, 400, seed=1, noise=2.0)
    n = 1 + t[:, 0].sum()
    eta = torch.zeros(4, 6, dtype=torch.float64, requires_grad=True)
    target = torch.from_numpy(t)
    descent = torch.optim.Adam([eta], lr=0.05)
    for _ in range(1000):
        descent.zero_grad()
        loss = -(eta * target).sum() / n + torch.logsumexp(eta.square().sum(1) / 4, 0)
        loss.backward()
        descent.step()
    np.testing.assert_allclose(solve(t), eta.detach().numpy(), atol=2e-3)


def test_probabilities_solve_their_equations() -> None:
    s = np.array([0.0, 0.01, 0.2, 3.0])
    p = probabilities(s)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    c = s / p**2 - np.log(p)
    np.testing.assert_allclose(c, c[0], rtol=1e-9)
    np.testing.assert_allclose(probabilities(np.zeros(5)), 0.2)


def test_an_empty_class_gets_no_direction_and_one_class_all() -> None:
    t = statistic(3, 4, 100, seed=0)
    t[1] = 0
    eta = solve(t)
    assert np.array_equal(eta[1], np.zeros(4))
    alone = solve(t[:1])
    np.testing.assert_allclose(alone, 2 * t[:1] / (1 + t[0, 0]))


@every(
    "bad", [np.full((2, 3), np.nan), np.full((2, 3), np.inf), np.zeros((0, 3)), np.zeros(3), -np.ones((2, 3))]
)
def test_a_statistic_that_says_nothing_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(DataError, match="Expected"):
        solve(bad)


# The prior ---------------------------------------------------------------------------------------


@every("prior", [Prior(nu=0.0), Prior(nu=50.0), Prior(chi=3.0), Prior(chi=-0.5, nu=7.0)])
def test_the_gradient_vanishes_under_any_prior(prior: Prior) -> None:
    t = statistic(4, 6, 400, seed=3)
    eta = solve(t, prior)
    assert np.abs(gradient(eta, t, prior)).max() < 1e-9 * 400
    assert objective(eta, t, prior) > objective(solve(t), t, prior)


def test_a_prior_is_worth_the_records_it_stands_for() -> None:
    """chi c, nu n is the head of a statistic with c more in every entry, under N = n + the true records."""
    t = statistic(3, 5, 200, seed=4)
    assert np.array_equal(solve(t, Prior(chi=2.0, nu=7.0)), solve(t + 2.0, Prior(nu=7.0 - 2.0 * 3)))


def test_without_records_only_a_prior_gives_a_head() -> None:
    nothing = np.zeros((3, 4))
    with pytest.raises(DataError, match="above 0"):
        solve(nothing, Prior(nu=0.0))
    assert np.array_equal(solve(nothing, Prior(nu=1.0)), nothing)
