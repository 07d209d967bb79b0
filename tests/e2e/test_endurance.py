"""Kills, flipped bits, full disks and second processes, by the trials of `tests/e2e/trials`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
GOOD = ("same", "refused")


def endured(*words: str) -> list[dict[str, Any]]:
    """What each trial found; none may have found anything wrong."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "e2e.trials.play", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert [one for one in found if one.get("wrong") or one.get("verdict", "same") not in GOOD] == []
    return found


def struck(found: list[dict[str, Any]]) -> list[str]:
    return [kill for one in found for kill in one["kills"]]


@pytest.mark.slow  # test_kill.py kills runs in the fast suite
@pytest.mark.timeout(900)  # longer than a victim may take, so that one that hangs is told
def test_killed_runs_end_as_uninterrupted_ones() -> None:
    assert len(struck(endured("kills", "2", "masked"))) >= 2


@pytest.mark.slow  # lost and damaged files are tried one by one in the fast suite
def test_flipped_bits_are_refused_or_harmless() -> None:
    assert len(endured("flips", "5", "masked")) == 5


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_sixty_killed_processes_lose_nothing() -> None:
    found = endured("kills", "60")
    kills = struck(found)
    assert {one["case"] for one in found} == {"faults", "masked", "ckks", "scores", "central", "sweep"}
    assert 10 <= sum(kill.startswith("statement") for kill in kills) <= len(kills) - 10
    assert len(kills) >= 60


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_full_and_read_only_disks_are_told_and_survived() -> None:
    with tempfile.TemporaryDirectory() as place:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip("this process may not mount a disk; run it as root")
        subprocess.run(["umount", place], check=True)
    assert len(endured("disk")) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_of_two_processes_is_sent_away() -> None:
    assert [one["case"] for one in endured("pairs", "8")].count("sweep") == 1
