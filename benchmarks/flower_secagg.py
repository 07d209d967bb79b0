"""What Flower's SecAgg+ costs: a yardstick for ours, in one process and with Flower's own code.

    python benchmarks/flower_secagg.py CLIENTS DIMENSION DROPOUT [--repeat N] [--threshold T]

Flower's side runs in a second process with the interpreter FLOWER_PYTHON (default: this one), as
`flower_secagg.py --worker ...`: that side imports the standard library, numpy and flwr alone, and prints one
JSON line a round. Where flwr cannot be imported the reason is said in one sentence and nothing is measured.

A round is Flower's `SecAggWorkflow` (complete graph, all defaults: clip 8, 22 bits, modulus 2^32) against its
`secaggplus_mod`, joined by a stand-in for the network that hands over copies of the messages. Some clients
drop after they shared their keys, when the masked input is due. CPU is `time.process_time`, over all threads.
Not counted, all in Flower's favour: training, the copies, serialising messages, the model on its way down,
and the strategy's mean over what was summed.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
from statistics import fmean, median
from time import process_time
from types import SimpleNamespace
from typing import Any

import numpy as np

MAX_WEIGHT = 1000  # Flower's default; a client of this weight is quantised without a further loss
QUANTUM = 2 * 8.0 / 2**22  # Flower's defaults: [-8, 8] on 2^22 steps
UNAVAILABLE = 3  # the worker's exit code when it has no flwr


def flower(
    clients: int, dimension: int, dropout: float, repeat: int = 1, threshold: int | None = None
) -> dict[str, Any] | None:
    """Costs of one round of Flower's SecAgg+ on the complete graph, or None where flwr cannot be imported.

    `dropout` is a share of the clients, rounded to whole ones; `threshold` is Shamir's, by default the least
    majority. Medians over `repeat` rounds. Keys: `version` (of flwr), `clients`, `dimension`, `dropped`,
    `threshold`, `client_ms` and `server_ms` (CPU; the client's is the mean over survivors), `bytes_up` and
    `bytes_down` (mean per survivor, Flower's own count), `error` (largest error of the sum over survivors,
    inputs within [-1, 1]) and `error_bound` (what its quantisation allows).

    Raises:
        RuntimeError: the worker failed for another reason than a missing flwr.
    """
    threshold = clients // 2 + 1 if threshold is None else threshold
    python = os.environ.get("FLOWER_PYTHON", sys.executable)
    arguments = [str(value) for value in (clients, dimension, dropout, repeat, threshold)]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [python, __file__, "--worker", *arguments],
            env=os.environ | quiet,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        print(f"Flower is skipped: FLOWER_PYTHON={python} does not run ({error.strerror}).", file=sys.stderr)
        return None
    if done.returncode == UNAVAILABLE:
        print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
        return None
    if done.returncode:
        raise RuntimeError(
            f"Expected figures from Flower's side, but it failed:\n{done.stderr.strip()[-2000:]}"
        )
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        name: median(row[name] for row in rounds) if isinstance(value, float) else value
        for name, value in rounds[0].items()
    }


def _worker(clients: int, dimension: int, dropout: float, repeat: int, threshold: int) -> None:
    """Print one JSON line for each round; runs where flwr is installed."""
    try:
        import flwr.client.mod
        import flwr.server.workflow  # noqa: F401 (loaded here, so that no round pays for it)
    except ImportError as error:
        print(f"Flower is skipped: {sys.executable} cannot import flwr ({error}).", file=sys.stderr)
        sys.exit(UNAVAILABLE)
    rng = np.random.default_rng(0)
    dropped = round(dropout * clients)
    for _ in range(repeat):
        updates = rng.uniform(-1, 1, (clients, dimension)).astype(np.float32)
        figures = _round(updates, clients - dropped, threshold)
        bound = (clients - dropped) * QUANTUM * 1.25  # float32 near 16 resolves a quarter of a quantum
        if not figures["error"] <= bound:
            raise SystemExit(f"Expected an error of the sum below {bound}, got {figures['error']}.")
        about = {"clients": clients, "dimension": dimension, "dropped": dropped, "threshold": threshold}
        print(json.dumps({**about, **figures, "error_bound": bound}), flush=True)


def _round(updates: np.ndarray, survivors: int, threshold: int) -> dict[str, Any]:
    """One round over float32[clients, dimension]; rows past `survivors` drop before masking."""
    import logging
    from importlib.metadata import version

    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.client.mod import secaggplus_mod
    from flwr.common import (
        Code,
        FitIns,
        FitRes,
        Parameters,
        Status,
        ndarrays_to_parameters,
        parameters_to_ndarrays,
    )
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
    from flwr.compat.common.recorddict_compat import fitres_to_recorddict, parameters_to_arrayrecord
    from flwr.server import LegacyContext
    from flwr.server.workflow import SecAggWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1  # every Message asks for them
    logging.getLogger("flwr").setLevel(logging.ERROR)
    nodes = range(1, len(updates) + 1)
    state = {node: Context(1, node, {}, RecordDict(), {}) for node in nodes}
    cpu, up, down = (dict.fromkeys(nodes, 0.0) for _ in range(3))
    training = away = 0.0
    summed: list[np.ndarray] = []

    def size(config: Any) -> int:  # Flower's own count, which fails on an empty list
        return sum(ConfigRecord({key: value}).count_bytes() for key, value in config.items() if value != [])

    def train(message: Any, context: Any) -> Any:
        nonlocal training
        began = process_time()
        update = ndarrays_to_parameters([updates[context.node_id - 1]])
        result = FitRes(Status(Code.OK, ""), update, MAX_WEIGHT, {})
        reply = Message(fitres_to_recorddict(result, False), reply_to=message)
        training += process_time() - began
        return reply

    def deliver(message: Any) -> Any:
        message = copy.deepcopy(message)  # Flower sends one object to all, and its clients change it
        node = message.metadata.dst_node_id
        config = message.content.config_records[RECORD_KEY_CONFIGS]
        down[node] += size(config)
        if node > survivors and config[Key.STAGE] == Stage.COLLECT_MASKED_VECTORS:
            return None
        began, trained = process_time(), training
        reply = secaggplus_mod(message, state[node], train)
        cpu[node] += process_time() - began - (training - trained)
        up[node] += size(reply.content.config_records[RECORD_KEY_CONFIGS])
        return reply

    def send_and_receive(messages: list[Any], timeout: float | None = None) -> list[Any]:
        nonlocal away
        began = process_time()
        replies = [reply for reply in map(deliver, messages) if reply is not None]
        away += process_time() - began
        return replies

    def configure_fit(*_: Any) -> list[Any]:
        return [
            (SimpleNamespace(node_id=node), FitIns(Parameters([], "numpy.ndarray"), {})) for node in nodes
        ]

    def aggregate_fit(_: int, results: list[Any], failures: list[Any]) -> tuple[None, dict[str, Any]]:
        summed.extend(parameters_to_ndarrays(results[0][1].parameters))
        return None, {}

    server = RecordDict(
        {
            MAIN_CONFIGS_RECORD: ConfigRecord({"current_round": 1}),
            MAIN_PARAMS_RECORD: parameters_to_arrayrecord(Parameters([], "numpy.ndarray"), False),
        }
    )
    context = LegacyContext(
        Context(1, 0, {}, server, {}),
        strategy=SimpleNamespace(configure_fit=configure_fit, aggregate_fit=aggregate_fit),
        client_manager=SimpleNamespace(num_available=lambda: len(updates)),
    )
    began = process_time()
    SecAggWorkflow(threshold)(SimpleNamespace(send_and_receive=send_and_receive), context)
    server_cpu = process_time() - began - away
    if not summed:
        raise SystemExit(f"Expected a sum, but Flower aborted: {survivors} survivors, threshold {threshold}.")
    # Flower returns a mean; the weights are equal, so the sum over survivors is that many times it.
    error = np.abs(summed[0] * survivors - updates[:survivors].sum(axis=0, dtype=np.float64)).max()
    stayed = nodes[:survivors]
    return {
        "version": version("flwr"),
        "client_ms": fmean(cpu[node] for node in stayed) * 1e3,
        "server_ms": server_cpu * 1e3,
        "bytes_up": fmean(up[node] for node in stayed),
        "bytes_down": fmean(down[node] for node in stayed),
        "error": float(error),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clients", type=int)
    parser.add_argument("dimension", type=int)
    parser.add_argument("dropout", type=float)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--threshold", type=int)
    options = parser.parse_args()
    figures = flower(**vars(options))
    for name, value in (figures or {}).items():
        print(f"{name:12} {value:,.6g}" if isinstance(value, float) else f"{name:12} {value}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        count, size, share, times, least = sys.argv[2:]
        _worker(int(count), int(size), float(share), int(times), int(least))
    else:
        main()
