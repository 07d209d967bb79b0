"""Run folders on disks that fill up, or cannot be written; then the run goes on with space.

A disk is a tmpfs of a few pages, which takes root. A run on a full one must end with one sentence that says
so; with more space it must end as the uninterrupted one. What is finished can be read where nothing can be
written.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.trials import facts
from e2e.trials.cases import CASES, Case
from e2e.trials.victim import Outcome, call, must

SIZES = (64, 128, 256, 384, 512, 768, 1024, 2048, 4096)
"""Kilobytes."""
_NAMES = ("masked", "ckks", "central")
_FULL = re.compile(r"disk is full|no space left", re.IGNORECASE)
_DAMAGED = re.compile(r"restore|lost|damaged", re.IGNORECASE)
_READ_ONLY = re.compile(r"read-only|cannot be written|not writable", re.IGNORECASE)


def trials() -> Iterator[dict[str, Any]]:
    """Every case on every size of disk, and on one that cannot be written: how it ended, what is wrong."""
    for name in _NAMES:
        case = CASES[name]
        with tempfile.TemporaryDirectory() as root:
            whole = Path(root) / "whole"
            _toml(case, whole)
            must(call("run", whole.with_suffix(".toml"), "--out", whole))
            expected = facts.of(whole, case.party)
            for size in SIZES:
                yield _full(case, size, Path(root), expected)
            yield from _read_only(case, Path(root))


def _full(case: Case, size: int, root: Path, expected: dict[str, facts.Facts]) -> dict[str, Any]:
    toml = _toml(case, root / "small")
    wrong = []
    with _disk(root / "disk", size) as disk:
        first = call("run", toml, "--out", disk / "run")
        if first.code and not (_one_sentence(first) and _says(first, _FULL)):
            wrong.append(f"it does not say that the disk is full: {first.told}")
        _mount(disk, "remount,size=64M")
        again = call("run", toml, "--out", disk / "run")
        if again.code:
            wrong.append(f"with space it does not go on: {again.told}")
        else:
            wrong += facts.differences(expected, facts.of(disk / "run", case.party), exact=case.exact)
    return {"case": case.name, "disk": f"{size} kB", "told": first.told, "wrong": wrong}


def _read_only(case: Case, root: Path) -> Iterator[dict[str, Any]]:
    toml = _toml(case, root / "finished")
    with _disk(root / "disk", 65536) as disk:
        home = disk / "run"
        must(call("run", toml, "--out", home))
        ledger = next(home.rglob("ledger.sqlite"))
        shown = call("ledger", "show", ledger)
        _mount(disk, "remount,ro")
        again, page = call("ledger", "show", ledger), call("report", home)
        fresh = call("run", toml, "--out", disk / "other")
        for what, outcome, good in (
            ("ledger show", again, again.out == shown.out),
            ("report", page, page.code == 0 or _refused(page)),
            ("fresh run", fresh, _refused(fresh)),
        ):
            wrong = [] if good else [f"neither the same nor a sentence: {outcome.told}"]
            yield {"case": case.name, "disk": f"read-only, {what}", "told": outcome.told, "wrong": wrong}


def _one_sentence(outcome: Outcome) -> bool:
    """Whether one line says why it ended; lines of progress begin otherwise."""
    return outcome.explained and outcome.err.count("securefl: ") == 1


def _refused(outcome: Outcome) -> bool:
    return _one_sentence(outcome) and _says(outcome, _READ_ONLY)


def _says(outcome: Outcome, what: re.Pattern[str]) -> bool:
    """Whether it says this, and not that something is damaged: the remedy is another."""
    return bool(what.search(outcome.err)) and not _DAMAGED.search(outcome.err)


def _toml(case: Case, home: Path) -> Path:
    toml = home.with_suffix(".toml")
    toml.write_text(case.text)
    return toml


@contextmanager
def _disk(at: Path, kilobytes: int) -> Iterator[Path]:
    """An empty tmpfs of this size at `at`."""
    at.mkdir(exist_ok=True)
    _mount(at, f"size={kilobytes}k")
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


def _mount(at: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)], check=True, capture_output=True)
