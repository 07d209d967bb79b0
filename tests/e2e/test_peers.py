"""The arithmetic of `benchmarks/peers.py`, and its two contestants that need no environment of their own."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import peers
import pytest
from contestants import ours, plain, players
from contestants.players import PLAIN, Contestant, Times, rotated
from contestants.turns import Cell, Turns, Work, others
from peers import row

DIGITS = replace(peers.whole(peers.MLP), source="digits", records=20, batch=20)


def seconds(*cpu: float) -> list[Times]:
    return [Times(cpu=one, wall=2 * one) for one in cpu]


def test_everybody_begins_in_turn() -> None:
    order = list(rotated("abc", 4))
    firsts = [player for place, (_, player) in enumerate(order) if place % 3 == 0]
    assert firsts == ["a", "b", "c", "a"]
    for number in range(4):
        assert sorted(player for at, player in order if at == number) == ["a", "b", "c"]


def test_a_row_has_medians_for_a_client_and_the_ratio_within_a_round() -> None:
    cell = replace(peers.MLP, cohort=10)
    # The machine slowed down by a factor of ten in the last two rounds. The ratio does not see it.
    times = {PLAIN: seconds(0.01, 0.02, 0.1, 0.2), "other": seconds(0.02, 0.05, 0.2, 0.4)}
    found = row(cell, "other", times, loss=1.5)
    assert found["cpu_ms"] == pytest.approx(12.5)
    assert found["wall_ms"] == pytest.approx(25.0)
    assert found["over_plain"] == pytest.approx(2.0)
    assert (found["rounds"], found["loss"]) == (4, 1.5)
    assert row(cell, PLAIN, times, loss=1.0)["over_plain"] == 1.0


def test_a_round_that_is_missing_is_not_paired_with_another() -> None:
    with pytest.raises(ValueError, match="zip"):
        row(peers.MLP, "other", {PLAIN: seconds(1, 1), "other": seconds(1)}, loss=0.0)


def test_processes_that_ended_are_counted() -> None:
    before = others()
    subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
    assert others() > before


def test_a_cell_survives_json() -> None:
    for cell in peers.CELLS:
        listed = asdict(cell) | {"hidden": cell.hidden and list(cell.hidden)}
        assert Cell.read(listed) == cell


@pytest.mark.parametrize(
    ("python", "why"),
    [
        pytest.param(sys.executable, "No module named", marks=pytest.mark.slow),  # its imports take seconds
        ("/nowhere", "No such file"),
    ],
)
def test_whoever_cannot_play_is_named(
    python: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(players, "contestants", lambda: (Contestant("pfl-research", "pfl", python),))
    assert players.joined(tmp_path) == []
    said = capsys.readouterr().err
    assert "pfl-research is left out" in said
    assert why in said


def test_time_runs_from_the_word_to_the_end_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("{}\n{}\n"))
    told: list[Mapping[str, Any]] = []
    turns = Turns(3, lambda **what: told.append(what))
    turns.begin()
    turns.next()
    with pytest.raises(EOFError, match="driver"):
        turns.next()
    assert told[0] == {"ready": True}
    for times in told[1:]:
        assert times["cpu"] >= 0
        assert times["wall"] > 0


def model(contestant: Any, work: Work, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    monkeypatch.setattr("sys.stdin", io.StringIO("{}\n" * DIGITS.rounds))
    vector: np.ndarray = contestant.play(DIGITS, Work.read(work.path), Turns(DIGITS.rounds, lambda **_: None))
    return vector


def test_the_study_trains_the_plain_loops_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, _ = ours.work_of(DIGITS, tmp_path / "work.npz")
    work.write()
    simple, studied = (model(contestant, work, monkeypatch) for contestant in (plain, ours))
    assert np.abs(simple - work.initial).max() > 100 * peers.TOLERANCE
    np.testing.assert_allclose(studied, simple, rtol=0, atol=peers.TOLERANCE)


def test_a_study_refuses_other_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, _ = ours.work_of(DIGITS, tmp_path / "work.npz")
    replace(work, x=work.x + 1).write()
    with pytest.raises(SystemExit, match="records of client 0"):
        model(ours, work, monkeypatch)
