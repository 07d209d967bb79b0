"""What a round costs the engine as clients and rounds grow: CPU, memory, and bytes written.

    python benchmarks/growth.py none|local|masked [--write]

The clients' work is next to nothing (a constant update of 610 values), so all that is left is the engine's:
selection, orders, messages, ledger, journal, records. Each cell is a process of its own, and plays its rounds
as a study does: 1,000, or as many as the table says where cohorts are large. Sums are in the clear, or hidden
by masks: then every client's keys, shares and signatures are in the figures, since one process plays all.

With `--write` each cell is written when it is measured. The same command goes on with the cells that are
missing: remove the file to measure anew.

    ms early, ms late    CPU of a client-round, the median of the last rounds up to each
    MiB, MiB late        largest memory beyond the imports: up to the early round, and up to the late one
    bytes a round        bytes written to files in a late round, write-ahead logs included
"""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from growth_study import LATE, SIZE, made

from securefl.study.run import run_arm

EARLY = 10
MOST = {"none": (20_000, 100_000), "local": (20_000, 100_000), "masked": (3_000, 30_000)}
"""Client-rounds up to the early round, and up to the late one."""
CLIENTS, SHARES = (100, 1_000, 10_000, 100_000), (0.01, 0.1)
MASKED = ((1_000, 100), (10_000, 100), (100_000, 100), (100_000, 300), (100_000, 1_000), (100_000, 3_000))
"""The cells under masks: clients and cohort."""


class Meter:
    """CPU, bytes written and largest memory up to each round that it is told of."""

    def __init__(self) -> None:
        self.rounds = [self._now()]

    def _now(self) -> tuple[float, int, float]:
        said = Path("/proc/self/io").read_text().split()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return process_time(), int(said[said.index("wchar:") + 1]), peak

    def tell(self, record: Mapping[str, Any]) -> None:
        self.rounds.append(self._now())

    def spent(self, last: int, count: int) -> list[float]:
        """Medians of CPU and bytes of the `count` rounds up to `last`."""
        those = np.diff(np.array(self.rounds)[last - count : last + 1], axis=0)
        return list(np.median(those, axis=0)[:2])


def cell(clients: int, cohort: int, kind: str) -> dict[str, Any]:
    """One row of the table. kind: a key of `KINDS`."""
    meter = Meter()
    study, arm, here = made(clients, cohort / clients, kind)
    soon, late = (min(n, max(2, most // cohort)) for n, most in zip((EARLY, LATE), MOST[kind], strict=True))
    with tempfile.TemporaryDirectory() as place:
        run_arm(study, arm, here, Path(place), meter.tell, rounds=late)
    (first, _), (last, written) = meter.spent(soon, (soon + 1) // 2), meter.spent(late, min(late // 2, 4))
    return {
        "clients": clients,
        "cohort": cohort,
        "kind": kind,
        "early_round": soon,
        "late_round": late,
        "ms_early": round(1e3 * first / cohort, 4),
        "ms_late": round(1e3 * last / cohort, 4),
        "ratio": round(last / first, 3),
        "mib": round(meter.rounds[soon][2] - meter.rounds[0][2]),
        "mib_late": round(meter.rounds[late][2] - meter.rounds[0][2]),
        "bytes_per_round": int(written),
    }


COLUMNS = (
    ("clients", "clients", ",d"),
    ("cohort", "cohort", ",d"),
    ("early_round", "early round", ",d"),
    ("late_round", "late round", ",d"),
    ("ms_early", "ms early", ".3f"),
    ("ms_late", "ms late", ".3f"),
    ("ratio", "ratio", ".2f"),
    ("mib", "MiB", ",d"),
    ("mib_late", "MiB late", ",d"),
    ("bytes_per_round", "bytes a round", ",d"),
)


def measured(clients: int, cohort: int, kind: str) -> dict[str, Any]:
    """A cell in a process of its own."""
    command = [sys.executable, __file__, kind, str(clients), str(cohort)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def main() -> None:
    kind, *more = sys.argv[1:]
    if more and more[0].isdigit():
        print(json.dumps(cell(int(more[0]), int(more[1]), kind)))
        return
    cells = MASKED if kind == "masked" else [(n, round(share * n)) for n in CLIENTS for share in SHARES]
    place = Path(__file__).parent / "results" / f"growth_{kind}.json"
    found: dict[str, Any] = {
        "command": f"python benchmarks/growth.py {kind} --write",
        "python": platform.python_version(),
        "update": SIZE,
        "cells": json.loads(place.read_text())["cells"] if more and place.exists() else [],
    }
    print("  ".join(f"{title:>13}" for _, title, _ in COLUMNS))
    for clients, cohort in cells:
        rows = [row for row in found["cells"] if (row["clients"], row["cohort"]) == (clients, cohort)]
        if not rows:
            rows = [measured(clients, cohort, kind)]
            found["cells"] += rows
            if more:
                place.write_text(json.dumps(found, indent=1) + "\n")
        print("  ".join(f"{rows[0][name]:>13{form}}" for name, _, form in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
