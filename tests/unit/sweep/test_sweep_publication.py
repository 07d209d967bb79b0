"""What a sweep writes outside of its private folder may be published, and its page says what may not."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.tiny_study import text
from support.tiny_sweep import EPSILONS, fill, sweep

import securefl
from securefl.storage.private_folder import NOTICE, PRIVATE
from securefl.sweep.cells import Sweep
from securefl.sweep.report import as_json, write
from securefl.sweep.run import FACTS, METRICS

PUBLIC = {"results.csv", "summary.csv", "sweep.html"}
MARK = "a warning that is planted: 3141592653"
ALARMS = [{"arm": "unit", "text": MARK, "learnt": True}]


def written(out: Path, *, personal: bool) -> Sweep:
    found = sweep(EPSILONS)
    fill(found, out, alarms=ALARMS, personal=personal)
    write(found, out, {"a cell": MARK})
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
    own = {f"{PRIVATE}/{name}" for name in ("README.txt", "results.csv", "summary.csv")}
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


def test_a_planted_warning_is_in_no_public_table(done: tuple[Path, bool]) -> None:
    out, _ = done
    for name in ("results.csv", "summary.csv"):
        assert MARK not in (out / name).read_text()
    assert any(MARK in path.read_text() for path in out.glob(f"cells/*/{FACTS}"))


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
    told = as_json(own, tmp_path, write(own, tmp_path, {}), {"a cell": MARK})
    apart = told.pop("private")
    assert all(row["final_accuracy"] is None for row in told["summary"])
    assert all(row["final_accuracy"] is not None for row in apart["summary"])
    assert MARK not in str(told)
    assert MARK in str(apart["failed"])
