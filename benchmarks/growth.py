"""What a round costs the engine as clients and rounds grow: CPU, memory, and bytes written.

    python benchmarks/growth.py [--clients 100 1000 ...] [--noise local|none] [--write]

The clients' work is next to nothing (a constant update of 610 values), so all that is left is the engine's:
selection, orders, messages, ledger, journal, records. Each cell is a process of its own. It plays ten rounds
as a study does. Then it writes the rounds up to the 1,000th as they would have been (ledger, records), and
resumes for the last ones. Large cohorts have fewer rounds, early and late: as many as the table says. Sums
are in the clear: the rows that a journal has for a hidden sum, one for each round, are not in the table.

    ms early, ms late    CPU of a client-round, the median of the last rounds up to each
    MiB, MiB late        largest memory beyond the imports: of the early rounds, and with the resumed ones
    bytes a round        bytes written to files in a late round, write-ahead logs included
    resume s             CPU of opening and checking the files of all those rounds
"""

from __future__ import annotations

import argparse
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

from growth_study import LATE, NOISES, SIZE, fill, made

from securefl.study.arm import arm_folder
from securefl.study.run import run_arm

EARLY = 10
MOST_PLAYED, MOST_ROWS = 20_000, 100_000
"""The most client-rounds that are played early, and that are written between."""
CLIENTS, SHARES = (100, 1_000, 10_000, 100_000), (0.01, 0.1)


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


def cell(clients: int, share: float, noise: str) -> dict[str, Any]:
    """One row of the table."""
    before = peak()
    study, arm, here = made(clients, share, noise)
    cohort = round(share * clients)
    soon, late = (min(n, most // cohort) for n, most in ((EARLY, MOST_PLAYED), (LATE, MOST_ROWS)))
    newest = 4 if cohort < 10_000 else 2
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
            "noise": noise,
            "early_round": soon,
            "late_round": late,
            "ms_early": round(1e3 * first_ms, 4),
            "ms_late": round(1e3 * late_ms, 4),
            "ratio": round(late_ms / first_ms, 3),
            "mib": round(first - before),
            "mib_late": round(peak() - before),
            "bytes_per_round": int(median(again.written[n] for n in rounds)),
            # The first record is told when all are loaded.
            "resume_seconds": round(
                again.cpu[1] + max(0.0, again.cpu[late - newest + 1] - late_ms * cohort), 2
            ),
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
    ("resume_seconds", "resume s", ".1f"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--noise", choices=NOISES, default="local")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/growth_NOISE.json")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(cell(int(options.cell[0]), float(options.cell[1]), options.noise)))
        return
    print("  ".join(f"{title:>13}" for _, title, _ in COLUMNS))
    rows = []
    for clients in options.clients:
        for share in SHARES:
            command = [sys.executable, __file__, "--noise", options.noise, "--cell", str(clients), str(share)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.append(json.loads(done.stdout))
            print("  ".join(f"{rows[-1][name]:>13{form}}" for name, _, form in COLUMNS), flush=True)
    if options.write:
        said = f"python benchmarks/growth.py --noise {options.noise} --write"
        found = {"command": said, "python": platform.python_version(), "update": SIZE, "cells": rows}
        place = Path(__file__).parent / "results" / f"growth_{options.noise}.json"
        place.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
