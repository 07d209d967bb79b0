"""A new user in Python: the blocks of docs/python.md, a sweep in a script, and one that learns nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiny_study import FEDAVG, text

import securefl
from securefl.study import run_report

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
ROUND = '[sweep.grid]\n"study.rounds" = [1]\n'


@pytest.fixture(autouse=True)
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer than these runs, and no test here looks at one."""
    monkeypatch.setattr(run_report, "figures", lambda *_: [])


def test_a_sweep_that_learnt_nothing_is_not_silent(tmp_path: Path) -> None:
    diverging = text(FEDAVG).replace("learning_rate = 0.2", "learning_rate = 1e30")
    with pytest.warns(RuntimeWarning, match="clients = 6: FedAvg"):
        securefl.run_sweep(diverging + '[sweep.grid]\n"data.clients" = [6]\n', out=tmp_path, workers=1)


@pytest.mark.slow
def test_a_script_that_sweeps_at_its_top_level_runs_once(tmp_path: Path) -> None:
    """Worker processes do not import it again, and begin no sweep of their own."""
    script = tmp_path / "sweeps.py"
    script.write_text(
        f"import securefl\nprint(securefl.run_sweep({text(FEDAVG) + ROUND!r}, out='out', workers=1))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("SweepRun('tiny': 1 of 1 cells")
    assert done.stdout.count("SweepRun") == 1


def test_the_blocks_of_the_document_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```", document, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block.replace("logging.basicConfig()", ""), "python.md", "exec"), names)
    assert 0 < names["total"].epsilon["server"] < 2  # type: ignore[attr-defined]
    assert set(names["chosen"].clients) == {"ann", "bob"}  # type: ignore[attr-defined]


def test_ten_calls_of_readme_s_lines_are_paid_for_and_an_eleventh_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(
        r"^```py\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    lines = compile(block, "README.md", "exec")
    for _ in range(10):
        exec(lines, {})
    with pytest.raises(securefl.SecureFLError) as refused:
        exec(lines, {})
    assert type(refused.value).__name__ == "BudgetExceeded"
    assert len(capsys.readouterr().out.splitlines()) == 10
