"""The ServerApp of the benchmark: rounds in one way of summing, and their marks into a file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from federation_client import CLIENTS
from federation_rounds import UPDATES, plan_of, rounds_of
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from securefl.deployment.local import LocalDeployment

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    how, size, rounds = str(config["how"]), int(config["size"]), int(config["rounds"])
    folder = Path(str(config["house"]))
    if how == "plain":
        marks = rounds_of(grid, size, rounds, None)
    else:
        shutil.rmtree(folder, ignore_errors=True)  # of the run before, whose plan was another
        with LocalDeployment(plan_of(how), UPDATES, clients=CLIENTS, folder=folder) as house:
            marks = rounds_of(grid, size, rounds, house)
    Path(str(config["out"])).write_text(json.dumps(marks))
