"""Studies of one exchange of statistics as text: FedLog's and the heads' differ in model and arm."""

from __future__ import annotations


def model(hidden: str = "[]") -> str:
    """The sections of the model and of its training, which a head in closed form has no use for."""
    return f"""[model]
kind = "mlp"
hidden = {hidden}
[local]
optimizer = "sgd"
learning_rate = 0.1
epochs = 1
batch_size = 10"""


def on_digits(
    name: str,
    arm: str,
    *,
    noise: str,
    epsilon: float | str,
    rounds: int,
    seeds: str = "[1]",
    hidden: str = "[]",
    **changed: str,
) -> str:
    """`changed` are words of the text, such as clients and adjacency; `extra` ends [privacy]."""
    words = {"adjacency": "add-remove", "clients": "20", "unit": "record", "delta": "1e-5", "budget": "inf"}
    words |= {"extra": "", **changed}
    server = '"server", ' if noise != "central" else ""
    calibrated = f"epsilon = {epsilon}" if noise != "none" else ""
    return f"""
[study]
name = "{name}"
rounds = {rounds}
seeds = {seeds}
[data]
source = "digits"
clients = {words["clients"]}
partition = {{ kind = "shards", per_client = 2 }}
{model(hidden)}
[privacy]
sum = "clear"
scores = "clear"
noise = "{noise}"
unit = "{words["unit"]}"
adjacency = "{words["adjacency"]}"
delta = {words["delta"]}
budget = {words["budget"]}
adversaries = [{server}"others"]
non_private = {'["statistic"]' if noise == "none" else "[]"}
{calibrated}
{words["extra"]}
[[arm]]
{arm}
"""
