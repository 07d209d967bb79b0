"""The file of one arm under one seed: its ledger, journal and checkpoint, opened and checked together.

One SQLite file has the tables of all three, so that a round in one process is one durable commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from securefl.accounting import store
from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import State
from securefl.algorithm.plan import Plan
from securefl.core.errors import DataError, of_another_version
from securefl.core.logs import held
from securefl.storage import journal as acts
from securefl.storage.database import Database, decoding, joined
from securefl.storage.files import folder_at, subfolder
from securefl.storage.journal import Journal
from securefl.storage.private_folder import ARMS, private_folder
from securefl.study import checkpoint as rounds
from securefl.study.checkpoint import Checkpoint, ResumePoint, require_all, resume_point
from securefl.study.config import Arm, Study, slug
from securefl.study.seeded import World

LEDGER: Final = "ledger.sqlite"
"""The file of a run: its ledger, and beside the ledger's tables those of its journal and checkpoint."""
_RUN = joined(
    store.KIND,
    acts.KIND,
    rounds.KIND,
    lost="The record of its releases and its finished rounds are lost with it. Restore the folder it is in "
    "from one backup, or begin a new run in another folder.",
)


def arm_folder(folder: Path, arm: Arm, seed: int) -> Path:
    """The folder with checkpoint, ledger and journal of one arm and seed."""
    return folder / ARMS / slug(arm.name) / f"seed-{seed}"


def checkpoint_file(home: Path) -> Path:
    """The file with the checkpoint, in the folder of an arm and seed. It may be missing."""
    return home / LEDGER


def _file(home: Path) -> Database:
    """The open file of a run. Raises DataError if the folder is of another version, or the file damaged."""
    # Without this check a run whose ledger was in another file would begin anew, with nothing spent.
    if found := sorted(path.name for path in home.glob("*.sqlite") if path.name != LEDGER):
        raise DataError(
            of_another_version(f"the one database {LEDGER} of a run in {home}", f"also {', '.join(found)}")
        )
    return Database(home / LEDGER, _RUN)


def made_folder(folder: Path, arm: Arm, seed: int) -> Path:
    """Make the folder of one arm and seed unless it exists. Raises DataError if its path has a link."""
    home = arm_folder(folder, arm, seed)
    folder_at(folder)
    private_folder(folder)
    for part in reversed(home.relative_to(folder).parents):
        subfolder(folder / part)
    return subfolder(home)


def is_personal(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an arm's accuracy is measured on its clients' own models."""
    return any(record.get("personal") for record in records)


@dataclass(frozen=True)
class ArmRun:
    """A finished arm under one seed.

    records: of all its rounds (see `run.RoundRunner`).
    """

    arm: Arm
    world: World
    records: list[dict[str, Any]]

    @property
    def personal(self) -> bool:
        """Whether the arm's accuracy is measured on its clients' own models."""
        return is_personal(self.records)


@dataclass(frozen=True, eq=False)
class Saved:
    """The opened file of one arm and seed.

    state: the newest state; None before round 1. records: of all finished rounds. stands: the part of each
    record that a resumed run needs.
    """

    file: Database
    ledger: Ledger
    checkpoint: Checkpoint
    journal: Journal
    state: State | None
    records: list[dict[str, Any]]
    stands: list[ResumePoint]

    @contextmanager
    def one_commit(self) -> Iterator[None]:
        """Make all that is written within one durable commit (see `Database.together`).

        Only for a round whose parties are all in this process: what they send each other within is not on
        disk yet. The package's log lines wait for the commit.
        """
        with held() as let_go, self.file.together(let_go):
            yield


def identity(home: Path, plan: Plan) -> tuple[str, bool]:
    """The identity of the ledger in the folder of an arm and seed, and whether anything left under it.

    The first call makes the ledger.
    """
    with closing(_file(home)) as file, Ledger(file, plan.terms()) as ledger:
        return ledger.identity, ledger.head.count > 0


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
        file = stack.enter_context(closing(_file(home)))
        ledger = stack.enter_context(Ledger(file, plan.terms(), allotted=allotment))
        checkpoint, journal = stack.enter_context(Checkpoint(file)), stack.enter_context(Journal(file))
        checkpoint.bind(
            study=study.digest,
            arm=arm.name,
            seed=str(world.seed),
            ledger=ledger.identity,
            journal=journal.identity,
            **world.marks.bound,
        )
        state, records, stands = _resumed(checkpoint, ledger, world.problem.clients)
        yield Saved(file, ledger, checkpoint, journal, state, records, stands)


def _resumed(
    checkpoint: Checkpoint, ledger: Ledger, clients: int
) -> tuple[State | None, list[dict[str, Any]], list[ResumePoint]]:
    """The state (None before round 1) and all records from the checkpoint, checked against the ledger."""
    state, records = checkpoint.load()
    with checkpoint.explaining(), decoding():
        stands = [resume_point(record, clients) for record in records]
    if stands:
        require_all(ledger, stands[-1])
    return state, records, stands
