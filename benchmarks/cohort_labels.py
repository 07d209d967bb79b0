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
        labels = np.array(main_labels(build(study, seed)))
        for arm in study.arms:
            with Checkpoint(checkpoint_file(arm_folder(folder, arm, seed))) as checkpoint:
                records = pd.DataFrame(checkpoint.load()[1])
            different = records["selected"][WARM_UP:].map(lambda cohort, of=labels: len({*of[cohort]}))
            reached = records["accuracy"] >= (study.study.target or np.inf)
            found.append(
                {
                    "arm": arm.name,
                    "labels_a_round": different.mean(),
                    "rounds_to_target": int(reached.argmax()) + 1 if reached.any() else len(records),
                    "last_accuracy": records["accuracy"][-LAST:].mean(),
                }
            )
    return pd.DataFrame(found)


if __name__ == "__main__":
    run = Path(sys.argv[1])
    table = rows(read(run / "study.toml"), run)
    print(table.groupby("arm", sort=False).mean().round(3).to_string())
