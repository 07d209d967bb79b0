"""A run that stops after a round goes on with the next, and releases nothing of a finished one again."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.every import every
from support.tiny_study import FEDAVG, FEDPROF, composed, plain, study, world

from securefl.core.errors import ConfigError, DataError
from securefl.study.arm import ArmRun, arm_folder
from securefl.study.config import Study, parse
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


def test_a_cut_off_round_is_played_again_and_charged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before round 3 was saved: its releases stand, and are what the resumed run releases."""
    from securefl.study.checkpoint import Checkpoint

    of = study(FEDPROF, rounds=4)
    whole = run(of, tmp_path / "whole")
    save = Checkpoint.save

    def broken(self: Checkpoint, number: int, *rest: Any) -> None:
        if number == 3:
            raise Stopped
        save(self, number, *rest)

    monkeypatch.setattr(Checkpoint, "save", broken)
    for _ in range(2):
        with pytest.raises(Stopped):
            run(of, tmp_path / "cut")
    monkeypatch.undo()
    resumed = run(of, tmp_path / "cut")
    assert plain(resumed.records) == plain(whole.records)
    attempts = Counter((row[1], row[3]) for row in ledger_rows(of, tmp_path / "cut"))
    assert attempts == {(1, 0): 12, (2, 0): 6, (3, 0): 6, (4, 0): 6}


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


@every("how", ["emptied", "deleted", "another's"])
def test_a_run_does_not_go_on_without_its_ledger(how: str, tmp_path: Path) -> None:
    """What was released would be counted from zero."""
    of = study(FEDPROF, rounds=4)
    with pytest.raises(Stopped):
        run(of, tmp_path / "a", stop_after(2))
    run(study(FEDPROF, rounds=4), tmp_path / "b")
    ledger = arm_folder(tmp_path / "a", of.arms[0], 3) / "ledger.sqlite"
    for extra in ("-wal", "-shm"):
        ledger.with_name(ledger.name + extra).unlink(missing_ok=True)
    match how:
        case "emptied":
            ledger.write_bytes(b"")
        case "deleted":
            ledger.unlink()
        case _:
            ledger.write_bytes((arm_folder(tmp_path / "b", of.arms[0], 3) / "ledger.sqlite").read_bytes())
    with pytest.raises(DataError, match="entries that were noted"):
        run(of, tmp_path / "a")


def test_a_delta_that_allows_publishing_a_record_is_refused(tmp_path: Path) -> None:
    loose = study(FEDPROF).text.replace("delta = 1e-4", "delta = 0.5")
    with pytest.raises(ConfigError, match="delta below 1 / n"):
        run(parse(loose), tmp_path)
    run(parse(loose.replace("delta = 0.5", "delta = 0.5\nforce_delta = true")), tmp_path)


def test_a_longer_schedule_is_another_plan() -> None:
    """The plan's digest is in the session: rounds of another schedule could not be mistaken for ours."""
    plans = [composed(of)[1] for of in (study(FEDPROF, rounds=n) for n in (1, 2))]
    first, second = (plan.session(["client-0000"], bytes(32)) for plan in plans)
    assert first != second
