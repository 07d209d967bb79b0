"""Plays as one contestant: `python -m contestants NAME`, driven by `benchmarks/peers.py` line by line."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np

from contestants.turns import Cell, Turns, Work


def main(name: str) -> None:
    # What packages print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**what: object) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        contestant = import_module(f"contestants.{name}")
    except ImportError as error:
        answer(missing=str(error))
        return
    answer(versions={package: version(package) for package in contestant.PACKAGES})
    for line in sys.stdin:
        asked = json.loads(line)
        path = Path(asked["work"])
        cell = Cell.read(asked["cell"])
        vector = contestant.play(cell, Work.read(path), Turns(cell.rounds, answer))
        sys.stdin.readline()  # it asks for the model
        model = path.with_name(f"{name}.npy")
        np.save(model, vector)
        answer(model=str(model))


if __name__ == "__main__":
    main(sys.argv[1])
