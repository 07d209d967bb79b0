"""What encryption costs the demo: the same FedProf arm with scores in the clear and under CKKS.

    python benchmarks/encryption_overhead.py [--write]

Prints per client and round the extra milliseconds and bytes, whether both select the same clients, and the
largest difference of a score (in round 1, where both have the same model) beside the stated error bound.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

import numpy as np
from studies import changed, runs

from securefl import files


def main() -> None:
    arm = ("FedProf (partial)",)
    (clear,) = runs(changed("demo", scores='"clear"'), arm)
    (ckks,) = runs(changed("demo", scores='"ckks"'), arm)
    cohort = sum(clear.records[1]["selected"])
    pairs = list(zip(clear.records, ckks.records, strict=True))
    extra_ms = median(c["wall_seconds"] - p["wall_seconds"] for p, c in pairs[1:]) / cohort * 1e3
    extra_bytes = median(c["bytes_up"] - p["bytes_up"] for p, c in pairs[1:]) / cohort
    same = sum(p["selected"] == c["selected"] for p, c in pairs)
    first = [np.array(r[0]["figures"]["divergence"]) for r in (clear.records, ckks.records)]
    cohort_1 = np.array(clear.records[0]["selected"]) == 0  # those selected have a newer score already
    error = float(np.abs(first[0] - first[1])[cohort_1].max())
    figures = {
        "rounds": len(pairs),
        "rounds_with_the_same_cohort": same,
        "extra_ms_per_client_and_round": round(extra_ms, 2),
        "extra_bytes_up_per_client_and_round": int(extra_bytes),
        "wall_seconds_clear": round(sum(p["wall_seconds"] for p, _ in pairs), 2),
        "wall_seconds_ckks": round(sum(c["wall_seconds"] for _, c in pairs), 2),
        "largest_score_difference": error,
        "error_bound": ckks.records[0]["error_bound"],
    }
    for name, value in figures.items():
        print(f"{name:40} {value}")
    if "--write" in sys.argv:
        path = Path(__file__).parent / "results" / "encryption_overhead.json"
        command = "python benchmarks/encryption_overhead.py --write"
        files.write(path, json.dumps({"command": command, **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
