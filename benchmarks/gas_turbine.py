"""FedProf against FedAvg on GasTurbine: N 50, C 0.2, partial aggregation, 60 rounds, 3 seeds.

    SECUREFL_DATA=... python benchmarks/gas_turbine.py [--write]

Three settings: the preset (alpha 10, noise of standard deviation 0.1), a larger penalty (alpha 25), and
stronger noise (variance 0.1). `--write` keeps the figures in benchmarks/results/gas_turbine.json.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from kept import keep
from studies import changed, runs

from securefl.study.arm import ArmRun

SETTINGS = {
    "preset: alpha 10, noise sd 0.1": {},
    "alpha 25, noise sd 0.1": {"alpha": "25.0"},
    "alpha 10, noise variance 0.1": {"noise_deviation": "0.31623"},
}
TARGET = 0.8


def figures(run: ArmRun) -> dict[str, Any]:
    """One arm and seed: round of the target, final accuracy, participation of clean and low quality."""
    accuracy = np.array([record["accuracy"] for record in run.records])
    took_part = [k for record in run.records for k in record["answered"]]
    counts = np.bincount(took_part, minlength=len(run.world.quality))
    clean = np.array([quality == "clean" for quality in run.world.quality])
    reached = np.flatnonzero(accuracy >= TARGET)
    return {
        "arm": run.arm.protocol,
        "seed": run.world.seed,
        "rounds_to_0.8": int(reached[0]) + 1 if len(reached) else None,
        "final": round(float(accuracy[-1]), 4),
        "last_five": round(float(accuracy[-5:].mean()), 4),
        "clean": round(float(counts[clean].mean()), 2),
        "low_quality": round(float(counts[~clean].mean()), 2),
    }


def main() -> None:
    rows = []
    for name, lines in SETTINGS.items():
        study = changed("gas_turbine", scores='"clear"', **lines)
        rows += [{"setting": name, **figures(run)} for run in runs(study)]
    found = pd.DataFrame(rows)
    print(found[["setting", "arm", "seed", "rounds_to_0.8"]].to_string(index=False))
    means = found.drop(columns=["seed", "rounds_to_0.8"]).groupby(["setting", "arm"], sort=False).mean()
    print(means.round(4).to_string())
    keep("gas_turbine", {"rows": rows})


if __name__ == "__main__":
    main()
