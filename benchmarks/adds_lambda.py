"""Figures 6 and 7 of ADDS on digits: a fixed lambda against the skew of labels, for all clients and for one.

    python benchmarks/adds_lambda.py [--write]

Plays the packaged sweep `adds_lambda`. Then of each seed one client is drawn, and it trains for as many
rounds, without any other. Prints a line for each run: the accuracy of the supernet on the test records of all
classes, and that of clients' own subnets on held-out records of their own. `--write` writes the lines to
adds_lambda.csv and adds_alone.csv in benchmarks/results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from itertools import product
from typing import Any, Final

import numpy as np
import pandas as pd
import tomli_w
import torch
from kept import keep
from studies import played

from securefl.storage.texts import toml
from securefl.study.config import Study, parse
from securefl.study.results import collect
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.sweep.cells import put

FIGURES: Final = {"skew": "skew", "local_accuracy": "local accuracy", "parameters": "parameters"}
ALONE: Final = {
    "arm.fraction": 1.0,
    "privacy.min_cohort_size": 1,
    "privacy.min_honest": 1,
    "privacy.max_client_weight": 0.5,
}


def packaged() -> dict[str, Any]:
    """The sweep's study and its grid, as a table of TOML."""
    return toml(files("securefl.protocols.studies").joinpath("adds_lambda.toml").read_text(encoding="utf-8"))


def study(classes: int, weight: float, fixed: Mapping[str, Any]) -> Study:
    table = packaged()
    table.pop("sweep")
    for key, value in {**fixed, "data.partition.per_client": classes, "arm.fixed_lambda": weight}.items():
        put(table, key, value)
    return parse(tomli_w.dumps(table))


def with_one_client(world: World) -> World:
    """The same world with one of its clients, drawn by its seed."""
    client = int(np.random.default_rng(world.seed).integers(len(world.records)))
    if world.held is None:
        raise ValueError("Expected a study with a hold-out.")
    return replace(
        world,
        problem=replace(world.problem, clients=1),
        records=[world.records[client]],
        held=[world.held[client]],
        quality=(world.quality[client],),
        devices=world.devices.of(np.array([client])),
    )


def figures(own: Study, world: World) -> dict[str, float]:
    """Accuracy on all classes, and the clients' mean figures, after the last round."""
    found = collect(own, [played(own, own.arms[0], world)[0]])
    last = found.figures.sort_values("round").groupby(["figure", "client"])["value"].last()
    accuracy = found.metrics["accuracy"].dropna().iloc[-1]
    means = {name: float(last[figure].mean()) for name, figure in FIGURES.items()}
    return {"accuracy": float(accuracy), **means}


def main() -> None:
    torch.set_num_threads(1)
    grid = packaged()["sweep"]["grid"]
    cells = [*product(grid["data.partition.per_client"], grid["arm.fixed_lambda"])]
    for name, fixed, of in (("adds_lambda", {}, lambda world: world), ("adds_alone", ALONE, with_one_client)):
        rows = []
        for classes, weight in cells:
            own = study(classes, weight, fixed)
            for seed in own.study.seeds:
                found = pd.Series(figures(own, of(build(own, seed)))).round(4)
                rows.append({"classes": classes, "weight": weight, "seed": seed, **found})
                print(*rows[-1].values(), flush=True)
        keep(name, pd.DataFrame(rows), command="adds_lambda.py")


if __name__ == "__main__":
    main()
