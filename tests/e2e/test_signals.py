"""Signals to a run: the first finishes the round at hand, the second stops at once; neither costs a round."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_study import FEDAVG, FEDPROF, plain, run, text, with_privacy
from support.waiting import waiting

from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import read

ROUNDS = 3
MASKED = with_privacy(
    text(
        FEDAVG.replace("fraction = 0.5", 'fraction = 1.0\naggregation = "partial"'), clients=4, rounds=ROUNDS
    ),
    {"sum": '"masked"', "max_retries": "0", "dropout": "0.25", "corrupt": "0.0"},
)
"""An attempt at a hidden sum that was lost would cost its round: there is no other."""
SOON = "Stopping after this round; once more to stop at once."


def rounds(folder: Path) -> list[int]:
    """The rounds that are finished."""
    return [record["round"] for record in saved(folder)[1]]


def saved(folder: Path) -> tuple[Any, list[dict[str, Any]]]:
    of = read(folder / "study.toml")
    with Checkpoint(checkpoint_file(arm_folder(folder, of.arms[0], 3))) as checkpoint:
        return checkpoint.load()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Folder and records of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "study.toml").write_text(MASKED)
    return folder, run(read(folder / "study.toml"), folder).records


def check_goes_on(folder: Path, whole: tuple[Path, list[dict[str, Any]]]) -> None:
    """A run that was stopped plays all of its rounds, and ends with the model of one that was not."""
    uninterrupted, records = whole
    resumed = run(read(folder / "study.toml"), folder)
    assert [record["round"] for record in resumed.records] == list(range(1, ROUNDS + 1))
    assert all(len(record["answered"]) == 4 for record in resumed.records)
    assert plain(resumed.records) == plain(records)
    np.testing.assert_array_equal(saved(folder)[0].broadcast, saved(uninterrupted)[0].broadcast, strict=True)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_one_signal_finishes_the_round(
    number: signal.Signals, code: int, tmp_path: Path, whole: tuple[Path, list[dict[str, Any]]]
) -> None:
    with waiting(MASKED, tmp_path, "sign:2") as begun:
        begun.signal(number)
        begun.until(SOON)
        begun.go_on()
        ended, stdout, stderr = begun.end()
    out = tmp_path / "out"
    assert (ended, stdout) == (code, "")
    assert stderr[-1].endswith(f"Go on with: securefl run {out / 'study.toml'} --out {out}")
    assert rounds(out) == [1, 2]
    check_goes_on(out, whole)


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGTERM, signal.SIGINT, 130),
        pytest.param(signal.SIGINT, signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
)
def test_two_signals_stop_at_once_and_cost_no_round(
    first: signal.Signals,
    second: signal.Signals,
    code: int,
    tmp_path: Path,
    whole: tuple[Path, list[dict[str, Any]]],
) -> None:
    """Stopped when all have signed, where another attempt would be another sum: and yet `max_retries` is "
    "0."""
    with waiting(MASKED, tmp_path, "sign:2", "--json") as begun:
        begun.signal(first)
        begun.until(SOON)
        time.sleep(0.2)  # signals in less than a tenth of a second are one request
        begun.signal(second)
        ended, stdout, stderr = begun.end()
    assert (ended, stdout) == (code, "")
    assert stderr[-1].startswith("Stopped; finished rounds are kept. Go on with: securefl run ")
    assert rounds(tmp_path / "out") == [1]
    check_goes_on(tmp_path / "out", whole)


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ("keys", SOON),
        pytest.param(
            "report", "Stopping after the report; once more to stop at once.", marks=pytest.mark.slow
        ),
    ],
)
def test_two_signals_stop_at_once_wherever_they_come(point: str, said: str, tmp_path: Path) -> None:
    with waiting(text(FEDPROF, scores="ckks"), tmp_path, point) as begun:
        begun.signal(signal.SIGTERM)
        begun.until(said)
        time.sleep(0.2)
        begun.signal(signal.SIGTERM)
        assert begun.end()[0] == 143
    assert not (tmp_path / "out" / "report.html").exists()


def test_one_signal_lets_the_report_be_written(tmp_path: Path) -> None:
    """Nothing is left to stop."""
    with waiting(text(FEDAVG), tmp_path, "report", "--json") as begun:
        begun.signal(signal.SIGINT)
        begun.until("Stopping after the report; once more to stop at once.")
        begun.go_on()
        ended, stdout, _ = begun.end()
    assert ended == 0
    assert Path(json.loads(stdout)["report"]).is_file()
