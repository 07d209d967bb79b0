"""Simulated federated averaging by securefl, a plain loop, pfl-research and Flower: one interleaved run.

    SECUREFL_DATA=... make bench-peers
    PFL_PYTHON=... FLOWER_PYTHON=... python benchmarks/peers.py [--write]

Each contestant (`benchmarks/contestants`) is a process with an interpreter of its own, on one thread. All of
them read the same records, partition and first model from one file. They play round after round in turn, in
an order that rotates. Nobody evaluates in a timed round. Printed are medians over the rounds: milliseconds of
CPU that a client takes in a round, over all processes of a contestant, and their ratio to the plain loop's in
the same round.

securefl trains in one process, as the others do, and with LeNet-5 in a process a core too, which is its
default: wall time falls, and two processes take more CPU time where their cores share a cache.

Two things show that the work is the same. First all clients take part in one round with a whole client as the
batch, so that no order can matter: the models must agree within TOLERANCE. And after the timed rounds the
models' test losses stand beside the times.

`--write` keeps the figures in benchmarks/results/peers.csv.
A contestant whose packages its interpreter lacks is left out, and named.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from contestants.ours import work_of
from contestants.players import PLAIN, SHARED, Player, Times, facts, joined, rotated
from contestants.turns import Cell
from kept import keep
from numpy.typing import NDArray

from securefl.training.task import Problem

TOLERANCE = 1e-5
"""Largest difference of an entry after one round: securefl rounds to a grid, and all sum in another order."""
WARM_UP = 1
"""Rounds that are not timed: packages load, caches fill, and pfl-research evaluates in its first one."""

MLP = Cell(
    name="MLP 784-64-32-10, 100 clients",
    kind="mlp",
    hidden=(64, 32),
    source="fashion_mnist",
    clients=100,
    records=60,
    cohort=10,
    epochs=1,
    batch=32,
    rate=0.1,
    rounds=25,
)
LENET = replace(MLP, name="LeNet-5, 1 epoch", kind="lenet5", hidden=None, records=600, rounds=22)
CELLS = (
    MLP,
    replace(MLP, name="MLP 784-64-32-10, 1,000 clients", clients=1000, cohort=100, rounds=10),
    replace(MLP, name="MLP 784-200-10, 100 clients", hidden=(200,)),
    LENET,
    replace(LENET, name="LeNet-5, 5 epochs", epochs=5, rounds=8),
)


def whole(cell: Cell) -> Cell:
    """The cell in which all models must agree: one round of all clients, one batch a client, two epochs."""
    return replace(
        cell, name=f"{cell.kind} agrees", clients=10, cohort=10, records=60, batch=60, epochs=2, rounds=1
    )


def row(cell: Cell, name: str, times: Mapping[str, Sequence[Times]], loss: float) -> dict[str, Any]:
    """One contestant in one cell, by medians over its timed rounds.

    cpu_ms, wall_ms: of a client in a round. over_plain: ratio of CPU times in the same round.

    Args:
        cell: the work. name: of the contestant.
        times: of every contestant, in the order in which they were played.
        loss: of the last model, on the test set.
    """
    own = times[name]
    ratios = [one.cpu / plain.cpu for one, plain in zip(own, times[PLAIN], strict=True)]
    return {
        "cell": cell.name,
        "contestant": name,
        "cpu_ms": _short(1e3 * median(one.cpu for one in own) / cell.cohort),
        "wall_ms": _short(1e3 * median(one.wall for one in own) / cell.cohort),
        "over_plain": _short(median(ratios)),
        "rounds": len(own),
        "loss": _short(loss),
    }


def _short(value: float) -> float:
    """Four digits: more would only be noise, and the table must follow from what is kept."""
    return float(f"{value:.4g}")


def played(
    players: Sequence[Player], cell: Cell, folder: Path
) -> tuple[dict[str, list[Times]], dict[str, NDArray[np.float32]], Problem]:
    """Every contestant's rounds in turn: their times without those to warm up, and the models in the end."""
    work, world = work_of(cell, folder / "work.npz")
    work.write()
    for player in players:
        player.query(cell=asdict(cell), work=str(work.path))
    times: dict[str, list[Times]] = {player.name: [] for player in players}
    for _, player in rotated(players, cell.rounds):
        times[player.name].append(player.round())
    models = {player.name: np.load(player.query(model=True)["model"]) for player in players}
    return {name: own[WARM_UP:] for name, own in times.items()}, models, world.problem


def agreeing(players: Sequence[Player], cell: Cell, folder: Path) -> None:
    """Show that all do the same work. Exits if a model is further than TOLERANCE from the plain loop's."""
    _, models, problem = played(players, cell, folder)
    apart = {name: float(np.abs(model - models[PLAIN]).max()) for name, model in models.items()}
    moved = np.abs(models[PLAIN] - problem.initial).max()
    print(f"{cell.name}: the plain loop's model moved by up to {moved:.2e}; the others differ from it by")
    print(pd.Series(apart).map("{:.1e}".format).to_string())
    if far := [name for name, own in apart.items() if not own <= TOLERANCE]:
        raise SystemExit(f"Expected the same model from {', '.join(far)}, within {TOLERANCE:g}.")


def timed(players: Sequence[Player], cell: Cell, folder: Path) -> list[dict[str, Any]]:
    here = [player for player in players if player.name != SHARED or cell.kind == "lenet5"]
    times, models, problem = played(here, cell, folder)
    rows = [row(cell, name, times, problem.evaluate(models[name]).loss) for name in times]
    print(pd.DataFrame(rows).to_string(index=False), flush=True)
    return rows


def table(found: pd.DataFrame) -> str:
    """The rows as docs/results.md has them: contestants down, cells across."""
    cells, names = found["cell"].unique(), found["contestant"].unique()
    wide = found.pivot(index="contestant", columns="cell").reindex(index=names)
    lines = [["", *cells], ["---"] * (1 + len(cells))]
    lines.append([f"{PLAIN}, ms", *map(_digits, wide.loc[PLAIN, "cpu_ms"][cells])])
    for name, own in wide["over_plain"][cells].drop(index=PLAIN).iterrows():
        lines.append([f"{name} / {PLAIN}", *("-" if pd.isna(one) else f"{one:.2f}" for one in own)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        players = joined(folder)
        try:
            about = facts(players)
            print(*about, sep="\n")
            for cell in (MLP, LENET):
                agreeing(players, whole(cell), folder)
            rows = [own for cell in CELLS for own in timed(players, cell, folder)]
        finally:
            for player in players:
                player.close()
    print(f"\n{table(pd.DataFrame(rows))}")
    keep("peers", pd.DataFrame(rows, dtype=object), *about)


if __name__ == "__main__":
    main()
