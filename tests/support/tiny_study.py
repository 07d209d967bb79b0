"""A study of seconds on scikit-learn's digits, and ways to look into its run."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.clients import (
    Algorithm,
    Contribution,
    Device,
    Evaluation,
    Population,
    RoundResult,
    State,
)
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, CohortQuery
from securefl.study.arm import ArmRun
from securefl.study.arm_options import ProtocolOptions
from securefl.study.composition import composition
from securefl.study.config import Arm, Study, parse
from securefl.study.run import run_arm
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.training.task import Problem

FEDAVG = '[[arm]]\nname = "FedAvg"\nprotocol = "fedavg"\nfraction = 0.5\n'
FEDPROF = '[[arm]]\nname = "FedProf"\nprotocol = "fedprof"\nfraction = 0.5\n'


SENT = {
    "fedprof": "profile",
    **dict.fromkeys(("active_fl", "fedcor", "pow_d"), "loss"),
    "adds": "map",
    "fltrust": "direction",
    "feddbe": "consensus",
    "cs_fl": "votes",
}
"""What clients of a protocol send beside their updates."""


def text(
    *arms: str,
    rounds: int = 2,
    clients: int = 6,
    seeds: str = "[3]",
    scores: str = "clear",
    non_private: str | None = None,
    extra: str = "",
) -> str:
    """The TOML of a tiny study; `extra` are further sections. All that the arms send is unprotected."""
    arms = arms or (FEDAVG, FEDPROF)
    if non_private is None:
        sent = [name for protocol, name in SENT.items() if f'"{protocol}"' in "".join(arms)]
        non_private = json.dumps(["update", *dict.fromkeys(sent)])
    head = f"""
[study]
name = "tiny"
rounds = {rounds}
seeds = {seeds}
target = 0.2

[data]
source = "digits"
clients = {clients}
partition = {{ kind = "iid" }}

[model]
kind = "mlp"
hidden = [8]

[local]
optimizer = "sgd"
learning_rate = 0.2
epochs = 2
batch_size = 48

[privacy]
sum = "clear"
scores = "{scores}"
noise = "none"
unit = "record"
adjacency = "replace-one"
delta = 1e-4
budget = inf
adversaries = ["server", "key-holder", "others"]
non_private = {non_private}
min_cohort_size = 2
min_honest = 1
max_client_weight = 0.5
{extra}
"""
    return head + "\n".join(arms)


def with_privacy(written: str, settings: Mapping[str, str]) -> str:
    """The text with these values in its section [privacy]. Of a hidden sum, two clients hide no third one."""
    if settings.get("sum", '"clear"') != '"clear"':
        settings = {"min_cohort_size": "3", **settings}
    lines = written.splitlines()
    at = lines.index("[privacy]") + 1
    end = next((n for n, line in enumerate(lines[at:], at) if line.startswith("[")), len(lines))
    gone = tuple(f"{key} =" for key in settings)
    own = [line for line in lines[at:end] if not (gone and line.startswith(gone))]
    said = [f"{key} = {value}" for key, value in settings.items()]
    return "\n".join([*lines[:at], *said, *own, *lines[end:]])


def study(*arms: str, **changes: Any) -> Study:
    return parse(text(*arms, **changes))


def world(of: Study) -> World:
    return build(of, of.study.seeds[0])


def composed(of: Study, here: World | None = None) -> tuple[Algorithm, Plan]:
    """Algorithm and plan of the first arm."""
    return composition(of, of.arms[0], here or world(of))


def run(
    of: Study,
    folder: Path,
    *,
    here: World | None = None,
    arm: Arm | None = None,
    rounds: int | None = None,
) -> ArmRun:
    """Run the first arm, or `arm`."""
    return run_arm(of, arm or of.arms[0], here or world(of), folder, lambda record: None, rounds=rounds)


def plain(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what no two runs share; NaN as text, so that equal records compare equal.

    That is the wall time, and the digest of a ledger, in which session and times are.
    """
    own = ("wall_seconds", "ledger")
    return [{k: repr(v) for k, v in record.items() if k not in own} for record in records]


def newest(records: Sequence[Mapping[str, Any]], figure: str, clients: int) -> NDArray[np.float64]:
    """Every client's figure after these rounds, NaN for none."""
    known = np.full(clients, np.nan)
    for record in records:
        changed, values = record["figures"][figure]
        known[changed] = values
    return known


@dataclass
class Spy:
    """Options that build the algorithm of `options` and keep every state and ask of it."""

    options: ProtocolOptions
    states: list[State] = field(default_factory=list)
    asks: list[tuple[CohortQuery, Answers]] = field(default_factory=list)

    def build(self, problem: Problem) -> Algorithm:
        return _Watched(self.options.build(problem), self)


@dataclass
class _Watched:
    own: Algorithm
    spy: Spy

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        return self.own.contributions

    def start(self) -> State:
        self.spy.states = [self.own.start()]
        return self.spy.states[0]

    def round(
        self, state: State, population: Population, number: int, rng: np.random.Generator
    ) -> Generator[CohortQuery, Answers, RoundResult]:
        turn = self.own.round(state, population, number, rng)
        try:
            question = next(turn)
            while True:
                answers = yield question
                self.spy.asks.append((question, answers))
                question = turn.send(answers)
        except StopIteration as done:
            self.spy.states.append(done.value.state)
            return done.value

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        return self.own.evaluate(state, devices)


def spied(of: Study, folder: Path, here: World | None = None) -> tuple[Spy, ArmRun]:
    """The first arm's run, with its states (one before each round, one at the end) and asks."""
    first = of.arms[0]
    spy = Spy(first.options)
    arm = replace(first, options=spy)
    return spy, run(of, folder, here=here, arm=arm)


def same_state(a: State, b: State) -> bool:
    """Equal bit for bit, types and shapes included."""
    arrays: list[Mapping[str, Any]] = [{**s.memory, "": s.broadcast} for s in (a, b)]
    first, second = arrays
    return first.keys() == second.keys() and all(
        first[k].dtype == second[k].dtype
        and first[k].shape == second[k].shape
        and first[k].tobytes() == second[k].tobytes()
        for k in first
    )


def charged(folder: Path) -> Counter[str]:
    """How many releases of each value the ledgers in a folder have."""
    found = Counter[str]()
    for path in folder.rglob("ledger.sqlite"):
        with closing(sqlite3.connect(path)) as db:
            found.update(name for (name,) in db.execute("SELECT name FROM releases"))
    return found
