"""Models are tested as often as is asked. A round without a test has no accuracy, and nobody invents one."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.every import every
from support.tiny_study import FEDAVG, run, text, world

from securefl.core.errors import ConfigError
from securefl.engine.account import Account
from securefl.study import results, run_report
from securefl.study.config import Study, parse
from securefl.study.forecast import forecast, lines
from securefl.study.session import run_study


def study(every: int, rounds: int = 5, seeds: str = "[3]") -> Study:
    written = text(FEDAVG, rounds=rounds, seeds=seeds)
    return parse(written.replace("target = 0.2", f"target = 0.2\nevaluate_every = {every}"))


def told(records: list[dict[str, Any]], name: str) -> list[Any]:
    return [record[name] for record in records]


def test_rounds_between_have_no_accuracy_and_all_else_is_the_same(tmp_path: Path) -> None:
    often, seldom = (run(study(every), tmp_path / str(every)).records for every in (1, 2))
    for name in ("accuracy", "loss"):
        first, second, _, fourth, last = told(often, name)
        assert None not in told(often, name)
        assert told(seldom, name) == [None, second, None, fourth, last]
        assert first is not None
    for name in ("selected", "answered", "bytes_up", "epsilon"):
        assert told(often, name) == told(seldom, name)


def test_a_run_that_budgets_end_is_tested_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = frozenset(range(6))
    monkeypatch.setattr(
        Account, "retired", lambda self, number: everybody if number == 3 else frozenset[int]()
    )
    first, second = run(study(5), tmp_path).records
    assert (first["accuracy"], first["ended"], second["ended"]) == (None, False, True)
    assert second["accuracy"] is not None
    assert second["retired"] == sorted(everybody)


@every("every", [0, -1, 6])
def test_beyond_the_run_or_below_one_is_refused(every: int) -> None:
    with pytest.raises(ConfigError, match=f"evaluate_every .* got {every}"):
        study(every)


def test_reports_tables_and_json_show_no_number_for_it(tmp_path: Path) -> None:
    of = study(2, seeds="[3, 4]")
    found, page = run_study(of, tmp_path, lambda arm, seed, record: None)
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert table["accuracy"].isna().tolist() == [True, False, True, False, False] * 2
    assert table["loss"].isna().tolist() == table["accuracy"].isna().tolist()
    assert found.summary[0].final_accuracy == pytest.approx(table[table["round"] == 5]["accuracy"].mean())
    assert found.summary[0].rounds_to_target in (2, 4, 5)
    json.dumps(run_report.as_json(found), allow_nan=False)
    pictures = r"base64,[\w+/=]+"
    assert not re.search(r"\bnan\b", re.sub(pictures, "", page.read_text()), re.IGNORECASE)


def test_a_target_is_reached_where_every_seed_was_tested() -> None:
    """Seed 1 ends early, by its budget, and is tested there alone."""
    frame = pd.DataFrame(
        {
            "round": [1, 2, 3, 1, 2, 3, 4],
            "seed": [1, 1, 1, 2, 2, 2, 2],
            "accuracy": [math.nan, 0.2, 0.9, math.nan, 0.4, math.nan, 0.8],
        }
    )
    assert results.rounds_to(0.3, frame) == 2
    assert results.rounds_to(0.7, frame) == 4


def test_the_forecast_mentions_it() -> None:
    planned = study(2)
    told = "\n".join(lines(planned, [forecast(planned, planned.arms[0], world(planned))]))
    assert "Models are tested every 2 rounds, and after the last one." in told
