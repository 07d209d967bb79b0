"""A new user: own CSV and module, DP and masks, by a sweep and from Python alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from support.command_line import said

import securefl
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


@pytest.mark.parametrize("command", ["plan", "sweep"])
def test_a_sweep_names_code_before_it_runs(cancer: pd.DataFrame, command: str) -> None:
    Path("net.py").write_text('raise ImportError("as soon as it runs")\n')
    Path("sweep.toml").write_text(STUDY + '[sweep.grid]\n"dpsgd.noise_multiplier" = [1.0, 4.0]\n')
    ended = said(command, "sweep.toml")
    assert ended.exception is not None
    assert "The model comes from net:Net in" in ended.stderr


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
