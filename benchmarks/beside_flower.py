"""What secure sums add to plain Flower: wall time and CPU of a round, in one interleaved run.

    python benchmarks/beside_flower.py [WORK ...] [--repeats N] [--rounds N]

digits      the app of examples/flower_secure_grid, four clients that train, with its five lines and without
messages    three clients that train nothing, a model of 262 kB: what the sums cost alone
simulation  the same in Flower's simulation, in a network of its own (`unshare`, Linux)

Plain and masked rounds take turns, so that other work on the machine meets both. The figures are medians of
all rounds but the first of each run, for all clients together.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from federation import CARRIERS, PAYLOADS, QUIET, Messages
from federation_network import Run, alone
from federation_rounds import Mark, of_this_process
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from securefl.flower import secure_strategy
from securefl.flower.secure_app import inner_of

APP = Path(__file__).resolve().parents[1] / "examples" / "flower_secure_grid"
HOWS = ("plain", "masked")


@contextmanager
def digits() -> Iterator[Run]:
    """The example's clients, whose records are there before the first round."""
    sys.path.insert(0, str(APP))
    from grid_app import client, task

    records = {number: task.records(number) for number in range(task.CLIENTS)}
    client.records = records.__getitem__

    def run(how: str, size: int, rounds: int) -> list[Mark]:
        config: dict[str, bool | int | float | str] = {"securefl.terms": "securefl.toml"}
        app = inner_of(client.app) if how == "plain" else client.app
        assert app is not None

        def node(number: int, message: Message) -> Message:
            place = {"partition-id": number, "num-partitions": task.CLIENTS}
            return app(message, Context(1, number + 1, place, RecordDict(), config))  # type: ignore[arg-type]

        marks: list[Mark] = []

        def ended(number: int, arrays: ArrayRecord) -> None:
            marks.append(of_this_process())

        grid = Messages({k + 1: partial(node, k) for k in range(task.CLIENTS)})
        strategy = FedAvg(min_train_nodes=task.CLIENTS, min_available_nodes=task.CLIENTS)
        own = (
            strategy if how == "plain" else secure_strategy(strategy, Context(1, 1, {}, RecordDict(), config))
        )
        own.start(grid, task.start(), rounds, train_config=ConfigRecord({"lr": 0.5}), evaluate_fn=ended)
        return marks

    yield run


WORKS = {"digits": digits, "messages": CARRIERS["messages"], "simulation": CARRIERS["simulation"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("works", nargs="*", default=[], help=f"among: {', '.join(WORKS)}")
    parser.add_argument("--repeats", type=int, default=5, help="of each, in turn")
    parser.add_argument("--rounds", type=int, default=4, help="of each run; 2 at least")
    given = parser.parse_args()
    if not QUIET.keys() <= os.environ.keys():  # the libraries read it when they are imported
        os.execve(sys.executable, [sys.executable, *sys.argv], QUIET | dict(os.environ))
    if "simulation" in given.works:
        alone()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("securefl").setLevel(logging.ERROR)
    tempfile.tempdir = tempfile.mkdtemp(prefix="b-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    for name in given.works or ["digits", "messages"]:
        spent: dict[str, list[tuple[float, float]]] = {how: [] for how in HOWS}
        with WORKS[name]() as run:
            for _ in range(given.repeats):
                for how in HOWS:
                    marks = run(how, PAYLOADS["262 kB"], given.rounds)[1:]
                    spent[how] += [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(marks)]
        figures = {how: np.median(own, axis=0) for how, own in spent.items()}
        for how in HOWS:
            cpu, wall = figures[how] * 1e3
            print(f"{name:11} {how:7} CPU {cpu:9.1f} ms  wall {wall:9.1f} ms a round", flush=True)
        cpu, wall = figures["masked"] / figures["plain"]
        print(f"{name:11} masked / plain: CPU {cpu:.1f}  wall {wall:.1f}", flush=True)


if __name__ == "__main__":
    main()
