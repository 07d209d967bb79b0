"""Flower: its simulation on Ray with one actor, federated averaging, and no evaluation of clients.

The actor reads the records once and keeps one model. CPU time is that of Ray's processes too, in ticks of
the kernel's clock.
"""

from __future__ import annotations

import logging
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from numpy.typing import NDArray
from torch import nn

from contestants.models import Records, built, records, train, vector
from contestants.turns import Cell, Turns, Work

PACKAGES = ("flwr", "ray", "torch")


@lru_cache(maxsize=1)
def _held(cell: Cell, path: Path) -> tuple[nn.Module, list[Records]]:
    work = Work.read(path)
    return built(cell, work), records(cell, work)


def _client(cell: Cell, path: Path) -> ClientApp:
    app = ClientApp()

    @app.train()
    def trained(message: Message, context: Context) -> Message:
        model, clients = _held(cell, path)
        own = clients[int(context.node_config["partition-id"])]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(model, own, cell)
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(own[0])}),
            }
        )
        return Message(content=content, reply_to=message)

    return app


def play(cell: Cell, work: Work, turns: Turns) -> NDArray[np.float32]:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    model = built(cell, work)
    server = ServerApp()

    def clock(number: int, _: ArrayRecord) -> None:
        if number:
            turns.next()
        else:
            turns.begin()

    @server.main()
    def served(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=cell.cohort / cell.clients,
            fraction_evaluate=0.0,
            min_available_nodes=cell.clients,
        )
        first = ArrayRecord(model.state_dict())
        result = strategy.start(grid, first, num_rounds=cell.rounds, evaluate_fn=clock)
        model.load_state_dict(result.arrays.to_torch_state_dict())

    config: dict[str, Any] = {
        "init_args": {"num_cpus": 1, "include_dashboard": False, "log_to_driver": False},
        "client_resources": {"num_cpus": 1},
    }
    run_simulation(server, _client(cell, work.path), cell.clients, backend_config=config)
    return vector(model)
