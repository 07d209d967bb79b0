"""FedProf's preliminary figures from real runs (v2, Figs. 1 and 2), on MNIST.

    SECUREFL_DATA=... python benchmarks/representations.py [--write]

The accuracy of FedAvg in four conditions of data (the packaged sweep `fedprof_conditions`), and how normal
the outputs of LeNet-5's first dense layer are before training and after some rounds of the first of these
runs. `--write` keeps tables in benchmarks/results/ and figures in docs/.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from securefl.core.streams import stream
from securefl.report import plots
from securefl.report.normality import normality, representations
from securefl.report.tables import write_csv, write_png
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Study
from securefl.study.packaged import packaged
from securefl.study.run import run_arm
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.sweep.cells import parse_sweep
from securefl.training import outputs, single_thread

ROOT = Path(__file__).parents[1]
ROUNDS = (0, 1, 6, 12)
ELEMENTS = 5
COMMAND = "python benchmarks/representations.py --write"


def model_after(study: Study, here: World, folder: Path) -> Any:
    """The global model after the rounds that the run in the folder has finished."""
    path = checkpoint_file(arm_folder(folder, study.arms[0], here.seed))
    if not path.is_file():
        return here.problem.module(here.problem.initial)
    with Checkpoint(path) as checkpoint:
        state, _ = checkpoint.load()
    assert state is not None
    return here.problem.module(state.broadcast)


def traced(study: Study, here: World, folder: Path) -> dict[str, np.ndarray]:
    """The layer's outputs on the server's records after each of ROUNDS; the run then goes on to its end."""
    found = {}
    for number in ROUNDS:
        if number:
            run_arm(study, study.arms[0], here, folder, lambda record: None, rounds=number)
        model = model_after(study, here, folder)
        name = f"after round {number}" if number else "before training"
        found[name] = outputs(model, here.problem.layer, here.problem.server_x)
    return found


def main() -> None:
    single_thread()
    records: list[dict[str, Any]] = []
    shapes, first = [], {}
    with tempfile.TemporaryDirectory() as place:
        for cell in parse_sweep(packaged()["fedprof_conditions"]).cells:
            folder, name = Path(place) / cell.folder, cell.study.study.name
            folder.mkdir()
            here = build(cell.study, cell.study.study.seeds[0])
            if not first:
                first = traced(cell.study, here, folder)
            run = run_arm(cell.study, cell.study.arms[0], here, folder, lambda record: None)
            records += [{"arm": name, "seed": here.seed, **_kept(record)} for record in run.records]
    conditions = pd.DataFrame(records)
    for name, found in first.items():
        own = normality(found)
        shapes.append({"model": name, "elements": len(own), **_summary(own)})
    table = pd.DataFrame(shapes)
    last = conditions.groupby("arm", sort=False)["accuracy"]
    print(last.agg(["last", "max"]).to_string())
    print(table.to_string(index=False))
    if "--write" in sys.argv:
        results, docs = ROOT / "benchmarks" / "results", ROOT / "docs"
        write_csv(results / "conditions.csv", conditions, [COMMAND])
        write_csv(results / "representations.csv", table, [COMMAND])
        write_png(docs / "conditions.png", plots.accuracy(conditions))
        drawn = stream(1, "elements").choice(normality(first["before training"])["element"], ELEMENTS, False)
        write_png(docs / "representations.png", representations(first, sorted(drawn.tolist())))


def _kept(record: dict[str, Any]) -> dict[str, Any]:
    return {"round": record["round"], "accuracy": round(record["accuracy"], 5)}


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
