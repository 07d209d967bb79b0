"""Figure 7 of ADDS on digits: one client alone, by the skew of its labels and a fixed lambda.

    python benchmarks/adds_alone.py [--write]

Clients are dealt as in the packaged sweep `adds_lambda`. Of each seed one client is drawn, and it trains for
as many rounds as there, without any other. Prints a line for each cell, means over 8 seeds: the accuracy of
the supernet on the test records of all classes, and that of the client's own subnet on held-out records of
its own. `--write` writes the lines to benchmarks/results/adds_alone.csv.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
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

SEEDS: Final = range(1, 9)
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


def study(classes: int, weight: float) -> Study:
    table = packaged()
    table.pop("sweep")
    for key, value in {**ALONE, "data.partition.per_client": classes, "arm.fixed_lambda": weight}.items():
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


def alone(classes: int, seed: int, weight: float) -> dict[str, float]:
    """Accuracy on all classes, and the client's figures, after the last round."""
    own = study(classes, weight)
    world = with_one_client(build(own, seed))
    found = collect(own, [played(own, own.arms[0], world)[0]])
    last = found.figures.sort_values("round").groupby("figure")["value"].last()
    accuracy = found.metrics["accuracy"].dropna().iloc[-1]
    return {"accuracy": float(accuracy), **{name: float(last[figure]) for name, figure in FIGURES.items()}}


def lines() -> Iterator[dict[str, Any]]:
    grid = packaged()["sweep"]["grid"]
    for classes in grid["data.partition.per_client"]:
        for weight in grid["arm.fixed_lambda"]:
            found = pd.DataFrame([alone(classes, seed, weight) for seed in SEEDS])
            means = {str(name): round(float(value), 4) for name, value in found.mean().items()}
            deviation = round(float(found["accuracy"].std()), 4)
            yield {"classes": classes, "weight": weight, **means, "deviation": deviation}


def main() -> None:
    torch.set_num_threads(1)
    found = []
    for row in lines():
        print(row, flush=True)
        found.append(row)
    keep("adds_alone", pd.DataFrame(found))


if __name__ == "__main__":
    main()
