"""What a round costs by how messages travel, how sums are summed, and how large the model is.

    python benchmarks/federation.py [CARRIER ...] [--out FILE]

Carriers: "one process" (`securefl.Door`) and "messages" (Flower's messages, apps and our parties behind their
sockets, in one process too). Three clients train nothing: each adds a constant to a model of 262 kB or 4 MB.
The sum is in the clear, masked or two-server; "plain" is Flower's own FedAvg without us. CPU is that of
server, clients and parties together, by client and round. The figures are medians of the rounds after the
first. Ratios are of CPU.
"""

from __future__ import annotations

import argparse
import csv
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from securefl.engines.apart.house import House
from securefl.engines.apart.updates import UPDATE, Updates
from securefl.engines.door import Door, Given
from securefl.engines.flower.secure_app import in_house, secure
from securefl.engines.flower.secure_grid import SecureGrid
from securefl.plan import Plan
from securefl.rounds import Ask, Sends, Sum, Value

CLIENTS, ROUNDS = 3, 4
PAYLOADS = {"262 kB": 65_536, "4 MB": 1_048_576}
SUMS = ("plain", "clear", "masked", "two-server")
CARRIERS = ("one process", "messages")
FIELDS = ["carrier", "sum", "payload", "cpu_ms", "wall_ms"]
UPDATES = Updates()
QUIET = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
Marks = list[tuple[float, float]]
"""CPU and wall time at the end of every round."""


def plan_of(how: str) -> Plan:
    hidden: dict[str, Any] = {} if how == "clear" else {"corrupt": 0.0, "dropout": 0.34}
    return Plan(
        sum=how, delta=1e-5, schedule=ROUNDS, unprotected=(UPDATE,), public_count=1, least_cohort=2, **hidden
    )


def mark() -> tuple[float, float]:
    return process_time(), perf_counter()


# Carriers -------------------------------------------------------------------------------------------


def in_one_process(how: str, size: int, folder: Path) -> Marks:
    sends = Sends(name=UPDATE, how="sum", reveals="its update")
    given = Given(sends, lambda job: Value(clear=np.full(size, 0.5)))
    records = [(np.ones((1, 1)), np.zeros(1))] * CLIENTS
    ask = Ask(cohort=tuple(range(CLIENTS)), broadcast=np.zeros(size, np.float32), sums=(Sum(sends, size),))
    marks = [mark()]
    with Door(plan_of(how), [given], records, ledger=folder / "ledger.sqlite") as door:
        for _ in range(ROUNDS):
            assert door.ask(ask).survivors
            marks.append(mark())
    return marks


def app_of() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        came = message.content.array_records["arrays"]
        own = {name: Array(array.numpy() + np.float32(0.5)) for name, array in came.items()}
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord(own), "metrics": metrics}), reply_to=message)

    return app


def rounds_of(grid: Grid, how: str, size: int, house: House | None) -> Marks:
    """FedAvg on this grid, or on ours over it."""
    marks = [mark()]

    def ended(number: int, arrays: ArrayRecord) -> None:
        if number:
            marks.append(mark())

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    if house is None:
        own: Grid = grid
    else:
        own = SecureGrid(grid, strategy, UPDATES, house.server, deadline=300.0)
    marks[0] = mark()
    start = ArrayRecord({"w": Array(np.zeros(size, np.float32))})
    result = strategy.start(own, start, num_rounds=ROUNDS, evaluate_fn=ended)
    assert float(result.arrays["w"].numpy()[0]) == 0.5 * ROUNDS, "a round was lost"
    return marks


class Messages(Grid):
    """Flower's messages within this process: each is copied on its way, as bytes are on a network."""

    def __init__(self, nodes: dict[int, Callable[[Message], Message]]) -> None:
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._nodes, self._replies, self._sent = nodes, dict[str, Message](), 0

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return Message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self._sent += 1
            ids.append(str(self._sent))
            message.metadata.__dict__["_message_id"] = ids[-1]
            reply = self._nodes[message.metadata.dst_node_id](deepcopy(message))
            self._replies[ids[-1]] = deepcopy(reply)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(one) for one in list(message_ids) if one in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        return self.pull_messages(self.push_messages(messages))


def by_messages(how: str, size: int, folder: Path) -> Marks:
    def node(app: ClientApp, number: int) -> Callable[[Message], Message]:
        context = Context(1, number + 1, {"partition-id": number}, RecordDict(), {})
        return lambda message: app(message, context)

    if how == "plain":
        return rounds_of(Messages({k + 1: node(app_of(), k) for k in range(CLIENTS)}), how, size, None)
    app = secure(app_of(), beside=in_house(folder, CLIENTS))
    nodes = CLIENTS + (how == "two-server")
    with House(plan_of(how), UPDATES, clients=CLIENTS, folder=folder) as house:
        return rounds_of(Messages({k + 1: node(app, k) for k in range(nodes)}), how, size, house)


RUNS = dict(zip(CARRIERS, (in_one_process, by_messages), strict=True))


# Figures --------------------------------------------------------------------------------------------


def measured(carrier: str, how: str, payload: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        marks = RUNS[carrier](how, PAYLOADS[payload], Path(folder))
    each = [
        ((b[0] - a[0]) * 1e3 / CLIENTS, (b[1] - a[1]) * 1e3 / CLIENTS)
        for a, b in pairwise(marks[1:])  # the first round imports and connects
    ]
    cpu, wall = (f"{median(one[at] for one in each):.1f}" for at in (0, 1))
    return dict(zip(FIELDS, (carrier, how, payload, cpu, wall), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("carriers", nargs="*", default=[], help=f"among: {', '.join(CARRIERS)}")
    parser.add_argument("--out", type=Path, help="a CSV file")
    given = parser.parse_args()
    if not QUIET.keys() <= os.environ.keys():  # the libraries read it when they are imported
        os.execve(sys.executable, [sys.executable, *sys.argv], QUIET | dict(os.environ))
    logging.getLogger("flwr").setLevel(logging.ERROR)
    wanted = given.carriers or list(CARRIERS)
    if unknown := sorted(set(wanted) - set(CARRIERS)):
        parser.error(f"expected carriers among {', '.join(CARRIERS)}, got {', '.join(unknown)}")
    rows = []
    for payload in PAYLOADS:
        for carrier in wanted:
            clear = 0.0
            for how in SUMS:
                if how == "plain" and carrier == "one process":
                    continue
                row = measured(carrier, how, payload)
                rows.append(row)
                took = float(row["cpu_ms"])
                clear = took if how == "clear" else clear
                ratio = f"{took / clear:.1f} x clear" if clear else ""
                said = f"CPU {row['cpu_ms']:>8} ms  wall {row['wall_ms']:>8} ms"
                print(f"{payload:8} {carrier:12} {how:11} {said}  {ratio}", flush=True)
    if given.out:
        with given.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
