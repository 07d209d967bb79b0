"""A new user: own CSV and module, plan, run with DP and masks, sweep, export, load; Parquet; Python alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.datasets import load_breast_cancer

import securefl
from securefl.commands.exit_codes import ExitCode
from securefl.commands.main import cli
from securefl.study import run_report

pytestmark = [pytest.mark.docs, pytest.mark.filterwarnings("ignore:An arm of Run:RuntimeWarning")]

STUDY = """study = { name = "cancer", rounds = 4 }
model = { kind = "net:Net" }
local = { optimizer = "sgd", learning_rate = 0.1, epochs = 1, batch_size = 16 }
[data]
source = "cancer.csv"
target = "malignant"
classes = [0, 1]
client_column = "hospital"
public_num_examples = 140
columns = { hospital = { categories = ["0", "1", "2", "3"] } }
[dpsgd]
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = 0.3
expected_batch = 30
steps = 10
optimizer = "sgd"
learning_rate = 2.0
[privacy]
sum = "masked"
unit = "record"
adjacency = "add-remove"
delta = 1e-4
budget = inf
adversaries = ["server", "others"]
scores = "clear"
noise = "none"
non_private = []
min_cohort_size = 4
min_honest = 2
max_client_weight = 0.5
dropout = 0.0
corrupt = 0.2
[[arm]]
name = "FedAvg"
protocol = "fedavg"
fraction = 1.0
"""
NET = """from torch import nn


class Net(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))
"""
HOSPITALS = 4
OF_COLUMN = 'columns = { hospital = { categories = ["0", "1", "2", "3"] } }\n'


@pytest.fixture
def cancer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """The records, scaled by 40 times 2^-k, public numbers; the study and the model beside them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_report, "figures", lambda *_: [])
    x, y = load_breast_cancer(return_X_y=True)
    frame = pd.DataFrame(
        x / 2.0 ** np.ceil(np.log2([30, 40, 190, 2600, *[1] * 16, 40, 50, 260, 4300, *[1] * 6]))
    )
    frame.columns = [f"f{place}" for place in range(30)]
    frame["malignant"], frame["hospital"] = 1 - y, np.arange(len(y)) % HOSPITALS
    frame.to_csv("cancer.csv", index=False)
    Path("net.py").write_text(NET)
    Path("mine.toml").write_text(STUDY)
    return frame


def told(*words: object) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code in (ExitCode.DONE, ExitCode.UNLEARNT), done.output
    return done.stdout


def test_a_table_and_a_module_by_commands(cancer: pd.DataFrame) -> None:
    spent = json.loads(told("plan", "mine.toml", "--json"))["arms"][0]["epsilon"]["server"]
    told("run", "mine.toml", "--out", "run", "--workers", 1)
    told("export", "run", "--arm", "FedAvg", "-o", "model.safetensors", "--run-code")
    names: dict[str, type] = {}
    exec(Path("net.py").read_text(), names)
    trained = securefl.load("model.safetensors", model=names["Net"])
    x, y = securefl.run("mine.toml", out="run", workers=1).test_records()
    last = json.loads(Path("run/summary.json").read_text())["arms"][0]["final_accuracy"]
    assert np.mean(trained.predict(x) == y) == pytest.approx(last, abs=1e-12)
    assert last > 0.5
    assert trained.card["privacy"]["epsilon"]["server"] == pytest.approx(spent)
    assert 0 < spent < 20


@pytest.mark.parametrize("command", ["plan", "sweep"])
def test_a_sweep_names_code_before_it_runs(cancer: pd.DataFrame, command: str) -> None:
    Path("net.py").write_text('raise ImportError("as soon as it runs")\n')
    Path("sweep.toml").write_text(STUDY + '[sweep.grid]\n"dpsgd.noise_multiplier" = [1.0, 4.0]\n')
    done = CliRunner().invoke(cli, [command, "sweep.toml"])
    assert done.exception is not None
    assert "The model comes from net:Net in" in done.stderr


@pytest.mark.slow
def test_a_sweep_of_it(cancer: pd.DataFrame) -> None:
    Path("sweep.toml").write_text(STUDY + '[sweep.grid]\n"dpsgd.noise_multiplier" = [1.0, 4.0]\n')
    told("plan", "sweep.toml")
    told("sweep", "sweep.toml", "--out", "swept", "--workers", 1)
    summary = pd.read_csv("swept/summary.csv")
    assert summary["epsilon_server"].iloc[1] < summary["epsilon_server"].iloc[0]
    assert "<html" in Path("swept/sweep.html").read_text()


def test_a_file_of_parquet_for_each_hospital(cancer: pd.DataFrame) -> None:
    pytest.importorskip("pyarrow")
    Path("hospitals").mkdir()
    for name, own in cancer.groupby("hospital"):
        own.drop(columns="hospital").to_parquet(f"hospitals/{name}.parquet", index=False)
    text = (
        STUDY.replace('"cancer.csv"', '"hospitals"')
        .replace('client_column = "hospital"\n', "")
        .replace(OF_COLUMN, "")
    )
    Path("mine.toml").write_text(text)
    run = securefl.run("mine.toml", out="run", workers=1)
    assert run.private.participation["client"].nunique() == HOSPITALS
    x, y = run.test_records()
    assert np.mean(run.model().predict(x) == y) == run.metrics["accuracy"].iloc[-1]


def test_from_python_alone(cancer: pd.DataFrame) -> None:
    names: dict[str, type] = {}
    exec(NET, names)
    columns = [f"f{place}" for place in range(30)]
    clients = [
        (own[columns].to_numpy(), own["malignant"].to_numpy()) for _, own in cancer.groupby("hospital")
    ]
    named = STUDY[STUDY.index("source") : STUDY.index("[dpsgd]")]
    study = STUDY.replace('model = { kind = "net:Net" }\n', "").replace(
        named, "classes = 2\npublic_num_examples = 140\n"
    )
    spent = securefl.forecast(study, data=clients, model=names["Net"], progress=False)
    run = securefl.run(study, data=clients, model=names["Net"], out="run", workers=1)
    assert spent.arms[0].epsilon["server"] == pytest.approx(run.epsilon.loc["FedAvg", "server"])
    run.export("model.safetensors")
    trained = securefl.load("model.safetensors", model=names["Net"])
    x, y = run.test_records()
    assert np.mean(trained.predict(x) == y) == run.metrics["accuracy"].iloc[-1]
    with pytest.raises(securefl.core.errors.SecureFLError, match="other records"):
        securefl.run(study, data=clients[::-1], model=names["Net"], out="run", workers=1)
