"""kill -9 in a tuned table, while it chooses and while it measures: run again, it has the same figures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("killed_table.py")
CHOOSING = 2 * 3 * 2 * 3
"""The rounds of the grid: of 2 systems with 3 candidates each, under 2 seeds, 3 rounds."""


def code(fatal: int, folder: Path) -> int:
    path = os.pathsep.join([str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(fatal), str(folder)],
        capture_output=True,
        timeout=200,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    return done.returncode


@pytest.mark.slow
@pytest.mark.timeout(1200)  # six processes of 200 s at most, each, on a busy machine
def test_a_killed_table_ends_in_the_same_figures(tmp_path: Path) -> None:
    assert code(0, tmp_path / "whole") in (0, 4)
    # A run told what it has finished before, so each is killed later than the one before.
    for fatal in (2, CHOOSING // 2, CHOOSING + 2, CHOOSING + 10):
        assert code(fatal, tmp_path / "parts") == -signal.SIGKILL, fatal
    assert code(0, tmp_path / "parts") in (0, 4)
    tables = [(tmp_path / own / "digits-tuned" / "table.csv").read_bytes() for own in ("whole", "parts")]
    assert tables[0] == tables[1]
    assert b",seed,value,reached\n" in tables[0]
