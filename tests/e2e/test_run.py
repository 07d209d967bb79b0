"""Whole studies: what a run folder holds, what bad records cost, and what encryption changes."""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.every import every
from support.tiny_study import FEDAVG, FEDPROF, newest, run, spied, study, text, world

from securefl.core.errors import ConfigError
from securefl.storage.folder_lock import LOCK
from securefl.study.config import parse
from securefl.study.seeded import World
from securefl.study.session import reopen, run_study
from securefl.study.world import build

PICTURES = ("participation", "cost", "divergence")
MEASURED = ("measures", "confusion", "reliability")
SPOILT = '[corruption]\nirrelevant = 0.2\nirrelevant_source = "photographs"\nblurred = 0.2\npixel = 0.2\n'


def nothing(*_: object) -> None:
    pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run_study(study(seeds="[3, 4]", scores="ckks", extra=SPOILT), folder, nothing)
    return folder


def test_a_run_folder_holds_everything(finished: Path) -> None:
    names = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    expected = {
        "study.toml",
        "metrics.csv",
        "summary.json",
        "private/README.txt",
        "private/summary.json",
    }
    expected |= {"format.txt", "versions.json", "seeds.json", "report.html", "private/report.html"}
    tables = {
        f"private/{name}"
        for name in ("metrics", "participation", "figures", "attendance", "abstentions", *MEASURED)
    }
    expected |= {"private/measures.json"}
    expected |= {f"{name}.csv" for name in (*tables, *MEASURED)}
    if find_spec("pyarrow") is not None:
        expected |= {f"{name}.parquet" for name in (*tables, *MEASURED, "metrics")}
    expected |= {f"private/plots/{name}.png" for name in (*PICTURES, "confusion", "calibration")}
    expected |= {"plots/accuracy.png"}
    for arm in ("fedavg", "fedprof"):
        for seed in (3, 4):
            own = ("ledger.sqlite", "ledger.sqlite-head")
            expected |= {f"private/arms/{arm}/seed-{seed}/{name}" for name in own}
    assert names == {*expected, LOCK}
    assert json.loads((finished / "seeds.json").read_text()) == [3, 4]
    assert (finished / "study.toml").read_text() == study(seeds="[3, 4]", scores="ckks", extra=SPOILT).text
    assert all((finished / name).stat().st_size for name in expected)


def test_tables_have_a_row_for_every_observation(finished: Path) -> None:
    metrics = pd.read_csv(finished / "metrics.csv")
    assert len(metrics) == 2 * 2 * 2
    assert set(metrics["epsilon_server"]) == {math.inf}
    assert set(metrics["epsilon_key-holder"]) == {0.0}
    participation = pd.read_csv(finished / "private" / "participation.csv", comment="#")
    assert participation.groupby(["arm", "seed"])["selected"].sum().tolist() == [6, 6, 6, 6]
    assert participation.groupby(["arm", "seed"])["answered"].sum().tolist() == [6, 6, 6, 6]
    whole = pd.read_csv(finished / "private" / "metrics.csv", comment="#")
    assert set(whole["survivors_lost"]) == {0}
    assert whole["accuracy"].tolist() == metrics["accuracy"].tolist()
    assert set(participation["quality"]) >= {"clean", "blurred"}
    figures = pd.read_csv(finished / "private" / "figures.csv", comment="#")
    # A row for every change: in round 1 of all six clients, later of the three that were asked.
    assert len(figures) == 2 * 6 + 2 * 3
    assert set(figures["arm"]) == {"FedProf"}


def test_epsilon_is_honest_in_every_output(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    for arm in summary["arms"]:
        assert arm["epsilon"] == {"server": "inf", "key-holder": 0.0, "others": "inf"}
    page = (finished / "report.html").read_text()
    assert "∞" in page
    db = sqlite3.connect(finished / "private" / "arms" / "fedprof" / "seed-3" / "ledger.sqlite")
    charges = {
        row[0] for row in db.execute("SELECT charge FROM releases WHERE name IN ('update', 'profile')")
    }
    db.close()
    for charge in charges:
        assert json.loads(charge)["server"] == {"event": "non_private"}
        assert json.loads(charge)["key-holder"] == {"event": "none"}


def test_a_report_is_written_again_from_the_folder_alone(finished: Path) -> None:
    before = (finished / "metrics.csv").read_bytes()
    (finished / "report.html").unlink()
    _, page = reopen(finished)
    assert page.is_file()
    assert (finished / "metrics.csv").read_bytes() == before


def test_an_unfinished_run_has_no_report_yet(tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    of = study()
    with pytest.raises(KeyboardInterrupt):
        run_study(of, tmp_path, stop)
    with pytest.raises(ConfigError, match="FedAvg, FedProf: "):
        reopen(tmp_path)
    with pytest.raises(ConfigError, match="Expected a run folder"):
        reopen(tmp_path / "none")


def test_a_budget_holds_against_those_it_is_against(tmp_path: Path) -> None:
    """The key holder learns nothing: a budget against it alone is met by unprotected updates."""
    toml = text(FEDPROF).replace("budget = inf", "budget = 0.0")
    alone = toml.replace('["server", "key-holder", "others"]', '["key-holder"]')
    finished = run(parse(alone), tmp_path)
    assert not finished.records[-1]["abstained"]


# Bad records -----------------------------------------------------------------------------------


def with_records(here: World, client: int, x: np.ndarray, y: np.ndarray) -> World:
    records = list(here.records)
    records[client] = (x, y)
    return replace(here, records=records)


@every("protocol", ["fedavg", "fedprof", "active_fl"])
def test_a_client_with_nan_loses_its_own_place_only(protocol: str, tmp_path: Path) -> None:
    arm = f'[[arm]]\nname = "x"\nprotocol = "{protocol}"\nfraction = 1.0\n'
    of = study(arm, rounds=3)
    here = world(of)
    x, y = here.records[2]
    bad = x.copy()
    bad[0] = np.nan
    spy, finished = spied(of, tmp_path, with_records(here, 2, bad, y))
    assert np.isfinite(spy.states[-1].broadcast).all()
    assert not np.array_equal(spy.states[0].broadcast, spy.states[-1].broadcast)
    for record in finished.records:
        assert not record["rejected_from"]
        assert set(record["abstained"]) == {"client-0002"}
    trained = [answers for query, answers in spy.asks if "update" in {s.spec.name for s in query.sums}]
    assert all(2 not in answers.survivors for answers in trained)
    sent = {k for answers in trained for k in answers.survivors}
    assert sent >= {0, 1, 3, 4, 5} if protocol != "active_fl" else sent


@pytest.mark.parametrize(
    ("count", "scores", "aggregation"),
    [
        # Each way to hide scores, and each aggregation, with each count; the rest of the grid is slow.
        pytest.param(count, scores, aggregation, marks=() if quick else pytest.mark.slow)
        for count in (0, 1)
        for place, scores in enumerate(("clear", "ckks", "pads"))
        for part, aggregation in enumerate(("full", "partial"))
        for quick in [(place + part + count) % 2 == 0]
    ],
)
def test_a_client_with_no_or_one_record(count: int, scores: str, aggregation: str, tmp_path: Path) -> None:
    arm = f'[[arm]]\nname = "x"\nprotocol = "fedprof"\nfraction = 1.0\naggregation = "{aggregation}"\n'
    of = study(arm, scores=scores)
    here = world(of)
    x, y = here.records[1]
    spy, finished = spied(of, tmp_path, with_records(here, 1, x[:count], y[:count]))
    assert np.isfinite(spy.states[-1].broadcast).all()
    assert not np.array_equal(spy.states[0].broadcast, spy.states[-1].broadcast)
    assert not any(record["rejected_from"] for record in finished.records)
    # Of hidden scores the key holder is promised epsilon 0, and hears of each client all the same.
    answers = bool(count) or scores != "clear"
    for record in finished.records:
        assert (1 in record["answered"]) == answers
        assert math.isfinite(newest([record], "divergence", 6)[1]) == answers
        assert ("client-0001" in record["without_records"]) == (answers and not count)
        assert len(record["answered"]) == 5 + answers


def test_an_empty_client_under_full_fedavg_costs_nobody_else(tmp_path: Path) -> None:
    of = study(FEDAVG.replace("0.5", "1.0"))
    here = world(of)
    x, y = here.records[1]
    finished = run(of, tmp_path, here=with_records(here, 1, x[:0], y[:0]))
    assert [len(record["selected"]) for record in finished.records] == [6, 6]
    assert [len(record["answered"]) for record in finished.records] == [5, 5]
    assert not any(record["rejected_from"] for record in finished.records)


@every("scores", ["clear", "ckks"])
def test_constant_features_have_a_floored_variance(scores: str, tmp_path: Path) -> None:
    of = study(FEDPROF.replace("0.5", "1.0"), scores=scores)
    here = world(of)
    x, y = here.records[0]
    finished = run(of, tmp_path, here=with_records(here, 0, np.zeros_like(x), y))
    divergences = newest(finished.records, "divergence", 6)
    assert all(math.isfinite(d) for d in divergences)
    assert max(divergences) == divergences[0]
    assert not any(record["rejected_from"] or record["abstained"] for record in finished.records)
    for record in finished.records:
        assert record["floored"]["client-0000"] == 8, "every output of the profiled layer"
        assert not record["clipped"]


@every("scores", ["clear", "ckks"])
def test_a_record_counts_what_clients_clipped_of_their_profiles(scores: str, tmp_path: Path) -> None:
    narrow = FEDPROF.replace("0.5", "1.0") + "bounds = { mean = 1e-3, variance_high = 64, weight = 64 }\n"
    finished = run(study(narrow, scores=scores), tmp_path)
    for record in finished.records:
        assert set(record["clipped"]) == {f"client-{k:04}" for k in range(6)}
        assert all(1 <= count <= 16 for count in record["clipped"].values())


# Encryption ------------------------------------------------------------------------------------


def test_arms_of_a_seed_share_one_world() -> None:
    of = study(extra=SPOILT)
    first, second, other = build(of, 3), build(of, 3), build(of, 4)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(first.records, second.records, strict=True))
    assert np.array_equal(first.problem.initial, second.problem.initial)
    assert first.quality == second.quality
    assert not np.array_equal(first.problem.initial, other.problem.initial)
