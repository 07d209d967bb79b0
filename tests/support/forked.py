"""The processes that a test forks, and that none of them is left."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest


def noted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that from now on grows by every process that this one forks."""
    found: list[int] = []
    fork = os.fork

    def noting() -> int:
        child = fork()
        found.append(child)
        return child

    monkeypatch.setattr(os, "fork", noting)
    return found


def check_ended(forks: Sequence[int]) -> None:
    """They have ended and were waited for. What other tests of this process started is not counted."""
    assert forks
    for child in forks:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def wait_for(gate: Path) -> None:
    """In a forked process: wait until this file exists."""
    end = time.monotonic() + 60
    while not gate.exists():
        assert time.monotonic() < end, f"nobody made {gate}"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process of Linux has not ended. One that nobody waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
