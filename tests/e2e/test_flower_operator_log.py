"""What the operator of a SecureGrid reads: who is missing, since when, and no more than the public reason."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, strategy_utils
from support.flower_apps import CLEAR, UPDATES, in_house, inner, node, secured, start
from support.grid_double import GridDouble, silent
from support.hidden_plans import hidden

from securefl.algorithm.plan import Plan
from securefl.commands.party import party
from securefl.core.messages import client_name
from securefl.deployment.local import LocalDeployment, socket_of
from securefl.deployment.updates import Updates
from securefl.flower.secure_app import secure
from securefl.flower.secure_grid import SecureGrid

CLIENTS = 8
OVERFLOWING, REFUSING, DEAD = 2, 3, 4
PLAN = hidden(
    CLEAR,
    CLIENTS,
    adjacency="replace-one",
    dropout=0.34,
    max_client_weight=0.99,
    min_cohort_size=4,
    min_honest=2,
)


def overflowing(content: RecordDict) -> RecordDict:
    own = {name: Array(array.numpy() + 1e9) for name, array in content["arrays"].items()}
    return RecordDict({"arrays": ArrayRecord(own), "metrics": content["metrics"]})


def apps() -> list[Any]:
    return [inner(k % 3, overflowing if k == OVERFLOWING else lambda own: own) for k in range(CLIENTS)]


def federation(root: Path, rounds: int, *, back: int = 0) -> tuple[Any, GridDouble]:
    """A run with clients that take part, one of them with a value that is cut, and two that do not.

    back: the round before which the dead one is alive again.
    """
    double = secured(root / "own", apps(), clients=CLIENTS)
    elsewhere = secure(inner(0), beside=in_house(root / "other", CLIENTS))
    with ExitStack() as stack:
        # A party of another roster and plan answers in its place, and refuses whatever this server asks.
        other = replace(PLAN, max_rounds=3)
        stack.enter_context(LocalDeployment(other, UPDATES, clients=CLIENTS, folder=root / "other"))
        double.nodes = {**double.nodes, 10 + REFUSING: node(elsewhere, REFUSING)}
        own = stack.enter_context(LocalDeployment(PLAN, UPDATES, clients=CLIENTS, folder=root / "own"))
        strategy = FedAvg(fraction_evaluate=0.0)
        grid = SecureGrid(double, strategy, UPDATES, own.server, deadline=0.2, patience=1.0)
        configure = strategy.configure_train

        def turning(number: int, *args: Any) -> Any:
            double.fates = {} if number == 1 or 0 < back <= number else {10 + DEAD: silent}
            return configure(number, *args)

        strategy.configure_train = turning  # type: ignore[method-assign]
        result = strategy.start(grid, start(), num_rounds=rounds, train_config=ConfigRecord({"lr": 0.5}))
    return result, double


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one for one in caplog.messages if one.startswith("round ")]


def test_each_round_names_who_is_missing_since_when_and_the_public_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        result, _ = federation(tmp_path, 3, back=3)
    assert lines(caplog) == [
        "round 1: 7 of 8 answered; client-0003 refused the order since round 1",
        "round 2: 6 of 8 answered; client-0003 refused the order since round 1; "
        "client-0004 silent since round 2",
        "round 3: 7 of 8 answered; client-0003 refused the order since round 1",
    ]
    levels = {one.levelname for one in caplog.records if one.getMessage().startswith("round ")}
    assert levels == {"WARNING"}, "Python prints it also where nobody has set up a log"
    assert set(result.train_metrics_clientapp) == {1, 2, 3}
    told = [one for one in caplog.messages if "results and" in one]
    assert told == [f"aggregate_train: Received 1 results and {n} failures" for n in (1, 2, 1)]
    # The page shows the first two rounds.
    page = (Path(__file__).parents[2] / "docs" / "flower-strategies.md").read_text(encoding="utf-8")
    assert "\n".join([lines(caplog)[0], told[0], lines(caplog)[1], told[1]]) in page
    said = [one for one in caplog.messages if "Received error in reply from node" in one]
    assert said[0].endswith("from node 13: client-0003 refused the order since round 1")


def test_the_owner_reads_the_bound_and_the_words_and_the_server_neither(tmp_path: Path) -> None:
    _, double = federation(tmp_path, 1)
    folder = socket_of(tmp_path / "own", client_name(OVERFLOWING)).parent
    shown = CliRunner().invoke(party, ["status", str(folder)])
    assert shown.exit_code == 0
    for words in ("within +-64", "a larger `max_num_examples`", "an `update_bound`"):
        assert words in shown.stdout
    assert double.came  # type: ignore[attr-defined]
    for word in (b"beyond", b"cut to", b"outside", b"abstain", b"1000000000"):
        assert not any(word in one for one in double.came), word  # type: ignore[attr-defined]


def one_round(folder: Path, caplog: pytest.LogCaptureFixture, fates: dict[int, Any]) -> Any:
    """The result of a round of eight honest clients, some of whose replies have these fates."""
    strategy = FedAvg(fraction_evaluate=0.0)
    double = secured(folder, [inner(k % 3) for k in range(CLIENTS)], clients=CLIENTS)
    with (
        caplog.at_level("INFO"),
        LocalDeployment(PLAN, UPDATES, clients=CLIENTS, folder=folder) as parties,
    ):
        grid = SecureGrid(double, strategy, UPDATES, parties.server, deadline=0.2, patience=1.0)
        double.fates = fates
        return strategy.start(grid, start(), num_rounds=1, train_config=ConfigRecord({"lr": 0.5}))


def test_nobody_is_missing_where_all_took_part(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one_round(tmp_path, caplog, {})
    assert lines(caplog) == ["round 1: 8 of 8 answered"]
    assert "aggregate_train: Received 1 results and 0 failures" in caplog.messages
    assert not [
        one
        for one in caplog.records
        if one.name.startswith("securefl")
        and one.levelname == "WARNING"
        and "not held" not in one.getMessage()
    ]


def test_a_round_without_enough_says_so_and_counts_all_as_failures(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Four of eight are silent in round 1: no sum is opened, and Flower's log shows no result."""
    result = one_round(tmp_path, caplog, dict.fromkeys((12, 13, 14, 15), silent))
    assert not result.train_metrics_clientapp
    assert "aggregate_train: Received 0 results and 8 failures" in caplog.messages
    (line,) = lines(caplog)
    assert "no sum was opened" in line
    assert "client-0005 silent since round 1" in line


NOISED = hidden(
    Plan(
        delta=1e-5,
        max_rounds=50,
        unit="client",
        adjacency="zero-out",
        noise="distributed",
        noise_multiplier=4.0,
        corrupt=0.0,
        dropout=0.25,
        budget=2.5,
        adversaries=("server",),
    ),
    4,
)


def test_who_is_over_budget_by_public_charges_is_named_and_an_overflow_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Client 0 is in every cohort, the others in some. A value beyond the grid is clipped, and not shown."""
    updates = Updates(update_bound=1.0, cohort=3)
    plan = replace(NOISED, max_client_weight=0.6)
    clients = [inner(0), inner(1, overflowing), inner(2), inner(0), inner(1)]
    double = secured(tmp_path, clients, clients=5)
    strategy = FedAvg(fraction_evaluate=0.0, fraction_train=0.8, min_train_nodes=4)
    with (
        caplog.at_level("INFO"),
        LocalDeployment(plan, updates, clients=5, folder=tmp_path) as own,
        pytest.MonkeyPatch.context() as patch,
    ):
        turn = iter(range(1000))

        def sampled(population: list[int], k: int) -> list[int]:
            others = [11, 12, 13, 14]
            at = next(turn)
            return [10, *(others[(at + step) % 4] for step in range(3))]

        patch.setattr(strategy_utils.random, "sample", sampled)
        grid = SecureGrid(double, strategy, updates, own.server, deadline=0.2, patience=1.0)
        strategy.start(grid, start(), num_rounds=14, train_config=ConfigRecord({"lr": 0.5}))
    said = lines(caplog)
    over = [one for one in said if "over budget" in one]
    first = said.index(over[0])
    assert f"client-0000 over budget since round {first + 1}" in over[0]
    assert over == said[first:], "from then on in every round"
    assert not any("client-0001" in one for one in said[:first])
