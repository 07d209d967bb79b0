"""Who took part in a study's rounds: on record, in the log, in a private table; and what may not move it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.private_studies import client_level
from support.tiny_study import FEDAVG, run, text, world

from securefl.core.messages import client_name
from securefl.study.attended import presences
from securefl.study.config import parse
from securefl.study.seeded import World
from securefl.study.session import run_study

LOSSY = text(FEDAVG, rounds=4) + "\n[network]\ndropout = 0.2\n"
ALL = FEDAVG.replace("0.5", "1.0")


def test_each_round_is_on_record_in_the_log_and_in_the_private_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="securefl")
    study = parse(LOSSY)
    run_study(study, tmp_path, lambda arm, seed, record: None)
    told = [one.getMessage() for one in caplog.records if " answered" in one.getMessage()]
    assert len(told) == 4
    table = pd.read_csv(tmp_path / "private" / "attendance.csv", comment="#")
    assert list(table.columns) == ["arm", "seed", "party", "reason", "since", "until", "rounds"]
    assert set(table["reason"]) == {"silent"}
    for row in table.itertuples():
        assert f"{row.party} silent since round {row.since}" in told[row.until - 1]
    assert sum(line.count("silent") for line in told) == table["rounds"].sum() > 0
    assert not (tmp_path / "attendance.csv").exists()


def test_a_resumed_run_goes_on_with_since(tmp_path: Path) -> None:
    study, here = parse(LOSSY), world(parse(LOSSY))
    whole = run(study, tmp_path / "whole", here=here)
    cut = tmp_path / "cut"
    run(study, cut, here=here, rounds=2)
    again = run(study, cut, here=here)
    assert presences(again.records) == presences(whole.records)
    assert any(one.absent for one in presences(whole.records)[2:])


def test_a_client_over_budget_is_named_from_the_first_round_that_does_not_ask_it(tmp_path: Path) -> None:
    study = parse(client_level(budget="5.0", rounds=6).text.replace("fraction = 1.0", "fraction = 0.5"))
    records = run(study, tmp_path).records
    retired = {k: one["round"] + 1 for one in records for k in one["retired"]}
    over = {
        one.name: one.since
        for presence in presences(records)
        for one in presence.absent
        if one.why == "over budget"
    }
    assert retired
    assert over
    assert over == {client_name(k): since for k, since in retired.items() if since <= len(records)}


def huge(here: World, client: int) -> World:
    """The same world with one client whose records no grid holds."""
    x, y = here.records[client]
    records = [*here.records]
    records[client] = ((np.asarray(x) * 1e30).astype(np.float32), y)
    return replace(here, records=records)


def test_under_a_finite_epsilon_no_record_moves_what_the_server_sees(tmp_path: Path) -> None:
    study = client_level()
    here = world(study)
    one, other = run(study, tmp_path / "a", here=here), run(study, tmp_path / "b", here=huge(here, 1))
    assert [row["seen"] for row in one.records] == [row["seen"] for row in other.records]


def test_without_one_the_server_sees_that_a_client_is_silent_and_never_why(tmp_path: Path) -> None:
    study = parse(text(ALL))
    here = huge(world(study), 1)
    first = run(study, tmp_path, here=here).records[0]
    assert "client-0001" in first["abstained"]  # the observer's
    assert first["seen"]["absent"] == {"client-0001": "silent"}
    assert first["abstained"]["client-0001"] not in str(first["seen"])
