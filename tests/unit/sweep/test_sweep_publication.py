"""What a sweep writes outside of its private folder may be published, and its pages say which they are."""

from __future__ import annotations

import hashlib
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from support.every import every
from support.tiny_study import text
from support.tiny_sweep import EPSILONS, fill, sweep

import securefl
from securefl.report.run_page import TESTED
from securefl.report.tables import write_csv
from securefl.storage.private_folder import NOTICE, PRIVATE
from securefl.study.publication import PERSONALLY_TESTED, notice
from securefl.sweep import tradeoff_plots
from securefl.sweep.cells import Sweep
from securefl.sweep.report import as_json, write
from securefl.sweep.run import FACTS, METRICS, facts_of

pytestmark = pytest.mark.usefixtures("blank_plots")

PUBLIC = {"results.csv", "summary.csv", "sweep.html"}
MARK = "a warning that is planted: 3141592653"
ALARMS = [{"arm": "unit", "text": MARK, "learnt": True}]


def written(out: Path, *, personal: bool) -> Sweep:
    found = sweep(EPSILONS)
    fill(found, out, alarms=ALARMS, personal=personal)
    write(found, out, facts_of(found, out), {"a cell": MARK})
    return found


@pytest.fixture(scope="module", params=[False, True], ids=["global", "personal"])
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    out = tmp_path_factory.mktemp("sweep")
    written(out, personal=request.param)
    return out, request.param


def test_every_file_is_classified(done: tuple[Path, bool]) -> None:
    out, personal = done
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    cells = {name for name in names if name.startswith("cells/")}
    assert {name.split("/", 2)[2] for name in cells} == {METRICS, FACTS, f"{PRIVATE}/README.txt"}
    own = {f"{PRIVATE}/{name}" for name in ("README.txt", "results.csv", "summary.csv", "sweep.html")}
    plots = {name for name in names if name.endswith(".png")}
    assert plots
    assert all(name.startswith(f"{PRIVATE}/plots/" if personal else "plots/") for name in plots)
    assert names - cells - plots == PUBLIC | own


def test_tables_stand_apart(done: tuple[Path, bool]) -> None:
    out, personal = done
    for name, figures in (
        ("results", ["accuracy", "loss"]),
        ("summary", ["final_accuracy", "best_accuracy"]),
    ):
        lines = (out / PRIVATE / f"{name}.csv").read_text().splitlines()
        assert lines[0] == f"# {NOTICE}"
        public = pd.read_csv(out / f"{name}.csv")
        whole = pd.read_csv(out / PRIVATE / f"{name}.csv", comment="#")
        assert whole[figures].notna().all(axis=None)
        assert public[figures].isna().all(axis=None) == personal
        assert "seconds" not in public.columns
    assert "seconds" in pd.read_csv(out / PRIVATE / "results.csv", comment="#").columns


def test_each_page_says_first_whether_it_may_be_published(done: tuple[Path, bool]) -> None:
    out, personal = done
    shown, whole = (unescape((out / name).read_text()) for name in ("sweep.html", f"{PRIVATE}/sweep.html"))
    assert shown.count(TESTED) == whole.count(TESTED) == 2
    assert notice("sweep.html", private=False) in shown[: shown.index('<div class="lead">')]
    assert notice("sweep.html", private=True) in whole[: whole.index('<div class="lead">')]
    assert MARK not in shown
    assert len([box for box in whole.split('class="alarms">')[1:] if MARK in box]) == 2
    assert "<figure>" in whole
    assert ("<figure>" in shown) != personal
    assert (PERSONALLY_TESTED in shown) == personal


def test_a_planted_warning_is_in_no_file_outside(done: tuple[Path, bool]) -> None:
    out, _ = done
    files = [path for path in out.rglob("*") if path.is_file()]
    marked = {path.relative_to(out) for path in files if MARK.encode() in path.read_bytes()}
    assert marked
    assert all(PRIVATE in name.parts for name in marked)


@every("personal", [False, True])
def test_no_private_figure_reaches_a_file_outside(
    personal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alarms, failures and times differ, and the accuracies where models are personal.

    No picture is drawn, to save time: those outside are of the table outside.
    """
    monkeypatch.setattr(tradeoff_plots, "pictures", lambda *args, **named: [])
    files = []
    for name in ("place-1", "place-2"):
        out = tmp_path / name
        own = sweep(EPSILONS)
        fill(own, out, alarms=ALARMS if name == "place-1" else (), personal=personal)
        if name == "place-2":
            _disturb(out, personal)
        write(own, out, facts_of(own, out), {"a cell": MARK} if name == "place-1" else {})
        files.append(
            {
                path.relative_to(out): path.read_bytes().replace(name.encode(), b"")
                for path in out.rglob("*")
                if path.is_file() and PRIVATE not in path.relative_to(out).parts
            }
        )
    assert files[0] == files[1]


def _disturb(out: Path, personal: bool) -> None:
    """Change each private column of the cells' tables, and let them be what the cells have noted."""
    for facts in out.glob(f"cells/*/{FACTS}"):
        path = facts.parents[1] / METRICS
        before = path.read_bytes()
        table = pd.read_csv(path, comment="#").assign(seconds=7.0, wall_seconds=3.0, answered=1)
        if personal:
            table = table.assign(accuracy=0.4321, loss=2.0)
        write_csv(path, table, [NOTICE])
        old, new = (hashlib.sha256(content).hexdigest() for content in (before, path.read_bytes()))
        facts.write_text(facts.read_text().replace(old, new))


def test_the_object_of_a_sweep_keeps_them_apart(tmp_path: Path) -> None:
    own = text('[[arm]]\nname = "own"\nprotocol = "lg_fedavg"\n', rounds=1)
    found = securefl.run_sweep(own + '[sweep.grid]\n"study.seeds" = [[1]]\n', out=tmp_path, workers=1)
    assert found.metrics["accuracy"].isna().all()
    assert found.private.metrics["accuracy"].notna().all()
    assert "wall_seconds" not in found.metrics.columns
    assert found.summary["final_accuracy"].isna().all()
    assert found.private.summary["final_accuracy"].notna().all()
    assert found.private.failed == {}
    assert not hasattr(found, "failed")


def test_the_summary_for_scripts_keeps_them_apart(tmp_path: Path) -> None:
    own = sweep(EPSILONS)
    fill(own, tmp_path, alarms=ALARMS, personal=True)
    facts = facts_of(own, tmp_path)
    told = as_json(own, tmp_path, facts, write(own, tmp_path, facts, {}), {"a cell": MARK})
    apart = told.pop("private")
    assert all(row["final_accuracy"] is None for row in told["summary"])
    assert all(row["final_accuracy"] is not None for row in apart["summary"])
    assert MARK not in str(told)
    assert MARK in str(apart["failed"])
