"""What every carrier of the federation benchmark does: rounds of FedAvg, and a mark at the end of each."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from federation_client import CLIENTS
from flwr.app import Array, ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from securefl.algorithm.plan import Plan
from securefl.deployment.local import LocalDeployment
from securefl.deployment.updates import UPDATE, Updates
from securefl.flower.secure_grid import SecureGrid

SUMS = ("plain", "clear", "masked", "two-server")
UPDATES = Updates()
Mark = tuple[float, float]
"""CPU and wall time so far, in seconds."""


def plan_of(how: str) -> Plan:
    hidden: dict[str, Any] = {} if how == "clear" else {"corrupt": 0.0, "dropout": 0.0}
    return Plan(
        sum=how,
        delta=1e-5,
        max_rounds=9,
        non_private=(UPDATE,),
        min_cohort_size=CLIENTS,
        max_cohort_size=CLIENTS,
        min_honest=2,
        max_client_weight=0.5,
        **hidden,
    )


def of_this_process() -> Mark:
    return process_time(), perf_counter()


def of_all_processes() -> Mark:
    """Of every process in this one's PID namespace, and of those that ended and were waited for."""
    ticks = 0
    for one in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            _, _, rest = one.read_text().rpartition(") ")
            ticks += sum(map(int, rest.split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK"), perf_counter()


def rounds_of(grid: Grid, size: int, rounds: int, house: LocalDeployment | None) -> list[Mark]:
    """FedAvg on this grid, or on ours over it. The marks of its begin and of every round's end."""
    marks: list[Mark] = []

    def ended(number: int, arrays: ArrayRecord) -> None:
        marks.append(of_all_processes())

    nodes = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS}
    strategy = FedAvg(fraction_evaluate=0.0, **nodes)  # type: ignore[arg-type]
    own = grid if house is None else SecureGrid(grid, strategy, UPDATES, house.server, deadline=300.0)
    start = ArrayRecord({"w": Array(np.zeros(size, np.float32))})
    result = strategy.start(own, start, num_rounds=rounds, evaluate_fn=ended)
    assert float(result.arrays["w"].numpy()[0]) == 0.5 * rounds, "a round was lost"
    return marks
