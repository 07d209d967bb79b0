"""A sweep on Ray, by a double of it: a cell is one task, and a lost worker costs a try and no epsilon."""

from __future__ import annotations

import copy
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from support.every import every
from support.tiny_study import FEDAVG, plain, text, with_privacy, world

from securefl.accounting.shared import runs_of
from securefl.commands.main import cli
from securefl.core.errors import ConfigError, DataError, WorkerDied
from securefl.storage.private_folder import RUN, note_format
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.interruption import Interrupted, Interruption
from securefl.study.run import RoundRunner, run_arm
from securefl.sweep import on_ray
from securefl.sweep.cells import Cell, Sweep, parse_sweep
from securefl.sweep.on_ray import packed, put
from securefl.sweep.run import FACTS, finished

pytestmark = pytest.mark.usefixtures("blank_plots")

CELLS = '[sweep.grid]\n"local.learning_rate" = [0.1, 0.2]\n'
FEDLOG = '[[arm]]\nname = "FedLog"\nprotocol = "fedlog"\n'


class Lost(BaseException):
    """What ends a worker at once: no code of a task catches it."""


class RayError(Exception):
    pass


class FakeRay(ModuleType):
    """The module `ray`. A task runs here when it is asked for its result, as often as Ray would run it."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self) -> None:
        super().__init__("ray")
        self.tries = 0
        self.alive = True
        self.connected: list[str] = []
        self.folders: list[Path] = []
        self.on_the_node: Callable[[], Any] = SimpleNamespace
        self.answer: Callable[[Callable[[], Any]], Any] = lambda task: task()

    def init(self, address: str, **_: object) -> None:
        if address not in ("local", "10.0.0.1:6379"):
            raise ConnectionError("Could not find a Ray instance.")
        self.connected.append(address)
        self.folders.append(Path.cwd())

    def shutdown(self) -> None:
        self.connected.append("ended")

    def nodes(self) -> list[Mapping[str, Any]]:
        return [{"Alive": self.alive, "Resources": {"CPU": 2.0}}]

    def remote(self, *, num_cpus: int, max_retries: int) -> Callable[[Any], Any]:
        def made(function: Callable[..., Any]) -> Any:
            def call(*given: Any) -> Callable[[], Any]:
                def run() -> Any:
                    for _ in range(max_retries + 1):
                        self.tries += 1
                        try:
                            return self.answer(lambda: function(*copy.deepcopy(given)))
                        except Lost:
                            continue
                        except Exception as error:
                            raise RayError(str(error)) from None
                    raise RayError("The worker died unexpectedly while executing this task.")

                return run

            return SimpleNamespace(remote=call)

        return made

    def wait(self, refs: Sequence[Any], timeout: float) -> tuple[Sequence[Any], Sequence[Any]]:
        return (refs[:1], refs[1:]) if self.alive else ([], refs)

    def get(self, ref: Callable[[], Any]) -> Any:
        return ref()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return made


class Shown:
    def __init__(self) -> None:
        self.cells: dict[str, str | None] = {}

    def begun(self, cell: Cell, place: int) -> None: ...

    def round(self, place: int, done: int) -> None: ...

    def ended(self, cell: Cell, place: int, error: str | None) -> None:
        self.cells[cell.name] = error


def swept(sweep: Sweep, out: Path, watch: Shown | None = None) -> dict[str, str]:
    watch = watch or Shown()
    on_ray.run_on_ray(sweep, out, watch=watch, stop=Interruption())
    return {name: error for name, error in watch.cells.items() if error is not None}


def of_cell(folder: Path, cell: Cell) -> tuple[bytes, list[dict[str, Any]], list[int]]:
    with Checkpoint(checkpoint_file(arm_folder(folder, cell.study.arms[0], 3))) as kept:
        state, records = kept.load()
    assert state is not None
    return state.broadcast.tobytes(), plain(records), [record["ledger"]["count"] for record in records]


def losing(monkeypatch: pytest.MonkeyPatch, times: int, rate: float = 0.1) -> None:
    """Lose the worker of a cell in its round 2, so many times."""
    play, left = RoundRunner.play, iter(range(times))

    def playing(self: RoundRunner, number: int, state: Any) -> Any:
        if self._of.study.local.learning_rate == rate and number == 2 and next(left, None) is not None:
            raise Lost
        return play(self, number, state)

    monkeypatch.setattr(RoundRunner, "play", playing)


@pytest.mark.parametrize("lost", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_cells_have_the_bits_of_their_own_runs_whatever_is_lost(
    lost: int, ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, shown = parse_sweep(text(FEDAVG) + CELLS), Shown()
    losing(monkeypatch, lost)
    assert swept(sweep, tmp_path / "there", shown) == {}
    assert shown.cells == {cell.name: None for cell in sweep.cells}
    assert ray.tries == len(sweep.cells) + lost
    assert ray.connected == ["local", "ended"]
    for cell in sweep.cells:
        here = tmp_path / "here" / cell.folder
        run_arm(cell.study, cell.study.arms[0], world(cell.study), here, lambda record: None)
        home = sweep.home(tmp_path / "there", cell)
        assert finished(home)
        assert (home / "report.html").is_file()
        assert of_cell(home, cell) == of_cell(here, cell), "every round is charged once"
    assert swept(sweep, tmp_path / "there", shown) == {}
    assert ray.tries == len(sweep.cells) + lost, "no finished cell is run again"


def test_a_cell_that_loses_every_worker_stops_no_other(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, shown = parse_sweep(text(FEDAVG) + CELLS), Shown()
    with monkeypatch.context() as patch:
        losing(patch, 99)
        failed = swept(sweep, tmp_path, shown)
    assert {name: "worker died" in why for name, why in failed.items()} == {"learning_rate = 0.1": True}
    assert [finished(sweep.home(tmp_path, cell)) for cell in sweep.cells] == [False, True]
    assert swept(sweep, tmp_path, shown) == {}


def test_a_cell_that_fails_stops_no_other_and_says_where_its_traceback_is(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = RoundRunner.play

    def playing(self: RoundRunner, number: int, state: Any) -> Any:
        if self._of.study.local.learning_rate == 0.1:
            raise ZeroDivisionError("a defect")
        return play(self, number, state)

    monkeypatch.setattr(RoundRunner, "play", playing)
    sweep = parse_sweep(text(FEDAVG) + CELLS)
    failed = swept(sweep, tmp_path)
    assert "private/error.txt" in failed["learning_rate = 0.1"]
    assert "a defect" in (sweep.home(tmp_path, sweep.cells[0]) / "private" / "error.txt").read_text()
    assert len(failed) == 1


def test_a_cell_goes_on_from_the_rounds_that_are_here(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after round 1, with the round in SQLite's log alone."""
    sweep = parse_sweep(text(FEDAVG, rounds=3) + '[sweep.grid]\n"local.learning_rate" = [0.1]\n')
    (cell,) = sweep.cells
    folder = sweep.home(tmp_path, cell)
    home = arm_folder(folder, cell.study.arms[0], 3)
    note_format(folder, RUN)

    def killed(record: Mapping[str, Any]) -> None:
        shutil.copytree(home, tmp_path / "killed")

    with pytest.raises(FileExistsError):
        run_arm(cell.study, cell.study.arms[0], world(cell.study), folder, killed)
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "killed", home)
    assert (home / "ledger.sqlite-wal").stat().st_size > 0
    rounds: list[int] = []
    play = RoundRunner.play

    def playing(self: RoundRunner, number: int, state: Any) -> Any:
        rounds.append(number)
        return play(self, number, state)

    monkeypatch.setattr(RoundRunner, "play", playing)
    assert swept(sweep, tmp_path) == {}
    assert rounds == [2, 3]
    assert len(of_cell(folder, cell)[1]) == 3


def charged_in(ledger: Path, budget: float) -> Sweep:
    """Two runs at epsilon 2 on a shared ledger."""
    privacy = {"noise": '"local"', "adversaries": '["server", "others"]', "epsilon": "2.0"}
    privacy |= {"budget": f"{budget}", "ledger": f'"{ledger}"'}
    study = with_privacy(text(FEDLOG, non_private="[]"), privacy)
    return parse_sweep(study + '\n[sweep.grid]\n"study.rounds" = [2, 3]')


@pytest.mark.parametrize("lost", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_shared_ledger_stays_here_and_has_every_run_once(
    lost: int, ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was charged at each try would exceed the budget, which has room for both runs once."""
    ledger = tmp_path / "people.ledger"
    sweep = charged_in(ledger, budget=4.5)
    losing(monkeypatch, lost, sweep.cells[0].study.local.learning_rate)
    task = on_ray._task

    def away(*given: Any) -> Any:
        """On a node there is no such file."""
        held = {path: path.rename(tmp_path / f"away-{path.name}") for path in tmp_path.glob("people.ledger*")}
        try:
            return task(*given)
        finally:
            assert not ledger.exists()
            for path, there in held.items():
                there.rename(path)

    monkeypatch.setattr(on_ray, "_task", away)
    assert swept(sweep, tmp_path / "out") == {}
    assert ray.tries == 2 + lost
    entries = runs_of(ledger).entries
    assert len(entries) == 2
    assert swept(sweep, tmp_path / "out") == {}
    assert runs_of(ledger).entries == entries


def test_no_worker_has_the_working_folder_on_its_path(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray takes it from who connects. It may be another user's, with modules in it."""
    monkeypatch.chdir(tmp_path)
    with on_ray._connected():
        assert ray.folders == [Path("/")]
        assert Path.cwd() == tmp_path
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    with pytest.raises(ConfigError), on_ray._connected():
        pass
    assert Path.cwd() == tmp_path


def test_a_run_without_room_in_the_shared_ledger_never_begins(ray: FakeRay, tmp_path: Path) -> None:
    sweep = charged_in(tmp_path / "people.ledger", budget=2.5)
    failed = swept(sweep, tmp_path / "out")
    assert list(failed) == [sweep.cells[1].name]
    assert ray.tries == 1


def test_a_node_with_other_versions_runs_no_cell(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = iter([{"torch": "1", "source": "a"}, {"torch": "1", "source": "b"}])
    monkeypatch.setattr(on_ray, "_stamp", lambda: next(stamps))
    sweep = parse_sweep(text(FEDAVG) + '[sweep.grid]\n"local.learning_rate" = [0.1]\n')
    (why,) = swept(sweep, tmp_path).values()
    assert "source b" in why
    assert "torch" not in why
    assert not (sweep.home(tmp_path, sweep.cells[0]) / "study.toml").exists()


def test_a_signal_ends_the_tasks_and_keeps_finished_cells(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray raises an error of its own in place of the handler's, which has the exit code."""
    waits, stop = iter([True]), Interruption()

    def wait(refs: Sequence[Any], timeout: float) -> tuple[Sequence[Any], Sequence[Any]]:
        if next(waits, False):
            return refs[:1], refs[1:]
        with pytest.raises(Interrupted):
            stop._hear(signal.SIGTERM, None)
        raise KeyboardInterrupt

    monkeypatch.setattr(ray, "wait", wait)
    sweep = parse_sweep(text(FEDAVG) + CELLS)
    with pytest.raises(Interrupted) as ended:
        on_ray.run_on_ray(sweep, tmp_path, watch=Shown(), stop=stop)
    assert ended.value.exit_code == 143
    assert ray.connected[-1] == "ended"
    assert [finished(sweep.home(tmp_path, cell)) for cell in sweep.cells] == [True, False]


def test_a_cluster_without_a_node_ends_the_sweep(ray: FakeRay, tmp_path: Path) -> None:
    ray.alive = False
    with pytest.raises(WorkerDied, match="no node"):
        swept(parse_sweep(text(FEDAVG) + CELLS), tmp_path)
    assert ray.connected[-1] == "ended"


# Files from the cluster --------------------------------------------------------------------------------

OUTSIDE = ["../x", "/x", "a/../../x", "a/../x", "", "a//x", "./x", "a/.", "a/", ".lock", "a/.lock", "a\0b"]


@every("name", [*OUTSIDE, 7, b"x"])
def test_no_path_leads_outside(name: Any, tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    with pytest.raises(DataError):
        put({"private/a": b"1", name: b"2"}, folder)
    assert not any(tmp_path.rglob("*"))


@every("content", ["text", None, 3, bytearray(b"x")])
def test_what_is_no_bytes_is_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises((DataError, TypeError)):
        put({"a": content}, tmp_path / "cell")
    assert not any(tmp_path.rglob("*"))


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "plots").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "cell" / "report.html").symlink_to(tmp_path / "elsewhere" / "x")
    for name in ("plots/x", "report.html"):
        with pytest.raises(DataError):
            put({name: b"1"}, tmp_path / "cell")
    assert not any((tmp_path / "elsewhere").iterdir())
    assert "plots/x" not in packed(tmp_path / "cell")


def test_files_are_bounded_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put({"a": b"12", "b": b"34"}, tmp_path / "cell")
    for bound, most in (("_MOST_FILES", 1), ("_MOST_BYTES", 3)):
        with monkeypatch.context() as patch:
            patch.setattr(on_ray, bound, most)
            with pytest.raises(DataError, match="at most"):
                packed(tmp_path / "cell")
            with pytest.raises(DataError, match="at most"):
                put({"a": b"12", "b": b"34"}, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    found: list[tuple[str, bool]] = []
    monkeypatch.setattr(on_ray, "write", lambda path, content, secret: found.append((path.name, secret)))
    return found


def test_databases_come_first_and_the_mark_of_the_end_last(
    written: list[tuple[str, bool]], tmp_path: Path
) -> None:
    """If this process is killed between two files, the cell is not taken for finished."""
    names = [
        FACTS,
        "metrics.csv",
        "private/arms/a/seed-1/ledger.sqlite",
        "private/arms/a/seed-1/ledger.sqlite-head",
    ]
    put(dict.fromkeys(names, b""), tmp_path / "cell")
    assert written == [
        ("ledger.sqlite", True),
        ("metrics.csv", False),
        ("ledger.sqlite-head", True),
        ("cell.json", True),
    ]


class Emptied(dict[str, bytes]):
    """Shows nothing to whoever checks it."""

    def items(self) -> Any:
        return {}.items()


@pytest.mark.parametrize(
    "answer",
    [
        None,
        7,
        (None,),
        (None, None),
        (None, []),
        (None, {"../x": b""}),
        (None, {}),
        (None, Emptied({"../x": b""})),
    ],
)
def test_a_task_that_returns_anything_else_fails_its_cell(answer: Any, ray: FakeRay, tmp_path: Path) -> None:
    ray.answer = lambda task: answer
    sweep = parse_sweep(text(FEDAVG) + CELLS)
    assert set(swept(sweep, tmp_path / "out")) == {cell.name for cell in sweep.cells}
    assert not any(finished(sweep.home(tmp_path / "out", cell)) for cell in sweep.cells)
    assert not (tmp_path / "x").exists()


# The command -------------------------------------------------------------------------------------------


def test_a_choice_is_refused_before_anything_is_drawn(ray: FakeRay, tmp_path: Path) -> None:
    """Trials are released once each: none is a task that Ray may run twice."""
    (tmp_path / "s.toml").write_text(
        text(FEDAVG) + '[sweep]\nchoice = { trials = "poisson", mean = 2 }\n' + CELLS
    )
    told = CliRunner().invoke(
        cli, ["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out"), "--ray"]
    )
    assert isinstance(told.exception, ConfigError)
    assert "--ray" in str(told.exception)
    assert not (tmp_path / "out").exists()
    assert not ray.connected


def test_a_cluster_that_is_not_there_is_an_error(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = parse_sweep(text(FEDAVG) + CELLS)
    monkeypatch.setenv("RAY_ADDRESS", "10.9.9.9:1")
    with pytest.raises(ConfigError, match=r"10\.9\.9\.9:1"):
        swept(sweep, tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="pip install"):
        swept(sweep, tmp_path)


@pytest.mark.slow
def test_the_command_runs_on_the_cluster_of_the_address(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    (tmp_path / "s.toml").write_text(text(FEDAVG) + CELLS)
    told = CliRunner().invoke(
        cli, ["sweep", str(tmp_path / "s.toml"), "--out", str(tmp_path / "out"), "--ray"]
    )
    assert told.exit_code == 0, told.output
    assert (tmp_path / "out" / "sweep.html").is_file()
    assert ray.connected == ["10.0.0.1:6379", "ended"]


def test_a_study_names_no_cluster() -> None:
    with pytest.raises(ConfigError, match=r"\[runtime\] Unknown key `backend`"):
        parse_sweep(text(FEDAVG) + '[runtime]\nbackend = "ray"\n' + CELLS)
