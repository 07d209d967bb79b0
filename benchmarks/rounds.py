"""Whole rounds of this checkout beside another's, evaluation left out, in CPU time.

    python benchmarks/rounds.py --against PATH [--rounds 9] [--cohort 10 100] [--json]
    python benchmarks/rounds.py --against PATH --study demo [--arm NAME] [--set 'sum = "clear"']

PATH is a folder with another checkout, such as `git worktree add --detach PATH b60f108` makes. Each checkout
runs with its own code, in processes of its own. Without `--study` the rounds are FedAvg's on Fashion-MNIST
with an MLP of 784-64-32-10: cohorts of 10 % of 100 and of 1,000 clients, in the clear and masked. The ratios
are to the other checkout's clear round. With `--study` every arm of a packaged study is played, and ratios
are to the other checkout's round of that arm.

The processes wait for each other and play in turn, so what else the machine does costs all of them alike. The
first round is not counted: it loads what is loaded once. A world is built before, outside the measure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parents[1]
COHORTS = (10, 100)
RECORDS = 60  # of each client: two batches, whatever the number of clients

RUNNER = r"""
import importlib.metadata as metadata, json, re, resource, sys, time, tomllib
from dataclasses import fields, replace
from pathlib import Path

# What is installed may be another checkout, with modules that this one lacks.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
said = tomllib.loads(Path("pyproject.toml").read_text())["project"]["entry-points"]
metadata.entry_points = lambda group=None: metadata.EntryPoints(
    metadata.EntryPoint(name, value, own)
    for own in (said if group is None else [group])
    for name, value in said.get(own, {}).items()
)
from securefl.study import config, run, world
from securefl.training import single_thread
try:
    from securefl.algorithm.clients import Evaluation
    from securefl.study.packaged import text_of
except ModuleNotFoundError:  # a checkout from before there were rooms
    from securefl.rounds import Evaluation
    from securefl.study.commands import text_of

try:
    from securefl.study.checkpoint import KIND
    listed = KIND.version >= 4
except ImportError:  # a checkout from before there were versions of a checkpoint
    listed = False

single_thread()
order = json.loads(sys.argv[1])
text = order["text"] or text_of(order["study"])
for line in order["set"]:
    key = line.split("=")[0].strip()
    text = re.sub(rf"(?m)^{re.escape(key)} *=.*$", lambda _: line if "=" in line else "", text)
known = {field.name for field in fields(config.PrivacySection)}
words = {"adversaries": "against", "non_private": "unprotected", "min_cohort_size": "least_cohort"}
words |= {"min_honest": "least_honest", "max_client_weight": "largest_share", "max_retries": "spare"}
head, privacy, rest = re.split(r"(?ms)^\[privacy\]\n(.*?)(?=^\[|\Z)", text)
# An older checkout has fewer keys, and older words for some.
named = [(line.split("=")[0].strip(), line) for line in privacy.splitlines()]
older = {key: words.get(key, key) for key, _ in named if key not in known}
named = [(older.get(key, key), line.replace(key, older.get(key, key), 1)) for key, line in named]
lines = [line for key, line in named if not key.isidentifier() or key in known]
study = config.parse("\n".join([head, "[privacy]", *lines, rest]))
study = replace(study, study=replace(study.study, rounds=order["rounds"], seeds=study.study.seeds[:1]))
if order["arm"] is None:
    print(json.dumps([arm.name for arm in study.arms]))
    raise SystemExit

def answered(record):
    # A record lists who answered. An older one has a flag for every client.
    return len(record["answered"]) if listed else sum(record["answered"])

def composed(*given, own=run.composition):
    algorithm, plan = own(*given)
    type(algorithm).evaluate = lambda *given, **named: Evaluation(accuracy=0.0, loss=0.0)
    return algorithm, plan

def used():
    # Workers count once they have ended.
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime, time.perf_counter()

def turn(record):
    global began
    cpu, wall = (after - before for after, before in zip(used(), began))
    print(json.dumps({"cpu": cpu, "wall": wall, "answered": answered(record)}), flush=True)
    if not sys.stdin.readline():
        raise SystemExit
    began = used()

run.composition = composed
here = world.build(study, study.study.seeds[0])
(arm,) = (arm for arm in study.arms if arm.name == order["arm"])
began = used()
run.run_arm(study, arm, here, Path(order["folder"]), turn)
"""


@dataclass(frozen=True)
class Play:
    """What one process plays. text: a study's, or empty for the packaged one called `study`."""

    name: str
    checkout: Path
    arm: str | None
    text: str = ""
    study: str = ""
    settings: tuple[str, ...] = ()

    def started(self, rounds: int, folder: str) -> subprocess.Popen[str]:
        order = {
            "text": self.text,
            "study": self.study,
            "arm": self.arm,
            "set": self.settings,
            "rounds": rounds,
            "folder": folder,
        }
        return subprocess.Popen(
            [sys.executable, "-c", RUNNER, json.dumps(order)],
            cwd=self.checkout,
            env={**os.environ, "PYTHONPATH": str(self.checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def interleaved(plays: Sequence[Play], rounds: int) -> list[list[dict[str, float]]]:
    """For each play, its rounds from the second on, in seconds. One process runs at a time."""
    with ExitStack() as stack:
        running = [
            stack.enter_context(play.started(rounds, stack.enter_context(tempfile.TemporaryDirectory())))
            for play in plays
        ]
        found: list[list[dict[str, float]]] = [[] for _ in plays]
        for number in range(rounds):
            for play, process, rows in zip(plays, running, found, strict=True):
                assert process.stdin is not None
                assert process.stdout is not None
                if number:
                    process.stdin.write("go\n")
                    process.stdin.flush()
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(f"{play.name} ended before its round {number + 1}.")
                rows.append(json.loads(line))
        for process in running:
            process.kill()
    return [rows[1:] for rows in found]


def fedavg(cohort: int, how: str) -> str:
    """The study of one cell: 10 % of the clients are in a cohort, and nothing is noised."""
    clients = 10 * cohort
    hidden = "" if how == "clear" else "dropout = 0.1\ncorrupt = 0.0"
    return f"""
[study]
name = "rounds"
rounds = 2
seeds = [1]

[data]
source = "fashion_mnist"
clients = {clients}
records = {RECORDS * clients}
partition = {{ kind = "iid" }}

[model]
kind = "mlp"
hidden = [64, 32]

[local]
optimizer = "sgd"
learning_rate = 0.05
epochs = 1
batch_size = 32

[privacy]
sum = "{how}"
scores = "clear"
noise = "none"
unit = "record"
adjacency = "replace-one"
delta = 1e-6
budget = inf
adversaries = ["server", "key-holder", "others"]
non_private = ["update"]
{hidden}
min_cohort_size = {cohort}
min_honest = 2
max_client_weight = 0.5

[[arm]]
name = "FedAvg"
protocol = "fedavg"
fraction = 0.1
aggregation = "partial"
"""


def cells(cohorts: Sequence[int], against: Path) -> Iterator[tuple[str, list[Play]]]:
    """Each cohort's plays. The first is what the others are compared with."""
    for cohort in cohorts:
        yield (
            f"K {cohort} of N {10 * cohort}",
            [
                Play(f"{which} {how}", checkout, "FedAvg", text=fedavg(cohort, how))
                for how in ("clear", "masked")
                for which, checkout in (("former", against), ("this", HERE))
            ],
        )


def arms(options: argparse.Namespace) -> Iterator[tuple[str, list[Play]]]:
    """Each arm of a packaged study, as both checkouts have it."""
    settings = tuple(options.set)
    sides = (("former", options.against), ("this", HERE))
    named = [_arms(Play(which, path, None, study=options.study, settings=settings)) for which, path in sides]
    for arm in named[1]:
        if arm in named[0] and (not options.arm or arm in options.arm):
            yield (
                f"{options.study}: {arm}",
                [Play(which, path, arm, study=options.study, settings=settings) for which, path in sides],
            )


def _arms(play: Play) -> list[str]:
    with play.started(1, "") as asked:
        said, _ = asked.communicate()
    names: list[str] = json.loads(said)
    return names


def figures(play: Play, rows: Sequence[Mapping[str, float]], former: float) -> dict[str, Any]:
    cpu = median(row["cpu"] for row in rows)
    answered = max(1.0, median(row["answered"] for row in rows))
    return {
        "play": play.name,
        "cpu_ms": 1e3 * cpu,
        "wall_ms": 1e3 * median(row["wall"] for row in rows),
        "client_round_ms": 1e3 * cpu / answered,
        "to_former": cpu / former,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--rounds", type=int, default=9, help="the first one is not counted")
    parser.add_argument("--cohort", type=int, nargs="+", default=COHORTS)
    parser.add_argument("--study", help="the name of a packaged study, in place of the cohorts")
    parser.add_argument("--arm", nargs="+", help="of the study; all that both checkouts have by default")
    parser.add_argument("--set", action="append", default=[], help="a line to replace, or a key to drop")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.json:
        print(f"{'':28}{'CPU ms':>10}{'wall ms':>10}{'a client':>10}{'to former':>11}")
    for title, plays in arms(options) if options.study else cells(options.cohort, options.against):
        found = interleaved(plays, options.rounds)
        former = median(row["cpu"] for row in found[0])
        for play, rows in zip(plays, found, strict=True):
            row = figures(play, rows, former)
            if options.json:
                print(json.dumps({"cell": title, **row}), flush=True)
            else:
                numbers = (row["cpu_ms"], row["wall_ms"], row["client_round_ms"])
                shown = "".join(f"{number:>10,.1f}" for number in numbers)
                print(f"{title:<16}{play.name:<12}{shown}{row['to_former']:>10.2f}x", flush=True)


if __name__ == "__main__":
    main()
