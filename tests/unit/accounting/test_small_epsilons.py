"""Epsilons and targets from 1e-3 to 100 at deltas from 1e-3 to 1e-12, beside exact laws and dp_accounting."""

from __future__ import annotations

import json
from math import expm1, inf, sqrt
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from dp_accounting import GaussianDpEvent, get_epsilon_gaussian, get_sigma_gaussian
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.every import every

from securefl.accounting import composition
from securefl.accounting.composition import COARSE, FINE, compose, epsilon, running_epsilon
from securefl.accounting.events import History, steps_event
from securefl.commands.main import cli
from securefl.core.errors import ConfigError
from securefl.dp.calibration import multiplier_beside, shared_training_noise, sigma, training_noise


def between(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(np.log10(least), np.log10(most)).map(lambda exponent: float(10**exponent))


TARGETS, DELTAS, RATES = between(1e-3, 100), between(1e-12, 1e-3), between(1e-3, 0.9)
COUNTS = between(1, 1e4).map(round)


def by_dp_accounting(q: float, z: float, count: int, delta: float) -> float:
    """The library's own upper bound, on a grid a tenth of a step's deviation."""
    deviation = q * sqrt(expm1(min(1 / z**2, 10.0)))
    one = pld.from_gaussian_mechanism(z, sampling_prob=q, value_discretization_interval=deviation / 10)
    return float(one.self_compose(count, tail_mass_truncation=delta * 1e-6).get_epsilon_for_delta(delta))


@settings(max_examples=25)
@given(TARGETS, DELTAS, COUNTS)
def test_noise_on_all_records_is_that_of_one_gaussian(target: float, delta: float, count: int) -> None:
    exact = get_sigma_gaussian(target, delta) * sqrt(count)
    assert sigma(target, delta, releases=count, sensitivity=1.0) == pytest.approx(exact, rel=1e-6)
    found = training_noise(target, delta, sampling_rate=1.0, steps=count)
    assert exact * (1 - 1e-9) <= found <= exact * 1.001


@settings(max_examples=12)
@given(between(1e-3, 12), DELTAS, between(1, 1e6).map(round))
def test_losses_of_a_law_with_a_closed_form_are_met_from_above(mu: float, delta: float, count: int) -> None:
    """Steps at q = 1, as loss distributions: rounding errors may not lower epsilon, at no delta."""
    exact = get_epsilon_gaussian(1 / mu, delta)
    found = composition._by_losses(History(steps={(1.0, sqrt(count) / mu): count}), delta, COARSE)
    assert exact <= found
    # of an epsilon that is small beside mu, the last digits hang on those of delta
    assert found <= exact * 1.002 + mu * 2e-3


CASES = [
    (0.001, 1e-5, 0.01, 1000),
    (0.1, 1e-5, 0.01, 2000),
    (0.001, 1e-3, 0.2, 50),
    (0.03, 1e-9, 0.5, 20),
    (0.01, 1e-12, 0.05, 5),
    (2.0, 1e-7, 0.1, 200),
    pytest.param(100.0, 1e-6, 0.5, 60, marks=pytest.mark.slow),
    pytest.param(0.004, 1e-8, 0.001, 10_000, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("target", "delta", "rate", "count"), CASES)
def test_sampled_noise_is_that_of_dp_accounting(target: float, delta: float, rate: float, count: int) -> None:
    z = training_noise(target, delta, sampling_rate=rate, steps=count)
    assert by_dp_accounting(rate, z * 1.01, count, delta) <= target
    assert by_dp_accounting(rate, z * 0.99, count, delta) >= target


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(TARGETS, between(1e-9, 1e-3), RATES, COUNTS)
def test_sampled_noise_is_that_of_dp_accounting_everywhere(
    target: float, delta: float, rate: float, count: int
) -> None:
    assume(rate * count > 10 * delta)  # else most records are in no step, and need no noise
    z = training_noise(target, delta, sampling_rate=rate, steps=count)
    if z > 0.4:  # below, the library takes minutes
        assert by_dp_accounting(rate, z * 1.01, count, delta) <= target
        assert by_dp_accounting(rate, z * 0.99, count, delta) >= target


@settings(max_examples=8, deadline=None)
@given(between(1e-3, 10), DELTAS, RATES, COUNTS, st.sampled_from([1, 3, 7]))
def test_calibration_targets_what_every_reader_is_told(
    target: float, delta: float, rate: float, count: int, rounds: int
) -> None:
    """The ledger round by round, the report, and the check of a budget: one figure, whatever the rounds."""
    assume(rate * count > 10 * delta)
    z = training_noise(target, delta, sampling_rate=rate, steps=count * rounds)
    told = running_epsilon(History.of({steps_event(rate, z, count): rounds}), delta)
    assert told == running_epsilon(History.of({steps_event(rate, z, 1): count * rounds}), delta)
    assert compose({steps_event(rate, z, count * rounds): 1}, delta) <= told <= target
    assert composition.within({steps_event(rate, z, count): rounds}, delta, target)


@settings(max_examples=10, deadline=None)
@given(between(1e-2, 1e4), DELTAS, RATES, COUNTS, between(1e-4, 4) | st.just(0.0))
def test_a_coarser_grid_never_says_less(z: float, delta: float, q: float, count: int, mu: float) -> None:
    if count / z**2 > 1e4:  # an epsilon that protects nobody
        return
    history = History(mu_squared=mu**2, steps={(q, z): count})
    fine, coarse = (epsilon(history, delta, interval=interval) for interval in (FINE, COARSE))
    assert fine <= coarse <= fine * 1.01 + 1e-9
    assert fine <= epsilon(History(mu_squared=mu**2 + count / z**2), delta) + 1e-12, "sampling costs nothing"


def test_small_targets_are_shared_too() -> None:
    for target, delta in ((0.001, 1e-3), (0.05, 1e-5), (0.01, 1e-9)):
        unit = {steps_event(0.05, 1.0, 10): 5}
        z = shared_training_noise(target, delta, unit, releases=3)
        spent = {steps_event(0.05, z, 10): 5}
        beside = multiplier_beside(target, delta, releases=3, spent=spent)
        total = History.of({**spent, GaussianDpEvent(beside): 3})
        assert 0.99 * target <= running_epsilon(total, delta) <= target


@every(("target", "delta", "steps"), [(1e-3, 1e-12, 10**8), (1e5, 1e-3, 1)])
def test_noise_outside_of_its_range_is_refused_in_words(target: float, delta: float, steps: int) -> None:
    with pytest.raises(ConfigError, match="noise multiplier") as refused:
        training_noise(target, delta, sampling_rate=0.9, steps=steps)
    assert f"{target:g}" in str(refused.value)


def test_steps_whose_losses_no_grid_can_hold_have_a_finite_epsilon() -> None:
    """RDP's: it is large, and never infinite."""
    history = History(steps={(0.5, 0.01): 3})
    assert 1e3 < epsilon(history, 1e-5) < inf


@every("count", [1, 40])
def test_what_the_window_leaves_out_counts_as_infinite(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that leaves out a hundredth on either side says more, never less."""
    history = History(steps={(1.0, 2 * sqrt(count)): count})
    exact = get_epsilon_gaussian(2.0, 1e-6)
    monkeypatch.setattr(composition, "_LOG_CUT", np.log(1e-2))
    assert exact < composition._by_losses(history, 1e-6, FINE) < inf


@every("target", [0.001, 0.02, 0.3])
def test_the_commands_go_both_ways_at_small_targets(target: float, tmp_path: Path) -> None:
    """`calibrate`, the study's plan and `ledger epsilon` have one figure; the last one printed 0."""

    def said(*words: object) -> dict[str, float]:
        result = CliRunner().invoke(cli, [*map(str, words), "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.stdout))

    schedule = {"--delta": 1e-6, "--sampling-rate": 0.02, "--steps": 300}
    there = said("calibrate", "--epsilon", target, *[word for pair in schedule.items() for word in pair])
    event = {"event": "poisson_gaussian", "sampling_probability": 0.02, "count": 300}
    events = tmp_path / "events.json"
    events.write_text(json.dumps([{**event, "noise_multiplier": there["noise_multiplier"]}]))
    told = said("ledger", "epsilon", "--events", events, "--delta", 1e-6)
    assert 0.99 * target < told["epsilon"] <= target
    assert told["epsilon"] <= told["rdp_epsilon"]
