"""A new user: plan, run with noise and masks, sweep, export, load, predictions as good as the report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from support.tiny_study import FEDAVG, text
from torch import Tensor, nn

import securefl
from securefl.commands.main import cli
from securefl.study import run_report

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
TOML = """
[study]
name = "new"
rounds = 2
[data]
source = "digits"
clients = 8
partition = { kind = "iid" }
[model]
kind = "mlp"
hidden = [16]
[local]
optimizer = "sgd"
learning_rate = 0.1
epochs = 1
batch_size = 16
[dpsgd]
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = 0.2
expected_batch = 30
steps = 4
optimizer = "sgd"
learning_rate = 0.1
[privacy]
sum = "masked"
scores = "clear"
noise = "none"
unit = "record"
adjacency = "add-remove"
delta = 1e-5
budget = inf
adversaries = ["server", "others"]
non_private = []
dropout = 0.2
corrupt = 0.2
min_cohort_size = 4
min_honest = 2
max_client_weight = 0.5
[[arm]]
name = "FedAvg"
protocol = "fedavg"
fraction = 1.0
"""


class Net(nn.Module):
    """The user's own class for what was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return out


@pytest.fixture(autouse=True)
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer than these runs, and no test here looks at one."""
    monkeypatch.setattr(run_report, "figures", lambda *_: [])


def told(*words: object) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_by_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(TOML)
    spent = json.loads(told("plan", "mine.toml", "--json"))["arms"][0]["epsilon"]
    told("run", "mine.toml", "--out", "run", "--workers", 1)
    told("export", "run", "--arm", "FedAvg", "-o", "model.safetensors")
    last = pd.read_csv("run/metrics.csv")["accuracy"].iloc[-1]
    assert "<html" in Path("run/report.html").read_text()
    x, y = securefl.run("mine.toml", out="run").test_records()
    for trained in (securefl.load("model.safetensors"), securefl.load("model.safetensors", model=Net)):
        assert np.mean(trained.predict(x) == y) == pytest.approx(last, abs=1e-12)
        assert trained.card["privacy"]["epsilon"]["server"] == pytest.approx(spent["server"])
        assert 0 < trained.card["privacy"]["epsilon"]["server"] < 100


@pytest.mark.slow
def test_a_sweep_of_it(tmp_path: Path) -> None:
    grid = '[sweep.grid]\n"dpsgd.noise_multiplier" = [1.0, 4.0]\n'
    found = securefl.run_sweep(TOML + grid, out=tmp_path, workers=1)
    one, other = (found.epsilon.loc[(cell, "FedAvg"), "server"] for cell in found.cells)
    assert other < one
    assert found.run(found.cells[0]).model("FedAvg").predict(np.zeros((1, 1, 8, 8))).shape == (1,)
    assert found.report().is_file()


def test_a_sweep_that_learnt_nothing_is_not_silent(tmp_path: Path) -> None:
    diverging = text(FEDAVG).replace("learning_rate = 0.2", "learning_rate = 1e30")
    with pytest.warns(RuntimeWarning, match="clients = 6: FedAvg"):
        securefl.run_sweep(diverging + '[sweep.grid]\n"data.clients" = [6]\n', out=tmp_path, workers=1)


@pytest.mark.slow
def test_a_script_that_sweeps_at_its_top_level_runs_once(tmp_path: Path) -> None:
    """Worker processes do not import it again, and begin no sweep of their own."""
    grid = '[sweep.grid]\n"study.rounds" = [1]\n'
    script = tmp_path / "sweeps.py"
    script.write_text(f"import securefl\nprint(securefl.run_sweep({TOML + grid!r}, out='out', workers=1))\n")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("SweepRun('new': 1 of 1 cells")
    assert done.stdout.count("SweepRun") == 1


def test_the_blocks_of_the_document_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```", document, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
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
