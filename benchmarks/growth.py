"""What a round costs the engine as clients and rounds grow: CPU, memory, and bytes written.

    python benchmarks/growth.py none|local|masked [--write]

The clients' work is next to nothing (a constant update of 610 values), so all that is left is the engine's:
selection, orders, messages, ledger, journal, records. Each cell is a process of its own. It plays ten rounds
as a study does. Then it writes the rounds up to the 1,000th as they would have been (ledger, records), and
resumes for the last ones. Large cohorts have fewer rounds, early and late: as many as the table says. Sums
are in the clear, or hidden by masks: then every client's keys, shares and signatures are in
the figures, since one process plays all of them.

With `--write` each cell is written when it is measured. The same command goes on with the cells that are
missing: remove the file to measure anew.

    ms early, ms late    CPU of a client-round, the median of the last rounds up to each
    MiB, MiB late        largest memory beyond the imports: of the early rounds, and with the resumed ones
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
from statistics import median
from time import process_time
from typing import Any

from growth_study import LATE, SIZE, fill, made

from securefl.study.arm import arm_folder
from securefl.study.run import run_arm

EARLY = 10
MOST_PLAYED = {"none": 20_000, "local": 20_000, "masked": 3_000}
MOST_ROWS = {"none": 100_000, "local": 100_000, "masked": 30_000}
"""The most client-rounds that are played early, and written between. A masked one has five records."""
CLIENTS, SHARES = (100, 1_000, 10_000, 100_000), (0.01, 0.1)
MASKED = ((1_000, 100), (10_000, 100), (100_000, 100), (100_000, 300), (100_000, 1_000), (100_000, 3_000))
"""The cells under masks: clients and cohort."""


class Meter:
    """CPU and bytes written between the rounds that it is told of."""

    def __init__(self) -> None:
        self.cpu: dict[int, float] = {}
        self.written: dict[int, int] = {}
        self._at = self._now()

    def _now(self) -> tuple[float, int]:
        said = Path("/proc/self/io").read_text().split()
        return process_time(), int(said[said.index("wchar:") + 1])

    def tell(self, record: Mapping[str, Any]) -> None:
        now = self._now()
        self.cpu[record["round"]] = now[0] - self._at[0]
        self.written[record["round"]] = now[1] - self._at[1]
        self._at = now


def peak() -> float:
    """Largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cell(clients: int, cohort: int, kind: str) -> dict[str, Any]:
    """One row of the table. kind: a key of `KINDS`."""
    before = peak()
    study, arm, here = made(clients, cohort / clients, kind)
    limits = ((EARLY, max(2 * cohort, MOST_PLAYED[kind])), (LATE, MOST_ROWS[kind]))
    soon, late = (min(n, most // cohort) for n, most in limits)
    newest = 4 if cohort < (1_000 if kind == "masked" else 10_000) else 2
    with tempfile.TemporaryDirectory() as place:
        folder, early = Path(place), Meter()
        played = run_arm(study, arm, here, folder, early.tell, rounds=soon)
        first = peak()
        fill(study, arm, here, arm_folder(folder, arm, here.seed), played.records[-1], late - newest)
        again = Meter()
        run_arm(study, arm, here, folder, again.tell, rounds=late)
        # The first of them still has a part of the resume in it: the parties are made anew.
        rounds = range(late - newest + 2, late + 1)
        first_ms = median(early.cpu[n] for n in range(soon // 2 + 1, soon + 1)) / cohort
        late_ms = median(again.cpu[n] for n in rounds) / cohort
        return {
            "clients": clients,
            "cohort": cohort,
            "kind": kind,
            "early_round": soon,
            "late_round": late,
            "ms_early": round(1e3 * first_ms, 4),
            "ms_late": round(1e3 * late_ms, 4),
            "ratio": round(late_ms / first_ms, 3),
            "mib": round(first - before),
            "mib_late": round(peak() - before),
            "bytes_per_round": int(median(again.written[n] for n in rounds)),
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
