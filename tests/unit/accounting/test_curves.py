"""Curves of histories: beside closed forms, real tests of neighbours, dp_accounting and Opacus."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import DpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp.rdp_privacy_accountant import _compute_rdp_poisson_subsampled_gaussian
from scipy.stats import norm
from support.every import every

from securefl.accounting import Curve, Ledger, Terms, curves, steps_event
from securefl.accounting.composition import composable
from securefl.accounting.events import History
from securefl.accounting.statements import statement
from securefl.core.errors import ConfigError
from securefl.core.release import PARTIES, Charge, ReleaseKey

DELTAS = np.array([0.1, 1e-2, 1e-3, 1e-5, 1e-7, 1e-10])
FEW = (
    History(mu_squared=0.5, steps={(0.02, 1.1): 300}),
    # A rare large loss beside common small ones: one tilt has not the digits of all deltas.
    History(steps={(0.0025, 3.9): 1, (0.13, 1.0): 9}),
)


def held_out(count: int) -> list[History]:
    """Histories of one or two kinds of sampled steps, some with Gaussians, of epsilons from 0.05 to 40."""
    rng = np.random.default_rng(20261129)
    return [
        History(
            mu_squared=float(rng.choice([0.0, 0.04, 1.0])),
            steps={
                (float(10 ** rng.uniform(-3, -0.2)), float(rng.uniform(0.7, 4))): int(
                    10 ** rng.uniform(0, 2.7)
                )
                for _ in range(rng.integers(1, 3))
            },
        )
        for _ in range(count)
    ]


def agrees_with_dp_accounting(history: History) -> None:
    own, other = Curve(history), PLDAccountant(value_discretization_interval=1e-4)
    for event, count in history.events():
        other.compose(event, count)
    epsilons = np.array([own.epsilon(float(delta)) for delta in DELTAS])
    # Both are upper bounds by the same method, on grids of their own.
    expected = [other.get_delta(float(epsilon)) for epsilon in epsilons]
    assert own.delta(epsilons) == pytest.approx(expected, rel=3e-3)


@every("history", FEW)
def test_sampled_steps_have_the_curve_of_dp_accounting(history: History) -> None:
    agrees_with_dp_accounting(history)


@pytest.mark.slow
@every("history", held_out(20))
def test_held_out_histories_have_the_curve_of_dp_accounting(history: History) -> None:
    agrees_with_dp_accounting(history)


@pytest.mark.slow
@every("history", held_out(20))
def test_held_out_histories_have_the_curve_of_opacus(history: History) -> None:
    from opacus.accountants import PRVAccountant

    own, other = Curve(History(steps=history.steps)), PRVAccountant()
    other.history = [(z, q, count) for (q, z), count in history.steps.items()]
    for delta in (1e-2, 1e-5):
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of the best order of its RDP
            epsilon = other.get_epsilon(delta, eps_error=0.01, delta_error=delta / 1000)
        # It is an upper bound, by at most twice the error that it was asked for.
        assert own.delta(epsilon) <= delta * 1.002
        assert own.delta(max(0.0, epsilon - 0.03)) >= delta * 0.998 or epsilon < 0.03


def test_gaussians_have_the_closed_form() -> None:
    epsilons, mu = np.linspace(0, 6, 13), 1.3
    expected = norm.cdf(mu / 2 - epsilons / mu) - np.exp(epsilons) * norm.cdf(-mu / 2 - epsilons / mu)
    own = Curve.of({GaussianDpEvent(2 / mu): 4})
    assert own.mu == pytest.approx(mu)
    assert own.rho == pytest.approx(mu**2 / 2)
    assert own.delta(epsilons) == pytest.approx(expected, rel=1e-9)
    # The most powerful test of N(0, 1) against N(mu, 1) is a threshold.
    thresholds = np.linspace(-3, 4, 15)
    assert own.miss(norm.sf(thresholds)) == pytest.approx(norm.cdf(thresholds - mu), rel=1e-9)


def test_the_best_test_of_one_sampled_step_misses_as_often_as_the_curve_says() -> None:
    q, z = 0.3, 0.9
    at = np.linspace(-4, 5, 400)
    with_record = (1 - q) * norm.cdf(at / z) + q * norm.cdf((at - 1) / z)
    own = Curve.of({steps_event(q, z, 1): 1})
    for false_alarms, misses in (
        (norm.sf(at / z), with_record),  # the record is removed, then it is added
        (with_record, norm.sf(at / z)),
    ):
        assert np.all(own.miss(false_alarms) <= misses + 1e-9)
    # No bound could be much larger: a person who draws lots between tests of both kinds gains little.
    removed, added = norm.sf(at / z), with_record
    points = np.array([0.001, 0.01, 0.1])
    best = np.minimum(np.interp(points, removed[::-1], added[::-1]), np.interp(points, added, removed))
    assert own.miss(points) == pytest.approx(best, abs=2e-3)


@every("history", [*FEW, History(mu_squared=2.0), History(steps={(0.9, 0.3): 10})])
def test_the_one_epsilon_is_a_point_of_the_curve(history: History) -> None:
    own = Curve(history)
    for delta in (1e-3, 1e-5, 1e-10):
        assert float(own.delta(own.epsilon(delta))) == pytest.approx(delta, rel=1e-6)


def test_epsilons_far_below_the_tail_have_deltas_near_1() -> None:
    own = Curve(History(steps={(0.9, 0.3): 10}))  # epsilon is 96 at a delta of 1e-5
    # Of dp_accounting's PLDAccountant, on a grid of 1e-3.
    assert 1 - own.delta([0.0, 5.0, 20.0, 50.0]) == pytest.approx(
        [5.292e-5, 2.981e-4, 0.015214, 0.61355], rel=2e-3
    )


@every("history", FEW)
def test_points_and_the_trade_off_are_one_curve(history: History) -> None:
    own, alarms, epsilons = Curve(history), np.array([0.0, 1e-3, 0.1, 0.5, 1.0]), np.linspace(0, 8, 401)
    lines = 1 - own.delta(epsilons) - np.exp(epsilons) * alarms[:, None]
    mirrored = np.exp(-epsilons) * (1 - own.delta(epsilons) - alarms[:, None])
    assert own.miss(alarms) == pytest.approx(np.maximum(lines, mirrored).max(1).clip(0), abs=2e-3)


def test_steps_that_no_grid_holds_have_the_curve_of_rdp() -> None:
    history = History(steps={(1e-9, 0.01): 3, (0.5, 3.0): 3})
    assert not composable(history, 1e-9)
    own = Curve(history)
    assert 0 < float(own.delta(own.epsilon(1e-5))) == pytest.approx(1e-5, rel=1e-3)


def test_mu_and_rho_are_those_of_the_steps_on_all_records() -> None:
    q, z, orders = 0.4, 1.5, np.array([2.0, 16.0, 256.0, 4096.0])
    own = Curve(History(mu_squared=0.3, steps={(q, z): 5}))
    renyi = 5 * np.asarray(_compute_rdp_poisson_subsampled_gaussian(q, z, orders)) + 0.3 * orders / 2
    assert np.all(renyi <= own.rho * orders)
    assert renyi[-1] / orders[-1] == pytest.approx(own.rho, rel=2e-3)
    assert own.mu == pytest.approx(math.sqrt(2 * own.rho))
    assert [one.gaussian for one in (own, Curve(History(mu_squared=1.0)))] == [False, True]


def test_without_noise_a_test_errs_never_and_without_a_release_always() -> None:
    bare, none = Curve.of({NonPrivateDpEvent(): 1, GaussianDpEvent(1.0): 1}), Curve.of({NoOpDpEvent(): 3})
    at = np.array([0.0, 0.3, 1.0])
    assert (bare.mu, bare.rho, bare.epsilon(1e-5)) == (math.inf, math.inf, math.inf)
    assert (bare.delta(at).tolist(), bare.miss(at).tolist()) == ([1, 1, 1], [0, 0, 0])
    assert (none.mu, none.rho, none.epsilon(1e-5)) == (0, 0, 0)
    assert none.delta(at).tolist() == [0, 0, 0]
    assert none.miss(at) == pytest.approx(1 - at)


def test_what_is_no_point_of_a_curve_is_refused() -> None:
    own = Curve.of({GaussianDpEvent(1.0): 1})
    for refused in (-0.1, math.nan, [1.0, -1.0]):
        with pytest.raises(ConfigError, match=r"0 or more.*pass 1.0"):
            own.delta(refused)
    for refused in (-0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match=r"in \[0, 1\].*pass 0.05"):
            own.miss(refused)
    with pytest.raises(ConfigError, match="0 < delta < 1"):
        own.epsilon(0.0)


def test_a_ledger_has_a_curve_for_each_holder_and_party(tmp_path: Path) -> None:
    path, loud, steps = tmp_path / "ledger.sqlite", GaussianDpEvent(4.0), steps_event(0.1, 2.0, 3)
    waves: tuple[dict[str, DpEvent], ...] = ({"a": loud, "b": steps, "c": loud}, {"b": loud})
    with Ledger(path, Terms(unit="record", adjacency="add-remove", delta=1e-5)) as ledger:
        for number, wave in enumerate(waves, start=1):
            wants = [
                (
                    ReleaseKey(holder, b"s" * 32, number, 0, 0, "update"),
                    Charge(server=event, key_holder=NoOpDpEvent(), others=NonPrivateDpEvent()),
                )
                for holder, event in wave.items()
            ]
            assert not ledger.reserve(wants)
    found = curves(path)
    assert {(holder, *own) for holder, own in found.items()} == {(who, *PARTIES) for who in "abc"}
    assert found["a"]["server"] == Curve.of({loud: 1})
    assert found["a"]["server"] is found["c"]["server"]
    assert found["b"]["server"] == Curve.of({steps: 1, loud: 1})
    assert (found["b"]["key-holder"].mu, found["b"]["others"].mu) == (0, math.inf)
    assert curves(path, holder="b") == {"b": found["b"]}
    last = {row["holder"]: row["epsilon"] for row in statement(path, party="server").releases}
    assert {who: round(own["server"].epsilon(1e-5), 6) for who, own in found.items()} == last
