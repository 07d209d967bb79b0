"""What a round costs by how messages travel, how sums are summed, and how large the model is.

    python benchmarks/federation.py [CARRIER ...] [--write]

Three clients train nothing: each adds a constant to a model of 262 kB or 4 MB. The sum is clear, masked
or two-server; "plain" is Flower's own FedAvg without us.

one process      securefl.SecureAggregator
simulation       Flower's, on Ray
stock nodes      a SuperLink with TLS and its SuperNodes, which start a process for every message
installed nodes  the same SuperLink, and nodes of securefl.flower.installed

The latter three run in a network and among processes of their own (`unshare`, Linux). CPU is that of all
processes together, idle ones too, by client and round. The figures are medians of the rounds after the first.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from federation_client import CLIENTS
from federation_network import Run, alone, installed_nodes, simulation, stock_nodes
from federation_rounds import SUMS, Mark, of_this_process, plan_of
from kept import keep

from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.queries import CohortQuery, Sum, Value, ValueSpec
from securefl.deployment.updates import UPDATE
from securefl.engine.aggregator import SecureAggregator

ROUNDS = 4
PAYLOADS = {"262 kB": 65_536, "4 MB": 1_048_576}
QUIET = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


@contextmanager
def one_process() -> Iterator[Run]:
    def run(how: str, size: int, rounds: int) -> list[Mark]:
        spec = ValueSpec(name=UPDATE, reduction="sum", reveals="its update")
        given = ClientFunction(spec, lambda context: Value(clear=np.full(size, 0.5)))
        records = [(np.ones((1, 1)), np.zeros(1))] * CLIENTS
        query = CohortQuery(
            cohort=tuple(range(CLIENTS)), broadcast=np.zeros(size, np.float32), sums=(Sum(spec, size),)
        )
        marks = [of_this_process()]
        with (
            tempfile.TemporaryDirectory() as folder,
            SecureAggregator(
                plan_of(how), [given], records, ledger=Path(folder) / "ledger.sqlite"
            ) as aggregator,
        ):
            for _ in range(rounds):
                assert aggregator.query(query).survivors
                marks.append(of_this_process())
        return marks

    yield run


OUTSIDE = {"simulation": simulation, "stock nodes": stock_nodes, "installed nodes": installed_nodes}
CARRIERS = {"one process": one_process, **OUTSIDE}


# Figures --------------------------------------------------------------------------------------------


def rows_of(carrier: str) -> Iterator[dict[str, str]]:
    """CPU and wall time of a client and a round, in ms."""
    with CARRIERS[carrier]() as run:
        # In this order: two-server needs one node more.
        for how, (payload, size) in product(SUMS, PAYLOADS.items()):
            if (carrier, how) == ("one process", "plain"):
                continue
            marks = np.array(run(how, size, ROUNDS)[1:])  # the first round imports and connects
            cpu, wall = np.median(np.diff(marks, axis=0), axis=0) * 1e3 / CLIENTS
            row = {"carrier": carrier, "sum": how, "payload": payload}
            yield row | {"cpu_ms": f"{cpu:.1f}", "wall_ms": f"{wall:.1f}"}


def main() -> None:
    if not QUIET.keys() <= os.environ.keys():  # the libraries read it when they are imported
        os.execve(sys.executable, [sys.executable, *sys.argv], QUIET | dict(os.environ))
    logging.getLogger("flwr").setLevel(logging.ERROR)
    wanted, rows = [one for one in sys.argv[1:] if one != "--write"] or list(CARRIERS), list[dict[str, str]]()
    if OUTSIDE.keys() & set(wanted):
        alone()
    for carrier in wanted:
        try:
            rows += rows_of(carrier)
        except RuntimeError as error:
            print(f"{carrier}: no figures: {error}", flush=True)
    found = pd.DataFrame(rows)
    print(found.to_string(index=False))
    keep("federation", found)


if __name__ == "__main__":
    main()
