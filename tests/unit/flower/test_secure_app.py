"""A Flower app behind its party: what leaves, and what happens to apps and servers that do otherwise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from support.every import every
from support.flower_apps import (
    CLEAR,
    CLIENTS,
    MASKED,
    UPDATES,
    context,
    flat,
    grid_of,
    in_house,
    inner,
    node,
    plain,
    secured,
    start,
)
from support.hidden_plans import hidden

from securefl.accounting.ledger import Ledger
from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.deployment.local import LocalDeployment, socket_of
from securefl.deployment.messages import REFUSED
from securefl.deployment.session_store import SessionStore
from securefl.deployment.updates import Updates
from securefl.flower.exchange import FRAME, UNANSWERED
from securefl.flower.records import wrapped
from securefl.flower.secure_app import secure

BOUNDED = Updates(evaluation=("accuracy",), update_bound=2.0, evaluation_bound=1.0, cohort=3)
NOISED = hidden(
    Plan(
        delta=1e-5,
        max_rounds=9,
        unit="client",
        adjacency="zero-out",
        noise="distributed",
        noise_multiplier=4.0,
        corrupt=0.0,
        dropout=0.0,
        budget=2.5,
        adversaries=("server",),
    ),
    CLIENTS,
)


def run(
    folder: Path,
    apps: Any = None,
    *,
    plan: Plan = CLEAR,
    updates: Updates = UPDATES,
    rounds: int = 1,
    evaluate: float = 0.0,
    look: Callable[[Any], None] = lambda double: None,
) -> Any:
    double, own = secured(folder, apps), FedAvg(fraction_evaluate=evaluate)
    with LocalDeployment(plan, updates, clients=CLIENTS, folder=folder) as house:
        grid = grid_of(house, own, double, updates)
        result = own.start(grid, start(), num_rounds=rounds, train_config=ConfigRecord({"lr": 0.5}))
        look(double)
    return result


def mean_of(*numbers: int) -> np.ndarray:
    """What plain Flower makes of these clients."""
    grid = plain()
    grid.nodes = {k + 10: node(inner(k), k) for k in numbers}
    return flat(
        FedAvg(fraction_evaluate=0.0).start(
            grid, start(), num_rounds=1, train_config=ConfigRecord({"lr": 0.5})
        )
    )


def arrays(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[RecordDict], RecordDict]:
    def changed(content: RecordDict) -> RecordDict:
        own = {name: Array(change(array.numpy())) for name, array in content["arrays"].items()}
        return RecordDict({"arrays": ArrayRecord(own), "metrics": content["metrics"]})

    return changed


def counted(count: Any) -> Callable[[RecordDict], RecordDict]:
    def changed(content: RecordDict) -> RecordDict:
        metrics = {**content["metrics"], "num-examples": count}
        return RecordDict({**content, "metrics": MetricRecord(metrics)})

    return changed


def raising(content: RecordDict) -> RecordDict:
    raise ValueError("record 7 is a quarter")


BAD = {
    "not a number": arrays(lambda own: own * np.nan),
    "infinite": arrays(lambda own: own / 0.0),
    "another shape": arrays(lambda own: own[..., None]),
    "fewer values": arrays(lambda own: own[:1]),
    "beyond the grid": arrays(lambda own: own + 1e9),
    "no arrays": lambda content: RecordDict({"metrics": content["metrics"]}),
    "no metrics": lambda content: RecordDict({"arrays": content["arrays"]}),
    "two records": lambda content: RecordDict({**content, "more": content["arrays"]}),
    "without num-examples": lambda content: RecordDict({**content, "metrics": MetricRecord({"loss": 1.0})}),
    "without a metric": lambda content: RecordDict({**content, "metrics": MetricRecord({"num-examples": 5})}),
    "no examples": counted(0),
    "negative examples": counted(-5),
    "half an example": counted(1.5),
    "nan examples": counted(float("nan")),
    "infinite examples": counted(float("inf")),
    "a list of examples": counted([1, 2]),
    "an error": raising,
}


@pytest.mark.filterwarnings("ignore:divide by zero|invalid value:RuntimeWarning")
@every("change", BAD.values())
def test_a_client_whose_app_returns_no_update_is_left_out(change: Any, tmp_path: Path) -> None:
    result = run(tmp_path, [inner(0), inner(1, change), inner(2)])
    np.testing.assert_allclose(flat(result), mean_of(0, 2), atol=1e-6)
    why = []
    for k in range(CLIENTS):
        with closing(SessionStore(socket_of(tmp_path, client_name(k)).parent / "ledger.sqlite")) as diary:
            why.append([entry.text for entry in diary.refusals()])
    assert [len(own) for own in why] == [0, 1, 0], "its owner reads why, and nobody else does"


def test_a_huge_number_of_examples_counts_as_the_plans_largest(tmp_path: Path) -> None:
    result = run(tmp_path, [inner(0), inner(1, counted(10**9)), inner(2)])
    own = [start()["w"].numpy()[0, 0] * 0.5 + 0.5 * k for k in range(3)]
    assert flat(result)[0] == pytest.approx(np.average(own, weights=[10, 64, 24]), abs=1e-6)


def test_without_counts_in_the_plan_every_client_weighs_the_same(tmp_path: Path) -> None:
    plan = hidden(replace(CLEAR, weights={}, adjacency="replace-one"), CLIENTS)
    result = run(tmp_path, [inner(0), inner(1, counted(10**9)), inner(2)], plan=plan, rounds=1)
    own = [start()["w"].numpy()[0, 0] * 0.5 + 0.5 * k for k in range(3)]
    assert flat(result)[0] == pytest.approx(np.mean(own), abs=1e-6)


def test_under_a_bound_a_failing_app_counts_as_nothing_and_is_not_silent(tmp_path: Path) -> None:
    plan = replace(NOISED, noise="none", non_private=("update", "evaluation"), budget=None)
    bounded = replace(BOUNDED, update_bound=1000.0)
    result = run(tmp_path, [inner(0), inner(1, raising), inner(2)], plan=plan, updates=bounded)
    begin = np.concatenate([array.numpy().ravel() for array in start().values()])
    steps = (0.5 * 0 - 0.5 * begin) + (0.5 * 2 - 0.5 * begin)
    # On a grid for noise of this bound each client was rounded by up to 0.03.
    np.testing.assert_allclose(flat(result), begin + steps / 3, atol=1e-4)


def test_noise_is_added_and_the_ledger_composes_until_the_budget_is_spent(tmp_path: Path) -> None:
    result = run(tmp_path, plan=NOISED, updates=BOUNDED, rounds=9, evaluate=1.0)
    trained = set(result.train_metrics_clientapp) | set(result.evaluate_metrics_clientapp)
    assert {1, 2} <= trained < set(range(1, 10))
    spent = []
    for k in range(CLIENTS):
        with Ledger(socket_of(tmp_path, client_name(k)).parent / "ledger.sqlite", NOISED.terms()) as ledger:
            spent.append(ledger.worst(SERVER))
            # an update and an evaluation in every round that was asked for
            assert ledger.head.count > 2
    assert all(1.0 < one <= 2.5 for one in spent)


def test_only_declared_metrics_leave(tmp_path: Path) -> None:
    result = run(tmp_path, evaluate=1.0)
    assert dict(result.train_metrics_clientapp)[1].keys() == {"loss"}
    assert dict(result.evaluate_metrics_clientapp)[1].keys() == {"accuracy"}


# What a server tries ----------------------------------------------------------------------------------


@every("kind", ["train", "evaluate", "query", "train.other", "query.securefl_frame"])
def test_a_server_that_asks_an_app_directly_gets_nothing(kind: str, tmp_path: Path) -> None:
    app = secure(inner(0), beside=in_house(tmp_path, CLIENTS))
    config = ConfigRecord({"lr": 0.5})
    with LocalDeployment(CLEAR, UPDATES, clients=CLIENTS, folder=tmp_path):
        for content in (RecordDict({"arrays": start(), "config": config}), wrapped(b"train")):
            reply = app(Message(content, 10, kind), context(0))
            if reply.has_error():
                assert reply.error.reason == UNANSWERED
            else:  # the party's constant refusal
                assert reply.content["securefl"]["frame"] == REFUSED


def test_an_app_without_its_party_says_one_constant_text(tmp_path: Path) -> None:
    for app in (secure(inner(0), beside=in_house(tmp_path, CLIENTS)), secure(inner(0))):
        reply = app(Message(wrapped(b"anything"), 10, FRAME), context(0))
        assert reply.error.reason == UNANSWERED


def test_an_apps_own_words_never_reach_the_server(tmp_path: Path) -> None:
    def nothing_of_it(double: Any) -> None:
        assert double.came
        assert not any(b"a quarter" in one or b"record 7" in one for one in double.came)

    run(tmp_path, [inner(0), inner(1, raising), inner(2)], look=nothing_of_it)


def test_what_a_server_sends_again_later_is_refused(tmp_path: Path) -> None:
    first: list[Any] = []
    run(tmp_path, plan=MASKED, look=lambda double: first.extend(double.seen))
    frames = [one for one in first if one.metadata.message_type == FRAME]

    def again(double: Any) -> None:
        ledger = socket_of(tmp_path, client_name(0)).parent / "ledger.sqlite"
        with Ledger(ledger, MASKED.terms()) as own:
            before = own.head
        for one in frames:
            if one.metadata.dst_node_id == 10:
                reply = double.nodes[10](one)
                assert reply.content["securefl"]["frame"] == REFUSED
        with Ledger(ledger, MASKED.terms()) as own:
            assert own.head == before

    run(tmp_path, plan=MASKED, look=again)


def test_two_messages_of_one_place_train_once(tmp_path: Path) -> None:
    trained: list[int] = []

    def noted(content: RecordDict) -> RecordDict:
        trained.append(1)
        return content

    def twice(double: Any) -> None:
        for one in [one for one in double.seen if one.metadata.dst_node_id == 10]:
            double.nodes[10](one)

    run(tmp_path, [inner(0, noted), inner(1), inner(2)], look=twice)
    assert len(trained) == 1


def test_a_plain_app_is_left_out(tmp_path: Path) -> None:
    double, own = secured(tmp_path), FedAvg(fraction_evaluate=0.0)
    plain_one = node(inner(1), 1)

    def answered(message: Message) -> Message:
        try:
            return plain_one(message)
        except ValueError:  # Flower's own: it has no such route
            return Message(Error(2), reply_to=message)

    double.nodes = {**double.nodes, 11: answered}
    with LocalDeployment(CLEAR, UPDATES, clients=CLIENTS, folder=tmp_path) as house:
        grid = grid_of(house, own, double)
        result = own.start(grid, start(), num_rounds=1, train_config=ConfigRecord({"lr": 0.5}))
    np.testing.assert_allclose(flat(result), mean_of(0, 2), atol=1e-6)


# What a plan does not let out --------------------------------------------------------------------------


@every(
    ("plan", "updates", "said"),
    [
        (replace(CLEAR, non_private=()), UPDATES, "would leave its client without noise"),
        (replace(CLEAR, max_num_examples=2**31), UPDATES, "max_num_examples of at most"),
        (replace(NOISED, unit="record", adjacency="add-remove"), BOUNDED, "'update'"),
        (NOISED, UPDATES, "moves it without bound"),
        (replace(CLEAR, weights={"update": "draws"}), UPDATES, "equally or by counts, got by draws"),
    ],
)
def test_updates_that_could_never_leave_are_refused_at_start(
    plan: Plan, updates: Updates, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        LocalDeployment(plan, updates, clients=CLIENTS, folder=tmp_path)


@every(
    "wrong",
    [
        {"metrics": ("loss", "loss")},
        {"metrics": ("lo\u202ess",)},
        {"update_bound": 0.0},
        {"update_bound": float("nan")},
        {"update_bound": 1.0, "metrics": ("loss",)},
    ],
)
def test_updates_that_mean_nothing_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        Updates(**wrong)


def test_a_node_s_modules_load_without_the_party_s() -> None:
    """Stock nodes load them for every message: with torch and TenSEAL that took three seconds."""
    code = "import sys; from securefl.flower import exchange, secure_app; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "scipy", "tenseal", "dp_accounting"} & set(loaded.split())
