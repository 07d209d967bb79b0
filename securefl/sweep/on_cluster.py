"""Plays the rounds of a sweep's cells on a Ray cluster: every arm and seed of a cell is a lane of its own.

Afterwards a cell has only its tables and report to be made, which worker processes here do. An error of a
cell, which a lane does not tell, is raised there too.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from securefl.core.errors import ConfigError, SecureFLError
from securefl.storage.folder_lock import alone
from securefl.storage.private_folder import CONFIG
from securefl.study import split_key, world
from securefl.study.accounted import reserve_all
from securefl.study.arm import made_folder
from securefl.study.config import RuntimeSection
from securefl.study.folder import claim
from securefl.study.interruption import Stop
from securefl.study.lanes import Crew, Lane, Record, side_by_side
from securefl.study.results import finished_rounds
from securefl.study.seeded import World
from securefl.sweep.cells import Cell, Sweep
from securefl.sweep.check import data_of
from securefl.sweep.run import Watch, finished, share_key
from securefl.training.devices import Hardware


def runtime_of(sweep: Sweep, workers: int | None) -> RuntimeSection | None:
    """The section that names the sweep's cluster; None if its cells run on this machine alone.

    workers: the most lanes at a time, in place of the section's. Raises ConfigError for several backends.
    """
    wanted = {(cell.study.runtime.backend, cell.study.runtime.address) for cell in sweep.cells}
    if len(wanted) > 1:
        raise ConfigError(
            f"[runtime] Expected one backend and address for all cells of a sweep, got {len(wanted)} of "
            "them. Leave them out of the grid."
        )
    runtime = sweep.cells[0].study.runtime
    if not runtime.on_cluster:
        return None
    return runtime if workers is None else replace(runtime, workers=workers)


class CellWatch(Watch, Protocol):
    """An object that is notified of a sweep's progress, its rounds on a cluster included."""

    def played(self, cell: Cell) -> None:
        """All lanes of the cell have ended. Its report is not written yet."""


class Worlds:
    """The world of a lane's data. Lanes that follow each other and have the same data get the same object."""

    def __init__(self) -> None:
        self._data = ""
        self._world: World | None = None

    def __call__(self, lane: Lane) -> World:
        data = data_of(lane.study, lane.seed)
        if self._world is None or data != self._data:
            # One world at a time: those of a whole sweep may not fit into memory together.
            self._world = None
            splits = split_key.of_run(lane.study, lane.folder, began=True).splits(lane.study, lane.seed)
            self._data = data
            self._world = world.build(lane.study, lane.seed, Hardware(), splits=splits)
        return self._world


def play_cells(
    sweep: Sweep, out: Path, crew: Crew, worlds: Worlds, *, watch: CellWatch, stop: Stop
) -> dict[str, str]:
    """Play all rounds of all unfinished cells. Returns an error for each cell that lost its workers, by name.

    The caller has entered the crew, which has these `worlds`. After a first request to `stop` every lane
    finishes its round, and Interrupted is raised. The next call resumes each lane after its last round.
    """
    with ExitStack() as held:
        lanes: dict[Lane, Cell] = {}
        for cell in sweep.cells:
            if not finished(folder := sweep.home(out, cell)):
                held.enter_context(alone(folder, lambda line: None))
                lanes |= dict.fromkeys(_begun(cell, out, folder, worlds), cell)
        ordered = sorted(lanes, key=lambda lane: data_of(lane.study, lane.seed))
        shift = side_by_side(ordered, crew, _Shown(lanes, watch, crew.most), stop=stop, one_ends_all=False)
    return {lanes[lane].name: why for lane, why in shift.died.items()}


def _begun(cell: Cell, out: Path, folder: Path, world_of: Callable[[Lane], World]) -> Sequence[Lane]:
    """Claim a cell's folder, and reserve its runs in a shared ledger. Returns the lanes that it has left.

    Returns none if the cell cannot run: the error is raised when its report is due.
    """
    study = cell.study
    try:
        share_key(out, study, folder)
        began = (folder / CONFIG).exists()
        claim(folder, study, split_key.of_run(study, folder, began))
        left = [
            Lane(study=study, folder=folder, arm=arm, seed=seed)
            for seed in study.study.seeds
            for arm in study.arms
            if finished_rounds(folder, arm, seed) < study.study.rounds
        ]
        if study.privacy.ledger is not None:
            reserve_all(
                study,
                [
                    (lane.arm, world.fitted(world_of(lane), study), made_folder(folder, lane.arm, lane.seed))
                    for lane in left
                ],
            )
    except SecureFLError:
        return []
    return left


@dataclass
class _Shown:
    """Shows lanes on the bars of a sweep (see `lanes.Watch`)."""

    cells: Mapping[Lane, Cell]
    watch: CellWatch
    most: int
    _places: dict[Lane, int] = field(default_factory=dict)
    _done: dict[Lane, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._free = deque(range(self.most))
        self._left = Counter(cell.name for cell in self.cells.values())

    def begun(self, lane: Lane) -> None:
        self._places[lane] = self._free.popleft()
        self.watch.begun(self.cells[lane], self._places[lane])

    def told(self, lane: Lane, record: Record) -> None:
        # A lane that was begun again tells its first rounds again.
        self._done[lane] = max(self._done.get(lane, 0), record["round"])
        cell = self.cells[lane]
        self.watch.round(
            self._places[lane], sum(done for own, done in self._done.items() if self.cells[own] is cell)
        )

    def ended(self, lane: Lane) -> None:
        self._free.append(self._places[lane])
        cell = self.cells[lane]
        self._left[cell.name] -= 1
        if not self._left[cell.name]:
            self.watch.played(cell)
