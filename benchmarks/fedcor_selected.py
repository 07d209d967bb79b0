"""FedCor's Figures 5, 8, 10 and 11: accuracies by interval and annealing, and the rounds of each client.

    SECUREFL_DATA=... python benchmarks/fedcor_selected.py [--write]

Plays the cells of two packaged sweeps. `--write` keeps two tables in benchmarks/results: a row a run, and in
how many rounds clients were selected, from the most selected client to the least (the mean over the seeds,
rank by rank). pictures.py draws the second.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from kept import keep
from studies import played

from securefl.protocols.fedcor import FedCor
from securefl.study.packaged import packaged
from securefl.study.world import build
from securefl.sweep.cells import parse_sweep
from securefl.training import single_thread

SWEEPS = ("fedcor_annealing", "fedcor_annealing_cifar10")


def main() -> None:
    single_thread()
    runs, ranks = [], []
    for cell in (cell for name in SWEEPS for cell in parse_sweep(packaged()[name]).cells):
        study, rounds = cell.study, []
        (arm,) = study.arms
        assert isinstance(arm.options, FedCor)
        assert study.study.target is not None
        own = {
            "setting": study.study.name,
            "interval": arm.options.interval,
            "annealing": arm.options.annealing,
        }
        for seed in study.study.seeds:
            here = build(study, seed)
            records = pd.DataFrame(played(study, arm, here)[0].records)
            tested = records.dropna(subset="accuracy")
            reached = tested.loc[tested["accuracy"] >= study.study.target, "round"]
            runs.append(
                {
                    **own,
                    "seed": seed,
                    "final_accuracy": tested["accuracy"].iloc[-1],
                    "best_accuracy": tested["accuracy"].max(),
                    "rounds_to_target": reached.min(),
                }
            )
            selected = np.concatenate([np.unique(cohort) for cohort in records["selected"]])
            rounds.append(np.sort(np.bincount(selected, minlength=here.problem.clients))[::-1])
            print(runs[-1], flush=True)
        ranks += [
            {**own, "rank": rank, "rounds": count} for rank, count in enumerate(np.mean(rounds, 0), start=1)
        ]
        keep("fedcor_annealing", pd.DataFrame(runs).round(4), command="fedcor_selected.py")
        keep("fedcor_selected", pd.DataFrame(ranks))


if __name__ == "__main__":
    main()
