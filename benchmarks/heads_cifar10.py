"""Heads in closed form on features of CIFAR-10: accuracy by records and epsilon, and how good the rule is.

    securefl features cifar10 --out FEATURES.npz
    python benchmarks/heads_cifar10.py FEATURES.npz run --heads auto --seeds 0 1 2
    python benchmarks/heads_cifar10.py FEATURES.npz run --place central --heads auto prototypes ridge lda
    python benchmarks/heads_cifar10.py FEATURES.npz beside
    python benchmarks/heads_cifar10.py FEATURES.npz table

`run` plays what `benchmarks/results/heads_cifar10.csv` does not have yet, and appends each run to it. Shares
of noise are under masks, of 20 clients with dropout 0.1 and corrupt 0.1. `table` prints the means, and how
far the rule's head lies behind the best. `beside` prints logistic regression on the same features, by DP-SGD
at each client and FedAvg over 3 rounds, whose server need not be trusted either. Epsilon is per record
(add/remove) at delta 1e-5.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from securefl.core.streams import stream
from securefl.data import Dataset
from securefl.study.config import Study, parse
from securefl.study.run import run_arm
from securefl.study.world import World, build
from securefl.training import single_thread

RESULTS = Path(__file__).parent / "results" / "heads_cifar10.csv"
KEYS = ["records", "epsilon", "partition", "place", "seed", "arm"]
PLACES = {
    "shares": ("masked", "distributed", '["server", "key-holder", "others"]'),
    "central": ("clear", "central", '["others"]'),
    "local": ("clear", "local", '["server", "others"]'),
}
PARTITIONS = {
    "3 shards": '{ kind = "shards", per_client = 3 }',
    "dirichlet 0.3": '{ kind = "dirichlet", concentration = 0.3 }',
}
TOGETHER = "dropout = 0.1\ncorrupt = 0.1\nleast_cohort = 16\nleast_honest = 10\nlargest_share = 1.0"


def study(records: int, epsilon: float, partition: str, place: str, head: str) -> Study:
    summed, noise, against = PLACES[place]
    return parse(f"""
[study]
name = "heads on features of CIFAR-10"
rounds = 1
[data]
source = "digits"
clients = 20
partition = {PARTITIONS[partition]}
[model]
kind = "mlp"
hidden = []
[local]
optimizer = "sgd"
learning_rate = 0.1
epochs = 1
batch_size = 10
[privacy]
sum = "{summed}"
scores = "clear"
noise = "{noise}"
unit = "record"
adjacency = "add-remove"
delta = 1e-5
budget = inf
against = {against}
unprotected = ["statistic"]
epsilon = {epsilon}
{TOGETHER if place == "shares" else ""}
[[arm]]
name = "{head}"
protocol = "heads"
head = "{head}"
projection = "leading"
""")


def world_of(of: Study, records: int, seed: int, train: Dataset, test: Dataset) -> World:
    """The world of the digits, with these features in place of their records."""
    here = build(of, seed)
    own = train.take(np.sort(stream(seed, "records").permutation(len(train))[:records]))
    parts = of.data.partition.split(own, of.data.clients, stream(seed, "partition"))
    problem = replace(
        here.problem,
        shape=own.shape,
        records=len(own),
        server_x=test.x,
        server_y=test.y,
        planned=lambda sends: of.privacy.plan(1, sends, records=len(own), clients=of.data.clients),
    )
    return replace(here, problem=problem, records=[(own.x[part], own.y[part]) for part in parts])


def played(cell: tuple[Any, ...], train: Dataset, test: Dataset) -> dict[str, Any]:
    records, epsilon, partition, place, seed, head = cell
    of = study(records, epsilon, partition, place, head)
    here = world_of(of, records, seed, train, test)
    made = of.arms[0].options.build(here.problem)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        record = run_arm(of, of.arms[0], here, Path(folder), lambda record: None).records[-1]
    return {
        **dict(zip(KEYS, cell, strict=True)),
        "head": made.head,  # type: ignore[attr-defined]
        "width": made.statistic.blocks.width,  # type: ignore[attr-defined]
        "accuracy": record["accuracy"],
        "epsilon_others": record["epsilon"]["others"],
        "client_bytes_up": record["bytes_up"] // of.data.clients,
        "seconds": round(time.perf_counter() - began, 1),
    }


MULTIPLIERS = {0.25: 14.9, 1.0: 4.4, 8.0: 1.0}
"""Noise multipliers of 3 rounds of 10 steps at a sampling rate of 0.2, which cost this epsilon or less."""


def beside(records: int, epsilon: float, train: Dataset, test: Dataset) -> None:
    """Print the accuracy and epsilon of logistic regression by DP-SGD on features of unit norm."""
    text = study(records, float("inf"), "3 shards", "local", "auto").text.split("[[arm]]")[0]
    text = text.replace("rounds = 1", "rounds = 3").replace('"statistic"', '"update"')
    of = parse(f"""{text}
[dpsgd]
clip_norm = 1.0
noise_multiplier = {MULTIPLIERS[epsilon]}
sampling_rate = 0.2
expected_batch = {records // 100}
steps = 10
optimizer = "sgd"
learning_rate = 0.5
[[arm]]
name = "DP-SGD"
protocol = "fedavg"
fraction = 1.0
""")
    here = world_of(of, records, 0, unit(train), unit(test))
    with tempfile.TemporaryDirectory() as folder:
        record = run_arm(of, of.arms[0], here, Path(folder), lambda record: None).records[-1]
    print(
        f"{records:,} records: {record['accuracy']:.3f} at epsilon {record['epsilon']['server']:.2f}",
        flush=True,
    )


def unit(of: Dataset) -> Dataset:
    return replace(of, x=of.x / np.linalg.norm(of.x, axis=1, keepdims=True))


def load(path: Path) -> Dataset:
    with np.load(path, allow_pickle=False) as file:
        return Dataset(name="features", x=file["x"], y=file["y"], classes=10)


def run(given: argparse.Namespace, train: Dataset, test: Dataset) -> None:
    known = pd.read_csv(RESULTS)[KEYS] if RESULTS.exists() else pd.DataFrame(columns=KEYS)
    there = set(known.itertuples(index=False, name=None))
    for cell in product(
        given.records, given.epsilon, given.partition, [given.place], given.seeds, given.heads
    ):
        if cell not in there:
            row = pd.DataFrame([played(cell, train, test)])
            row.to_csv(RESULTS, mode="a", header=not RESULTS.exists(), index=False)
            print(row.to_string(index=False, header=False), flush=True)


def table_of(found: pd.DataFrame) -> str:
    """The mean accuracy of the rule's head by place of the noise, partition and number of records."""
    auto = found[found.arm == "auto"]
    means = auto.pivot_table(index=["place", "partition", "records"], columns="epsilon", values="accuracy")
    words = ["no noise" if np.isinf(epsilon) else f"ε {epsilon:g}" for epsilon in means.columns]
    lines = [
        "| " + " | ".join(["noise", "partition", "records", *words]) + " |",
        "|---" * (3 + len(words)) + "|",
    ]
    for (place, partition, records), row in means.iterrows():
        shown = ["–" if np.isnan(mean) else f"{mean:.3f}" for mean in row]
        lines.append("| " + " | ".join([place, partition, f"{records:,}", *shown]) + " |")
    return "\n".join(lines)


def behind(found: pd.DataFrame) -> pd.Series:
    """How far the rule's head lies behind the best, in each cell in which all heads ran."""
    cell = ["place", "partition", "records", "epsilon"]
    arms = found.groupby(cell)["arm"].nunique()
    complete = found[found.set_index(cell).index.isin(arms[arms == found.arm.nunique()].index)]
    # The rule's head is one of the named ones: all runs of one head and width in a cell count together.
    means = complete.groupby([*cell, "head", "width"])["accuracy"].mean().rename("mean").reset_index()
    ruled = complete[complete.arm == "auto"].drop_duplicates(cell).merge(means, on=[*cell, "head", "width"])
    return means.groupby(cell)["mean"].max() - ruled.set_index(cell)["mean"]


def sentence(found: pd.DataFrame) -> str:
    lost = behind(found)
    return f"The rule's head is within 0.01 of the best in {np.sum(lost <= 0.01)} of {len(lost)} cells."


def table() -> None:
    found = pd.read_csv(RESULTS)
    print(table_of(found), sentence(found), sep="\n")
    print(behind(found).nlargest(5).round(4).to_string())


def main() -> None:
    single_thread()
    reader = argparse.ArgumentParser()
    reader.add_argument("features", type=Path)
    reader.add_argument("what", choices=["run", "beside", "table"])
    reader.add_argument("--records", type=int, nargs="+", default=[3000, 10_000, 50_000])
    reader.add_argument(
        "--epsilon", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0, 4.0, 8.0, float("inf")]
    )
    reader.add_argument("--partition", nargs="+", default=list(PARTITIONS), choices=PARTITIONS)
    reader.add_argument("--place", default="shares", choices=PLACES)
    reader.add_argument("--seeds", type=int, nargs="+", default=[0])
    reader.add_argument("--heads", nargs="+", default=["auto"])
    given = reader.parse_args()
    if given.what == "table":
        table()
        return
    train, test = load(given.features), load(given.features.with_name(f"{given.features.stem}-test.npz"))
    if given.what == "run":
        run(given, train, test)
        return
    for records, epsilon in product(given.records, MULTIPLIERS):
        beside(records, epsilon, train, test)


if __name__ == "__main__":
    main()
