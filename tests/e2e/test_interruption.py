"""Signals to a run: the first finishes the round at hand, the second stops at once; neither costs a round."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_study import FEDAVG, FEDPROF, plain, run, text

from securefl.study.checkpoint import Checkpoint
from securefl.study.config import read
from securefl.study.run import arm_folder

ROUNDS = 4
MASKED = text(
    FEDAVG.replace("fraction = 0.5", 'fraction = 1.0\naggregation = "partial"'), clients=4, rounds=ROUNDS
).replace('sum = "clear"', 'sum = "masked"\nspare = 0\ndropout = 0.25\ncorrupt = 0.0')
"""An attempt at a hidden sum that was lost would cost its round: there is no other."""
SCRIPT = Path(__file__).with_name("stopped_run.py")
SOON = "Stopping after this round; once more to stop at once."


class Waiting:
    """A command in a process of its own, which waits at a point."""

    def __init__(self, process: subprocess.Popen[str], gate: Path) -> None:
        self.process, self._gate = process, gate

    def until(self, line: str) -> None:
        """Wait for a line on stderr."""
        assert self.process.stderr is not None
        found = ""
        for found in self.process.stderr:
            if found.strip() == line:
                return
        raise AssertionError(f"{line!r} was never said; the last line was {found!r}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def go_on(self) -> None:
        self._gate.touch()

    def end(self) -> tuple[int, str, list[str]]:
        """Exit code, stdout, and the lines on stderr that are left."""
        stdout, stderr = self.process.communicate(timeout=60)
        assert "Traceback" not in stderr
        return self.process.returncode, stdout, stderr.splitlines()


@contextmanager
def waiting(toml: str, folder: Path, point: str, *options: str) -> Iterator[Waiting]:
    """`securefl run` of a study, waiting at a point."""
    file, gate = folder / "study.toml", folder / "gate"
    file.write_text(toml)
    command = [sys.executable, SCRIPT, point, gate, "run", file, "--out", folder / "out", *options]
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        begun = Waiting(process, gate)
        begun.until("At hand.")
        yield begun
    finally:
        process.kill()
        process.communicate()


def rounds(folder: Path) -> list[int]:
    """The rounds that are finished."""
    return [record["round"] for record in saved(folder)[1]]


def saved(folder: Path) -> tuple[Any, list[dict[str, Any]]]:
    of = read(folder / "study.toml")
    with Checkpoint(arm_folder(folder, of.arms[0], 3) / "checkpoint.sqlite") as checkpoint:
        return checkpoint.load()


def check_goes_on(folder: Path, whole: Path) -> None:
    """A run that was stopped plays all of its rounds, and ends with the model of one that was not."""
    of = read(folder / "study.toml")
    resumed, uninterrupted = run(of, folder), run(of, whole)
    assert [record["round"] for record in resumed.records] == list(range(1, ROUNDS + 1))
    assert all(sum(record["answered"]) == 4 for record in resumed.records)
    assert plain(resumed.records) == plain(uninterrupted.records)
    (whole / "study.toml").write_text(of.text)
    np.testing.assert_array_equal(saved(folder)[0].model, saved(whole)[0].model, strict=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_finishes_the_round(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with waiting(MASKED, tmp_path, "sign:2") as begun:
        begun.signal(number)
        begun.until(SOON)
        begun.go_on()
        ended, stdout, stderr = begun.end()
    out = tmp_path / "out"
    assert (ended, stdout) == (code, "")
    assert stderr[-1].endswith(f"Go on with: securefl run {out / 'study.toml'} --out {out}")
    assert rounds(out) == [1, 2]
    check_goes_on(out, tmp_path / "whole")


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [(signal.SIGTERM, signal.SIGINT, 130), (signal.SIGINT, signal.SIGTERM, 143)],
)
def test_two_signals_stop_at_once_and_cost_no_round(
    first: signal.Signals, second: signal.Signals, code: int, tmp_path: Path
) -> None:
    """Stopped when all have signed, where another attempt would be another sum: and yet `spare` is 0."""
    with waiting(MASKED, tmp_path, "sign:2", "--json") as begun:
        begun.signal(first)
        begun.until(SOON)
        time.sleep(0.2)  # signals in less than a tenth of a second are one request
        begun.signal(second)
        ended, stdout, stderr = begun.end()
    assert (ended, stdout) == (code, "")
    assert stderr[-1].startswith("Stopped; finished rounds are kept. Go on with: securefl run ")
    assert rounds(tmp_path / "out") == [1]
    check_goes_on(tmp_path / "out", tmp_path / "whole")


@pytest.mark.parametrize(
    ("point", "said"), [("keys", SOON), ("report", "Stopping after the report; once more to stop at once.")]
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
