"""Kills, flipped bits, full disks and second processes, by the code of `benchmarks/endurance.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "endurance.py"


def endured(*words: str) -> dict[str, Any]:
    """What a trial found; it may have found no failure."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words, "--json"], capture_output=True, text=True, check=False
    )
    if done.stderr.startswith("Skipped"):
        pytest.skip(done.stderr.strip())
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"failures": done.stderr}
    assert found["failures"] == []
    assert done.returncode == 0
    return found


@pytest.mark.slow  # test_kill.py kills runs in the fast suite
@pytest.mark.timeout(900)  # longer than a victim may take, so that one that hangs is told
def test_killed_runs_end_as_uninterrupted_ones() -> None:
    assert endured("kills", "--kills", "2", "--case", "masked", "--workers", "1")["kills"] >= 2


@pytest.mark.slow  # lost and damaged files are tried one by one in the fast suite
def test_flipped_bits_are_refused_or_harmless() -> None:
    found = endured("flips", "--flips", "5", "--base", "masked", "--workers", "1")
    assert sum(found["verdicts"].values()) == 5


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_sixty_killed_processes_lose_nothing() -> None:
    found = endured("kills", "--kills", "60", "--workers", "1")
    assert found["kills"] >= 60
    assert set(found["by_case"]) == {"faults", "masked", "ckks", "scores", "central", "sweep"}
    assert 10 <= found["at_statements"] <= found["kills"] - 10


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_full_and_read_only_disks_are_told_and_survived() -> None:
    assert endured("disk")["trials"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_of_two_processes_is_sent_away() -> None:
    assert endured("pairs", "--pairs", "8")["by_case"]["sweep"] == 1
