"""A sweep's rounds on a cluster, by a double of ray: a cell is the run of its study, whatever others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_ray import FakeRay, installed
from support.tiny_study import FEDAVG, plain, text, with_privacy

from securefl.accounting.shared import account_of
from securefl.core.errors import ConfigError, DataError
from securefl.study import run
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.interruption import Interruption
from securefl.study.remote_lanes import OnCluster
from securefl.study.results import finished_rounds
from securefl.study.run import Turn, run_arm
from securefl.study.world import build
from securefl.sweep.cells import Cell, Sweep, on, parse_sweep
from securefl.sweep.choice import require_choosable
from securefl.sweep.on_cluster import Worlds, play_cells, runtime_of

CELLS = '[sweep.grid]\n"local.learning_rate" = [0.1, 0.2]\n"study.rounds" = [2, 3]\n'


class Shown:
    """Notes what a sweep's bars would show."""

    def __init__(self) -> None:
        self.begun_cells: list[str] = []
        self.rounds: dict[int, int] = {}
        self.played_cells: list[str] = []

    def begun(self, cell: Cell, place: int) -> None:
        self.begun_cells.append(cell.name)

    def round(self, place: int, done: int) -> None:
        self.rounds[place] = done

    def played(self, cell: Cell) -> None:
        self.played_cells.append(cell.name)

    def ended(self, cell: Cell, place: int, error: str | None) -> None:
        raise AssertionError("a cell ends with its report")


def of(content: str = text(FEDAVG) + CELLS) -> Sweep:
    return on(parse_sweep(content), "ray")


def played(sweep: Sweep, out: Path, watch: Shown | None = None) -> dict[str, str]:
    runtime = runtime_of(sweep, None)
    assert runtime is not None
    worlds = Worlds()
    with OnCluster(runtime, worlds) as crew:
        return play_cells(sweep, out, crew, worlds, watch=watch or Shown(), stop=Interruption())


def of_cell(folder: Path, cell: Cell) -> tuple[bytes, list[dict[str, Any]]]:
    home = arm_folder(folder, cell.study.arms[0], 3)
    with Checkpoint(checkpoint_file(home)) as kept:
        state, records = kept.load()
    assert state is not None
    return state.broadcast.tobytes(), plain(records)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return installed(monkeypatch)


def test_cells_have_the_bits_of_their_own_runs(ray: FakeRay, tmp_path: Path) -> None:
    sweep, watch = of(), Shown()
    assert played(sweep, tmp_path / "there", watch) == {}
    assert sorted(watch.begun_cells) == sorted(cell.name for cell in sweep.cells)
    assert sorted(watch.played_cells) == sorted(watch.begun_cells)
    assert sum(watch.rounds.values()) >= 3
    assert ray.puts == 1, "cells with the same data share it"
    for cell in sweep.cells:
        here = tmp_path / "here" / cell.folder
        run_arm(cell.study, cell.study.arms[0], build(cell.study, 3), here, lambda record: None)
        assert of_cell(sweep.home(tmp_path / "there", cell), cell) == of_cell(here, cell)


def test_a_cell_that_fails_or_loses_its_workers_stops_no_other(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Turn.play

    def playing(self: Turn, number: int, state: Any) -> Any:
        if self._study.study.rounds == 3:
            if self._study.local.learning_rate == 0.1:
                raise DataError("The disk is full.")
            for actor in ray.actors:
                if actor.busy_here():
                    actor.lose("The node died.")
        return play(self, number, state)

    monkeypatch.setattr(Turn, "play", playing)
    sweep = of()
    failed = played(sweep, tmp_path)
    assert set(failed) == {"learning_rate = 0.2, rounds = 3"}
    assert (
        "was lost 3 times without a finished round between (The node died.)"
        in failed["learning_rate = 0.2, rounds = 3"]
    )
    for cell in sweep.cells:
        if cell.study.study.rounds == 2:
            assert len(of_cell(sweep.home(tmp_path, cell), cell)[1]) == 2


@pytest.mark.parametrize(("budget", "runs"), [("8.0", 2), ("2.5", 1)], ids=["room", "room for one"])
def test_a_shared_ledger_stays_here_and_has_every_run_once(
    budget: str, runs: int, ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a worker looked for the shared ledger")

    monkeypatch.setattr(run, "reserve", refuse)
    ledger = tmp_path / "people.ledger"
    privacy = {"noise": '"local"', "adversaries": '["server", "others"]', "budget": budget}
    privacy |= {"epsilon": "2.0", "ledger": f'"{ledger}"'}
    fedlog = '[[arm]]\nname = "FedLog"\nprotocol = "fedlog"\n'
    sweep = of(
        with_privacy(text(fedlog, non_private="[]"), privacy) + '\n[sweep.grid]\n"study.seeds" = [[3], [4]]'
    )
    for _ in range(2):
        assert played(sweep, tmp_path / "out") == {}
        assert len(account_of(ledger).entries) == runs
    done = [
        finished_rounds(sweep.home(tmp_path / "out", cell), cell.study.arms[0], cell.study.study.seeds[0])
        for cell in sweep.cells
    ]
    assert done == [2, 2 if runs == 2 else 0]


def test_backends_that_differ_between_cells_are_refused() -> None:
    sweep = parse_sweep(text(FEDAVG) + '[sweep.grid]\n"runtime.backend" = ["processes", "ray"]\n')
    with pytest.raises(ConfigError, match=r"one backend .*got 2"):
        runtime_of(sweep, None)
    assert runtime_of(on(sweep, "processes"), None) is None


def test_the_command_has_the_last_word_on_workers() -> None:
    runtime = runtime_of(of(), 7)
    assert runtime is not None
    assert runtime.workers == 7


def test_a_choice_is_refused_on_a_cluster() -> None:
    content = text(FEDAVG) + '[sweep]\nchoice = { trials = "poisson", mean = 2 }\n' + CELLS
    with pytest.raises(ConfigError, match='`choice`, got "ray"'):
        require_choosable(of(content))
