"""DP-SGD inside the protocols: what it costs stands in the ledger, and nothing else may read the records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, NoOpDpEvent
from support.every import every
from support.private_studies import AVERAGING, private
from support.tiny_study import charged, composed, run, spied, world

from securefl.accounting.composition import compose
from securefl.accounting.events import History, dump_event, load_event, steps_event
from securefl.core.errors import ConfigError, UnsupportedEvent
from securefl.mechanisms.charges import Protection
from securefl.study.config import Study

STEPS = steps_event(0.1, 1.2, 5)


@every("name", ["fedavg", "fedadam", "lg_fedavg", "fedper", "stc", "cs_fl"])
def test_a_run_costs_its_steps_and_nothing_else(name: str, tmp_path: Path) -> None:
    of = private(name, AVERAGING[name])
    spy, finished = spied(of, tmp_path)
    trainings = 4 if name == "cs_fl" else 2  # its rounds have two phases
    expected = compose({STEPS: trainings}, of.privacy.delta)
    assert 0.5 < expected < 20
    for party in ("server", "others"):
        assert finished.records[-1]["epsilon"][party] == pytest.approx(expected, rel=2e-3)
    assert finished.records[-1]["epsilon"]["key-holder"] == 0
    assert not np.array_equal(spy.states[0].broadcast, spy.states[-1].broadcast)
    assert charged(tmp_path).total() == trainings * 4


def test_fedprox_pulls_its_private_training_back_too() -> None:
    of = private("fedprox", AVERAGING["fedprox"] + "\nmu = 0.7", non_private='["size"]')
    algorithm = of.arms[0].options.build(world(of).problem)
    assert algorithm.problem.private.proximal == 0.7  # type: ignore[attr-defined]


def test_privacy_does_not_follow_the_experiments_seed(tmp_path: Path) -> None:
    """The same seed, twice: other samples and other noise. Without [dpsgd] the runs are the same."""
    of = private("fedavg", AVERAGING["fedavg"], rounds=1)
    first, second = (spied(of, tmp_path / name)[0].states[-1].broadcast for name in "ab")
    assert not np.array_equal(first, second)


def test_what_is_not_accounted_still_makes_epsilon_endless(tmp_path: Path) -> None:
    of = private("fedavg_rp", 'fraction = 1.0\nscheme = "I"')
    with pytest.raises(ConfigError, match=r"non_private = .\"size\""):
        composed(of)


# FedLog ------------------------------------------------------------------------------------------

FEDLOG = 'body = "dp-sgd"'


def fedlog(epsilon: str = "6.0", **changes: Any) -> Study:
    return private("fedlog", FEDLOG, noise='"local"', epsilon=epsilon, **changes)


def test_statistic_and_training_compose_to_the_epsilon_asked_for(tmp_path: Path) -> None:
    of = fedlog()
    finished = run(of, tmp_path)
    assert finished.records[-1]["epsilon"]["server"] == pytest.approx(6.0, rel=1e-3)
    assert finished.records[-1]["epsilon"]["server"] <= 6.0 * (1 + 2e-4), "running figures: 0.02 % above"
    _, plan = composed(of)
    z = plan.noise_multiplier
    whole = compose({STEPS: 2, GaussianDpEvent(z): 3}, of.privacy.delta)
    assert whole == pytest.approx(6.0, rel=1e-3)
    assert whole <= 6.0


def test_the_first_exchange_costs_no_training() -> None:
    of = fedlog()
    algorithm, plan = composed(of)
    (spec,) = [statistic.spec for statistic in algorithm.contributions]
    assert spec.depends_on == "records"
    first, later = Protection(plan, spec).charge(trained=False), Protection(plan, spec).charge()
    assert first.server == GaussianDpEvent(plan.noise_multiplier)
    assert later.server == ComposedDpEvent((GaussianDpEvent(plan.noise_multiplier), STEPS))
    assert later.key_holder == NoOpDpEvent()


def test_training_that_costs_more_than_was_asked_for_is_told_before_anything_runs() -> None:
    of = fedlog(epsilon="0.1")
    with pytest.raises(ConfigError, match="training to cost less"):
        composed(of)


def test_a_budget_that_bears_not_one_round_is_told_before_anything_runs() -> None:
    of = private("fedavg", AVERAGING["fedavg"], rounds=6, budget="0.1")
    with pytest.raises(ConfigError, match=r"round 1 .* the budget"):
        composed(of)


def test_a_budget_that_ends_drops_clients_out_by_itself(tmp_path: Path) -> None:
    """Calibrated for 6 over 6 rounds, with a budget of 4.5: some rounds are bought, the rest are refused."""
    of = fedlog(rounds=6, budget="4.5", epsilon="8.0")
    finished = run(of, tmp_path)
    answered = [len(record["answered"]) for record in finished.records]
    assert 0 < len(answered) < 6
    assert set(answered) == {4}
    assert finished.records[-1]["epsilon"]["server"] <= 4.5
    assert finished.records[-1]["ended"]


def test_a_public_body_pays_for_no_training(tmp_path: Path) -> None:
    of = private("fedlog", 'body = "public"', noise='"local"', epsilon="1.0")
    assert run(of, tmp_path).records[-1]["epsilon"]["server"] == pytest.approx(1.0, abs=1e-6)


def test_a_private_body_is_trained_in_the_clear_whatever_dpsgd_says() -> None:
    of = private("fedlog", 'body = "private"', non_private='["statistic"]')
    (statistic,) = of.arms[0].options.build(world(of).problem).contributions
    assert statistic.spec.depends_on == "trained-state"
    assert statistic.spec.training is None


# Events and calibration --------------------------------------------------------------------------


def test_composed_events_are_stored_and_add_up() -> None:
    event = ComposedDpEvent((GaussianDpEvent(10.0), ComposedDpEvent((STEPS, GaussianDpEvent(10.0)))))
    assert load_event(dump_event(event)) == event
    assert History.of({event: 3}) == History.of({STEPS: 3, GaussianDpEvent(10.0): 6})
    for bad in ([], ["x"], [{"event": "unheard of"}], "text"):
        with pytest.raises(UnsupportedEvent):
            load_event({"event": "composed", "events": bad})


def test_spare_attempts_are_paid_for_beforehand() -> None:
    """Noise for two rounds and three attempts that may be repeated: training five times, six releases."""
    of = fedlog()
    algorithm, _ = composed(of)
    sent = [statistic.spec for statistic in algorithm.contributions]
    spared = replace(
        of.privacy,
        sum="masked",
        dropout=0.2,
        corrupt=0.0,
        min_cohort_size=3,
        min_honest=2,
        max_client_weight=0.5,
        max_retries=3,
    )
    plan = spared.plan(2, sent)
    assert plan.max_releases == {"statistic": 6}
    whole = compose({STEPS: 5, GaussianDpEvent(plan.noise_multiplier): 6}, of.privacy.delta)
    assert whole == pytest.approx(6.0, rel=1e-3)
    assert whole <= 6.0


def test_a_budget_of_exactly_what_was_asked_for_bears_every_round(tmp_path: Path) -> None:
    """The running figure is a little above the exact one, which decides near the budget."""
    finished = run(fedlog(epsilon="4.0", rounds=3, budget="4.0"), tmp_path)
    assert [len(record["answered"]) for record in finished.records] == [4, 4, 4]
