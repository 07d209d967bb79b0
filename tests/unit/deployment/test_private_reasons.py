"""Why a party's value is missing stands in its owner's status, with the remedy, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.app_sessions import EQUAL, NAMES, ONE, PLAN, UPDATES, Result, computed, session
from support.every import every

from securefl.algorithm.plan import Plan
from securefl.commands.main import cli
from securefl.core.errors import ConfigError
from securefl.deployment.status import status
from securefl.deployment.updates import Updates
from securefl.engine.attendance import Absence


def test_a_value_beyond_the_grid_says_the_bound_and_the_words_to_change(tmp_path: Path) -> None:
    """917 times 32 of 64 examples is 458: it abstained in every round, and nobody read why."""
    with session(tmp_path, {"client-0001": lambda: computed(917.0)}) as ask:
        answers, seen, presence = ask(1)
        ask(2)
    assert answers.survivors == (0, 2)
    assert seen.absent == {"client-0001": Absence.NO_VALUE}
    assert presence.line() == "round 1: 2 of 3 answered; client-0001 sent no value since round 1"
    (missing,) = status(tmp_path / "client-0001")["missing"]
    assert missing["what"] == "sent no value"
    assert missing["times"] == 2
    assert missing["why"] == (
        "Expected an entry of the update times num-examples / 64 within +-64, the bound of the grid of sums, "
        "got a larger one: it abstains. Lower the app's learning rate, scale its data, have all parties "
        "agree on a larger `max_num_examples`, or have all parties agree on an `update_bound`, to which "
        "longer updates are scaled."
    )
    assert status(tmp_path / "client-0000")["missing"] == []


@every(
    ("plan", "updates"),
    [(replace(PLAN, max_num_examples=640), UPDATES), (EQUAL, Updates(update_bound=1000.0))],
)
def test_the_remedies_are_remedies(plan: Plan, updates: Updates, tmp_path: Path) -> None:
    with session(tmp_path, {"client-0001": lambda: computed(917.0)}, plan, updates) as ask:
        answers, _, _ = ask(1)
    assert answers.survivors == (0, 1, 2)


def test_a_metric_beyond_the_grid_is_named(tmp_path: Path) -> None:
    results = {name: lambda: computed(ONE, loss=1.0) for name in NAMES}
    results["client-0002"] = lambda: computed(ONE, loss=1e4)
    with session(tmp_path, results, EQUAL, Updates(metrics=("loss",))) as ask:
        answers, _, _ = ask(1)
    assert answers.survivors == (0, 1)
    (missing,) = status(tmp_path / "client-0002")["missing"]
    assert "Expected the metric 'loss' within +-64" in missing["why"]
    assert "Scale the metric." in missing["why"]


def test_under_a_bound_a_failing_app_is_not_silent_and_its_owner_reads_so(tmp_path: Path) -> None:
    with session(tmp_path, {"client-0001": lambda: None}, EQUAL, Updates(update_bound=2.0)) as ask:
        answers, seen, _ = ask(1)
    assert answers.survivors == (0, 1, 2)
    assert seen.absent == {}
    (missing,) = status(tmp_path / "client-0001")["missing"]
    assert missing["what"] == "answered as without records"
    assert "Its own log says why" in missing["why"]


def test_under_a_bound_a_longer_update_is_scaled_and_its_owner_reads_how_often(tmp_path: Path) -> None:
    results = {"client-0001": lambda: computed(917.0)}
    with session(tmp_path, results, EQUAL, Updates(update_bound=2.0)) as ask:
        answers, seen, presence = ask(1)
        ask(2)
    assert answers.survivors == (0, 1, 2)
    assert seen.absent == {}
    assert presence.line() == "round 1: 3 of 3 answered"
    said = status(tmp_path / "client-0001")
    assert said["missing"] == []
    (cut,) = said["cut"]
    assert cut["times"] == 2
    assert cut["why"] == (
        "Expected 'update' with a norm of at most 2 (update_bound), got a longer one: it was scaled down to "
        "the bound, as agreed. If that is often so, lower the app's learning rate. A larger clip or bound "
        "needs a new plan, to which all parties agree."
    )
    assert status(tmp_path / "client-0000")["cut"] == []


def test_the_server_learns_no_more_of_one_reason_than_of_another(tmp_path: Path) -> None:
    reasons: dict[str, Result] = {
        "beyond": lambda: computed(1e9),
        "failed": lambda: None,
        "nan": lambda: computed(float("nan")),
        "half": lambda: computed(ONE, 0.5),
    }
    seen = []
    for name, result in reasons.items():
        (tmp_path / name).mkdir()
        with session(tmp_path / name, {"client-0001": result}) as ask:
            seen.append(ask(1)[1].record())
    assert seen == [seen[0]] * len(reasons)
    said = {status(tmp_path / name / "client-0001")["missing"][0]["why"] for name in reasons}
    assert len(said) == len(reasons)


def test_the_command_shows_a_party_of_an_app(tmp_path: Path) -> None:
    with session(tmp_path, {"client-0001": lambda: None}) as ask:
        ask(1)
    home = tmp_path / "client-0001"
    shown = CliRunner().invoke(cli, ["party", "status", str(home)])
    assert shown.exit_code == 0, shown.output
    assert "client-0001, a party of an app" in shown.stdout
    assert "sent no value: Expected a result of the app" in shown.stdout
    said = json.loads(CliRunner().invoke(cli, ["party", "status", str(home), "--json"]).stdout)
    assert said["terms"]["adjacency"] == PLAN.adjacency


def test_a_folder_of_another_name_keeps_the_partys_name(tmp_path: Path) -> None:
    with session(tmp_path, {}) as ask:
        ask(1)
    (tmp_path / "client-0000").rename(tmp_path / "elsewhere")
    said = status(tmp_path / "elsewhere")
    assert said["name"] == "client-0000"
    assert said["releases"]["committed"] == 1


def test_a_folder_without_a_diary_is_no_partys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Expected a party's folder"):
        status(tmp_path)
