"""A run folder that an earlier version began goes on, or is refused with what to do.

`tests/vectors/folders/begun_at_aa4d2a0.tar.xz` was made at that commit, before linear queries, mechanisms and
rooms: `run_arm(study, arm, world, folder, tell, rounds=1)` of `study.toml` beside it, under seed 0.
"""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from securefl.core.errors import DataError
from securefl.study import accounted, world
from securefl.study.arm import arm_folder
from securefl.study.config import Study, parse
from securefl.study.run import run_arm

FOLDERS = Path(__file__).parents[1] / "vectors" / "folders"
BEGUN = FOLDERS / "begun_at_aa4d2a0.tar.xz"


@pytest.fixture
def study() -> Study:
    return parse((FOLDERS / "study.toml").read_text(encoding="utf-8"), begun=True)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    with tarfile.open(BEGUN) as packed:
        packed.extractall(tmp_path / "run", filter="data")
    return tmp_path / "run"


def test_it_goes_on_and_its_releases_count(study: Study, begun: Path) -> None:
    run = run_arm(study, study.arms[0], world.build(study, 0), begun, lambda record: None)
    assert [record["round"] for record in run.records] == [1, 2]
    with closing(sqlite3.connect(arm_folder(begun, study.arms[0], 0) / "ledger.sqlite")) as ledger:
        rounds = ledger.execute("SELECT DISTINCT round FROM releases ORDER BY round").fetchall()
        sessions = ledger.execute("SELECT COUNT(DISTINCT session) FROM releases").fetchone()
    assert rounds == [(1,), (2,)]
    assert sessions == (1,), "the plan's text, of which the session is made, is that of before"


def test_a_ledger_of_another_version_is_refused_with_it(study: Study, begun: Path) -> None:
    home = arm_folder(begun, study.arms[0], 0)
    with closing(sqlite3.connect(home / "ledger.sqlite")) as ledger:
        ledger.execute("PRAGMA user_version = 6")
        ledger.commit()
    with pytest.raises(DataError, match="version"):
        run_arm(study, study.arms[0], world.build(study, 0), begun, lambda record: None)


def test_its_ledgers_are_found_by_whoever_counts_a_run_once(study: Study, begun: Path) -> None:
    assert list(accounted.begun(study, begun)) == ["FedProf 0"]
