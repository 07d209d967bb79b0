"""The files of one arm under one seed: checkpoint, ledger and journal, opened and checked together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import State
from securefl.algorithm.plan import Plan
from securefl.storage.database import decoding
from securefl.storage.files import subfolder
from securefl.storage.journal import Journal
from securefl.storage.private_folder import PRIVATE, private_folder
from securefl.study.checkpoint import Checkpoint, Stands, require_all, stands_of
from securefl.study.config import Arm, Study, slug
from securefl.study.seeded import World

ARMS = Path(PRIVATE) / "arms"
"""The folder of the databases, below a run folder."""


FILES = ("acts.sqlite", "ledger.sqlite", "ledger.sqlite-head", "checkpoint.sqlite")
"""The files of an arm and seed, in the order in which a round writes them. If those before one are newer than
it and than those behind it, the round is played again, as after any interruption."""


def arm_folder(folder: Path, arm: Arm, seed: int) -> Path:
    """The folder with checkpoint, ledger and journal of one arm and seed."""
    return folder / ARMS / slug(arm.name) / f"seed-{seed}"


def made_folder(folder: Path, arm: Arm, seed: int) -> Path:
    """Make the folder of one arm and seed unless it exists. Raises DataError if its path has a link."""
    home = arm_folder(folder, arm, seed)
    folder.mkdir(parents=True, exist_ok=True)
    private_folder(folder)
    for part in reversed(home.relative_to(folder).parents):
        subfolder(folder / part)
    return subfolder(home)


def is_personal(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an arm's accuracy is measured on its clients' own models."""
    return any(record.get("personal") for record in records)


@dataclass(frozen=True)
class ArmRun:
    """A finished arm under one seed, and the records of all its rounds (see `run.Turn`)."""

    arm: Arm
    world: World
    records: list[dict[str, Any]]

    @property
    def personal(self) -> bool:
        """Whether the arm's accuracy is measured on its clients' own models."""
        return is_personal(self.records)


@dataclass(frozen=True, eq=False)
class Saved:
    """The opened files of one arm and seed.

    state: the newest state; None before round 1. records: of all finished rounds. stands: the part of each
    record that a resumed run needs.
    """

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
    """Open the files of an arm and seed in the folder `home`, or create them.

    allotment: the charges that a shared ledger reserved for this run; None without a shared ledger.
    Raises DataError if the files are of another study, arm or seed, or do not belong together.
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
    """The state (None before round 1) and all records from the checkpoint, checked against the ledger."""
    state, records = checkpoint.load()
    with checkpoint.explaining(), decoding():
        stands = [stands_of(record, clients) for record in records]
    if stands:
        require_all(ledger, stands[-1])
    return state, records, stands
