"""Hostile bytes, in processes of their own: a crash there is seen here."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("run.py")
TESTS = Path(__file__).parents[1]
SLOW = [pytest.param(seed, 25_000, marks=pytest.mark.slow) for seed in range(1, 7)]


def run(folder: Path, *words: object, timeout: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FUZZ, *map(str, words)]
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folder)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env=environment
    )


@pytest.mark.parametrize(("seed", "inputs"), [(0, 16_000), *SLOW])
def test_many_inputs_do_no_harm(seed: int, inputs: int, tmp_path: Path) -> None:
    """No crash, no error but the package's own, no growth."""
    done = run(tmp_path, seed, inputs, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    tried, refused, passed, grown_kib = map(int, done.stdout.split())
    assert tried == inputs
    assert refused > 0.6 * tried
    assert passed > 0, "single flips that leave a valid ring element are garbage, not a danger"
    assert grown_kib < 64 * 1024


@pytest.mark.slow  # unguided inputs are tried in the fast suite
@pytest.mark.timeout(1200)  # each of the targets starts a process of its own
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed here")
def test_a_minute_of_inputs_guided_by_coverage(tmp_path: Path) -> None:
    done = run(tmp_path, "--guided", 60, tmp_path / "kept", timeout=1100)
    _, *table = (tmp_path / "kept" / "fuzz.csv").read_text().splitlines()
    rows = list(csv.DictReader(table))
    assert [row for row in rows if row["findings"] != "0" or int(row["executions"]) == 0] == []
    assert len(rows) > 60
    assert done.returncode == 0, done.stderr[-2000:]
