"""CPU of a round of each protocol over FedAvg's, in one process on one thread.

    python benchmarks/protocol_times.py [NAME ...] [--write]

Digits, 10 clients, 5 epochs of batch 10, a dense model of 6,570 values, sums in the clear. The arms take
turns, each for some rounds, and the first rounds of a turn are not timed. Nobody evaluates. Printed are the
medians over all rounds: milliseconds of a round, and their ratio to FedAvg's. `--write` keeps them in
benchmarks/results/protocol_times.csv.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from statistics import median
from time import process_time
from typing import Final

import pandas as pd
from kept import keep
from studies import played

from securefl.study.config import parse
from securefl.study.world import build
from securefl.training import single_thread

ARMS: Final[Mapping[str, str]] = {
    "fedavg": 'aggregation = "partial"',
    **dict.fromkeys(("fedprox", "fedadam", "fedavg_rp", "cfcfm", "active_fl", "pow_d", "fedprof"), ""),
    "fedcor": "warm_up = 3\ninterval = 2",
    **dict.fromkeys(("stc", "cs_fl", "fltrust", "feddrop", "adds", "lg_fedavg", "fedper", "fedrep"), ""),
    **dict.fromkeys(("fedbabu", "feddbe", "fedproto"), ""),
    "pfedme": "personal_steps = 1\neta = 0.05",
    "fedlog": 'body = "private"',
    "heads": "",
}
"""The options of each protocol. pFedMe's K of 5 would be five times FedAvg's steps."""
WHOLE: Final = ("fedproto", "fedlog", "heads")
"""Protocols whose rounds have all clients, without an option."""
ROUNDS, UNTIMED, TURNS = 6, 2, 3
STUDY = f"""
[study]
name = "times"
rounds = {ROUNDS + 1}
seeds = [1]
evaluate_every = {ROUNDS + 1}
[data]
source = "digits"
clients = 10
partition = {{ kind = "iid" }}
[model]
kind = "mlp"
hidden = [64, 32]
[local]
optimizer = "sgd"
learning_rate = 0.05
epochs = 5
batch_size = 10
[runtime]
workers = 1
[privacy]
sum = "clear"
scores = "clear"
noise = "none"
unit = "record"
adjacency = "replace-one"
delta = 1e-5
budget = inf
adversaries = ["server", "key-holder", "others"]
min_cohort_size = 1
min_honest = 1
max_client_weight = 0.5
"""


def main() -> None:
    single_thread()
    asked = [word for word in sys.argv[1:] if not word.startswith("-")]
    names = ["fedavg", *(n for n in ARMS if n != "fedavg" and (n in asked or not asked))]
    arms = "".join(
        f'[[arm]]\nname = "{name}"\nprotocol = "{name}"\n{ARMS[name]}\n'
        + ("" if name in WHOLE else "fraction = 1.0\n")
        for name in names
    )
    sent = ["update", "statistic", "size", "loss", "count", "profile", "map", "consensus", "direction"]
    study = parse(STUDY + f"non_private = {[*sent, 'tuned', 'votes']}\n" + arms)
    world, spent = build(study, 1), {name: list[float]() for name in names}
    for _ in range(TURNS):
        for arm in study.arms:
            marks: list[float] = []
            played(study, arm, world, lambda record, marks=marks: marks.append(process_time()), ROUNDS)
            spent[arm.name] += [b - a for a, b in zip(marks[UNTIMED - 1 :], marks[UNTIMED:], strict=False)]
    base = median(spent["fedavg"])
    rows = [(name, round(1e3 * median(own), 2), round(median(own) / base, 2)) for name, own in spent.items()]
    found = pd.DataFrame(rows, columns=["protocol", "ms", "over_fedavg"])
    print(found.to_string(index=False))
    keep("protocol_times", found)


if __name__ == "__main__":
    main()
