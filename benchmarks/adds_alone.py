"""Figure 7 of ADDS on digits: one client alone, by the skew of its labels and a fixed lambda.

    python benchmarks/adds_alone.py [--write]

Clients are dealt as in the packaged sweep `adds_lambda`. Of each seed one client is drawn, and it trains for
as many rounds as there, without any other. Prints a line for each cell: the client's accuracy on held-out
records of its own, by the subnet that it would use, over 8 seeds. `--write` writes the lines to
benchmarks/results/adds_alone.csv.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import tomli_w

import securefl
from securefl.report.tables import write_csv
from securefl.storage.texts import toml
from securefl.study.config import parse
from securefl.study.world import build
from securefl.sweep.cells import put

SEEDS: Final = range(1, 9)
OUT = Path(__file__).parent / "results" / "adds_alone.csv"
FIGURES: Final = {"skew": "skew", "local accuracy": "local_accuracy", "parameters": "parameters"}
ALONE: Final = {
    "arm.fraction": 1.0,
    "data.classes": 10,
    "privacy.min_cohort_size": 1,
    "privacy.min_honest": 1,
    "privacy.max_client_weight": 0.5,
}


def packaged() -> dict[str, Any]:
    """The sweep's study and its grid, as a table of TOML."""
    return toml(files("securefl.protocols.studies").joinpath("adds_lambda.toml").read_text(encoding="utf-8"))


def client_of(classes: int, seed: int) -> tuple[Any, Any]:
    """All records of a client drawn by the seed, and the server's test records."""
    table = packaged()
    table.pop("sweep")
    put(table, "data.partition.per_client", classes)
    table["data"].pop("holdout")
    world = build(parse(tomli_w.dumps(table)), seed)
    drawn = int(np.random.default_rng(seed).integers(len(world.records)))
    return world.records[drawn], (world.problem.server_x, world.problem.server_y)


def alone(classes: int, seed: int, weight: float) -> dict[str, float]:
    """The client's figures after the last round."""
    table = packaged()
    table.pop("sweep")
    table["data"] = {"holdout": table["data"]["holdout"]}
    for key, value in {**ALONE, "study.seeds": [seed], "arm.weight": weight}.items():
        put(table, key, value)
    records, test = client_of(classes, seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # A client of one class learns nothing about the server's test records.
        warnings.simplefilter("ignore", RuntimeWarning)
        run = securefl.run(
            table, data={"train": [records], "test": test}, out=folder, workers=1, progress=False
        )
        found = run.private.figures
    last = found.sort_values("round").groupby("figure")["value"].last()
    return {name: float(last[figure]) for figure, name in FIGURES.items()}


def lines() -> Iterator[dict[str, Any]]:
    grid = packaged()["sweep"]["grid"]
    for classes in grid["data.partition.per_client"]:
        for weight in grid["arm.weight"]:
            found = pd.DataFrame([alone(classes, seed, weight) for seed in SEEDS])
            means = {name: round(float(value), 4) for name, value in found.mean().items()}
            deviation = round(float(found["local_accuracy"].std()), 4)
            yield {"classes": classes, "weight": weight, **means, "deviation": deviation}


def main() -> None:
    parser = argparse.ArgumentParser(description="ADDS's Figure 7 on digits: one client alone.")
    parser.add_argument("--write", action="store_true", help=f"write {OUT.name}")
    options = parser.parse_args()
    found = []
    for row in lines():
        print(row, flush=True)
        found.append(row)
    if options.write:
        comment = (
            "python benchmarks/adds_alone.py --write; one client alone, after round 15, means over 8 seeds"
        )
        write_csv(OUT, pd.DataFrame(found), [comment])


if __name__ == "__main__":
    main()
