"""Whole sweeps of a tiny study: tables, page, resuming, failing cells, and what ends workers."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from support.tiny_study import FEDAVG, text

from securefl.commands.exit_codes import ExitCode
from securefl.commands.plan import plan
from securefl.commands.run import run as run_command
from securefl.commands.sweep import sweep
from securefl.core.errors import SecureFLError
from securefl.study import run_report, world
from securefl.study.checkpoint import Checkpoint
from securefl.sweep.cells import Cell, parse_sweep
from securefl.sweep.check import check
from securefl.sweep.run import finished, run_cells

pytestmark = pytest.mark.usefixtures("blank_plots")

FEDLOG = '[[arm]]\nname = "FedLog"\nprotocol = "fedlog"\n'
NOISED = (
    text(FEDLOG, non_private="[]", seeds="[3, 4]")
    .replace('noise = "none"', 'noise = "local"')
    .replace('adversaries = ["server", "key-holder", "others"]', 'adversaries = ["server", "others"]')
    .replace("[]", '["statistic"]')
)
GRID = '[sweep.grid]\n"privacy.epsilon" = [8.0, inf]\n"study.rounds" = [1, 2]\n'
LONG = text(FEDAVG) + '[sweep.grid]\n"study.rounds" = [3, 150]\n"local.learning_rate" = [0.1, 0.2]\n'
SHORT = text(FEDAVG) + '[sweep.grid]\n"study.rounds" = [3, 4]\n'
# A shell that puts the tests in the background has its children ignore Ctrl-C.
CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from securefl.commands.sweep import sweep; sweep()"
)


def swept(toml: Path, out: Path, *options: str) -> Result:
    return CliRunner().invoke(sweep, [str(toml), "--out", str(out), "--workers", "2", *options])


def written(folder: Path, content: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(content)
    return path


@pytest.fixture(scope="module")
def done(
    tmp_path_factory: pytest.TempPathFactory, forks: type, blank_plots: None
) -> tuple[Path, Path, Result]:
    """TOML, folder and result of a sweep of two by two cells."""
    folder = tmp_path_factory.mktemp("sweep")
    toml, out = written(folder, NOISED + GRID), folder / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("securefl.sweep.run.Supervisor", forks)
        patch.setattr(run_report, "figures", lambda *_: [])
        return toml, out, swept(toml, out, "--json")


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


def test_json_alone_is_printed(done: tuple[Path, Path, Result]) -> None:
    _, out, result = done
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout, parse_constant=refuse)
    assert (found["cells"], found["private"]["failed"]) == (4, {})
    assert found["page"] == str(out / "sweep.html")
    assert len(found["summary"]) == 4 * 2
    asked = [(row["privacy.epsilon"], row["epsilon_true"]) for row in found["summary"]]
    assert asked[0] == (8.0, pytest.approx(8.0, rel=1e-3))
    assert asked[-1] == ("inf", "inf")


def test_a_sweep_folder_holds_everything(done: tuple[Path, Path, Result]) -> None:
    toml, out, _ = done
    assert (out / "sweep.toml").read_text() == toml.read_text()
    cells = {f"epsilon-{e}-rounds-{r}" for e in ("8", "inf") for r in (1, 2)}
    assert {path.name for path in (out / "cells").iterdir()} == cells
    for cell in cells:
        assert (out / "cells" / cell / "report.html").is_file()
    plots = {path.name for path in (out / "plots").iterdir()}
    names = ("accuracy_epsilon", "accuracy_study_rounds", "accuracy_bytes")
    assert plots == {f"{name}.png" for name in names}

    results = pd.read_csv(out / "results.csv")
    assert len(results) == 2 * 2 * (1 + 2)
    assert set(results["privacy.epsilon"]) == {8.0, math.inf}
    assert results.groupby("study.rounds")["round"].max().to_dict() == {1: 1, 2: 2}
    own = pd.read_csv(out / "cells" / "epsilon-8-rounds-2" / "metrics.csv")
    mine = results[results["cell"] == "epsilon-8-rounds-2"]
    assert mine["accuracy"].tolist() == own["accuracy"].tolist()
    summary = pd.read_csv(out / "summary.csv")
    last = own[(own["seed"] == 4) & (own["round"] == 2)]["accuracy"].item()
    here = summary[(summary["cell"] == "epsilon-8-rounds-2") & (summary["seed"] == 4)]
    assert here["final_accuracy"].item() == last
    assert here["bytes_up"].item() == own[own["seed"] == 4]["bytes_up"].sum()


def test_a_cell_is_the_run_of_its_study(done: tuple[Path, Path, Result], tmp_path: Path) -> None:
    """Noise comes from the operating system, so the cells without it are compared."""
    _, out, _ = done
    cell = out / "cells" / "epsilon-inf-rounds-2"
    alone = CliRunner().invoke(run_command, [str(cell / "study.toml"), "--out", str(tmp_path / "run")])
    assert alone.exit_code == 0, alone.output
    homes = (cell / "private", tmp_path / "run" / "private")
    tables = [pd.read_csv(home / "metrics.csv", comment="#") for home in homes]
    first, second = (table.drop(columns="wall_seconds") for table in tables)
    pd.testing.assert_frame_equal(first, second)


def test_finished_cells_are_not_run_again(done: tuple[Path, Path, Result]) -> None:
    toml, out, first = done
    state = {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*") if path.is_file()}
    again = swept(toml, out, "--json")
    assert (again.exit_code, again.stdout) == (0, first.stdout)
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*") if path.is_file()} == state
    told = swept(toml, out)
    assert f"Going on with the sweep in {out}: 4 of 4 cells are finished." in told.stderr
    assert told.stdout.splitlines()[-2:] == [
        f"Page: {out / 'sweep.html'}",
        f"With all figures, not for publication: {out / 'private' / 'sweep.html'}",
    ]


def test_nothing_runs_where_a_cell_could_not_begin(tmp_path: Path) -> None:
    """Every refusal that a cell would meet at its start, by cell, before the first runs."""
    toml = written(
        tmp_path, text(FEDAVG) + '[sweep.grid]\n"data.clients" = [6, 5000]\n"privacy.delta" = [1e-4, 0.1]\n'
    )
    result = swept(toml, tmp_path / "out")
    assert result.exit_code == 1
    message = str(result.exception)
    assert f"{toml}: In the cell clients = 6, delta = 0.1: " in message
    assert f"{toml}: In the 2 cells with clients = 5000: [data] Expected clients <= " in message
    assert "[privacy] Expected delta below 1 / n" in message
    assert not (tmp_path / "out" / "cells").exists()


def test_plan_reads_a_sweep(tmp_path: Path) -> None:
    toml = written(tmp_path, NOISED + GRID)
    result = CliRunner().invoke(plan, [str(toml)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "tiny: a sweep of 4 cells over privacy.epsilon, study.rounds"
    assert lines[lines.index("epsilon = 8, rounds = 1") + 1].startswith(
        "  FedLog: ε 8.00 against the server, "
    )
    assert lines[lines.index("epsilon = inf, rounds = 2") + 1].startswith(
        "  FedLog: ε ∞ against the server, "
    )
    assert "The cell epsilon = 8, rounds = 1, rehearsed:" in lines
    assert lines[-1].startswith("About ")
    assert list(tmp_path.iterdir()) == [toml], "nothing is kept"


def test_plan_tells_every_cell_that_cannot_run(tmp_path: Path) -> None:
    toml = written(tmp_path, text(FEDAVG) + '[sweep.grid]\n"data.clients" = [5000, 6]\n')
    result = CliRunner().invoke(plan, [str(toml), "--json"])
    assert result.exit_code == 1
    assert str(result.exception).startswith(
        f"{toml}: In the cell clients = 5000: [data] Expected clients <= "
    )
    found = json.loads(result.stdout, parse_constant=refuse)
    bad, good = found["cells"]
    assert bad["refused"].startswith("[data] Expected clients <= ")
    assert (bad["arms"], good["refused"], good["arms"][0]["epsilon"]["server"]) == ([], None, "inf")
    assert found["seconds"] > 0


def test_cells_of_the_same_data_share_a_world(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    build = world.build
    monkeypatch.setattr(world, "build", lambda *given: built.append(1) or build(*given))
    grid = '"data.clients" = [6, 4]\n"local.learning_rate" = [0.1, 0.2]\n"study.rounds" = [1, 2]\n'
    cells = parse_sweep(text(FEDAVG) + "[sweep.grid]\n" + grid).cells
    checked = check(cells, costs=True)
    assert [own.cell for own in checked] == list(cells)
    assert [own.refused for own in checked] == [""] * 8
    assert len(built) == 2


@pytest.mark.slow  # `test_new_user` tells it of a sweep whose cells all learnt nothing
def test_what_one_cell_learnt_nothing_of_is_told_of_the_sweep(tmp_path: Path) -> None:
    toml = written(tmp_path, text(FEDAVG) + '[sweep.grid]\n"local.learning_rate" = [0.1, 1e30]\n')
    out = tmp_path / "out"
    result = swept(toml, out, "--json")
    assert result.exit_code == ExitCode.UNLEARNT
    found = json.loads(result.stdout, parse_constant=refuse)
    (alarm,) = found["private"]["warnings"]["learning_rate = 1e+30"]
    assert (alarm["arm"], alarm["learnt"]) == ("FedAvg", False)
    assert "Warning: learning_rate = 1e+30: FedAvg: nobody answered in any of 2 rounds" in result.stderr
    assert (
        "learning_rate = 1e+30: FedAvg: nobody answered in any of 2 rounds"
        in (out / "private" / "sweep.html").read_text()
    )
    again = swept(toml, out)
    assert again.exit_code == ExitCode.UNLEARNT, "what is finished is told again"
    assert "\nlearning_rate = 1e+30  " in again.stdout, "each cell has a line"


@pytest.mark.usefixtures("forked_cells")
def test_a_failing_cell_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securefl.sweep.session.check", lambda *_, **__: [])  # as if it failed while it runs
    toml = written(tmp_path, text(FEDAVG) + '[sweep.grid]\n"data.clients" = [5000, 6, 4]\n')
    toml.write_text(toml.read_text().replace("learning_rate = 0.2", "learning_rate = 1e30"))
    result = swept(toml, tmp_path / "out")
    assert result.exit_code == 1
    assert isinstance(result.exception, SecureFLError)
    message = str(result.exception)
    assert message.startswith("1 of 3 cells failed: clients = 5000: [data] Expected clients <= ")
    assert message.endswith(f"securefl sweep {tmp_path / 'out' / 'sweep.toml'} --out {tmp_path / 'out'}")
    lines = result.stderr.splitlines()
    first = "Warning: clients = 6: FedAvg: nobody answered"
    assert any(
        line.startswith(first) and line.endswith("Alike but for numbers: clients = 4: FedAvg.")
        for line in lines
    ), "a failure does not hide what went wrong in the others"
    assert sum("finished" in line for line in lines) == 2
    assert any(line.endswith(": finished") and "clients = 4" in line for line in lines)
    assert set(pd.read_csv(tmp_path / "out" / "results.csv")["data.clients"]) == {4, 6}
    assert (
        "clients = 5000: [data] Expected clients" in (tmp_path / "out" / "private" / "sweep.html").read_text()
    )


class Killer:
    """Kills one worker after the first round it hears of."""

    def __init__(self) -> None:
        self.ends: dict[str, str | None] = {}
        self.killed = False

    def begun(self, cell: Cell, place: int) -> None:
        pass

    def round(self, place: int, done: int) -> None:
        if not self.killed:
            self.killed = True
            multiprocessing.active_children()[0].kill()

    def ended(self, cell: Cell, place: int, error: str | None) -> None:
        self.ends[cell.name] = error


@pytest.mark.slow
def test_a_killed_worker_costs_its_pools_cells_and_no_others(tmp_path: Path) -> None:
    content = text(FEDAVG) + '[sweep.grid]\n"study.rounds" = [150, 151, 2, 3]\n'
    of = parse_sweep(content)
    watch = Killer()
    run_cells(of, tmp_path, workers=2, watch=watch)
    failed = {name: error for name, error in watch.ends.items() if error is not None}
    assert watch.killed
    assert 1 <= len(failed) <= 2
    assert set(failed) <= {"rounds = 150", "rounds = 151"}
    assert "was ended from outside" in next(iter(failed.values()))
    assert all(finished(of.home(tmp_path, cell)) for cell in of.cells if cell.name not in failed)
    assert watch.ends["rounds = 2"] is None
    assert len(watch.ends) == 4


# Interruption -----------------------------------------------------------------------------------


def started(folder: Path) -> tuple[Path, Path, subprocess.Popen[str]]:
    """A long sweep in a process of its own, in which some cell is finished and another is not."""
    toml, out = written(folder, LONG), folder / "out"
    running = subprocess.Popen(
        [sys.executable, "-c", CODE, str(toml), "--out", str(out), "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not any((out / "cells").glob("*/private/cell.json")):
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    return toml, out, running


def group_is_gone(group: int) -> None:
    """Wait until no process of the group is left; the test's time limit ends a wait for ever."""
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_leaves_no_worker_and_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    toml, out, running = started(tmp_path)
    try:
        if how == signal.SIGKILL:
            running.send_signal(how)
        else:
            os.killpg(running.pid, how)  # as terminals and service managers do: the workers get it too
        stdout, stderr = running.communicate(timeout=60)
        assert stdout == ""
        assert "Traceback" not in stderr
        if how != signal.SIGKILL:
            assert running.returncode == 128 + how
            assert "Stopping after this round; once more to stop at once." in stderr.splitlines()
            advice = f"Go on with: securefl sweep {out / 'sweep.toml'} --out {out}"
            assert any(line.endswith(advice) for line in stderr.splitlines())
        group_is_gone(running.pid)
    finally:
        running.kill()
        running.communicate()
    before: dict[Path, Any] = {
        path: path.stat().st_mtime_ns for path in out.glob("cells/*/private/cell.json")
    }
    assert 1 <= len(before) < 4
    assert not (out / "results.csv").exists()

    result = swept(toml, out)
    assert result.exit_code == 0, result.output
    assert f"{len(before)} of 4 cells are finished." in result.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(pd.read_csv(out / "results.csv")) == 2 * 3 + 2 * 150


SLOW_ROUNDS = """
import signal, sys, time
from pathlib import Path

signal.signal(signal.SIGINT, signal.default_int_handler)

if __name__ != "__main__":  # in a worker: its first round waits for the file
    from securefl.study.checkpoint import Checkpoint

    save = Checkpoint.save

    def waiting(self, number, *rest, **named):
        Path(sys.argv[-1], "at-hand").touch()
        while not Path(sys.argv[-1], "gate").exists():
            time.sleep(0.02)
        return save(self, number, *rest, **named)

    Checkpoint.save = waiting
else:
    from securefl.commands.sweep import sweep

    sweep(sys.argv[1:-1])
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_a_sweeps_workers_finish_their_rounds_unless_asked_twice(signals: int, tmp_path: Path) -> None:
    """The signals go to the whole group, as a terminal's do: the workers wait for the word of the sweep."""
    toml, out, script = written(tmp_path, SHORT), tmp_path / "out", tmp_path / "slow.py"
    script.write_text(SLOW_ROUNDS)
    running = subprocess.Popen(
        [sys.executable, str(script), str(toml), "--out", str(out), "--workers", "1", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not (tmp_path / "at-hand").exists():
            assert running.poll() is None, running.communicate()
            time.sleep(0.02)
        os.killpg(running.pid, signal.SIGINT)
        assert running.stderr is not None
        assert running.stderr.readline().strip() == "Stopping after this round; once more to stop at once."
        if signals == 2:
            time.sleep(0.2)  # signals in less than a tenth of a second are one request
            os.killpg(running.pid, signal.SIGTERM)
        else:
            time.sleep(0.3)  # the sweep looks at its signals, and its worker at its word, every tenth of one
            (tmp_path / "gate").touch()
        stdout, stderr = running.communicate(timeout=60)
        group_is_gone(running.pid)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == (130 if signals == 1 else 143)
    assert (stdout, "Traceback" in stderr) == ("", False)
    assert stderr.splitlines()[-1].endswith(f"Go on with: securefl sweep {out / 'sweep.toml'} --out {out}")
    kept = list(out.glob("cells/*/private/arms/fedavg/seed-3/ledger.sqlite"))
    assert len(kept) == 1, "no further cell was begun"
    with Checkpoint(kept[0]) as checkpoint:
        assert len(checkpoint.load()[1]) == (1 if signals == 1 else 0)
