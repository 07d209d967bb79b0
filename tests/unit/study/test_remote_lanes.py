"""Lanes on a cluster, by a double of ray: the bits of one process, whatever is lost, refused or stopped."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_ray import FakeRay, RayError, installed
from support.tiny_study import FEDAVG, FEDPROF, plain, study, text, with_privacy, world

from securefl.accounting.ledger import Ledger
from securefl.core.errors import ConfigError, DataError, WorkerDied
from securefl.storage import cluster
from securefl.storage.cluster import ClusterCrew
from securefl.study import session
from securefl.study.accounted import require_in_one_process
from securefl.study.arm import FILES, arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.composition import composition
from securefl.study.config import Arm, RuntimeSection, Study, parse
from securefl.study.interruption import Interrupted, Interruption
from securefl.study.run import Turn
from securefl.study.session import run_study

ROUNDS = 3
RAY = RuntimeSection(backend="ray")
Tell = Callable[[Arm, int, Mapping[str, Any]], None]
MASKED = with_privacy(
    text(FEDAVG + 'aggregation = "partial"\n', rounds=ROUNDS),
    {"sum": '"masked"', "dropout": "0.25", "corrupt": "0.0"},
)


def of(runtime: RuntimeSection = RAY) -> Study:
    return replace(study(FEDAVG, FEDPROF, rounds=ROUNDS), runtime=runtime)


def results(folder: Path, asked: Study) -> dict[str, Any]:
    """Models, records and numbers of charges of all arms."""
    found: dict[str, Any] = {}
    for arm in asked.arms:
        home = arm_folder(folder, arm, 3)
        _, plan = composition(asked, arm, world(asked))
        with Checkpoint(checkpoint_file(home)) as kept:
            state, records = kept.load()
        with Ledger(home / "ledger.sqlite", plan.terms()) as ledger:
            charges = len(list(ledger.rows()))
        assert state is not None
        found[arm.name] = state.broadcast.tobytes(), plain(records), charges
    return found


@pytest.fixture(scope="module", autouse=True)
def _no_report() -> Iterator[None]:
    """It takes longer than all rounds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "_written", lambda *_: (None, Path()))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What comes of the study in one process."""
    folder = tmp_path_factory.mktemp("whole")
    run_study(of(RuntimeSection(workers=1)), folder, lambda *_: None, baselines=False)
    return results(folder, of())


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return installed(monkeypatch)


def played(folder: Path, tell: Tell | None = None, **options: Any) -> list[tuple[str, int]]:
    """Run the study. Returns the rounds that were told, in order."""
    told: list[tuple[str, int]] = []

    def telling(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        told.append((arm.name, record["round"]))
        if tell is not None:
            tell(arm, seed, record)

    run_study(of(), folder, telling, baselines=False, **options)
    return told


def check_told(told: list[tuple[str, int]]) -> None:
    """Every round once, and those of an arm in their order."""
    assert len(told) == len(set(told)) == 2 * ROUNDS
    for name in ("FedAvg", "FedProf"):
        assert [number for arm, number in told if arm == name] == [1, 2, 3]


def in_round(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[str], None]) -> None:
    """Call `do` with the arm before this round."""
    play = Turn.play

    def playing(self: Turn, at: int, state: Any) -> Any:
        if at == number:
            do(self._arm.name)
        return play(self, at, state)

    monkeypatch.setattr(Turn, "play", playing)


def test_a_cluster_gives_the_bits_of_one_process(
    ray: FakeRay, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    for number in range(1, ROUNDS + 1):
        in_round(monkeypatch, number, lambda arm: threads.add(threading.current_thread().name))
    check_told(played(tmp_path))
    assert threads == {"worker run"}, "a round was played in this process"
    assert results(tmp_path, of()) == whole
    assert ray.puts == 1, "the data of one seed was put more than once"
    assert ray.begun is None
    assert all(actor.lost for actor in ray.actors)


def test_a_worker_takes_one_lane_after_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, whole: dict[str, Any]
) -> None:
    ray = installed(monkeypatch, nodes=1)
    check_told(played(tmp_path))
    assert len(ray.actors) == 1
    assert results(tmp_path, of()) == whole


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_lost_lane_is_done_again_and_charged_once(
    at: int, ray: FakeRay, tmp_path: Path, whole: dict[str, Any]
) -> None:
    lost: list[str] = []

    def tell(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        if record["round"] == at and not lost:
            lost.append(arm.name)
            for actor in list(ray.actors):
                actor.lose()

    check_told(played(tmp_path, tell))
    assert lost
    assert len(ray.actors) > 2
    assert results(tmp_path, of()) == whole


def test_a_lane_that_comes_forward_may_lose_any_number_of_workers(
    ray: FakeRay, tmp_path: Path, whole: dict[str, Any]
) -> None:
    """Its worker is lost after each round. The other lane, which may still be in a round, keeps its own."""
    names = [arm.name for arm in of().arms]

    def tell(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        for actor in list(ray.actors):
            if actor.doing[4:5] == (names.index(arm.name),):
                actor.lose()

    check_told(played(tmp_path, tell))
    assert len(ray.actors) > 4
    assert results(tmp_path, of()) == whole


def test_a_lane_that_is_lost_after_a_request_to_stop_is_not_begun_again(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its round would only be ended, and a new worker may have to wait for its place."""

    def tell(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    stopping, hired = ClusterCrew.stop, []

    def losing(self: ClusterCrew[Any]) -> None:
        stopping(self)
        hired.append(len(ray.actors))
        for actor in list(ray.actors):
            actor.lose()

    monkeypatch.setattr(ClusterCrew, "stop", losing)
    with pytest.raises(Interrupted), Interruption(lambda line: None) as stop:
        played(tmp_path, tell, stop=stop)
    assert hired == [len(ray.actors)]


def test_a_lane_that_loses_every_worker_is_told(
    ray: FakeRay, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(arm: str) -> None:
        for actor in ray.actors:
            if arm == "FedProf" and actor.busy_here():
                time.sleep(0.3)  # the record of round 1, which each new worker tells again, is heard by now
                actor.lose("The node ran out of memory.")

    with monkeypatch.context() as patched:
        in_round(patched, 2, deadly)
        with pytest.raises(WorkerDied) as caught:
            played(tmp_path)
    assert str(caught.value) == (
        "The process of FedProf under seed 3 was lost 3 times without a finished round between (The node ran "
        "out of memory.). Finished rounds are kept: run the same command again, which continues the run. If "
        "memory ran out, add --workers 1."
    )
    check_told(played(tmp_path))
    assert results(tmp_path, of()) == whole


def test_a_cluster_without_nodes_is_told(ray: FakeRay, tmp_path: Path, whole: dict[str, Any]) -> None:
    def tell(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        ray.alive = []
        for actor in ray.actors:
            actor.own.__class__ = type("Hung", (), {"stop": lambda self: None, "hear": lambda self: hang()})

    hung = threading.Event()

    def hang() -> Any:
        hung.wait(30)
        return 0, None

    with pytest.raises(WorkerDied, match="no node"):
        played(tmp_path, tell)
    hung.set()


def test_a_request_to_stop_ends_the_lanes_after_their_rounds(
    ray: FakeRay, tmp_path: Path, whole: dict[str, Any]
) -> None:
    told: list[str] = []

    def tell(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        if not told:
            os.kill(os.getpid(), signal.SIGTERM)
        told.append(arm.name)

    play = Turn.play

    def slow(self: Turn, *given: Any, **named: Any) -> Any:
        time.sleep(0.1)  # else both lanes may end before they hear of the stop
        return play(self, *given, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Turn, "play", slow)
        with pytest.raises(Interrupted), Interruption(lambda line: None) as stop:
            played(tmp_path, tell, stop=stop)
    assert len(told) < 2 * ROUNDS
    assert all(actor.lost for actor in ray.actors)
    assert ray.begun is None
    check_told(played(tmp_path))
    assert results(tmp_path, of()) == whole


def test_any_other_interruption_ends_the_workers_at_once(ray: FakeRay, tmp_path: Path) -> None:
    def tell(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        played(tmp_path, tell)
    assert all(actor.lost for actor in ray.actors)
    assert ray.begun is None


def test_an_error_on_a_worker_is_raised_as_in_one_process(
    ray: FakeRay, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(arm: str) -> None:
        if arm == "FedProf":
            raise DataError("The disk is full.")

    with monkeypatch.context() as patched:
        in_round(patched, 2, failing)
        with pytest.raises(DataError, match=r"^The disk is full\.$"):
            played(tmp_path)
    check_told(played(tmp_path))
    assert results(tmp_path, of()) == whole


def test_files_of_a_round_that_were_half_replaced_go_on(ray: FakeRay, tmp_path: Path) -> None:
    """This process may be killed between two files: those before are then of the round, the rest older."""
    asked = replace(parse(MASKED), runtime=RAY)
    home = arm_folder(tmp_path / "run", asked.arms[0], 3)
    states: list[Path] = []

    def tell(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        states.append(Path(shutil.copytree(home, tmp_path / f"after {record['round']}")))

    run_study(asked, tmp_path / "run", tell, baselines=False)
    expected = results(tmp_path / "run", asked)
    names = [name for name in FILES if (home / name).exists()]
    assert {path.name for path in home.iterdir()} == {*names}, "a file is missing in FILES"
    for newer in range(1, len(names)):
        for name in names:
            shutil.copy(states[1 if names.index(name) < newer else 0] / name, home / name)
        run_study(asked, tmp_path / "run", lambda *_: None, baselines=False)
        assert results(tmp_path / "run", asked) == expected


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            {"error": "ModuleNotFoundError: No module named 'securefl'"},
            r"Expected securefl on every node of the Ray cluster, got none on node 10\.0\.0\.9 .Ray's node "
            r"0001ffffffff. .ModuleNotFoundError: No module named 'securefl'.\. Install the same version",
        ),
        (
            lambda: {**cluster.stamp(), "securefl": "0.0.9 (source 000000000000)"},
            r"Expected securefl .* on every node of the Ray cluster, as on this machine, got securefl "
            r"0\.0\.9 .source 000000000000. on node 10\.0\.0\.9",
        ),
        (lambda: {**cluster.stamp(), "torch": "1.0"}, r"Expected torch .*, got torch 1\.0 on node"),
        (RayError("The node died."), r"Expected an answer of node .* got The node died\."),
    ],
    ids=["no securefl", "another securefl", "another torch", "no answer"],
)
def test_a_node_that_is_not_as_this_machine_is_named(
    answer: Any, words: str, ray: FakeRay, tmp_path: Path
) -> None:
    ray.answers[ray.alive[1]] = answer
    with pytest.raises(ConfigError, match=words):
        played(tmp_path)
    assert ray.begun is None
    assert not ray.actors


def test_a_cluster_without_processors_is_refused(ray: FakeRay, tmp_path: Path) -> None:
    ray.alive = []
    with pytest.raises(ConfigError, match="with a processor"):
        played(tmp_path)


def test_a_machine_without_ray_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"'securefl\[ray\]'"):
        played(tmp_path)


def test_a_cluster_that_cannot_be_reached_is_named(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.9.9.9:6379")
    ray.refused = ConnectionError("Ray failed to connect.\nMore lines.")
    with pytest.raises(ConfigError, match=r"'10\.9\.9\.9:6379', got R"):
        played(tmp_path)


def test_the_address_of_the_study_comes_first(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.9.9.9:6379")
    ray.refused = ConnectionError("no")
    runtime = RuntimeSection(backend="ray", address="10.1.1.1:6379")
    with pytest.raises(ConfigError, match=r"'10\.1\.1\.1:6379'"):
        run_study(of(runtime), tmp_path, lambda *_: None)


def test_signal_handlers_are_those_of_before(ray: FakeRay, tmp_path: Path) -> None:
    """Ray sets one for SIGTERM when it connects, and a study's own would be lost."""
    before = signal.getsignal(signal.SIGTERM)
    ray.on_init = lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN) and None
    ray.alive = []
    with pytest.raises(ConfigError):
        played(tmp_path)
    assert signal.getsignal(signal.SIGTERM) == before


def test_parties_apart_refuse_a_cluster() -> None:
    with pytest.raises(ConfigError, match="Ray cluster trust"):
        require_in_one_process(of())


def test_a_cluster_has_no_gpu(ray: FakeRay, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'device = .*"ray"'):
        run_study(of(RuntimeSection(backend="ray", device="cuda")), tmp_path, lambda *_: None)


def test_an_address_without_a_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match="no address with"):
        parse(text(FEDAVG, extra='[runtime]\naddress = "10.0.0.1:6379"\n'))
