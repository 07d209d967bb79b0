"""Heads on the digits as features: the problem, the study and the world."""

from __future__ import annotations

from functools import cache

import numpy as np

from securefl.study.config import Study, parse
from securefl.study.world import World, build
from securefl.training import LocalTraining, ModelConfig
from securefl.training.task import Problem


def problem(width: int = 5, classes: int = 3, clients: int = 2) -> Problem:
    """Records that are their own features."""
    return Problem(
        model=ModelConfig(kind="mlp", hidden=()),
        local=LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=1, batch_size=4),
        kind="classification",
        shape=(width,),
        outputs=classes,
        clients=clients,
        records=100,
        server_x=np.zeros((1, width), np.float32),
        server_y=np.zeros(1, np.int64),
        seed=1,
    )


def study(
    noise: str = "central", epsilon: float | str = 1.0, options: str = "", *, rounds: int = 1, **changed: str
) -> Study:
    """`changed` are words of the text, such as clients and adjacency."""
    words = {"adjacency": "add-remove", "clients": "20", "unit": "record", "extra": "", "delta": "1e-5"}
    words |= changed
    server = '"server", ' if noise != "central" else ""
    calibrated = f"epsilon = {epsilon}" if noise != "none" else ""
    return parse(
        f"""
[study]
name = "heads"
rounds = {rounds}
seeds = [1]
[data]
source = "digits"
clients = {words["clients"]}
partition = {{ kind = "shards", per_client = 2 }}
[model]
kind = "mlp"
hidden = []
[local]
optimizer = "sgd"
learning_rate = 0.1
epochs = 1
batch_size = 10
[privacy]
sum = "clear"
scores = "clear"
noise = "{noise}"
unit = "{words["unit"]}"
adjacency = "{words["adjacency"]}"
delta = {words["delta"]}
budget = inf
against = [{server}"others"]
unprotected = {'["statistic"]' if noise == "none" else "[]"}
{calibrated}
{words["extra"]}
[[arm]]
name = "heads"
protocol = "heads"
{options}
"""
    )


@cache
def world() -> World:
    return build(study(), 1)
