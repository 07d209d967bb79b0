"""Calibration: by hand, by search and against exact laws."""

from __future__ import annotations

import math
from fractions import Fraction
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from support.every import every

from securefl.accounting.composition import compose
from securefl.accounting.store import SMALLEST_DELTA
from securefl.commands.main import cli
from securefl.core.errors import ConfigError
from securefl.dp import calibration
from securefl.study.config import parse
from securefl.study.packaged import packaged


def test_reference_values_of_the_specification() -> None:
    bound = sqrt(84)
    d = calibration.sensitivity("add-remove", bound)
    assert d == pytest.approx(9.219544, abs=5e-7)
    exact = calibration.sigma(1.0, 1e-5, releases=100, sensitivity=d)
    paper = calibration.sigma(1.0, 1e-5, releases=100, sensitivity=d, method="paper")
    assert (exact, paper) == (pytest.approx(343.947242, abs=5e-7), pytest.approx(884.805504, abs=5e-7))
    assert calibration.epsilon_of(paper, 1e-5, releases=100, sensitivity=d) == pytest.approx(
        0.356277, abs=5e-7
    )
    assert calibration.epsilon_of(exact, 1e-5, releases=100, sensitivity=d) == pytest.approx(1.0, abs=1e-9)
    assert calibration.sensitivity("replace-one", bound) == max(sqrt(2 * 85), 2 * bound)
    assert calibration.sensitivity("add-remove", 1.0) == sqrt(2)


@every(("epsilon", "delta", "factor"), [(0.05, 1e-2, 5.7), (1, 1e-5, 2.6), (4, 1e-5, 2.3)])
def test_how_loose_the_paper_is(epsilon: float, delta: float, factor: float) -> None:
    paper = calibration.paper_sigma(epsilon, delta, releases=1, sensitivity=1.0)
    assert paper / calibration.sigma(epsilon, delta, releases=1, sensitivity=1.0) == pytest.approx(
        factor, abs=0.05
    )


@every(("delta", "largest"), [(0.1, 91), (1e-2, 110), (1e-5, 169), (1e-6, 189)])
def test_the_paper_is_refused_where_it_is_wrong(delta: float, largest: int) -> None:
    calibration.sigma(largest - 1, delta, releases=3, sensitivity=2.0, method="paper")
    with pytest.raises(ConfigError, match="an epsilon at which"):
        calibration.sigma(largest + 1, delta, releases=3, sensitivity=2.0, method="paper")


NONSENSE: tuple[dict[str, float], ...] = (
    {"epsilon": 0.0},
    {"epsilon": -1.0},
    {"epsilon": math.inf},
    {"epsilon": math.nan},
    {"epsilon": 1e200},
    {"delta": 0.0},
    {"delta": 1.0},
    {"delta": -0.1},
    {"releases": 0},
    {"sensitivity": 0.0},
    {"sensitivity": math.nan},
)


@every("changed", NONSENSE)
def test_calibration_refuses_what_means_nothing(changed: dict[str, float]) -> None:
    arguments = {"epsilon": 1.0, "delta": 1e-5, "releases": 1, "sensitivity": 1.0, **changed}
    epsilon, delta = arguments.pop("epsilon"), arguments.pop("delta")
    with pytest.raises(ConfigError, match="Expected"):
        calibration.sigma(epsilon, delta, **arguments)  # type: ignore[arg-type]


STEPS: dict[str, float] = {"delta": 1e-5, "sampling_rate": 0.1, "steps": 10}


@every(
    "changed",
    [
        {"delta": 0.0},
        {"delta": math.nan},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.5},
        {"sampling_rate": math.nan},
        {"steps": 0},
        {"asked": 0.0},
        {"asked": -1.0},
        {"asked": math.nan},
        {"asked": math.inf},
    ],
)
def test_training_that_means_nothing_has_no_noise_and_no_epsilon(changed: dict[str, float]) -> None:
    arguments = {"asked": 1.0, **STEPS, **changed}
    asked = arguments.pop("asked")
    for way in (calibration.training_epsilon, calibration.training_noise):
        with pytest.raises(ConfigError, match="Expected"):
            way(asked, **arguments)  # type: ignore[arg-type]


@every("bound", [0.0, -1.0, math.nan, math.inf])
def test_a_sensitivity_needs_a_bound(bound: float) -> None:
    with pytest.raises(ConfigError, match="bound"):
        calibration.sensitivity("add-remove", bound)


def test_what_leaves_nothing_measurable_for_a_release_is_refused() -> None:
    spent = {GaussianDpEvent(2.0): 1}
    with pytest.raises(ConfigError, match="training alone costs"):
        calibration.multiplier_beside(compose(spent, 1e-5) * (1 + 1e-15), 1e-5, releases=1, spent=spent)


def test_a_delta_of_one_record_is_refused_unless_forced() -> None:
    calibration.check_delta(0.0019, 500)
    calibration.check_delta(0.5, 500, force=True)
    for delta in (0.002, 0.01):
        with pytest.raises(ConfigError, match="publishing a record"):
            calibration.check_delta(delta, 500)


@every("delta", [1e-320, 5e-324])
def test_a_delta_that_floats_cannot_hold_is_refused_everywhere(delta: float, tmp_path: Path) -> None:
    events = tmp_path / "events.json"
    events.write_text('[{"event": "gaussian", "noise_multiplier": 5.0}]')
    study = packaged()["demo"].replace("delta = 1e-4", f"delta = {delta}")
    alone: dict[str, Any] = {"standalone_mode": False}
    for refused in (
        lambda: calibration.sigma(1.0, delta, releases=1, sensitivity=1.0),
        lambda: calibration.check_delta(delta, 0),
        lambda: parse(study),
        lambda: cli(["calibrate", "--epsilon=1", "--sensitivity=1", f"--delta={delta}"], **alone),
        lambda: cli(["ledger", "epsilon", f"--events={events}", f"--delta={delta}"], **alone),
    ):
        with pytest.raises(ConfigError, match=r"delta >= 2\.23e-308, got"):
            refused()


@every("delta", [SMALLEST_DELTA, 1e-300, 1e-30])
@every("epsilon", [1e-3, 1.0, 100.0])
def test_the_smallest_deltas_are_computed_with(delta: float, epsilon: float) -> None:
    sigma = calibration.sigma(epsilon, delta, releases=3, sensitivity=2.0)
    found = calibration.epsilon_of(sigma, delta, releases=3, sensitivity=2.0)
    assert found == pytest.approx(epsilon, rel=1e-6)
    paper = calibration.paper_sigma(epsilon, delta, releases=3, sensitivity=2.0)
    exact = Fraction(epsilon) / Fraction(delta)  # Python's logarithm of a whole number has no largest one
    logarithm = log(int(exact * 10**6)) - log(10**6)
    assert paper == pytest.approx(sqrt(24 * logarithm) * 2.0 / epsilon, rel=1e-9)


def test_a_search_ends_where_epsilon_is_not_above_its_target() -> None:
    """Epsilon by loss distributions does not fall evenly: next to a root it may be above once more."""
    for target in np.linspace(0.3, 0.6, 20):

        def excess(x: float, target: float = float(target)) -> float:
            return target - x + 1e-3 * math.sin(3e5 * x)

        assert excess(calibration._root(excess, 0.0, 1.0)) <= 0


def test_noise_is_rounded_up_never_down() -> None:
    """Rounded down, noise would cost more than the epsilon that it was calibrated for."""
    for multiplier in (0.0212345678, 1.000001, 3.14159265, 99999.1):
        found = calibration._rounded_up(multiplier)
        assert multiplier <= found <= multiplier * (1 + 1e-4)
    assert calibration._rounded_up(1.5) == 1.5


def test_training_that_spends_all_is_refused() -> None:
    spent = {GaussianDpEvent(2.0): 1}
    alone = compose(spent, 1e-5)
    with pytest.raises(ConfigError):
        calibration.check_training(alone, 1e-5, spent)
    calibration.check_training(alone * 1.001, 1e-5, spent)
