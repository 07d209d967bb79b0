"""FedLog with a public body, on digits: its study and its world."""

from __future__ import annotations

from functools import cache

from securefl.study.config import Study, parse
from securefl.study.world import World, build

UNIT, BOUNDED = 'clip = { kind = "unit-l2" }', 'clip = { kind = "bounded", bound = 1.0 }'


def study(
    noise: str = "central", epsilon: float = 1.0, clip: str = UNIT, *, rounds: int = 1, **changed: str
) -> Study:
    words = {"adjacency": "add-remove", "calibration": "exact", "clients": "20", "budget": "inf", **changed}
    server = '"server", ' if noise != "central" else ""
    calibrated = f'epsilon = {epsilon}\ncalibration = "{words["calibration"]}"' if noise != "none" else ""
    return parse(
        f"""
[study]
name = "fedlog"
rounds = {rounds}
seeds = [1, 2, 3]
[data]
source = "digits"
clients = {words["clients"]}
partition = {{ kind = "shards", per_client = 2 }}
[model]
kind = "mlp"
hidden = [84]
[local]
optimizer = "sgd"
learning_rate = 0.1
epochs = 1
batch_size = 10
[privacy]
sum = "clear"
scores = "clear"
noise = "{noise}"
unit = "record"
adjacency = "{words["adjacency"]}"
delta = 1e-5
budget = {words["budget"]}
against = [{server}"others"]
unprotected = {'["statistic"]' if noise == "none" else "[]"}
{calibrated}
[[arm]]
name = "FedLog"
protocol = "fedlog"
{clip}
"""
    )


@cache
def world() -> World:
    return build(study(), 1)
