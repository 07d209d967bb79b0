"""Freed memory that stays with the process."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.tiny_table import TABLE

from securefl.core.memory import NEW_OBJECTS, searches_apart
from securefl.published import runs as tables
from securefl.sweep import run as sweeps

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


def test_searches_are_rare_for_a_while() -> None:
    """The caller's own numbers come back, after an error too. Rarer searches, or none, stay as they are."""
    usual = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 100)
        with searches_apart():
            assert gc.get_threshold() == (NEW_OBJECTS, 10, 10)
        assert gc.get_threshold() == (700, 10, 100)
        with pytest.raises(RuntimeError), searches_apart():
            raise RuntimeError
        assert gc.get_threshold() == (700, 10, 100)
        for own in ((2 * NEW_OBJECTS, 5, 5), (0, 10, 10)):
            gc.set_threshold(*own)
            with searches_apart():
                assert gc.get_threshold() == own
    finally:
        gc.set_threshold(*usual)


class Held:
    """What a study leaves in a cycle, such as its records in the frames of an exception."""

    def __init__(self, left: list[weakref.ref[Held]]) -> None:
        self.own = self
        left.append(weakref.ref(self))


@contextmanager
def without_searches() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_no_record_of_a_part_of_a_table_outlives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[weakref.ref[Held]] = []

    def played(*_: Any, **__: Any) -> tuple[None, Path]:
        Held(left)
        return None, tmp_path

    monkeypatch.setattr(tables, "run_study", played)
    with without_searches():
        tables.run_table(TABLE, tmp_path, lambda *_: None)
        assert [own() for own in left] == [None]


def test_no_record_of_a_cell_of_a_sweep_outlives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[weakref.ref[Held]] = []

    def orders() -> Iterator[dict[str, Any]]:
        for _ in range(2):
            yield {"folder": "", "text": "", "home": None}
            assert left.pop()() is None

    monkeypatch.setattr(sweeps, "error_of_cell", lambda *_: Held(left) and None)
    monkeypatch.setattr(sweeps, "single_thread", lambda: None)
    line: Any = SimpleNamespace(orders=orders, tell=lambda _: None, stopping=lambda: False)
    with without_searches():
        sweeps._work(line)
