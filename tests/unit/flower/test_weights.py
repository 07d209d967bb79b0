"""Weights of clients: whole numbers of examples, declared fractions, or none."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from support.every import every
from support.flower_apps import (
    CLEAR,
    CLIENTS,
    MASKED,
    UPDATES,
    flat,
    grid_of,
    inner,
    node,
    plain,
    secured,
    start,
)

from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError
from securefl.core.messages import client_name
from securefl.deployment.local import LocalDeployment, socket_of
from securefl.deployment.session_store import SessionStore
from securefl.deployment.updates import Updates

WEIGHTS = (0.25, 0.5, 0.07)
STEPPED = replace(UPDATES, weight_step=0.01)
BOUNDS: dict[str, Any] = {"min_num_examples": 1, "max_num_examples": 50, "max_client_weight": 0.9999}


def fractional(number: int, weight: Any = None) -> ClientApp:
    def changed(content: RecordDict) -> RecordDict:
        metrics = {**content["metrics"], "num-examples": WEIGHTS[number] if weight is None else weight}
        return RecordDict({**content, "metrics": MetricRecord(metrics)})

    return inner(number, changed)


def apps() -> list[ClientApp]:
    return [fractional(k) for k in range(CLIENTS)]


def run(folder: Path, plan: Plan, updates: Updates, own: list[ClientApp]) -> Any:
    strategy = FedAvg()
    with LocalDeployment(plan, updates, clients=CLIENTS, folder=folder) as parties:
        grid = grid_of(parties, strategy, secured(folder, own), updates)
        return strategy.start(grid, start(), 2, train_config=ConfigRecord({"lr": 0.5}))


def expected(own: list[ClientApp]) -> Any:
    return FedAvg().start(plain(own), start(), 2, train_config=ConfigRecord({"lr": 0.5}))


@every("plan", [CLEAR, MASKED])
def test_declared_fractions_weigh_as_in_plain_flower(plan: Plan, tmp_path: Path) -> None:
    result, wanted = run(tmp_path, replace(plan, **BOUNDS), STEPPED, apps()), expected(apps())
    np.testing.assert_allclose(flat(result), flat(wanted), atol=1e-6, rtol=0)
    for number in (1, 2):
        assert result.train_metrics_clientapp[number]["loss"] == pytest.approx(
            wanted.train_metrics_clientapp[number]["loss"], abs=2e-6
        )


def why(folder: Path, number: int) -> list[str]:
    with closing(SessionStore(socket_of(folder, client_name(number)).parent / "ledger.sqlite")) as diary:
        return [entry.text for entry in diary.refusals()]


def test_undeclared_fractions_say_how_to_declare_them_to_the_owner_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        result = run(tmp_path, replace(CLEAR, **BOUNDS), UPDATES, apps())
    assert not result.train_metrics_clientapp
    for number in range(CLIENTS):
        (text, *_) = why(tmp_path, number)
        assert "weight_step = 0.01" in text
        assert "leave the plan's `weights` out" in text
        assert str(WEIGHTS[number]) not in text
    rounds = [one for one in caplog.messages if one.startswith("round ")]
    assert rounds
    hints = [one for one in caplog.messages if one.startswith("No client sent a value.")]
    assert len(hints) == 2 * 2, "of each round, and of its evaluation"
    assert "securefl flower check" in hints[0]
    assert all("sent no value" in one and "weight" not in one for one in rounds)


@every("weight", [0.005, 0.253, 0.0, -0.25, float("nan"), float("inf"), [0.25]])
def test_a_weight_beside_the_declared_step_is_left_out(weight: Any, tmp_path: Path) -> None:
    own = [fractional(0), fractional(1, weight), fractional(2)]
    grid = plain()
    grid.nodes = {k + 10: node(fractional(k), k) for k in (0, 2)}
    wanted = FedAvg().start(grid, start(), 2, train_config=ConfigRecord({"lr": 0.5}))
    np.testing.assert_allclose(
        flat(run(tmp_path, replace(CLEAR, **BOUNDS), STEPPED, own)), flat(wanted), atol=1e-6, rtol=0
    )


def test_clients_that_weigh_equally_may_return_any_number_of_examples(tmp_path: Path) -> None:
    plan = replace(CLEAR, weights={}, adjacency="replace-one")
    own = [fractional(0), fractional(1), fractional(2, float("nan"))]
    wanted = expected([fractional(k, 1) for k in range(CLIENTS)])
    np.testing.assert_allclose(flat(run(tmp_path, plan, UPDATES, own)), flat(wanted), atol=1e-6, rtol=0)


def test_the_sum_of_declared_fractions_is_what_the_strategy_gets(tmp_path: Path) -> None:
    seen: list[Any] = []

    strategy = FedAvg(fraction_evaluate=0.0)
    aggregate = strategy.aggregate_train

    def noting(number: int, replies: Any) -> Any:
        replies = list(replies)
        seen.append(replies[0].content["metrics"]["num-examples"])
        return aggregate(number, replies)

    strategy.aggregate_train = noting  # type: ignore[method-assign]
    with LocalDeployment(replace(CLEAR, **BOUNDS), STEPPED, clients=CLIENTS, folder=tmp_path) as parties:
        grid = grid_of(parties, strategy, secured(tmp_path, apps()), STEPPED)
        strategy.start(grid, start(), 1, train_config=ConfigRecord({"lr": 0.5}))
    assert seen == [pytest.approx(sum(WEIGHTS), abs=1e-5)]


def test_terms_with_a_step_are_other_terms() -> None:
    assert Updates().text() == replace(Updates(), weight_step=1.0).text()
    assert STEPPED.digest != UPDATES.digest
    for wrong in (0.0, -1.0, float("nan"), 1e7):
        with pytest.raises(ConfigError, match="weight_step"):
            Updates(weight_step=wrong)
