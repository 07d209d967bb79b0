"""Flower's own strategies on sums: the same models, and no other strategy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
)
from support.every import every
from support.flower_apps import (
    CLEAR,
    CLIENTS,
    MASKED,
    TWO,
    UPDATES,
    flat,
    grid_of,
    inner,
    plain,
    secured,
    start,
)

from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.messages import client_name
from securefl.deployment.engine import RemoteEngine
from securefl.deployment.local import LocalDeployment
from securefl.deployment.updates import UPDATE, Updates
from securefl.engine.account import Account
from securefl.flower.exchange import FRAME, HELLO
from securefl.flower.secure_grid import SecureGrid, never_opened, served

CONFIG = {"lr": 0.5}


def started(strategy: Any, grid: Any, rounds: int = 2) -> Any:
    return strategy.start(grid, start(), num_rounds=rounds, train_config=ConfigRecord(dict(CONFIG)))


FAMILY: dict[str, Any] = {
    "FedAvg": FedAvg,
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedAvgM": lambda: FedAvgM(server_learning_rate=0.8, server_momentum=0.5),
    "FedAdagrad": FedAdagrad,
    "FedAdam": FedAdam,
    "FedYogi": FedYogi,
}
WITHIN = 1e-6
"""How far from Flower's own model one on sums may end, in any entry. Rounding moves it by some 2e-7."""
CASES = [
    *((plan, "FedAvg") for plan in (CLEAR, replace(TWO, sum="ckks"), TWO)),
    *((MASKED, name) for name in FAMILY),
]


@every(("plan", "name"), CASES)
def test_a_strategy_ends_in_the_model_that_it_ends_in_without(plan: Any, name: str, tmp_path: Path) -> None:
    strategy = FAMILY[name]
    expected = started(strategy(), plain())
    own = strategy()
    with LocalDeployment(plan, UPDATES, clients=CLIENTS, folder=tmp_path) as house:
        result = started(own, grid_of(house, own, secured(tmp_path)))
    assert flat(result).dtype == flat(expected).dtype
    np.testing.assert_allclose(flat(result), flat(expected), atol=WITHIN, rtol=0)
    for asked in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        for number, metrics in getattr(result, asked).items():
            wanted = getattr(expected, asked)[number]
            assert set(metrics) == set(wanted) - {"secret"}
            assert all(abs(metrics[key] - wanted[key]) < 2e-6 for key in metrics)
        assert set(getattr(result, asked)) == {1, 2}


class Custom(FedAvg):
    """It may aggregate otherwise: nobody can tell."""


@every(
    "strategy",
    [FedMedian, Krum, MultiKrum, Bulyan, FedTrimmedAvg, QFedAvg, Custom],
)
def test_a_strategy_that_is_no_mean_is_refused_by_name(strategy: Any) -> None:
    with pytest.raises(ConfigError, match=f"got {strategy.__name__}"):
        served(strategy(**({"client_learning_rate": 0.1} if strategy is QFedAvg else {})), UPDATES, CLEAR)


def test_flowers_wrappers_for_noise_are_refused_by_name() -> None:
    wrapped = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 2)
    with pytest.raises(ConfigError, match="ServerSideFixedClipping"):
        served(wrapped, UPDATES, CLEAR)


def test_evaluation_that_the_plan_does_not_have_is_refused_before_anything() -> None:
    with pytest.raises(ConfigError, match=r"fraction_evaluate=0\.0, got 1\.0"):
        served(FedAvg(), Updates(), CLEAR)
    served(FedAvg(fraction_evaluate=0.0), Updates(), CLEAR)


def test_a_rule_of_ones_own_for_metrics_is_refused() -> None:
    with pytest.raises(ConfigError, match="train_metrics_aggr_fn"):
        served(FedAvg(train_metrics_aggr_fn=lambda replies, key: None), UPDATES, CLEAR)


@every("key", ["loss", "accuracy"])
def test_a_weight_that_is_a_metric_too_is_refused(key: str, tmp_path: Path) -> None:
    with (
        LocalDeployment(CLEAR, UPDATES, clients=CLIENTS, folder=tmp_path) as house,
        pytest.raises(ConfigError, match=key),
    ):
        grid_of(house, FedAvg(weighted_by_key=key), secured(tmp_path))


def test_another_strategy_on_the_grid_of_one_is_refused(tmp_path: Path) -> None:
    with LocalDeployment(CLEAR, UPDATES, clients=CLIENTS, folder=tmp_path) as house:
        grid = grid_of(house, FedAvg(), secured(tmp_path))
        for other in (FedMedian(), FedAvg()):
            with pytest.raises(LocalProtocolError, match="strategy of this grid"):
                started(other, grid)


def test_messages_beside_the_sums_are_refused(tmp_path: Path) -> None:
    with LocalDeployment(CLEAR, UPDATES, clients=CLIENTS, folder=tmp_path) as house:
        own = FedAvg()
        grid = grid_of(house, own, secured(tmp_path))
        message = Message(RecordDict(), 10, "query")
        for send in (grid.push_messages, grid.send_and_receive):
            with pytest.raises(LocalProtocolError):
                send([message])
        with pytest.raises(LocalProtocolError):
            grid.pull_messages(["x"])
        with pytest.raises(LocalProtocolError):
            grid.create_message(RecordDict(), "train", 10, "")


def test_too_few_nodes_are_an_error_and_no_wait_without_end(tmp_path: Path) -> None:
    double = secured(tmp_path)
    double.nodes = {10: double.nodes[10]}
    few = pytest.raises(ConfigError, match=r"nodes of 2 parties at least.*client-0000")
    with LocalDeployment(CLEAR, UPDATES, clients=CLIENTS, folder=tmp_path) as house, few:
        SecureGrid(double, FedAvg(), UPDATES, house.server, deadline=1.0, patience=0.1)


NEVER: dict[str, tuple[Any, Any, str]] = {
    "small cohorts": (
        replace(MASKED, min_cohort_size=3),
        lambda: FedAvg(fraction_train=0.7),
        "3 to 3 clients in a sum of 'update', as the plan says, got 2 of 3 nodes",
    ),
    "small cohorts of an evaluation": (
        replace(MASKED, min_cohort_size=3),
        lambda: FedAvg(fraction_evaluate=0.7),
        "a sum of 'evaluation', as the plan says, got 2 of 3 nodes",
    ),
    "clients that rest": (
        replace(CLEAR, separation=3),
        FedAvg,
        "at most 1 of 3 nodes in a sum of 'update' for a separation of 3 rounds, got 3",
    ),
}


@every(("plan", "strategy", "why"), NEVER.values())
def test_sums_that_can_never_open_are_refused_at_the_start_in_the_words_of_the_check(
    plan: Any, strategy: Any, why: str, tmp_path: Path
) -> None:
    """It went on: every client refused each round, and the run ended with the model that it began with."""
    said = [str(error) for error in never_opened(strategy(), plan, UPDATES, CLIENTS)]
    assert why in said[0]
    double = secured(tmp_path)
    with LocalDeployment(plan, UPDATES, clients=CLIENTS, folder=tmp_path) as house:
        with pytest.raises(ConfigError) as refused:
            grid_of(house, strategy(), double)
        assert str(refused.value) == said[0]
    assert FRAME not in {one.metadata.message_type for one in double.seen}, "no party was asked"


def test_a_strategy_leaves_clients_for_rounds_in_which_others_rest() -> None:
    """Each remedy of the refusal is tried: less separation, or fewer nodes in a round."""
    plan = replace(CLEAR, separation=3)
    few = FedAvg(fraction_train=0.4, fraction_evaluate=0.4)
    [*said] = never_opened(FedAvg(min_train_nodes=3), plan, UPDATES, 8)
    assert "separation = 1 or less in the plan, or a smaller fraction_train and min_train_nodes" in str(
        said[0]
    )
    assert "fraction_evaluate and min_evaluate_nodes" in str(said[1])
    for strategy, changes, nodes in (
        (FedAvg(), {"separation": 1}, 8),
        (few, {}, 9),
        (FedAvg(), {"max_rounds": 1}, 8),
    ):
        assert not [*never_opened(strategy, replace(plan, **changes), UPDATES, nodes)]


def test_a_round_is_drawn_among_the_clients_that_do_not_rest(tmp_path: Path) -> None:
    """Flower draws one of three nodes, of which two rest: eight rounds went by in a third of the sums."""
    own = FedAvg(fraction_train=0.34, min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0.0)
    plan = replace(CLEAR, separation=3)
    with LocalDeployment(plan, UPDATES, clients=CLIENTS, folder=tmp_path) as house:
        result = started(own, grid_of(house, own, secured(tmp_path)), rounds=8)
    assert set(result.train_metrics_clientapp) == set(range(1, 9))


def test_clients_that_trained_may_evaluate_while_they_rest_from_training(tmp_path: Path) -> None:
    """Rest counted for both together: of eight nodes half train and half evaluate, and every other round had
    too few for a cohort of four."""
    own = FedAvg(fraction_train=0.5, fraction_evaluate=0.5)
    plan = replace(CLEAR, separation=2, min_cohort_size=4, max_rounds=4)
    apps = [inner(k % CLIENTS) for k in range(8)]
    with LocalDeployment(plan, UPDATES, clients=8, folder=tmp_path) as house:
        result = started(own, grid_of(house, own, secured(tmp_path, apps, clients=8)), rounds=4)
    for metrics in (result.train_metrics_clientapp, result.evaluate_metrics_clientapp):
        assert set(metrics) == {1, 2, 3, 4}


@every("gone", ("retired", "missing"))
def test_no_client_that_cannot_answer_stands_in_for_one_that_rests(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was drawn in the place of a node that rests, and taken out of the cohort afterwards."""
    own = FedAvg(fraction_train=0.34, min_train_nodes=1, fraction_evaluate=0.0)
    plan = replace(CLEAR, separation=2)
    with LocalDeployment(plan, UPDATES, clients=CLIENTS, folder=tmp_path) as house:
        grid = grid_of(house, own, secured(tmp_path))
        if gone == "retired":
            monkeypatch.setattr(Account, "retired", lambda self, number: frozenset({1}))
        else:
            monkeypatch.setattr(RemoteEngine, "missing", frozenset({client_name(1)}))
        monkeypatch.setattr(Account, "resting", lambda self, number, *names: frozenset({0}))
        for _ in range(20):
            drawn = [Message(RecordDict(), 10, "train")]
            grid._redraw(drawn, UPDATE, 2)
            assert drawn[0].metadata.dst_node_id == 12, "node 11 is gone"


@every("name", FAMILY)
@every("decays", ((), (0.9,)))
def test_noise_over_rounds_is_for_models_that_add_updates_up(name: str, decays: tuple[float, ...]) -> None:
    """The error that a plan states is that of sums. Adam divides each total, and momentum adds it late."""
    plan = replace(CLEAR, separation=2, coefficients=(1.0, 0.5), decays=decays)
    if name in ("FedAvg", "FedProx"):
        assert served(FAMILY[name](), UPDATES, plan)
        return
    with pytest.raises(ConfigError, match=f"Expected FedAvg or FedProx .* got {name}"):
        served(FAMILY[name](), UPDATES, plan)
    assert served(FAMILY[name](), UPDATES, replace(plan, coefficients=(1.0,), decays=()))


def test_no_message_of_the_strategy_reaches_a_node(tmp_path: Path) -> None:
    double, own = secured(tmp_path), FedAvg()
    with LocalDeployment(MASKED, UPDATES, clients=CLIENTS, folder=tmp_path) as house:
        started(own, grid_of(house, own, double), rounds=1)
    assert {one.metadata.message_type for one in double.seen} == {FRAME, HELLO}


def test_after_the_schedule_nothing_is_asked_and_the_model_stays(tmp_path: Path) -> None:
    own = FedAvg(fraction_evaluate=0.0)
    plan = replace(CLEAR, max_rounds=1)
    with LocalDeployment(plan, UPDATES, clients=CLIENTS, folder=tmp_path) as house:
        result = started(own, grid_of(house, own, secured(tmp_path)), rounds=3)
    assert set(result.train_metrics_clientapp) == {1}
