"""FedAdagrad divides by the size of its steps, and so enlarges the rounding of a mean. FedAdam does so less.

After three rounds FedAdagrad was once seen 8.4e-3 from plain Flower, where FedAvg was within 1e-6. The state
of the strategy is Flower's own, of one dtype in both runs, and its accumulators begin at 0 in both. The
reason is a mean step below `tau`. There the update is eta x step / tau, by Flower's defaults a hundred times
the step, and a hundred times its rounding. The rounding is half a grid step over the clients' mean weight,
which is n over `max_num_examples`. So a bound far above the counts makes it visible, and one near the counts
does not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedYogi
from support.every import every
from support.flower_apps import CLEAR, CLIENTS, COUNTS, UPDATES, Given, app_of, grid_of, plain, secured

from securefl.algorithm.plan import Plan
from securefl.deployment.local import LocalDeployment
from securefl.deployment.updates import GRID

ROUNDS, SIZE = 3, 256


def small_steps(number: int) -> ClientApp:
    """Steps of some 1e-5 in every entry: below tau = 1e-3."""

    def train(came: Given, *_: Any) -> tuple[Given, Given]:
        step = 1e-5 * np.sin(np.arange(SIZE) * (number + 1.3))
        return {"w": (came["w"] + step).astype(came["w"].dtype)}, {
            "num-examples": COUNTS[number],
            "loss": 1.0,
        }

    return app_of(train)


def bounded(most: int) -> Plan:
    return replace(CLEAR, max_num_examples=most)


def difference(strategy: Any, plan: Plan, folder: Path) -> float:
    """How far the models are from plain Flower's, at most, in float64: only the rounding of means differs."""
    apps = [small_steps(k) for k in range(CLIENTS)]
    model = ArrayRecord({"w": Array(np.zeros(SIZE))})
    expected = strategy(fraction_evaluate=0.0).start(plain(apps), model, ROUNDS)
    own = strategy(fraction_evaluate=0.0)
    with LocalDeployment(plan, UPDATES, clients=CLIENTS, folder=folder) as parties:
        result = own.start(grid_of(parties, own, secured(folder, apps)), model, ROUNDS)
    return float(np.abs(result.arrays["w"].numpy() - expected.arrays["w"].numpy()).max())


def rounding(plan: Plan) -> float:
    """The most that rounding moves an entry of a mean: half a step of each client, over their weights."""
    return float(CLIENTS * GRID.step / 2 / (sum(COUNTS) / plan.max_num_examples))


def test_a_mean_is_rounded_by_no_more_than_its_grid_and_weights_say(tmp_path: Path) -> None:
    for most in (32, 64 * 256):
        found = difference(FedAvg, bounded(most), tmp_path / str(most))
        assert found <= ROUNDS * rounding(bounded(most))


@every("strategy", [FedAdagrad, FedAdam, FedYogi])
def test_an_adaptive_strategy_enlarges_it_by_no_more_than_eta_over_tau(strategy: Any, tmp_path: Path) -> None:
    far, gain = bounded(64 * 256), strategy().eta / strategy().tau
    found = difference(strategy, far, tmp_path / "far")
    assert found <= ROUNDS * gain * rounding(far)
    assert difference(strategy, bounded(32), tmp_path / "near") < found / 100, (
        "a bound near the counts mends it"
    )


def test_fedadagrad_s_difference_is_a_hundred_times_that_of_its_mean(tmp_path: Path) -> None:
    far, gain = bounded(64 * 256), FedAdagrad().eta / FedAdagrad().tau
    mean = difference(FedAvg, far, tmp_path / "mean")
    found = difference(FedAdagrad, far, tmp_path / "own")
    assert gain == pytest.approx(100)
    assert found > 1e-3, "what was seen"
    assert found == pytest.approx(gain * mean, rel=0.1), "nothing but the rounding of the mean is in it"
