"""What concealed scores cost the demo: its FedProf arm with scores in the clear, and by each way of scoring.

    python benchmarks/encryption_overhead.py [--write]

Prints per client and round the extra milliseconds and bytes, whether both select the same clients, and the
largest difference of a score (in round 1, where both have the same model) beside the stated error bound.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from kept import keep
from studies import changed, runs

from securefl.study.arm import ArmRun

WORDS = ("ckks", "pads")


def compared(clear: ArmRun, concealed: ArmRun) -> dict[str, Any]:
    """The figures of one way of scoring."""
    cohort = len(clear.records[1]["selected"])
    pairs = list(zip(clear.records, concealed.records, strict=True))
    extra_ms = median(c["wall_seconds"] - p["wall_seconds"] for p, c in pairs[1:]) / cohort * 1e3
    extra_bytes = median(c["bytes_up"] - p["bytes_up"] for p, c in pairs[1:]) / cohort
    # of the first round, in which everybody has one; those selected have a newer score already
    first = [np.array(r[0]["figures"]["divergence"][1]) for r in (clear.records, concealed.records)]
    cohort_1 = ~np.isin(clear.records[0]["figures"]["divergence"][0], clear.records[0]["selected"])
    return {
        "rounds_with_the_same_cohort": sum(p["selected"] == c["selected"] for p, c in pairs),
        "extra_ms_per_client_and_round": round(extra_ms, 2),
        "extra_bytes_up_per_client_and_round": int(extra_bytes),
        "wall_seconds": round(sum(c["wall_seconds"] for _, c in pairs), 2),
        "largest_score_difference": float(np.abs(first[0] - first[1])[cohort_1].max()),
        "error_bound": concealed.records[0]["error_bound"],
    }


def main() -> None:
    arm = ("FedProf (partial)",)
    (clear,) = runs(changed("demo", scores='"clear"'), arm)
    figures: dict[str, Any] = {
        "rounds": len(clear.records),
        "wall_seconds_clear": round(sum(record["wall_seconds"] for record in clear.records), 2),
    }
    for word in WORDS:
        (concealed,) = runs(changed("demo", scores=f'"{word}"'), arm)
        figures[word] = compared(clear, concealed)
    print(pd.DataFrame({word: figures[word] for word in WORDS}).to_string())
    keep("encryption_overhead", figures)


if __name__ == "__main__":
    main()
