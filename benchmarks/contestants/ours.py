"""securefl: a study's arm as `securefl run` plays it, with ledger, journal and checkpoint on disk.

Only the evaluation after each round is left out. It trains in one process, as the others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from studies import played

from contestants.turns import Cell, Turns, Work
from securefl.algorithm.clients import Algorithm, Device, Evaluation
from securefl.algorithm.queries import Float32s
from securefl.protocols.averaging import Averaging
from securefl.protocols.parts import Part
from securefl.study.arm_options import ProtocolOptions
from securefl.study.config import Study, parse
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.training import single_thread
from securefl.training.task import Problem

PACKAGES = ("securefl", "torch")
SEED = 1


def study(cell: Cell, runtime: str = "workers = 1") -> Study:
    """The cell as a study's file says it. runtime: a line of its section [runtime]."""
    hidden = "" if cell.hidden is None else f"hidden = {list(cell.hidden)}"
    return parse(f"""
        [study]
        name = "{cell.name}"
        rounds = {cell.rounds}
        seeds = [{SEED}]
        [data]
        source = "{cell.source}"
        clients = {cell.clients}
        records = {cell.clients * cell.records}
        partition = {{ kind = "iid" }}
        [runtime]
        {runtime}
        [model]
        kind = "{cell.kind}"
        {hidden}
        [local]
        optimizer = "sgd"
        learning_rate = {cell.rate}
        epochs = {cell.epochs}
        batch_size = {cell.batch}
        [privacy]
        sum = "clear"
        scores = "clear"
        noise = "none"
        unit = "record"
        adjacency = "replace-one"
        delta = 1e-5
        budget = inf
        adversaries = ["server", "key-holder", "others"]
        non_private = ["update"]
        [[arm]]
        name = "FedAvg"
        protocol = "fedavg"
        fraction = {cell.cohort / cell.clients}
        aggregation = "partial"
        """)


def work_of(cell: Cell, path: Path) -> tuple[Work, World]:
    """What all contestants are given, and the world that it is from."""
    world = build(study(cell), SEED)
    x, y = (np.concatenate(parts) for parts in zip(*world.records, strict=True))
    return Work(path, x, y, world.problem.initial), world


@dataclass(frozen=True, eq=False)
class _Untested(Part):
    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation:
        return Evaluation(accuracy=0.0, loss=0.0)


@dataclass(frozen=True)
class _Options:
    """Another protocol's options, whose algorithm evaluates nothing."""

    own: ProtocolOptions

    def build(self, problem: Problem) -> Algorithm:
        algorithm: Any = self.own.build(problem)
        untested: Averaging = replace(algorithm, part=_Untested(problem))
        return untested


def _require_same(cell: Cell, work: Work, world: World) -> None:
    for number, own in enumerate(world.records):
        if not all(map(np.array_equal, own, work.client(number, cell))):
            raise SystemExit(f"Expected the study's records of client {number} in {work.path}, got others.")
    if not np.array_equal(work.initial, world.problem.initial):
        raise SystemExit(f"Expected the study's first model in {work.path}, got another.")


def play(cell: Cell, work: Work, turns: Turns, runtime: str = "workers = 1") -> NDArray[np.float32]:
    single_thread()
    asked = study(cell, runtime)
    world = build(asked, SEED)
    _require_same(cell, work, world)
    (arm,) = asked.arms
    arm = replace(arm, options=_Options(arm.options))
    turns.begin()
    _, state = played(asked, arm, world, lambda record: turns.next())
    return state.broadcast
