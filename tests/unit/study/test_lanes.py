"""Arms and seeds side by side: the results of one after the other, however a lane or the study ends."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.cheap_runs import unreported
from support.every import every
from support.forked import check_ended, noted, wait_for
from support.tiny_study import FEDAVG, FEDPROF, plain, study, world

from securefl.accounting.ledger import Ledger
from securefl.accounting.store import Terms
from securefl.core.errors import DataError, WorkerDied
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.composition import composition
from securefl.study.config import Arm, RuntimeSection, Study
from securefl.study.interruption import Interrupted, Interruption
from securefl.study.run import RoundRunner
from securefl.study.session import run_study

ROUNDS = 3
HERE = os.getpid()
Told = list[tuple[str, int, int]]


def of(workers: int) -> Study:
    made = study(FEDAVG, FEDPROF, rounds=ROUNDS, seeds="[3, 4]")
    return replace(made, local=replace(made.local, epochs=1), runtime=RuntimeSection(workers=workers))


def played(workers: int, folder: Path, tell: Callable[..., None] | None = None, **options: Any) -> Told:
    """Run the study. Returns the rounds that were told, in order."""
    told: Told = []

    def telling(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        told.append((arm.name, seed, record["round"]))
        if tell is not None:
            tell(arm, seed, record)

    with unreported():
        run_study(of(workers), folder, telling, baselines=False, **options)
    return told


@cache
def terms(arm: str) -> Terms:
    one = of(1)
    own = next(own for own in one.arms if own.name == arm)
    return composition(one, own, world(one))[1].terms()


def results(folder: Path) -> dict[str, Any]:
    """Models, records and numbers of charges of all arms and seeds."""
    found: dict[str, Any] = {}
    for arm in of(1).arms:
        for seed in (3, 4):
            home = arm_folder(folder, arm, seed)
            with Checkpoint(checkpoint_file(home)) as kept:
                state, records = kept.load()
            with Ledger(home / "ledger.sqlite", terms(arm.name)) as ledger:
                charges = len(list(ledger.rows()))
            assert state is not None
            found[f"{arm.name} {seed}"] = state.broadcast.tobytes(), plain(records), charges
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What comes of the study in one process."""
    folder = tmp_path_factory.mktemp("whole")
    played(1, folder)
    return results(folder)


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return noted(monkeypatch)


def check_goes_on(folder: Path, whole: dict[str, Any], forks: list[int]) -> None:
    """No process is left, and the same study in the same folder ends as one that nothing stopped."""
    check_ended(forks)
    check_told(played(2, folder))
    assert results(folder) == whole


def check_told(told: Told) -> None:
    """Every round once, and those of an arm and seed in their order."""
    assert len(told) == len(set(told)) == 4 * ROUNDS
    for name in ("FedAvg", "FedProf"):
        for seed in (3, 4):
            own = [number for arm, at, number in told if (arm, at) == (name, seed)]
            assert own == [1, 2, 3]


def in_round(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[str, bool], None]) -> None:
    """Call `do` before this round. It is told the arm, and whether this process is a lane."""
    play = RoundRunner.play

    def playing(self: RoundRunner, at: int, state: Any) -> Any:
        if at == number:
            do(self._of.arm.name, os.getpid() != HERE)
        return play(self, at, state)

    monkeypatch.setattr(RoundRunner, "play", playing)


@pytest.mark.parametrize("workers", [2, 9])
def test_lanes_give_the_bits_of_one_process(
    workers: int, tmp_path: Path, whole: dict[str, Any], forks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes: list[bool] = []
    with monkeypatch.context() as patched:
        in_round(patched, 1, lambda arm, lane: lanes.append(lane))
        check_told(played(workers, tmp_path))
    assert lanes == [], "a round was played in this process"
    assert results(tmp_path) == whole
    check_goes_on(tmp_path, whole, forks)


def test_a_lane_that_is_killed_ends_the_run_and_no_round(
    tmp_path: Path, whole: dict[str, Any], forks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(arm: str, lane: bool) -> None:
        assert lane
        if arm == "FedProf":
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        in_round(patched, 2, killed)
        with pytest.raises(WorkerDied) as caught:
            played(2, tmp_path)
    assert str(caught.value) == (
        "The process of FedProf under seed 3 was ended by signal 9 (SIGKILL). Finished rounds are kept: run "
        "the same command again, which continues the run. If memory ran out, add --workers 1."
    )
    check_goes_on(tmp_path, whole, forks)


def without_process(monkeypatch: pytest.MonkeyPatch, refused: set[int]) -> None:
    """The system gives no process when it is asked for these ones, counted from 1."""
    fork, asked = os.fork, count(1)

    def scarce() -> int:
        if next(asked) in refused:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    monkeypatch.setattr(os, "fork", scarce)


def test_fewer_processes_than_workers_play_all(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        without_process(patched, {2})
        check_told(played(2, tmp_path))
    assert results(tmp_path) == whole


@pytest.mark.parametrize("refused", [{1}, {2, 3}], ids=["the first", "later ones"])
def test_a_system_that_gives_no_process_is_told(
    refused: set[int],
    tmp_path: Path,
    whole: dict[str, Any],
    forks: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        without_process(patched, refused)
        with pytest.raises(WorkerDied, match=r"process .* --workers 1"):
            played(2, tmp_path)
    check_told(played(2, tmp_path))
    assert results(tmp_path) == whole
    check_ended(forks)


def test_an_error_in_a_lane_is_raised_as_in_one_process(
    tmp_path: Path, whole: dict[str, Any], forks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(arm: str, lane: bool) -> None:
        if arm == "FedProf":
            raise DataError("The disk is full.")

    with monkeypatch.context() as patched:
        in_round(patched, 2, failing)
        with pytest.raises(DataError, match=r"^The disk is full\.$"):
            played(2, tmp_path)
    check_goes_on(tmp_path, whole, forks)


def test_an_error_that_passes_costs_nothing(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(arm: str, lane: bool) -> None:
        if lane and arm == "FedProf":
            raise DataError("The disk is full.")

    with monkeypatch.context() as patched:
        in_round(patched, 2, failing)
        check_told(played(2, tmp_path))
    assert results(tmp_path) == whole


def test_a_request_to_stop_lets_every_lane_finish_its_round(
    tmp_path: Path, whole: dict[str, Any], forks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    told: list[str] = []
    asked = tmp_path.with_suffix(".asked")

    def tell(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        if not told:
            os.kill(HERE, signal.SIGTERM)  # a background job of a shell ignores SIGINT
            asked.touch()
        told.append(arm.name)

    def wait(arm: str, lane: bool) -> None:
        if lane:  # a lane that is done before the request has nothing to finish
            wait_for(asked)

    with monkeypatch.context() as patched:
        in_round(patched, ROUNDS, wait)
        with pytest.raises(Interrupted) as caught, Interruption(said.append) as stop:
            played(2, tmp_path, tell, stop=stop)
    assert caught.value.exit_code == 143
    assert 1 <= len(told) < 4 * ROUNDS
    check_goes_on(tmp_path, whole, forks)


def test_any_other_interruption_ends_the_lanes_at_once(
    tmp_path: Path, whole: dict[str, Any], forks: list[int]
) -> None:
    def tell(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        played(2, tmp_path, tell)
    check_goes_on(tmp_path, whole, forks)


@every(("workers", "lanes", "per_client"), [(1, 1, 1), (2, 2, 1), (4, 4, 1), (9, 4, 2), (3, 3, 1)])
def test_workers_are_shared_among_lanes(workers: int, lanes: int, per_client: int) -> None:
    runtime = RuntimeSection(workers=workers)
    assert runtime.lanes(4) == lanes
    assert runtime.lane(lanes).processes == per_client


def test_an_arm_alone_has_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = study(FEDAVG, rounds=1)
    processes: list[bool] = []
    in_round(monkeypatch, 1, lambda arm, lane: processes.append(lane))
    with unreported():
        run_study(replace(one, runtime=RuntimeSection(workers=3)), tmp_path, lambda *_: None)
    assert processes == [False]


def test_lanes_hear_no_signal(tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal sends it to all of a group; the study hears it, and tells its lanes."""
    in_round(monkeypatch, 2, lambda arm, lane: os.kill(os.getpid(), signal.SIGINT))
    check_told(played(2, tmp_path))
    assert results(tmp_path) == whole
