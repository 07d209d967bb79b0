"""One process a folder, and reports of folders in which nothing can be written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from support.read_only import BOUND_BY_MODES, content, forbid_writing
from support.started import Started
from support.tiny_study import FEDAVG, FEDPROF, study, text
from support.waiting import waiting

from securefl.commands.report import report
from securefl.commands.run import run
from securefl.commands.sweep import sweep
from securefl.core.errors import ConfigError
from securefl.storage.folder_lock import LOCK, locked
from securefl.study import run_report
from securefl.study.config import Arm
from securefl.study.session import run_study

MAIN = """
{}
from securefl.commands.main import main
from securefl.study import run_report
figures = run_report.figures
run_report.figures = lambda *given: [*figures(*given)][:1]  # all take longer than the rest
main()
"""


def refused(result: Result) -> str:
    assert result.exit_code == 1
    assert isinstance(result.exception, ConfigError)
    return str(result.exception)


def test_a_second_run_in_a_folder_is_refused_before_it_spends(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with waiting(text(FEDAVG), tmp_path, "report") as first:
        before = content(out)
        message = refused(CliRunner().invoke(run, [str(tmp_path / "study.toml"), "--out", str(out)]))
        assert f"{out} is in use by process {first.process.pid} on " in message
        assert f"stopped_run.py run {tmp_path / 'study.toml'} --out {out}, since 2" in message
        for options in ([], ["--out", str(tmp_path / "elsewhere")]):
            message = refused(CliRunner().invoke(report, [str(out), *options]))
            assert f"{out} is in use by process {first.process.pid} on " in message
        assert content(out) == before
        assert not (tmp_path / "elsewhere").exists()
        first.go_on()
        assert first.end()[0] == 0
    assert CliRunner().invoke(report, [str(out)]).exit_code == 0


def test_a_run_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with waiting(text(FEDAVG), tmp_path, "report") as first:
        first.process.kill()
    result = CliRunner().invoke(run, [str(tmp_path / "study.toml"), "--out", str(out)])
    assert result.exit_code == 0
    assert f"Taking over {out} from process {first.process.pid} on " in result.stderr
    assert (out / LOCK).read_bytes() == b""


def test_a_second_sweep_in_a_folder_is_refused(tmp_path: Path) -> None:
    toml, out = tmp_path / "sweep.toml", tmp_path / "out"
    toml.write_text(text(FEDAVG) + '[sweep.grid]\n"study.rounds" = [1, 2]\n')
    with locked(out):
        message = refused(CliRunner().invoke(sweep, [str(toml), "--out", str(out)]))
    assert f"{out} is in use by process {os.getpid()} on " in message
    assert list(content(out)) == [LOCK]


# Reports elsewhere ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run, and the same as it would be had it been killed after its last round.

    All that the last arm did is then in the logs of its databases.
    """
    base = tmp_path_factory.mktemp("runs")
    whole, killed = base / "whole", base / "killed"
    of = study(FEDAVG, FEDPROF)

    def tell(arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        if arm.name == "FedProf" and record["round"] == of.study.rounds:
            shutil.copytree(whole, killed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_report, "figures", lambda *_: [])
        run_study(of, whole, tell)
    last = killed / "private" / "arms" / "fedprof" / "seed-3"
    assert (last / "ledger.sqlite-wal").stat().st_size > 0
    return whole, killed


def told(folder: Path, *options: str) -> Started:
    """`securefl report` by a process that is bound by the modes of files."""
    done = Started("-c", MAIN.format(BOUND_BY_MODES), "report", folder, *options)
    done.wait()
    return done


@pytest.mark.parametrize("name", ["whole", pytest.param("killed", marks=pytest.mark.slow)])
def test_a_folder_that_cannot_be_written_is_reported_elsewhere(
    name: str, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    whole, _ = folders
    folder, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(whole.with_name(name), folder)
    forbid_writing(folder)
    before = content(folder)
    done = told(folder, "--out", str(out), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["report"] == str(out / "report.html")
    assert f"securefl run {folder / 'study.toml'} --out {folder}-again" in (out / "report.html").read_text()
    pd.testing.assert_frame_equal(pd.read_csv(out / "metrics.csv"), pd.read_csv(whole / "metrics.csv"))
    assert (out / "plots" / "accuracy.png").is_file()
    assert content(folder) == before


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_says_where_else(folders: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders[0], folder)
    (folder / LOCK).unlink()
    forbid_writing(folder)
    before = content(folder)
    done = told(folder)
    expected = (
        f"securefl: {folder} cannot be written (Permission denied). Permit it, or choose another folder.\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)
    assert content(folder) == before


def test_a_report_is_not_written_over_another_runs(folders: tuple[Path, Path]) -> None:
    whole, killed = folders
    before = content(killed)
    message = refused(CliRunner().invoke(report, [str(whole), "--out", str(killed)]))
    assert message == f"{killed} holds another run; choose another folder with --out for this one's report."
    assert content(killed) == before
