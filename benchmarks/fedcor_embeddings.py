"""FedCor's Figure 7: do clients of one label have embeddings of one direction after the warm-up?

    SECUREFL_DATA=... python benchmarks/fedcor_embeddings.py RUN [--write]

RUN is the folder of a run. The arm is played again up to the end of its warm-up; a run is the same each time.
Embeddings are scaled to length 1, as in the paper. Printed are the share of clients whose nearest neighbour
by cosine has their label, and the mean cosine of two clients of one label, and of two labels. `--write` keeps
them in benchmarks/results/fedcor_embeddings.csv. The report of a run draws the embeddings.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from cohort_labels import main_labels
from kept import keep
from numpy.typing import NDArray
from studies import played

from securefl.protocols.fedcor import FedCor
from securefl.study.config import read
from securefl.study.world import build


def directions(embedding: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each client's embedding scaled to length 1, (N, dimension), from the process's (dimension, N)."""
    rows = embedding.T
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def alike(rows: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, float]:
    """The share of nearest neighbours of one label, and mean cosines within and between labels."""
    cosines = rows @ rows.T
    same = labels[:, None] == labels[None]
    other = ~np.eye(len(rows), dtype=bool)
    nearest = np.where(other, cosines, -np.inf).argmax(1)
    return {
        "nearest_of_one_label": float(np.mean(labels[nearest] == labels)),
        "cosine_within": float(cosines[same & other].mean()),
        "cosine_between": float(cosines[~same].mean()),
        "chance": float(np.mean([(labels == label).sum() - 1 for label in labels]) / (len(labels) - 1)),
    }


def main() -> None:
    torch.set_num_threads(1)
    run = Path(sys.argv[1])
    study = read(run / "study.toml")
    (arm,) = (arm for arm in study.arms if isinstance(arm.options, FedCor))
    table = []
    for seed in study.study.seeds:
        world = build(study, seed)
        # The losses after the last round of the warm-up are asked for at the start of the next one.
        _, state = played(study, arm, world, rounds=arm.options.warm_up + 1)
        rows, labels = directions(state.memory["embedding"]), np.array(main_labels(world))
        table.append({"seed": seed, **alike(rows, labels)})
    found = pd.DataFrame(table).round(4)
    print(found.to_string(index=False))
    keep("fedcor_embeddings", found, command="fedcor_embeddings.py RUN")


if __name__ == "__main__":
    main()
