"""The problem of a tiny model on rows of a few numbers, as the unit tests of protocols pose it."""

from __future__ import annotations

from typing import Any

import numpy as np

from securefl.algorithm.clients import ClientContext
from securefl.training import LocalTraining, ModelConfig, Problem


def tiny_problem(*, width: int = 6, hidden: tuple[int, ...] = (8,), **changes: Any) -> Problem:
    """A problem of 3 classes, 3 clients and 90 records of `width` numbers, without records of the server.

    changes: of fields of the problem, or of its local training.
    """
    local = {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 5}
    local |= {name: changes.pop(name) for name in [*changes] if name in LocalTraining.__dataclass_fields__}
    if "steps" not in local:
        local.setdefault("epochs", 2)
    given: dict[str, Any] = {
        "model": ModelConfig(kind="mlp", hidden=hidden),
        "local": LocalTraining(**local),
        "kind": "classification",
        "shape": (width,),
        "outputs": 3,
        "clients": 3,
        "records": 90,
        "server_x": np.zeros((0, width), np.float32),
        "server_y": np.zeros(0, np.int64),
        "seed": 2,
    }
    return Problem(**{**given, **changes})


def client_context(x: Any, y: Any, **more: Any) -> ClientContext:
    """What client 0 is asked about these records in round 1; `more` are further fields, or others.

    The broadcast is empty unless it is given.
    """
    given: dict[str, Any] = {"client": 0, "round": 1, "broadcast": np.zeros(0, np.float32), "public": {}}
    return ClientContext(x=x, y=y, **{**given, "rng": np.random.default_rng(0), **more})
