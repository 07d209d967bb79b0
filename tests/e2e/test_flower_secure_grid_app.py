"""The example of Flower's own FedAvg on masked sums: in this process, and, slowly, over real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from support.grid_double import GridDouble

from securefl.deployment.local import LocalDeployment
from securefl.flower.secure_grid import SecureGrid

APP = Path(__file__).parents[2] / "examples" / "flower_secure_grid"


def here(folder: Path, rounds: int, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the server learns of the example's apps, with all messages delivered in this process."""
    patch.syspath_prepend(str(APP))
    from grid_app import client, server, task, terms

    def node(number: int, message: Message) -> Message:
        config = {"partition-id": number}
        return client.app(message, Context(1, number + 10, config, RecordDict(), {"house": str(folder)}))

    double = GridDouble({10 + k: partial(node, k) for k in range(task.CLIENTS)})
    nodes = dict.fromkeys(("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"), task.CLIENTS)
    strategy = FedAvg(**nodes)
    with LocalDeployment(terms.PLAN, terms.UPDATES, clients=task.CLIENTS, folder=folder) as house:
        grid = SecureGrid(double, strategy, terms.UPDATES, house.server, deadline=5.0, patience=1.0)
        result = strategy.start(grid, task.start(), rounds, train_config=ConfigRecord({"lr": 0.5}))
    said: dict[str, Any] = json.loads(json.dumps(server.told(result)))
    return said


def test_the_app_learns_from_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = here(tmp_path, 1, monkeypatch)
    assert said["train"]["1"] == {"loss": pytest.approx(np.log(10), abs=1e-6)}
    assert said["evaluate"]["1"]["accuracy"] > 0.85


def namespaces() -> bool:
    return subprocess.run(["unshare", "--net", "--map-root-user", "true"], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("how", ["", "--installed", "--simulation"], ids=["stock", "installed", "simulated"])
def test_real_processes_end_in_the_same_model(
    how: str, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "--simulation" and not namespaces():
        pytest.skip("no network namespaces here, and Ray listens on all interfaces without one")
    out = short_path / "f"
    command = [sys.executable, str(APP / "federation.py"), "--out", str(out), "--rounds", "2", *how.split()]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=short_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((out / "result.json").read_text()) == here(short_path / "h", 2, monkeypatch)
