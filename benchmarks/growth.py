"""What a round costs the engine as clients and rounds grow: CPU, memory, and bytes written.

    python benchmarks/growth.py none|local|masked [--write]

The clients' work is next to nothing (a constant update of 610 values), so all that is left is the engine's:
selection, orders, messages, ledger, journal, records. Each cell is a process of its own, and plays its rounds
as a study does: 1,000, or as many as the table says where cohorts are large. Sums are in the clear, or hidden
by masks: then every client's keys, shares and signatures are in the figures, since one process plays all.

    ms_early, ms_late    CPU of a client-round, the median of the last rounds up to each
    mib, mib_late        largest memory beyond the imports: up to the early round, and up to the late one
    bytes_per_round      bytes written to files in a late round, write-ahead logs included
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
from growth_study import LATE, SIZE, made
from kept import keep

from securefl.study.run import run_arm

EARLY = 10
MOST = {"none": (20_000, 100_000), "local": (20_000, 100_000), "masked": (3_000, 30_000)}
"""Client-rounds up to the early round, and up to the late one."""
CLIENTS, SHARES = (100, 1_000, 10_000, 100_000), (0.01, 0.1)
MASKED = ((1_000, 100), (10_000, 100), (100_000, 100), (100_000, 300), (100_000, 1_000), (100_000, 3_000))
"""The cells under masks: clients and cohort."""


def now() -> tuple[float, int, float]:
    """CPU, bytes written and largest memory so far."""
    said = Path("/proc/self/io").read_text().split()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return process_time(), int(said[said.index("wchar:") + 1]), peak


def cell(clients: int, cohort: int, kind: str) -> dict[str, Any]:
    """One row of the table. kind: a key of `KINDS`."""
    marks = [now()]
    study, arm, here = made(clients, cohort / clients, kind)
    soon, late = (min(n, max(2, most // cohort)) for n, most in zip((EARLY, LATE), MOST[kind], strict=True))
    with tempfile.TemporaryDirectory() as place:
        run_arm(study, arm, here, Path(place), lambda record: marks.append(now()), rounds=late)
    spent, mib = np.diff(marks, axis=0), np.array(marks)[:, 2] - marks[0][2]
    (first, _), (last, written) = (
        np.median(spent[end - count : end, :2], axis=0)
        for end, count in ((soon, (soon + 1) // 2), (late, min(late // 2, 4)))
    )
    return {
        "clients": clients,
        "cohort": cohort,
        "kind": kind,
        "early_round": soon,
        "late_round": late,
        "ms_early": round(1e3 * first / cohort, 4),
        "ms_late": round(1e3 * last / cohort, 4),
        "ratio": round(last / first, 3),
        "mib": round(mib[soon]),
        "mib_late": round(mib[late]),
        "bytes_per_round": int(written),
    }


def measured(*words: object) -> dict[str, Any]:
    """A cell in a process of its own."""
    done = subprocess.run([sys.executable, __file__, *map(str, words)], check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout))


def main(kind: str) -> None:
    cells = MASKED if kind == "masked" else [(n, round(share * n)) for n in CLIENTS for share in SHARES]
    found = [measured(kind, *own) for own in cells]
    print(pd.DataFrame(found).to_string(index=False))
    about = {"python": platform.python_version(), "update": SIZE}
    keep(f"growth_{kind}", {**about, "cells": found}, command=f"growth.py {kind}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [kind, clients, cohort]:
            print(json.dumps(cell(int(clients), int(cohort), kind)))
        case [kind, *_]:
            main(kind)
