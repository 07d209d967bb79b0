"""A run that stops after a round goes on with the next, and releases nothing of a finished one again."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.every import every
from support.tiny_study import FEDAVG, FEDPROF, plain, study, world

from securefl.study.arm import ArmRun, arm_folder
from securefl.study.config import Study
from securefl.study.run import run_arm

FEDADAM = FEDAVG.replace("FedAvg", "FedAdam").replace("fedavg", "fedadam")
ACTIVE = FEDAVG.replace("FedAvg", "Active").replace("fedavg", "active_fl")
CFCFM = FEDAVG.replace("FedAvg", "CFCFM").replace("fedavg", "cfcfm")


class Stopped(Exception):
    pass


def stop_after(number: int) -> Any:
    def tell(record: Mapping[str, Any]) -> None:
        if record["round"] == number:
            raise Stopped

    return tell


def run(of: Study, folder: Path, tell: Any = lambda record: None) -> ArmRun:
    return run_arm(of, of.arms[0], world(of), folder, tell)


def ledger_rows(of: Study, folder: Path) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(arm_folder(folder, of.arms[0], 3) / "ledger.sqlite")
    query = "SELECT holder, round, stage, attempt, name, committed IS NOT NULL FROM releases"
    rows = db.execute(query).fetchall()
    db.close()
    return rows


@every("arm", [FEDAVG, FEDPROF, FEDADAM, ACTIVE, CFCFM])
def test_a_stopped_run_ends_as_the_uninterrupted_one(arm: str, tmp_path: Path) -> None:
    of = study(arm, rounds=6)
    whole = run(of, tmp_path / "whole")
    for number in (1, 3, 4):
        with pytest.raises(Stopped):
            run(of, tmp_path / "cut", stop_after(number))
    told: list[int] = []
    resumed = run(of, tmp_path / "cut", lambda record: told.append(record["round"]))
    assert plain(resumed.records) == plain(whole.records)
    assert told == [1, 2, 3, 4, 5, 6]
    assert sorted(ledger_rows(of, tmp_path / "cut")) == sorted(ledger_rows(of, tmp_path / "whole"))


def test_the_ledger_holds_every_release_once(tmp_path: Path) -> None:
    """6 introductions with a profile each, and 6 rounds of 3 clients with an update and a profile."""
    of = study(FEDPROF, rounds=6)
    with pytest.raises(Stopped):
        run(of, tmp_path, stop_after(3))
    assert len(ledger_rows(of, tmp_path)) == 6 + 3 * 3 * 2
    run(of, tmp_path)
    rows = ledger_rows(of, tmp_path)
    assert len(rows) == 6 + 6 * 3 * 2
    assert {row[3] for row in rows} == {0}
    assert {row[5] for row in rows} == {1}
    run(of, tmp_path)
    assert ledger_rows(of, tmp_path) == rows


def test_a_resumed_run_under_encryption_takes_a_fresh_key(tmp_path: Path) -> None:
    of = study(FEDPROF, rounds=6, scores="ckks")
    whole = run(of, tmp_path / "whole")
    with pytest.raises(Stopped):
        run(of, tmp_path / "cut", stop_after(3))
    resumed = run(of, tmp_path / "cut")
    assert len(resumed.records) == 6
    assert sorted(ledger_rows(of, tmp_path / "cut")) == sorted(ledger_rows(of, tmp_path / "whole"))
    same = [a["selected"] == b["selected"] for a, b in zip(resumed.records, whole.records, strict=True)]
    assert sum(same) >= 5
