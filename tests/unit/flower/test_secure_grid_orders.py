"""Whoever stands in the place of a SecureGrid's server gains nothing by the orders it makes up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from support.every import every
from support.flower_apps import CLIENTS, MASKED, TWO, UPDATES, grid_of, inner, secured, start
from support.hidden_plans import lawless

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ByCount, ByDraws, CohortQuery
from securefl.deployment.local import LocalDeployment
from securefl.engine import server
from securefl.flower import secure_grid

OWN = replace(UPDATES, evaluation=())
EVERYBODY = dict.fromkeys(range(CLIENTS), 1)
ORDERS: dict[str, dict[str, Any]] = {
    "draws in an app without": {"weights": ByDraws({**EVERYBODY, 0: 2**30})},
    "one draw each": {"weights": ByDraws(EVERYBODY)},
    "an n": {"weights": ByCount(2**40)},
    "a client alone": {"cohort": (0,)},
}


@contextmanager
def asking(**changes: Any) -> Iterator[None]:
    """The server asks otherwise than its plan says, and does not hold its asks against it."""

    def lies(**words: Any) -> CohortQuery:
        return CohortQuery(**{**words, **changes})

    with mock.patch.object(secure_grid, "CohortQuery", lies), mock.patch.object(server, "require_allowed"):
        yield


def trained(folder: Path, plan: Plan, changes: dict[str, Any]) -> tuple[Any, int]:
    """The model after a round of such orders, and how often a client's app was asked to train for it."""
    said: list[int] = []

    def counted(content: RecordDict) -> RecordDict:
        said.append(1)
        return content

    nodes = dict.fromkeys(("min_train_nodes", "min_available_nodes"), CLIENTS)
    strategy = FedAvg(fraction_evaluate=0.0, **nodes)
    apps = secured(folder, [inner(k, counted) for k in range(CLIENTS)])
    with LocalDeployment(plan, OWN, clients=CLIENTS, folder=folder) as house:
        grid = grid_of(house, strategy, apps, OWN)
        with asking(**changes):
            grid._engine.server._plan = lawless(plan, min_cohort_size=2, min_honest=1)
            result = strategy.start(grid, start(), 1, train_config=ConfigRecord({"lr": 0.5}))
    return result.arrays, len(said)


def test_the_servers_own_orders_train_every_client(tmp_path: Path) -> None:
    plan = replace(MASKED, non_private=("update",), weights={"update": "counts"})
    arrays, trainings = trained(tmp_path, plan, {})
    assert trainings == CLIENTS
    assert not np.array_equal(next(iter(arrays.values())).numpy(), next(iter(start().values())).numpy())


@every("plan", [MASKED, TWO])
@every("name", ORDERS)
def test_an_order_that_is_made_up_moves_no_model(name: str, plan: Plan, tmp_path: Path) -> None:
    plan = replace(plan, non_private=("update",), weights={"update": "counts"})
    arrays, trainings = trained(tmp_path, plan, ORDERS[name])
    assert trainings == 0, "who refuses an order does not compute for it"
    assert not list(arrays.values())
