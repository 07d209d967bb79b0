"""What a selection by label correlation must show: labels a round, rounds to the target, the last rounds.

    securefl run fedcor_fmnist_1spc --out RUN
    python benchmarks/cohort_labels.py RUN

For each arm and seed of a run: how many different main labels its cohorts have, on average after FedCor's
warm-up; the first round at the study's target accuracy, where an arm that never gets there counts all its
rounds; the mean accuracy of the last 20 rounds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Study, read
from securefl.study.seeded import World
from securefl.study.world import build

WARM_UP, LAST = 15, 20


def main_labels(world: World) -> list[int]:
    """The label that each client has most of."""
    return [int(np.bincount(y, minlength=world.problem.outputs).argmax()) for _, y in world.records]


def rows(study: Study, folder: Path) -> pd.DataFrame:
    found = []
    for seed in study.study.seeds:
        labels = main_labels(build(study, seed))
        for arm in study.arms:
            with Checkpoint(checkpoint_file(arm_folder(folder, arm, seed))) as checkpoint:
                _, records = checkpoint.load()
            accuracy = np.array([r["accuracy"] for r in records], dtype=float)
            reached = np.flatnonzero(accuracy >= (study.study.target or np.inf))
            different = [len({labels[k] for k in r["selected"]}) for r in records[WARM_UP:]]
            found.append(
                {
                    "arm": arm.name,
                    "seed": seed,
                    "labels_a_round": float(np.mean(different)) if different else np.nan,
                    "rounds_to_target": int(reached[0]) + 1 if len(reached) else len(records),
                    "last_accuracy": float(np.nanmean(accuracy[-LAST:])),
                }
            )
    return pd.DataFrame(found)


def main() -> None:
    run = Path(sys.argv[1])
    table = rows(read(run / "study.toml"), run).drop(columns="seed")
    print(table.groupby("arm", sort=False).mean().round(3).to_string())


if __name__ == "__main__":
    main()
