"""From records to tables, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.round_records import round_record
from support.tiny_study import FEDAVG, FEDPROF, study, world

from securefl.core.installed import versions
from securefl.report import plots
from securefl.storage.private_folder import private_page
from securefl.study import results, run_report
from securefl.study.alarms import once
from securefl.study.arm import ArmRun


@pytest.fixture(scope="module", autouse=True)
def blank_pictures() -> None:
    """Some tests here look at pictures."""


def record(number: int, accuracy: float, *, arm: str = "FedProf", **changes: Any) -> dict[str, Any]:
    usual = {
        "arm": arm,
        "accuracy": accuracy,
        "bytes_up": 1_000_000,
        "bytes_down": 3_000_000,
        "seconds": 2.0,
        "selected": [0, 2, 2],
        "figures": {"divergence": [[0, 2, 3, 4, 5], [0.5, 0.0, 1.0, 2.0, 3.0]]},
        "abstained": {"client-0001": "no records"},
    }
    return round_record(number, **usual | changes)


@pytest.fixture
def collected() -> results.Results:
    of = study(FEDPROF, FEDAVG)
    here = world(of)
    first = [record(1, 0.1), record(2, 0.3)]
    second = [record(n, 0.1 * n, arm="FedAvg", figures={}) for n in (1, 2)]
    return results.collect(of, [ArmRun(of.arms[0], here, first), ArmRun(of.arms[1], here, second)])


def test_ledgers_are_as_they_ended(collected: results.Results) -> None:
    assert [vars(ledger) for ledger in collected.ledgers] == [
        {"arm": arm, "seed": 3, "count": 4, "head": f"{2:064x}"} for arm in ("FedProf", "FedAvg")
    ]


def test_metrics_have_a_row_a_round(collected: results.Results) -> None:
    assert len(collected.metrics) == 4
    row = collected.metrics.iloc[1]
    assert (row["arm"], row["round"], row["accuracy"], row["megabytes"]) == ("FedProf", 2, 0.3, 4.0)
    assert row["epsilon_server"] == math.inf
    assert row["epsilon_key-holder"] == 0.0
    assert row["survivors_lost"] == 1


def test_participation_counts_rounds_and_answers(collected: results.Results) -> None:
    """A client drawn twice in a round takes part once, and one that stays silent not at all."""
    own = collected.participation[collected.participation["arm"] == "FedProf"]
    assert own["selected"].tolist() == [2, 0, 2, 0, 0, 0]
    assert own["answered"].tolist() == [0, 0, 2, 0, 0, 0]
    assert own["client"].tolist() == [0, 1, 2, 3, 4, 5]


def test_figures_leave_out_the_unknown(collected: results.Results) -> None:
    assert set(collected.figures["arm"]) == {"FedProf"}
    first = collected.figures[collected.figures["round"] == 1]
    assert first["client"].tolist() == [0, 2, 3, 4, 5]
    assert first["value"].tolist() == [0.5, 0.0, 1.0, 2.0, 3.0]


def test_summary_adds_up(collected: results.Results) -> None:
    profiled = collected.summary[0]
    assert (profiled.final_accuracy, profiled.best_accuracy, profiled.rounds_to_target) == (0.3, 0.3, 2)
    assert (profiled.megabytes_up, profiled.megabytes_down) == (2.0, 6.0)
    assert (profiled.seconds_model, profiled.watt_hours) == (4.0, 1.0)
    assert profiled.aggregation == "partial"
    assert collected.summary[1].aggregation == "full"


def test_rounds_to_is_the_first_round_of_the_mean_over_seeds() -> None:
    frame = pd.DataFrame(
        {"round": [1, 2, 3] * 2, "seed": [1] * 3 + [2] * 3, "accuracy": [0.9, 0.4, 0.6, 0.0, 0.6, 0.6]}
    )
    assert results.rounds_to(0.45, frame) == 1
    assert results.rounds_to(0.5, frame) == 2
    assert results.rounds_to(0.7, frame) is None
    assert results.rounds_to(None, frame) is None


def test_a_seed_that_ended_early_stays_in_the_mean() -> None:
    """Two of three seeds ended at 0.5. The third went on to 0.9, and no round has a mean of 0.8."""
    seeds = {1: [0.2, 0.5, 0.5], 2: [0.2, 0.5, 0.5], 3: [0.2, 0.5, 0.6, 0.7, 0.9]}
    rows = [
        ("A", seed, number, own, "global", 10.0, 60.0)
        for seed, all_own in seeds.items()
        for number, own in enumerate(all_own, 1)
    ]
    columns = ["arm", "seed", "round", "accuracy", "models", "megabytes", "seconds"]
    metrics = pd.DataFrame(rows, columns=columns)
    assert results.rounds_to(0.8, metrics) is None
    assert results.rounds_to(0.63, metrics) == 5
    mean = plots.evaluated(metrics).groupby("round")["accuracy"].mean()
    assert mean.round(6).tolist() == [0.2, 0.5, 0.533333, 0.566667, 0.633333]
    whole = plots.carried_on(metrics)
    assert len(whole) == 15
    assert whole["megabytes"].sum() == metrics["megabytes"].sum(), "nothing is sent behind an end"
    assert plots.carried_on(whole) is whole
    diverged = metrics.assign(
        accuracy=metrics["accuracy"].mask(metrics["seed"].lt(3) & metrics["round"].eq(3))
    )
    assert plots.evaluated(diverged)["round"].max() == 2, "a model that diverged has no accuracy later either"


def test_a_study_without_profiles_has_an_empty_table(tmp_path: Path) -> None:
    of = study(FEDAVG)
    rows = [record(n, 0.1, arm="FedAvg", figures={}) for n in (1, 2)]
    alone = results.collect(of, [ArmRun(of.arms[0], world(of), rows)])
    run_report.write(of, alone, [], tmp_path, "securefl run x")
    table = pd.read_csv(tmp_path / "private" / "figures.csv", comment="#")
    assert len(table) == 0
    assert list(table.columns) == ["arm", "seed", "round", "client", "quality", "figure", "value"]
    assert not (tmp_path / "private" / "plots" / "divergence.png").exists()


def test_the_report_says_what_budgets_bought_and_what_training_changed(tmp_path: Path) -> None:
    of = study(FEDAVG, rounds=5)
    of = replace(of, privacy=replace(of.privacy, budget=3.0))
    rows = [record(n, 0.1, arm="FedAvg", figures={}) for n in (1, 2)]
    rows[1]["retired"] = [0, 2, 4]
    found = results.collect(of, [ArmRun(of.arms[0], world(of), rows)])
    said = "FedAvg: a budget of 3 bought 2 of 5 rounds; 3 of 6 clients retired by themselves"
    (line,) = once(run_report.bought(of, found))
    assert line.startswith(said)
    assert found.participation["retired"].tolist() == [True, False] * 3
    page = run_report.write(of, found, [], tmp_path, "securefl run x", ["norm: BatchNorm2d became GroupNorm"])
    assert said in private_page(page).read_text()
    assert "BatchNorm2d became GroupNorm" in page.read_text()
    assert run_report.private_json(found)["arms"][0]["retired"] == 3
    empty = [{**row, "answered": []} for row in rows[1:]]
    idle = results.collect(of, [ArmRun(of.arms[0], world(of), [rows[0], *empty])])
    assert "bought 1 of 5 rounds" in run_report.bought(of, idle)[0][1], (
        "a round that nobody answers is not bought"
    )
    quiet = results.collect(of, [ArmRun(of.arms[0], world(of), rows[:1])])
    assert run_report.bought(of, quiet) == []
    assert "Changed in the model" not in run_report.write(of, quiet, [], tmp_path, "x").read_text()


def test_versions_name_what_figures_hang_on() -> None:
    found = versions()
    assert {"python", "securefl", "numpy", "torch", "tenseal"} <= set(found)
    assert "not installed" not in found.values()
