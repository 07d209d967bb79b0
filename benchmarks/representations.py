"""FedProf's preliminary figures from real runs (v2, Figs. 1 and 2), on MNIST.

    SECUREFL_DATA=... python benchmarks/representations.py [--write]

The accuracy of FedAvg in four conditions of data (the packaged sweep `fedprof_conditions`), and how normal
the outputs of LeNet-5's first dense layer are before training and after some rounds of the first of these
runs. `--write` keeps tables in benchmarks/results/ and figures in docs/.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from kept import ASKED, DOCS, RESULTS, keep
from studies import played

from securefl.core.streams import stream
from securefl.report import plots
from securefl.report.normality import normality, representations
from securefl.report.tables import write_csv, write_png
from securefl.study.config import Study
from securefl.study.packaged import packaged
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.sweep.cells import parse_sweep
from securefl.training import outputs, single_thread

ROUNDS = (0, 1, 6, 12)
ELEMENTS = 5


def traced(study: Study, here: World) -> dict[str, np.ndarray]:
    """The layer's outputs on the server's records after each of ROUNDS."""
    found = {}
    for number in ROUNDS:
        broadcast = here.problem.initial
        if number:
            broadcast = played(study, study.arms[0], here, rounds=number)[1].broadcast
        name = f"after round {number}" if number else "before training"
        found[name] = outputs(here.problem.module(broadcast), here.problem.layer, here.problem.server_x)
    return found


def main() -> None:
    single_thread()
    records: list[dict[str, Any]] = []
    shapes, first = [], {}
    for cell in parse_sweep(packaged()["fedprof_conditions"]).cells:
        name, here = cell.study.study.name, build(cell.study, cell.study.study.seeds[0])
        first = first or traced(cell.study, here)
        run, _ = played(cell.study, cell.study.arms[0], here)
        records += [
            {"arm": name, "seed": here.seed, "round": own["round"], "accuracy": round(own["accuracy"], 5)}
            for own in run.records
        ]
    conditions = pd.DataFrame(records)
    for name, found in first.items():
        own = normality(found)
        shapes.append({"model": name, "elements": len(own), **_summary(own)})
    table = pd.DataFrame(shapes)
    last = conditions.groupby("arm", sort=False)["accuracy"]
    print(last.agg(["last", "max"]).to_string())
    print(table.to_string(index=False))
    keep("representations", table)
    if ASKED:
        write_csv(RESULTS / "conditions.csv", conditions, ["python benchmarks/representations.py --write"])
        write_png(DOCS / "conditions.png", plots.accuracy(conditions))
        drawn = stream(1, "elements").choice(normality(first["before training"])["element"], ELEMENTS, False)
        write_png(DOCS / "representations.png", representations(first, sorted(drawn.tolist())))


def _summary(own: pd.DataFrame) -> dict[str, float]:
    """Medians over the elements, and the largest distance."""
    return {
        "median_skewness": round(float(own["skewness"].abs().median()), 3),
        "median_excess_kurtosis": round(float(own["excess_kurtosis"].median()), 3),
        "median_distance": round(float(own["distance"].median()), 4),
        "largest_distance": round(float(own["distance"].max()), 4),
    }


if __name__ == "__main__":
    main()
