"""Runs or resumes a study in its run folder: every arm under every seed, and then the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from securefl.algorithm.clients import Algorithm, specs_of
from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError
from securefl.core.logs import logger, to_stderr
from securefl.storage.files import folder_at
from securefl.storage.folder_lock import locked
from securefl.storage.private_folder import ARMS, CONFIG, SWEEP, made_in
from securefl.study import observed, results, run_report, split_key, world
from securefl.study.accounted import choice_of, require_room, reserve_all, sentence
from securefl.study.arm import ArmRun, made_folder
from securefl.study.backends import Backend
from securefl.study.composition import compositions
from securefl.study.config import Arm, Brought, Study
from securefl.study.folder import (
    claim,
    devices,
    hardware_of,
    note_device,
    note_rounds,
    private_copy,
    require_own,
    rounds_of,
    study_of,
    taken_on,
    with_rounds,
)
from securefl.study.forecast import affordable_rounds
from securefl.study.interruption import Interruption, Stop
from securefl.study.lanes import Pair, Record, in_lanes
from securefl.study.own_code import require_no_code
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
    baselines: bool = True,
    watch: observed.Watch = lambda what, done, total: None,
    reserved: bool = False,
    rounds: int | None = None,
) -> tuple[results.Results, Path]:
    """Run or resume all arms under all seeds in `folder`. Returns the results and the report's path.

    tell: called with (arm, seed, record) for every finished round, those of an earlier run included.
    fresh: called with the same for rounds that finish in this call. A round is on disk before `fresh` is
        called, and it is called once. If the process is killed between the two, it is never called.
    stop: asked after each round; it raises `Interrupted` if a request to stop came. The next call resumes
        with the next round.
    say: prints a line for a person, such as a notice that a dead process's lock was taken over.
    backend: the backend that runs the parties of each arm, by default all of them in this process. With
        another one this process has no client's records, and nothing is observed.
    baselines: whether the observer trains its own models if [measures] does not say (see `observed`).
    watch: called with (name, finished, all) for each pass of these trainings.
    reserved: whether `reserve_here` was called for this folder, on a machine that has the shared ledger.
    rounds: takes a finished run on to this number of rounds (see `extended`).
    Raises ConfigError if another process runs in the folder, before anything is written or charged.
    """
    stop, say, before = stop or Interruption(), logged(say), study
    # Before the lock, which is a file in the folder: a refusal leaves the folder as it was.
    require_own(folder, study)
    study = taken_on(study, folder) if rounds is None else extended(study, folder, rounds)
    hardware = hardware_of(study, folder, (folder / ARMS).exists(), say)
    # With a backend, parties on their own machines have their own keys. This process holds no client records.
    began = (folder / CONFIG).exists()
    keeper = Keeper(dealt=True) if backend is not None else split_key.of_run(study, folder, began)
    made = _prepared(study, hardware, keeper)
    if not began:
        require_room(study, made.first, made.arms)
    with locked(folder, say):
        claim(folder, study, keeper)
        note_device(folder, hardware)
        if rounds is not None:
            note_rounds(before, folder, rounds)
            (folder / observed.FILE).unlink(missing_ok=True)  # of the models of before
        telling = told(study, folder, tell, fresh)
        if not reserved:
            # All runs together before one trains: half a study must not spend budget if the rest cannot run.
            _reserve(study, folder, made)
        runs = _played(study, folder, made, telling, stop, backend=backend, reserved=reserved)
        seen: tuple[observed.Observed, ...] = ()
        if backend is None:
            with stop.finishing("this pass"):
                seen = observed.observed(study, runs, folder, baselines=baselines, stop=stop, watch=watch)
        with stop.finishing("the report"):
            return _written(study, runs, made, folder, folder, seen)


def extended(study: Study, folder: Path, rounds: int) -> Study:
    """The study of a finished run in this folder, which `run_study` takes on to this number of rounds.

    Guarantees: no charge, noise, message or test of the finished rounds would be another under the new
    number. So without noise the run ends as one that was never interrupted.

    Raises ConfigError, before anything is written, unless the run is finished and no sweep's, its last round
    is as the others, and its noise and budget allow more rounds.
    """
    study = taken_on(study, folder)
    before = study.study.rounds
    if not (folder / CONFIG).exists() or _unfinished(study, folder):
        raise ConfigError(
            f"Expected a finished run in {folder}, to go on to {rounds} rounds, got none. Finish it first, "
            "without --rounds."
        )
    if rounds <= before:
        raise ConfigError(f"Expected more than its {before} rounds for the run in {folder}, got {rounds}.")
    afresh = f"Run the study with rounds = {rounds} in another folder."
    if choice_of(folder) is not None or made_in(folder, SWEEP):
        raise ConfigError(
            f"Expected a run by itself for more rounds, got {folder}, which a sweep made: there it stands "
            f"for {before} rounds, and the cost of a choice covers no more. {afresh}"
        )
    if study.privacy.ledger is not None:
        raise ConfigError(
            f"[privacy] Expected no `ledger` for more rounds of a finished run, got {study.privacy.ledger}, "
            f"in which {before} rounds are reserved. Begin a new run of {rounds - before} rounds from this "
            'one\'s export: `weights` under [model], with trained_on = "ledger".'
        )
    longer = with_rounds(study, rounds)
    if not longer.study.evaluates(before):
        raise ConfigError(
            f"Expected a run whose last round would be tested with {rounds} rounds too, got evaluate_every = "
            f"{study.study.evaluate_every}, which does not divide {before}. {afresh}"
        )
    keeper = split_key.of_run(study, folder, began=True)
    made, more = (_prepared(one, Hardware(), keeper).arms for one in (study, longer))
    for name, (algorithm, plan) in made.items():
        grown, wanted = more[name]
        if ends := [spec.name for spec in specs_of(grown) if spec.schedule.at_end]:
            raise ConfigError(
                f"Expected a run whose last round is as the others, got {ends[0]!r} of {name}, which the "
                f"clients of the finished run have sent at its end. {afresh}"
            )
        trained = [[spec.training for spec in specs_of(one)] for one in (algorithm, grown)]
        same = replace(wanted, max_rounds=before, max_releases=plan.max_releases)
        if plan.noisy or same != plan or trained[0] != trained[1]:
            raise ConfigError(
                f"Expected a run whose noise does not hang on its number of rounds, got noise for {before}, "
                f"beyond which ledgers refuse. {afresh}"
            )
        bought = affordable_rounds(wanted, specs_of(grown))
        if bought is not None and bought < rounds:
            raise ConfigError(
                f"Expected a budget for {rounds} rounds, got {wanted.budget:g}, which buys {bought}. "
                + (f"Ask for {bought}." if bought > before else f"Set a larger `budget`. {afresh}")
            )
    if not _unfinished(longer, folder):
        patient = "" if study.study.patience is None else "Set a larger `patience`, or leave it out. "
        raise ConfigError(
            f"Expected an arm that can go on in {folder}, got none: all ended early. {patient}{afresh}"
        )
    return longer


@dataclass(frozen=True)
class _Prepared:
    """The world of the first seed, and the arms' algorithms and plans in it."""

    first: World
    arms: Mapping[str, tuple[Algorithm, Plan]]
    keeper: Keeper

    def world(self, study: Study, seed: int) -> World:
        """The world of a seed. That of the first seed is not built again."""
        if seed == self.first.seed:
            return self.first
        splits = self.keeper.splits(study, seed)
        return world.build(study, seed, self.first.problem.hardware, splits=splits)


def _prepared(study: Study, hardware: Hardware, keeper: Keeper) -> _Prepared:
    """Build the first seed's world and all arms in it. Raises ConfigError if one of them cannot run."""
    # Build all arms before one trains: an error in the last must not cost hours, or epsilon, of the first.
    single_thread()
    seed = study.study.seeds[0]
    first = world.build(study, seed, hardware, splits=keeper.splits(study, seed))
    return _Prepared(first, compositions(study, first), keeper)


def reserve_here(study: Study, folder: Path) -> None:
    """Reserve what is left in a folder in the study's shared ledger, if it names one, and claim the folder.

    Another machine, which does not have the ledger, can then finish a copy of the folder. The caller has
    locked it. Raises the errors of `accounted.reserve`, before anything was trained or released.
    """
    if study.privacy.ledger is not None:
        keeper = split_key.of_run(study, folder, began=(folder / CONFIG).exists())
        made = _prepared(study, Hardware(), keeper)
        claim(folder, study, keeper)
        _reserve(study, folder, made)


def _reserve(study: Study, folder: Path, made: _Prepared) -> None:
    """Reserve all runs that are left in the shared ledger, if the study names one: all, or none."""
    if study.privacy.ledger is not None:
        here = cache(partial(made.world, study))
        left = _unfinished(study, folder)
        reserve_all(study, ((arm, here(seed), made_folder(folder, arm, seed)) for arm, seed in left))


def _played(
    study: Study,
    folder: Path,
    made: _Prepared,
    tell: Tell,
    stop: Stop,
    backend: Backend | None = None,
    reserved: bool = True,
) -> list[ArmRun]:
    @cache
    def here(seed: int) -> World:
        return made.world(study, seed)

    def play(own: Study, pair: Pair, tell: Callable[[Record], None], stop: Stop) -> ArmRun:
        arm, seed = pair
        return run_arm(own, arm, here(seed), folder, tell, stop=stop, backend=backend, reserved=reserved)

    pairs = study.pairs
    left = _unfinished(study, folder)
    lanes = study.runtime.lanes(len(left))
    # A forked process cannot use its parent's GPU.
    if lanes > 1 and made.first.problem.hardware.gpu is None:
        one = replace(study, runtime=study.runtime.lane(lanes))
        for _, seed in left:
            here(seed)  # once for all lanes

        failed = in_lanes(left, lanes, partial(play, one), tell, stop)
        for arm, seed in failed:
            _log.warning(
                "%s, seed %d: a round failed in its process, and is played again here", arm.name, seed
            )
        # Its round runs again in this process, which raises its error to the caller.
        pairs.sort(key=lambda pair: pair not in failed)
    # Rounds that ran in lanes are only read here.
    runs = {(arm.name, seed): play(study, (arm, seed), partial(tell, arm, seed), stop) for arm, seed in pairs}
    return [runs[arm.name, seed] for arm, seed in study.pairs]


def _unfinished(study: Study, folder: Path) -> list[tuple[Arm, int]]:
    """The arms and seeds that have rounds left in the folder."""
    return [
        (arm, seed)
        for arm, seed in study.pairs
        if results.finished_rounds(folder, arm, seed) < study.study.rounds
    ]


def reopen(
    folder: Path,
    out: Path | None = None,
    *,
    brought: Brought | None = None,
    run_code: bool = False,
    trusted: Sequence[Path] = (),
) -> tuple[results.Results, Path]:
    """Write the report of a finished run again, in its folder or in `out`.

    With `out` nothing is written in the run's folder, which may be on read-only media: the report is made
    from a private copy of its databases and their logs. brought: the run's objects from Python (see `Study`).
    run_code: whether code that the run's study names may be imported. trusted: the paths of --trust-code.
    Raises ConfigError if the run is not finished, a process runs in the folder, or its study names code that
    may not be imported.
    """
    study = study_of(folder, brought, trusted)
    require_no_code(study, run_code)
    if out is None or out.resolve() == folder.resolve():
        with locked(folder):
            return _reported(study, folder, folder, folder)
    if (out / CONFIG).exists():
        raise ConfigError(f"{out} holds another run; choose another folder with --out for this one's report.")
    with private_copy(folder, ARMS) as private:
        folder_at(out)
        return _reported(study, private, folder, out)


def _reported(study: Study, home: Path, folder: Path, out: Path) -> tuple[results.Results, Path]:
    """The report of the run of `folder`, whose arms are in `home`."""
    unfinished = _unfinished(study, home)
    if unfinished:
        raise ConfigError(
            f"{', '.join(dict.fromkeys(arm.name for arm, _ in unfinished))}: not finished; go on with: "
            f"securefl run {folder / CONFIG} --out {folder}"
        )
    # No round runs here: all are on record, and only read.
    made = _prepared(study, Hardware(), split_key.of_run(study, folder, began=True))
    runs = _played(study, home, made, lambda arm, seed, record: None, Interruption())
    return _written(study, runs, made, folder, out, observed.stored(study, folder) or ())


def _written(
    study: Study,
    runs: list[ArmRun],
    made: _Prepared,
    folder: Path,
    out: Path,
    seen: Sequence[observed.Observed],
) -> tuple[results.Results, Path]:
    choice = choice_of(folder)
    collected = results.collect(study, runs, seen, None if choice is None else choice.epsilon)
    collected = replace(
        collected,
        accounting=sentence(study, folder),
        infinite_reason=run_report.infinite_reasons_of(study, collected, made.arms),
        over_rounds=run_report.over_rounds_of(made.arms),
    )
    card = run_report.privacy_card(collected, made.arms)
    again = f"securefl run {folder / CONFIG} --out {folder}-again"
    # More rounds are asked for of a finished run: each number of rounds is a command.
    reproduce = "\n".join([again, *(f"{again} --rounds {one}" for one in rounds_of(study, folder)[1:])])
    changes, where = made.first.problem.changes, ", then ".join(devices(folder))
    marks = made.first.marks
    # Of a choice only one point of its curve is known.
    claimed = run_report.claimed_curves(study, made.arms) if choice is None else {}
    page = run_report.write(study, collected, card, out, reproduce, changes, where, marks, claimed)
    return collected, page
