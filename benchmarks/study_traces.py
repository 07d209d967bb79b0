"""The accuracy of each arm of a finished run or sweep by seed and round, and the bytes of the round.

    securefl run NAME --out RUN      # or securefl sweep
    python benchmarks/study_traces.py NAME RUN --write

A round that was not evaluated has no accuracy; its bytes count. Where the records of clients differ in
quality, a second file has the mean number of rounds that a client of each quality answered.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from kept import keep

COLUMNS = ("cell", "arm", "seed", "round", "accuracy", "bytes_up", "bytes_down")


def trace(run: Path) -> pd.DataFrame:
    """A row a round, with accuracies of personal models among them; `cell` is of a sweep."""
    file = run / "private" / ("results.csv" if (run / "cells").exists() else "metrics.csv")
    found = pd.read_csv(file, comment="#").round({"accuracy": 4})
    return found[[name for name in COLUMNS if name in found]]


def participation(run: Path) -> pd.DataFrame:
    """Rounds answered by a client of each quality: their mean, by arm, seed and a sweep's cell."""
    files = [*run.glob("cells/*/private/participation.csv"), *run.glob("private/participation.csv")]
    cells = {file.parents[1].name: pd.read_csv(file, comment="#") for file in sorted(files)}
    found = pd.concat(cells, names=["cell"]).groupby(["cell", "arm", "seed", "quality"], sort=False)
    means = found["answered"].mean().round(3).reset_index()
    return means if (run / "cells").exists() else means.drop(columns="cell")


if __name__ == "__main__":
    _, name, folder, *_ = sys.argv
    run = Path(folder)
    verb = "sweep" if (run / "cells").exists() else "run"
    tables = {name: trace(run)}
    if (clients := participation(run))["quality"].nunique() > 1:
        tables[f"{name}_clients"] = clients
    for file, table in tables.items():
        print(table.to_string(index=False))
        keep(file, table, f"after securefl {verb} {name} --out RUN", command=f"study_traces.py {name} RUN")
