"""FedCor's Figure 7: do clients of one label have embeddings of one direction after the warm-up?

    SECUREFL_DATA=... python benchmarks/embeddings.py RUN [--write]

RUN is the folder of a run. The arm is played again up to the end of its warm-up; a run is the same each time.
Embeddings are scaled to length 1, as in the paper. The picture is a t-SNE of them, coloured by each client's
main label. The table has two figures that no projection bends: the share of clients whose nearest neighbour
by cosine has their label, and the mean cosine of two clients of one label, and of two labels.

Writes RUN/plots/embeddings.png. `--write` writes docs/fedcor_embeddings.png too, and the table with its
command to benchmarks/results/fedcor_embeddings.csv.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from cohort_labels import main_labels
from numpy.typing import NDArray
from sklearn.manifold import TSNE

from securefl.algorithm.clients import State
from securefl.protocols.fedcor import FedCor
from securefl.report.style import ARM_COLOURS, MARKERS, blank, light_frame
from securefl.report.tables import write_csv, write_png
from securefl.storage import files
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Arm, Study, read
from securefl.study.run import run_arm
from securefl.study.seeded import World
from securefl.study.world import build

ROOT = Path(__file__).parents[1]


def state_before(study: Study, arm: Arm, world: World, number: int) -> State:
    """The state before this round, from the arm played again."""
    with tempfile.TemporaryDirectory() as folder:
        run_arm(study, arm, world, Path(folder), lambda record: None, rounds=number - 1)
        with Checkpoint(checkpoint_file(arm_folder(Path(folder), arm, world.seed))) as checkpoint:
            state, _ = checkpoint.load()
    assert state is not None
    return state


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


def drawn(rows: NDArray[np.float64], labels: NDArray[np.int64], name: str) -> Any:
    # Few neighbours, since ten clients have a label. The layout is drawn from a fixed seed.
    placed = TSNE(perplexity=8.0, init="pca", random_state=0).fit_transform(rows.astype(np.float32))
    figure = blank(height=4.2)
    axes = figure.subplots()
    light_frame(axes)
    for label in np.unique(labels):
        own = labels == label
        axes.scatter(
            *placed[own].T,
            color=ARM_COLOURS[label % len(ARM_COLOURS)],
            marker=MARKERS[label % len(MARKERS)],
            s=36,
            label=str(label),
        )
    axes.set_title(f"{name}: embeddings after the warm-up, by the client's label", fontsize=10)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(frameon=False, title="label", ncols=2, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def main() -> None:
    torch.set_num_threads(1)
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("run", type=Path)
    words.add_argument("--write", action="store_true")
    asked = words.parse_args()
    study = read(asked.run / "study.toml")
    (arm,) = (arm for arm in study.arms if isinstance(arm.options, FedCor))
    table = []
    for seed in study.study.seeds:
        world = build(study, seed)
        # The losses after the last round of the warm-up are asked for at the start of the next one.
        state = state_before(study, arm, world, arm.options.warm_up + 2)
        rows, labels = directions(state.memory["embedding"]), np.array(main_labels(world))
        table.append({"seed": seed, **alike(rows, labels)})
        if not table[1:]:
            figure = drawn(rows, labels, study.study.name)
            write_png(files.subfolder(asked.run / "plots") / "embeddings.png", figure)
            if asked.write:
                write_png(ROOT / "docs" / "fedcor_embeddings.png", figure)
    found = pd.DataFrame(table)
    print(found.round(3).to_string(index=False))
    if asked.write:
        run = f"{asked.run.parent.name}/{asked.run.name}"
        commands = [f"SECUREFL_DATA=... python benchmarks/embeddings.py {run} --write"]
        write_csv(ROOT / "benchmarks" / "results" / "fedcor_embeddings.csv", found.round(4), commands)


if __name__ == "__main__":
    main()
