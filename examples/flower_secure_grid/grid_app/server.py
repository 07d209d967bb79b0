"""The ServerApp: Flower's own FedAvg, as for plain Flower but for two lines."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from grid_app.task import CLIENTS, start
from securefl.flower import secure_strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg(min_train_nodes=CLIENTS, min_evaluate_nodes=CLIENTS, min_available_nodes=CLIENTS)
    strategy = secure_strategy(strategy, context)
    result = strategy.start(
        grid, start(), num_rounds=int(config["rounds"]), train_config=ConfigRecord({"lr": 0.5})
    )
    Path(str(config["out"])).write_text(json.dumps(told(result), indent=1))


def told(result: Result) -> dict[str, Any]:
    """What the server learnt, and the digest of the model."""
    rounds = {
        "train": result.train_metrics_clientapp,
        "evaluate": result.evaluate_metrics_clientapp,
    }
    whole = hashlib.sha256(b"".join(one.numpy().tobytes() for one in result.arrays.values()))
    said = {how: {number: dict(one) for number, one in each.items()} for how, each in rounds.items()}
    return {**said, "model": whole.hexdigest()}
