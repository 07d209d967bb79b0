"""Hostile bytes, in processes of their own: a crash there is seen here."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz.py")
TESTS = Path(__file__).parents[2]
SLOW = [pytest.param(seed, 25_000, marks=pytest.mark.slow) for seed in range(4)]


def run(*words: object, timeout: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FUZZ, *map(str, words)]
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, env=environment
    )


@pytest.mark.parametrize(("seed", "inputs"), [(0, 10_000), *SLOW])
def test_a_hundred_thousand_inputs_do_no_harm(seed: int, inputs: int) -> None:
    """No crash, no error but the package's own, no growth."""
    done = run(seed, inputs, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    tried, refused, passed, grown_kib = map(int, done.stdout.split())
    assert tried == inputs
    assert refused > 0.6 * tried
    assert passed > 0, "single flips that leave a valid ring element are garbage, not a danger"
    assert grown_kib < 64 * 1024


@pytest.mark.slow  # unguided inputs are tried in the fast suite
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed here")
def test_inputs_guided_by_coverage() -> None:
    done = run("--guided", 8_000, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
