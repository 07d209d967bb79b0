"""A study's run in its folder: play every arm under every seed, and write the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from securefl.algorithm.clients import Algorithm
from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError
from securefl.core.logs import logger, to_stderr
from securefl.storage.folder_lock import alone
from securefl.storage.private_folder import require_layout
from securefl.study import results, run_report, split_key, world
from securefl.study.accounted import reserve_all, sentence
from securefl.study.arm import ARMS, ArmRun, made_folder
from securefl.study.backends import Backend
from securefl.study.composition import composition, require_known
from securefl.study.config import Arm, Brought, Study
from securefl.study.folder import (
    CONFIG,
    as_begun,
    claim,
    devices,
    hardware_of,
    note_device,
    private_copy,
    study_of,
)
from securefl.study.interruption import Interruption, Stop
from securefl.study.lanes import Pair, side_by_side
from securefl.study.round_events import logged, told
from securefl.study.run import run_arm
from securefl.study.seeded import World
from securefl.study.split_key import Keeper
from securefl.training import single_thread
from securefl.training.devices import Hardware

_log = logger(__name__)
Tell = Callable[[Arm, int, Mapping[str, Any]], None]


def run_study(
    study: Study,
    folder: Path,
    tell: Tell,
    *,
    fresh: Tell | None = None,
    stop: Stop | None = None,
    say: Callable[[str], None] = to_stderr,
    backend: Backend | None = None,
) -> tuple[results.Results, Path]:
    """Run or resume all arms under all seeds in `folder`. Returns the results and the report's path.

    tell: called with (arm, seed, record) for every finished round, those of an earlier run included.
    fresh: called so for the rounds that are finished now. A round is on disk before it is told, and told
        once; one that was saved as the process was killed is never told.
    stop: raises Interrupted after a round, if it is asked to. The folder then goes on with the next round.
    say: is told what a person should know, such as whose lock on the folder is taken over.
    seats: where the parties of its arms sit, by default all of them in this process.
    Raises ConfigError if another process runs in the folder. Nothing was written or spent then.
    """
    stop, say = stop or Interruption(), logged(say)
    require_layout(folder)
    study = as_begun(study, folder)
    hardware = hardware_of(study, folder, (folder / ARMS).exists(), say)
    # Parties on machines of their own have their own keys, and this process holds no client's records.
    began = (folder / CONFIG).exists()
    keeper = Keeper(dealt=True) if backend is not None else split_key.of_run(study, folder, began)
    made = _prepared(study, hardware, keeper)
    with alone(folder, say):
        claim(folder, study, keeper)
        note_device(folder, hardware)
        # A process that is forked cannot use the GPU of this one.
        lanes = study.runtime.lanes(len(_unfinished(study, folder))) if hardware.gpu is None else 1
        telling = told(study, folder, tell, fresh)
        runs = _played(study, folder, made, telling, stop, lanes=lanes, backend=backend)
        with stop.finishing("the report"):
            return _written(study, runs, made, folder, folder)


@dataclass(frozen=True)
class _Prepared:
    """The world of the first seed, and the arms' algorithms and plans in it."""

    first: World
    arms: Mapping[str, tuple[Algorithm, Plan]]
    keeper: Keeper

    def world(self, study: Study, seed: int) -> World:
        """The world of a seed, which the first one's is."""
        if seed == self.first.seed:
            return self.first
        splits = self.keeper.splits(study, seed)
        return world.build(study, seed, self.first.problem.hardware, splits=splits)


def _prepared(study: Study, hardware: Hardware, keeper: Keeper) -> _Prepared:
    """Build the first seed's world and all arms in it. Raises ConfigError if one of them cannot run."""
    # All arms before any trains: an error in the last one must not cost hours, or epsilon, of the first.
    single_thread()
    seed = study.study.seeds[0]
    first = world.build(study, seed, hardware, splits=keeper.splits(study, seed))
    arms = {arm.name: composition(study, arm, first) for arm in study.arms}
    require_known(study, [algorithm for algorithm, _ in arms.values()])
    return _Prepared(first, arms, keeper)


def _played(
    study: Study,
    folder: Path,
    made: _Prepared,
    tell: Tell,
    stop: Stop,
    lanes: int = 1,
    backend: Backend | None = None,
) -> list[ArmRun]:
    @cache
    def here(seed: int) -> World:
        return made.world(study, seed)

    # All runs together, before one trains: half a study must not spend what the other half cannot have.
    reserve_all(
        study,
        (
            (arm, here(seed), made_folder(folder, arm, seed))
            for arm, seed in (_unfinished(study, folder) if study.privacy.ledger is not None else ())
        ),
    )
    pairs = [(arm, seed) for seed in study.study.seeds for arm in study.arms]
    once = _once(tell)
    if lanes > 1:
        own = replace(study, runtime=study.runtime.lane(lanes))

        def play(pair: Pair, tell: Callable[[Mapping[str, Any]], None], stop: Stop) -> None:
            arm, seed = pair
            run_arm(own, arm, here(seed), folder, tell, stop=stop, backend=backend)

        for seed in study.study.seeds:
            here(seed)  # once for all lanes, which inherit it
        if (failed := side_by_side(pairs, play, once, lanes=lanes, stop=stop)) is not None:
            _log.warning(
                "%s, seed %d: a round failed in its process, and is played again here", *_named(failed)
            )
            # The round that failed is played again here, and its error is raised as it always is.
            pairs = [failed, *(pair for pair in pairs if pair is not failed)]
    # What was played side by side is only read here.
    runs = {
        (arm.name, seed): run_arm(
            study, arm, here(seed), folder, _for(once, arm, seed), stop=stop, backend=backend
        )
        for arm, seed in pairs
    }
    return [runs[arm.name, seed] for seed in study.study.seeds for arm in study.arms]


def _named(pair: Pair) -> tuple[str, int]:
    arm, seed = pair
    return arm.name, seed


def _unfinished(study: Study, folder: Path) -> list[Pair]:
    """The arms and seeds that have rounds left in the folder."""
    return [
        (arm, seed)
        for seed in study.study.seeds
        for arm in study.arms
        if results.finished_rounds(folder, arm, seed) < study.study.rounds
    ]


def _once(tell: Tell) -> Tell:
    """`tell` for every round once. It was told by a lane before the run of its arm is read."""
    told: set[tuple[str, int, int]] = set()

    def telling(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        if (place := (arm.name, seed, record["round"])) not in told:
            told.add(place)
            tell(arm, seed, record)

    return telling


def reopen(
    folder: Path, out: Path | None = None, *, brought: Brought | None = None
) -> tuple[results.Results, Path]:
    """Write the report of a finished run again, in its folder or in `out`.

    With `out` nothing is written in the run's folder, which may be on read-only media. The report is made
    from a private copy of its databases and their logs. brought: as the run had it (see Study).
    Raises ConfigError if the run is not finished, or a process runs in the folder.
    """
    study = study_of(folder, brought)
    if out is None or out.resolve() == folder.resolve():
        with alone(folder):
            return _reported(study, folder, folder, folder)
    if (out / CONFIG).exists():
        raise ConfigError(f"{out} holds another run; choose another folder with --out for this one's report.")
    with private_copy(folder, ARMS) as private:
        out.mkdir(parents=True, exist_ok=True)
        return _reported(study, private, folder, out)


def _reported(study: Study, home: Path, folder: Path, out: Path) -> tuple[results.Results, Path]:
    """The report of the run of `folder`, whose arms are in `home`."""
    unfinished = _unfinished(study, home)
    if unfinished:
        raise ConfigError(
            f"{', '.join(dict.fromkeys(arm.name for arm, _ in unfinished))}: not finished; go on with: "
            f"securefl run {folder / CONFIG} --out {folder}"
        )
    # Nothing is played here: every round is on record, and only read.
    made = _prepared(study, Hardware(), split_key.of_run(study, folder, began=True))
    runs = _played(study, home, made, lambda arm, seed, record: None, Interruption())
    return _written(study, runs, made, folder, out)


def _for(tell: Tell, arm: Arm, seed: int) -> Callable[[Mapping[str, Any]], None]:
    return lambda record: tell(arm, seed, record)


def _written(
    study: Study, runs: list[ArmRun], made: _Prepared, folder: Path, out: Path
) -> tuple[results.Results, Path]:
    collected = replace(results.collect(study, runs), accounting=sentence(study, folder))
    card = run_report.privacy_card(collected, made.arms)
    reproduce = f"securefl run {folder / CONFIG} --out {folder}-again"
    changes, where = made.first.problem.changes, ", then ".join(devices(folder))
    marks = made.first.marks
    page = run_report.write(
        study, collected, card, out, reproduce, changes, where, marks.words, marks.outside, marks.private
    )
    return collected, page
