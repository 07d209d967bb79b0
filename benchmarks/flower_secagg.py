"""What Flower's SecAgg+ costs: a yardstick for ours, in one process and with Flower's own code.

    python benchmarks/flower_secagg.py CLIENTS DIMENSION DROPOUT    # as `secagg.py` calls it

A round is Flower's `SecAggWorkflow` (complete graph, all defaults: clip 8, 22 bits, modulus 2^32) against its
`secaggplus_mod`, joined by a stand-in for the network that hands over copies of the messages. Some clients
drop after they shared their keys, when the masked input is due. CPU is `time.process_time`, over all threads.
Not counted, all in Flower's favour: training, the copies, serialising messages, the model on its way down,
and the strategy's mean over what was summed.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from statistics import fmean
from time import process_time
from types import SimpleNamespace
from typing import Any

import numpy as np

MAX_WEIGHT = 1000  # Flower's default; a client of this weight is quantised without a further loss
QUANTUM = 2 * 8.0 / 2**22  # Flower's defaults: [-8, 8] on 2^22 steps


def flower(clients: int, dimension: int, dropout: float) -> dict[str, float]:
    """Costs of one round of Flower's SecAgg+ on the complete graph, in a process of its own.

    `dropout` is a share of the clients, rounded to whole ones; Shamir's threshold is the least majority.
    Keys: `client_ms` and `server_ms` (CPU; the client's is the mean over survivors), `bytes_up` and
    `bytes_down` (mean per survivor, Flower's own count), `error` (largest error of the sum over survivors,
    inputs within [-1, 1]).
    """
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, __file__, str(clients), str(dimension), str(dropout)]
    done = subprocess.run(words, env=os.environ | quiet, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _round(updates: np.ndarray, survivors: int, threshold: int) -> dict[str, Any]:
    """One round over float32[clients, dimension]; rows past `survivors` drop before masking."""
    import logging

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
        "client_ms": fmean(cpu[node] for node in stayed) * 1e3,
        "server_ms": server_cpu * 1e3,
        "bytes_up": fmean(up[node] for node in stayed),
        "bytes_down": fmean(down[node] for node in stayed),
        "error": float(error),
    }


def main() -> None:
    clients, dimension, dropout = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    survivors = clients - round(dropout * clients)
    updates = np.random.default_rng(0).uniform(-1, 1, (clients, dimension)).astype(np.float32)
    figures = _round(updates, survivors, clients // 2 + 1)
    bound = survivors * QUANTUM * 1.25  # float32 near 16 resolves a quarter of a quantum
    if not figures["error"] <= bound:
        raise SystemExit(f"Expected an error of the sum below {bound}, got {figures['error']}.")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
