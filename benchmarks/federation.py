"""What a round costs by how messages travel, how sums are summed, and how large the model is.

    python benchmarks/federation.py [CARRIER ...] [--out FILE]

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

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
from federation_client import CLIENTS
from federation_network import Run, alone, installed_nodes, simulation, stock_nodes
from federation_rounds import SUMS, Mark, of_this_process, plan_of

from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.queries import CohortQuery, Sum, Value, ValueSpec
from securefl.deployment.updates import UPDATE
from securefl.engine.aggregator import SecureAggregator
from securefl.report.tables import write_csv

ROUNDS = 4
PAYLOADS = {"262 kB": 65_536, "4 MB": 1_048_576}
FIELDS = ["carrier", "sum", "payload", "cpu_ms", "wall_ms"]
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


def measured(run: Run, how: str, size: int) -> tuple[str, str]:
    """CPU and wall time of a client and a round, in ms."""
    marks = run(how, size, ROUNDS)[1:]  # the first round imports and connects
    per_client = [[(b - a) * 1e3 / CLIENTS for a, b in zip(*pair, strict=True)] for pair in pairwise(marks)]
    cpu, wall = (f"{median(one):.1f}" for one in zip(*per_client, strict=True))
    return cpu, wall


def rows_of(carrier: str) -> Iterator[dict[str, str]]:
    with CARRIERS[carrier]() as run:
        for how in SUMS:  # in this order: two-server needs one node more
            for payload, size in PAYLOADS.items():
                if (carrier, how) == ("one process", "plain"):
                    continue
                cpu, wall = measured(run, how, size)
                print(f"{carrier:16} {how:11} {payload:7} CPU {cpu:>9} ms  wall {wall:>9} ms", flush=True)
                yield dict(zip(FIELDS, (carrier, how, payload, cpu, wall), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("carriers", nargs="*", default=[], help=f"among: {', '.join(CARRIERS)}")
    parser.add_argument("--out", type=Path, help="a CSV file")
    given = parser.parse_args()
    if not QUIET.keys() <= os.environ.keys():  # the libraries read it when they are imported
        os.execve(sys.executable, [sys.executable, *sys.argv], QUIET | dict(os.environ))
    logging.getLogger("flwr").setLevel(logging.ERROR)
    wanted, rows = given.carriers or list(CARRIERS), list[dict[str, str]]()
    if OUTSIDE.keys() & set(wanted):
        alone()
    for carrier in wanted:
        try:
            rows += rows_of(carrier)
        except RuntimeError as error:
            print(f"{carrier}: no figures: {error}", flush=True)
    if given.out:
        write_csv(given.out, pd.DataFrame(rows, columns=FIELDS, dtype=object))


if __name__ == "__main__":
    main()
