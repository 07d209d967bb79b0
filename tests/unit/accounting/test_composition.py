"""Epsilon of histories: the specification's reference figures, from this library and a second accountant."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from scipy.fft import irfft, rfft
from scipy.stats import norm
from support.every import every

from securefl.accounting.composition import (
    FINE,
    _dots,
    _epsilon_of,
    _Losses,
    _step,
    compose,
    epsilon,
    filtered_epsilon,
    rdp_epsilon,
    running_epsilon,
)
from securefl.accounting.events import History, steps_event

STEPS = {(0.02, 1.1): 50}
LEDGERS = {
    "A": (History(mu_squared=100 * 0.01, steps={(0.02, 1.1): 5000}), 9.4756, 10.4759, 10.2194),
    "B": (History(steps={(0.02, 1.1): 5000}), 7.8609, 8.7408, 8.5148),
    "C": (History(mu_squared=100 * 0.01), 4.3772, 4.8866, 4.7285),
}


@every("name", LEDGERS)
def test_reference_ledgers(name: str) -> None:
    history, at_5, at_6, rdp = LEDGERS[name]
    assert epsilon(history, 1e-5) == pytest.approx(at_5, abs=6e-5)
    assert epsilon(history, 1e-6) == pytest.approx(at_6, abs=6e-5)
    assert rdp_epsilon(history, 1e-5) == pytest.approx(rdp, abs=6e-5)


def test_ledger_a_round_by_round() -> None:
    for rounds, expected in ((1, 0.9415), (2, 1.2342), (5, 1.8666), (10, 2.6356), (25, 4.2876), (50, 6.3195)):
        history = History(mu_squared=rounds * 0.01, steps={(0.02, 1.1): 50 * rounds})
        assert epsilon(history, 1e-5) == pytest.approx(expected, abs=6e-5)


def second_accountant(q: float, z: float, count: int, mu: float, delta: float) -> float:
    """An independent one: privacy losses on a grid by CDF differences, composed by one FFT (add direction).

    Loss of a sampled step, for x from (1 - q) N(0, z^2) + q N(1, z^2): log(1 - q + q exp((2x - 1) / 2z^2)).
    """
    step, half = 1e-4, 2**18
    grid = (np.arange(2 * half) - half) * step

    def step_mass() -> np.ndarray:
        edges = grid - step / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            inner = (np.exp(edges) - (1 - q)) / q
            x = np.where(inner > 0, z**2 * np.log(np.maximum(inner, 1e-300)) + 0.5, -np.inf)
        below = (1 - q) * norm.cdf(x / z) + q * norm.cdf((x - 1) / z)
        return np.diff(np.append(below, 1.0))

    mass = rfft(np.roll(step_mass(), -half)) ** count
    if mu:
        edges = grid - step / 2
        below = norm.cdf((edges - mu**2 / 2) / mu)
        mass = mass * rfft(np.roll(np.diff(np.append(below, 1.0)), -half))
    total = np.roll(irfft(mass, 2 * half), half)
    losses = grid
    low, high = 0.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        above = losses > middle
        if float(np.sum(total[above] * -np.expm1(middle - losses[above]))) > delta:
            low = middle
        else:
            high = middle
    return high


@every(("name", "mu"), [("A", 1.0), ("B", 0.0)])
def test_a_second_accountant_agrees(name: str, mu: float) -> None:
    history, expected, _, _ = LEDGERS[name]
    assert second_accountant(0.02, 1.1, 5000, mu, 1e-5) == pytest.approx(expected, abs=2e-3)
    assert epsilon(history, 1e-5) == pytest.approx(expected, abs=6e-5)


def test_running_agrees_with_composing_anew_and_is_an_upper_bound() -> None:
    for rounds in (1, 2, 3, 4, 9, 10, 2):
        history = History(mu_squared=rounds * 0.01, steps={(0.02, 1.1): 50 * rounds})
        fine = epsilon(history, 1e-5, interval=FINE)
        assert fine <= running_epsilon(history, 1e-5) <= fine * 1.001
    assert running_epsilon(History(mu_squared=1.0), 1e-5) == epsilon(History(mu_squared=1.0), 1e-5)
    assert running_epsilon(History(endless=True, steps=STEPS), 1e-5) == math.inf


def test_a_history_does_not_depend_on_the_order_of_its_events() -> None:
    one = {GaussianDpEvent(0.1 * k): k for k in range(1, 30)}
    other = dict(reversed(one.items()))
    assert History.of(one) == History.of(other)
    steps = {steps_event(0.02, 1.1, 50): 2, steps_event(0.02, 1.1, 7): 1}
    assert History.of(steps).steps == {(0.02, 1.1): 107}
    assert compose({NonPrivateDpEvent(): 1, **steps}, 1e-5) == math.inf


def test_the_filter_is_never_laxer_than_the_budget() -> None:
    for budget in (1.0, 4.0, 8.0):
        rounds = 0
        while (
            filtered_epsilon(
                History(mu_squared=(rounds + 1) * 0.01, steps={(0.02, 1.1): 50 * (rounds + 1)}), 1e-5, budget
            )
            <= budget
        ):
            rounds += 1
        spent = History(mu_squared=rounds * 0.01, steps={(0.02, 1.1): 50 * rounds})
        if rounds:
            assert epsilon(spent, 1e-5) <= rdp_epsilon(spent, 1e-5) <= budget + 1e-6
    assert filtered_epsilon(History(endless=True), 1e-5, 8.0) == math.inf


def test_one_unprotected_release_beside_steps_is_infinite_for_every_accountant() -> None:
    history = History(endless=True, steps={(0.02, 1.1): 50})
    assert rdp_epsilon(history, 1e-5) == filtered_epsilon(history, 1e-5, 8.0) == math.inf


@every("way", [0, 1])
def test_losses_of_a_step_have_its_deltas_and_no_mass_is_lost(way: int) -> None:
    """As a record is removed, and as one is added. The last point of a short grid bears its mass too."""
    q, z, interval = 0.3, 1.0, 0.05
    law = GaussianPrivacyLoss(
        z, sampling_prob=q, adjacency_type=(AdjacencyType.REMOVE, AdjacencyType.ADD)[way]
    )
    losses = _step(q, z, interval)[way]
    places = (losses.first + np.arange(len(losses.masses))) * interval
    assert losses.masses.sum() + losses.infinite == pytest.approx(1, abs=1e-9)
    for eps in (-0.2, 0.0, 0.3):
        over = np.maximum(0, -np.expm1(eps - places)) @ losses.masses + losses.infinite
        assert over == pytest.approx(law.get_delta_for_epsilon(eps), rel=1e-6)
    short = _dots(lambda eps: norm.cdf(0.5 - eps) - np.exp(eps) * norm.cdf(-0.5 - eps), -1.0, 1.0, 0.5)
    assert short.masses.sum() + short.infinite == pytest.approx(1)


def test_an_infinite_loss_that_is_likelier_than_delta_has_no_epsilon() -> None:
    losses = _Losses(first=0, masses=np.array([0.4, 0.4]), infinite=0.2)
    assert _epsilon_of([(losses, 1)], 0.1, 0.1) == math.inf
    assert _epsilon_of([(losses, 1)], 0.1, 0.3) < 0.1


def test_the_filters_order_does_not_follow_the_releases() -> None:
    """At one order the bound is linear in the steps. At the best order of each history it would not be."""
    costs = [filtered_epsilon(History(steps={(0.02, 1.1): count}), 1e-5, 4.0) for count in (500, 1000, 1500)]
    assert costs[2] - costs[1] == pytest.approx(costs[1] - costs[0], rel=1e-9)
    assert costs[1] - costs[0] > 0
