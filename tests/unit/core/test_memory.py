"""Freed memory that stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

ROUNDS = """
import resource
import numpy as np
from securefl.core.memory import keep_freed_memory
if KEEP:
    keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [np.ones(50_000, np.int32) for _ in range(100)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults(keep: bool) -> int:
    """The pages that a second round of 100 vectors, 20 MB together, fetches from the system."""
    code = ROUNDS.replace("KEEP", str(keep))
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide otherwise")
def test_a_round_finds_the_memory_of_the_round_before() -> None:
    assert faults(keep=False) > 1000
    assert faults(keep=True) < 100
