"""Runs of several processes from outside: none of them outlives its run."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from support.cheap_runs import unreported
from support.forked import runs
from support.hidden_studies import counts
from support.tiny_study import FEDAVG, FEDPROF, text, with_privacy
from support.waiting import waiting

from securefl.study.config import read
from securefl.study.session import run_study

TWO_ARMS = text(FEDAVG, FEDPROF, clients=4, rounds=2)
HIDDEN = {"sum": '"masked"', "dropout": "0.25", "corrupt": "0.0", "max_client_weight": "0.51", **counts(4)}
MASKED = with_privacy(TWO_ARMS, HIDDEN).replace("fraction = 0.5", "fraction = 1.0")

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc of Linux")


def children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except FileNotFoundError:
        return []


def until_ended(pids: list[int]) -> None:
    end = time.monotonic() + 30
    while any(map(runs, pids)):
        assert time.monotonic() < end, "processes outlive their run"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_lanes_end_with_their_run_however_it_ends(number: signal.Signals, tmp_path: Path) -> None:
    with waiting(MASKED, tmp_path, "sign:1", "--workers", "2") as begun:
        lanes = children(begun.process.pid)
        assert len(lanes) == 2
        begun.signal(number)
        if number == signal.SIGTERM:
            begun.until("Stopping after this round; once more to stop at once.")
            time.sleep(0.2)  # signals in less than a tenth of a second are one request
            begun.signal(number)
        begun.process.wait(timeout=60)
        until_ended(lanes)
    out = tmp_path / "out"
    told: list[int] = []
    with unreported():
        run_study(
            read(out / "study.toml"), out, lambda arm, seed, record: told.append(len(record["answered"]))
        )
    assert told == [4] * 4, "a round was lost"
