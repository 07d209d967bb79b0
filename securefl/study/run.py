"""Run a study: every arm under every seed, resumable at the last finished round."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securefl.accounting.ledger import Ledger
from securefl.algorithm import State
from securefl.plan import Plan
from securefl.storage.database import decoding
from securefl.storage.journal import Journal
from securefl.study.accounted import allotted, reserve
from securefl.study.checkpoint import Checkpoint, Stands, require_all, stands_of
from securefl.study.composition import composition
from securefl.study.config import Arm, Study
from securefl.study.folder import made_folder
from securefl.study.interruption import Interruption, Stop
from securefl.study.seats import OneProcess, Seats
from securefl.study.seeded import ArmRun, World
from securefl.study.turn import Turn

Tell = Callable[[Mapping[str, Any]], None]


def run_arm(
    study: Study,
    arm: Arm,
    world: World,
    folder: Path,
    tell: Tell,
    *,
    rounds: int | None = None,
    stop: Stop | None = None,
    seats: Seats | None = None,
) -> ArmRun:
    """Run one arm to its last round, from where it was cut off. `tell` gets every round's record.

    rounds: the largest number of the study's rounds to play.
    stop: raises Interrupted between two rounds, if it is asked to.
    seats: where the arm's parties sit, by default all of them in this process.
    Each arm has a ledger of its own. It is accounted as if no other arm had run, unless the study names a
    shared ledger: the run is then reserved there before its first round, or refused.
    """
    stop, seats = stop or Interruption(), seats or OneProcess()
    algorithm, plan = composition(study, arm, world)
    home = made_folder(folder, arm, world.seed)
    bounds = allotted(study, arm, world.seed, (algorithm, plan), "").charges
    with opened(study, arm, world, plan, home, None if study.privacy.ledger is None else bounds) as saved:
        ledger, checkpoint, journal, records = saved.ledger, saved.checkpoint, saved.journal, saved.records
        for record in records:
            tell(record)
        if len(records) < study.study.rounds and not (records and records[-1]["ended"]):
            own = allotted(study, arm, world.seed, (algorithm, plan), ledger.identity)
            reserve(study, plan, world.marks.records, [own])
        turn = Turn(study, arm, world, algorithm, plan, ledger, checkpoint, journal, saved.stands, seats)
        state = saved.state or algorithm.start()
        for number in range(len(records) + 1, (rounds or study.study.rounds) + 1):
            if records and records[-1]["ended"]:
                break
            # The checkpoint comes last: a round that is cut off before it is played again as it was, from the
            # journal's secrets.
            with stop.finishing("this round"):
                state, record, kept = turn.play(number, state)
                checkpoint.save(number, state, record, kept)
                records.append(record)
                tell(record)
            stop.check()
    return ArmRun(arm, world, records)


@dataclass(frozen=True, eq=False)
class Saved:
    """The files of one arm and seed, and what is on record in them. state: None before round 1."""

    ledger: Ledger
    checkpoint: Checkpoint
    journal: Journal
    state: State | None
    records: list[dict[str, Any]]
    stands: list[Stands]


@contextmanager
def opened(
    study: Study,
    arm: Arm,
    world: World,
    plan: Plan,
    home: Path,
    allotment: Mapping[str, int] | None = None,
) -> Iterator[Saved]:
    """Open the files of an arm and seed in the folder `home`, or begin them.

    allotment: what a shared ledger lets through, None without one.
    Raises DataError for files of another study, arm or seed, or that do not belong together.
    """
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger(home / "ledger.sqlite", plan.terms(), allotted=allotment))
        checkpoint = stack.enter_context(Checkpoint(home / "checkpoint.sqlite"))
        journal = stack.enter_context(Journal(home / "acts.sqlite"))
        checkpoint.bind(
            study=hashlib.sha256(study.text.encode()).hexdigest(),
            arm=arm.name,
            seed=str(world.seed),
            ledger=ledger.identity,
            journal=journal.identity,
            **world.marks.bound,
        )
        state, records, stands = _resumed(checkpoint, ledger, world.problem.clients)
        yield Saved(ledger, checkpoint, journal, state, records, stands)


def _resumed(
    checkpoint: Checkpoint, ledger: Ledger, clients: int
) -> tuple[State | None, list[dict[str, Any]], list[Stands]]:
    """What a run goes on with: the state, None where none began, the finished rounds and how they stood."""
    state, records = checkpoint.load()
    with checkpoint.explaining(), decoding():
        stands = [stands_of(record, clients) for record in records]
    if stands:
        require_all(ledger, stands[-1])
    return state, records, stands
