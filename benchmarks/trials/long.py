"""A study of many rounds: memory and time in its first and its last hundred."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from securefl.study.config import parse
from securefl.study.session import run_study
from trials.cases import Case

_HUNDRED = 100


@dataclass(frozen=True)
class Figures:
    """Megabytes are the peak of this process so far; milliseconds are a round's, its checkpoint included."""

    rounds: int
    megabytes_before: float
    megabytes_after_first: float
    megabytes_peak: float
    milliseconds_first: float
    milliseconds_last: float
    seconds_in_all: float
    megabytes_on_disk: float


def figures(case: Case, rounds: int) -> Figures:
    """Run a case for so many rounds, in this process."""
    at_start = _peak()
    ends, peaks = [time.perf_counter()], [at_start]

    def tell(arm: Any, seed: int, record: Mapping[str, Any]) -> None:
        ends.append(time.perf_counter())
        peaks.append(_peak())

    with tempfile.TemporaryDirectory() as name:
        run_study(parse(case.of(rounds)), Path(name), tell)
        seconds = time.perf_counter() - ends[0]
        stored = sum(path.stat().st_size for path in Path(name).rglob("*") if path.is_file())
    took = [1000 * (after - before) for before, after in pairwise(ends[1:])]  # the first pays for set-up
    return Figures(
        rounds=rounds,
        megabytes_before=at_start,
        megabytes_after_first=peaks[min(_HUNDRED, rounds)],
        megabytes_peak=_peak(),
        milliseconds_first=mean(took[:_HUNDRED]),
        milliseconds_last=mean(took[-_HUNDRED:]),
        seconds_in_all=seconds,
        megabytes_on_disk=stored / 1e6,
    )


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
