"""The ServerApp: Flower's own FedAvg. The grid that it is started on makes the difference."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from grid_app.task import CLIENTS, start
from grid_app.terms import PLAN, UPDATES
from securefl.core.release import SERVER
from securefl.deployment import LocalDeployment, keys, roster
from securefl.deployment.server_session import ServerSide
from securefl.flower import SecureGrid
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    deadline, wait = float(config["deadline"]), float(config["wait"])
    strategy = FedAvg(min_train_nodes=CLIENTS, min_evaluate_nodes=CLIENTS, min_available_nodes=CLIENTS)
    with seat(config) as server:
        result = strategy.start(
            SecureGrid(grid, strategy, UPDATES, server, deadline=deadline, patience=wait),
            start(),
            num_rounds=int(config["rounds"]),
            train_config=ConfigRecord({"lr": 0.5}),
        )
    Path(str(config["out"])).write_text(json.dumps(told(result), indent=1))


@contextmanager
def seat(config: Mapping[str, Any]) -> Iterator[ServerSide]:
    """What the server has to itself. In a simulation a house of all parties is around it."""
    if config["house"]:
        with LocalDeployment(PLAN, UPDATES, clients=CLIENTS, folder=Path(config["house"])) as house:
            yield house.server
        return
    folder = Path(config["server"])
    with closing(Journal(folder / "journal.sqlite")) as journal:
        own = OwnRecord(SERVER, journal, keys.read(folder, SERVER))
        yield ServerSide(plan=PLAN, pinned=roster.read(folder / "roster.jsonl"), record=own)


def told(result: Result) -> dict[str, Any]:
    """What the server learnt, and the digest of the model."""
    rounds = {
        "train": result.train_metrics_clientapp,
        "evaluate": result.evaluate_metrics_clientapp,
    }
    whole = hashlib.sha256(b"".join(one.numpy().tobytes() for one in result.arrays.values()))
    said = {how: {number: dict(one) for number, one in each.items()} for how, each in rounds.items()}
    return {**said, "model": whole.hexdigest()}
