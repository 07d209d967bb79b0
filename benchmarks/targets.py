"""What clients are told at the end of a run with a target epsilon, under every registered protocol.

    python benchmarks/targets.py [--write]    # a minute on one core

Four clients of the digits train by DP-SGD for four rounds under `[dpsgd] epsilon = 5`; numbers and statistics
have local noise. `--write` keeps the table in benchmarks/results/targets.csv.
"""

from __future__ import annotations

from importlib.metadata import entry_points

import pandas as pd
from kept import keep
from studies import played

from securefl.errors import ConfigError
from securefl.study.composition import composition
from securefl.study.config import parse
from securefl.study.world import build

OPTIONS = {
    "active_fl": "loss_bound = 3.0",
    "adds": "min_clients_per_entry = 4",
    "cs_fl": "sparsity = 0.01",
    "fedbabu": "fine_tune_epochs = 1",
    "fedcor": "warm_up = 1\ninterval = 1\nloss_bound = 3.0",
    "feddbe": "mean_bound = 4.0",
    "fedlog": 'body = "dp-sgd"',
    "fedprof": "alpha = 1.0\nclip = { outputs = 20.0, squares = 400.0 }",
    "fedproto": 'clip = { kind = "unit-l2" }',
    "heads": 'head = "prototypes"',
    "pfedme": "lamda = 2.0\neta = 0.5",
    "pow_d": "loss_bound = 3.0",
    "stc": "p = 0.1",
}
STUDY = """
[study]
name = "targets"
rounds = 4
seeds = [3]
target = 0.2
[data]
source = "digits"
clients = 4
partition = { kind = "iid" }
[model]
kind = "mlp"
hidden = [8]
[local]
optimizer = "sgd"
learning_rate = 0.2
epochs = 1
batch_size = 16
[dpsgd]
clip_norm = 1.0
epsilon = 5.0
sampling_rate = 0.2
expected_batch = 80
steps = 5
optimizer = "sgd"
learning_rate = 0.5
[privacy]
sum = "clear"
scores = "clear"
noise = "local"
unit = "record"
adjacency = "add-remove"
delta = 1e-5
budget = inf
adversaries = ["server", "key-holder", "others"]
non_private = []
[[arm]]
name = "x"
"""


def row(name: str) -> tuple[str, str, str, str]:
    """Protocol, steps that one client is charged at most, noise multiplier, and epsilon in the end."""
    every = "" if name in ("fedlog", "fedproto", "heads") else "fraction = 1.0\n"
    study = parse(f'{STUDY}protocol = "{name}"\n{every}{OPTIONS.get(name, "")}\n')
    world = build(study, 3)
    try:
        algorithm, plan = composition(study, study.arms[0], world)
    except ConfigError:
        return name, "refused", "–", "–"
    specs = [own.spec for own in algorithm.contributions if own.spec.training is not None]
    steps = sum(
        plan.max_releases[s.name] * s.training.count - s.schedule.initial * s.training.count for s in specs
    )
    noise = f"{specs[0].training.event.event.noise_multiplier:g}" if specs else "–"
    run, _ = played(study, study.arms[0], world)
    told = max(run.records[-1]["epsilon"][party] for party in plan.adversaries)
    return name, str(steps), noise, f"{told:.4f}"


def main() -> None:
    names = sorted(point.name for point in entry_points(group="securefl.protocols"))
    rows = [row(name) for name in names]
    heading = ("protocol", "steps", "noise multiplier", "epsilon told")
    table = pd.DataFrame(rows, columns=heading)
    print(table.to_string(index=False))
    keep("targets", table)


if __name__ == "__main__":
    main()
