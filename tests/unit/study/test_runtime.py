"""The section [runtime]: how many worker processes a study takes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.command_line import said
from support.tiny_study import FEDAVG, FEDPROF, text

from securefl.algorithm.queries import ValueSpec
from securefl.commands.telling import on_workers
from securefl.storage import processes
from securefl.study.config import RuntimeSection, parse
from securefl.study.forecast import Forecast, total_seconds
from securefl.training.cohorts import Batched
from securefl.training.parallel import Forked
from securefl.training.run_jobs import one_by_one


def runtime(line: str) -> str:
    """One round that teaches more than a constant answer, on any processor."""
    of = text(FEDAVG, rounds=1, extra=f"[runtime]\n{line}\n")
    return of.replace("learning_rate = 0.2", "learning_rate = 0.8")


def test_the_default_is_a_worker_for_each_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "processors", lambda: 6)
    of = parse(text(FEDAVG))
    assert of.runtime.processes == 6
    assert isinstance(of.runtime.trainer(()), Batched)
    alone = 'training = "sequential"'
    assert parse(runtime(alone)).runtime.trainer(()) == Forked(6)
    assert parse(runtime(f"{alone}\nworkers = 2")).runtime.trainer(()) == Forked(2)
    assert parse(runtime(f"{alone}\nworkers = 1")).runtime.trainer(()) is one_by_one


def test_clients_stand_side_by_side_as_many_as_the_plan_asks() -> None:
    @dataclass(frozen=True)
    class Offered:
        spec: ValueSpec

        def compute(self, context: Any) -> Any: ...
        def fit(self, context: Any) -> Any: ...
        def value(self, context: Any, fitted: Any) -> Any: ...

    def slots(*cohorts: int) -> int:
        contributions = [
            Offered(ValueSpec(name=f"v{n}", reduction="sum", reveals="it", cohort=n)) for n in cohorts
        ]
        trainer = RuntimeSection(workers=1).trainer(contributions)
        assert isinstance(trainer, Batched)
        return trainer.slots

    assert (slots(), slots(0), slots(12), slots(3, 14)) == (10, 10, 12, 14)


def test_where_nothing_can_fork_there_is_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "can_fork", lambda: False)
    assert RuntimeSection(workers=4).processes == 1
    assert RuntimeSection(workers=4).lanes(9) == 1
    assert RuntimeSection(training="sequential", workers=4).trainer(()) is one_by_one


def test_the_option_changes_neither_the_text_nor_what_goes_on(tmp_path: Path) -> None:
    """A run that began with other workers is the same run."""
    of = parse(runtime("workers = 1"))
    assert on_workers(of, None) is of
    assert on_workers(of, 3) == replace(of, runtime=RuntimeSection(workers=3))
    file, out = tmp_path / "study.toml", tmp_path / "out"
    file.write_text(runtime("workers = 1"))
    tables = []
    for workers in ("1", "2"):
        result = said("run", file, "--out", out, "--workers", workers, "--json")
        assert result.exit_code == 0, result.output
        tables.append((out / "metrics.csv").read_bytes())
    assert tables[0] == tables[1]
    assert said("run", file, "--workers", "0").exit_code == 2


def test_the_plan_says_how_many(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(runtime("workers = 1"))
    told = said("plan", file, "--workers", "2").output
    assert "on this machine with 2 workers, for 1 seed." in told
    found = json.loads(said("plan", file, "--json").stdout)
    assert found["workers"] == 1


def test_the_plan_counts_arms_side_by_side() -> None:
    def forecast(seconds: float) -> Forecast:
        return Forecast(
            arm="x",
            clients=1,
            learns={},
            epsilon={},
            affordable=None,
            bytes_up=(0, 0),
            bytes_down=(0, 0),
            seconds=(seconds, seconds),
            values=(1, 0),
            changes=(),
        )

    of = parse(text(FEDAVG, FEDPROF, rounds=10, seeds="[1, 2]"))
    for workers, together in ((1, 160.0), (2, 80.0), (4, 60.0), (9, 60.0)):
        own = replace(of, runtime=RuntimeSection(workers=workers))
        assert total_seconds(own, [forecast(2.0), forecast(6.0)]) == together
