"""TensorBoard and MLflow: what they are told, what a resumed run adds, and what is said without them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from support.every import every
from support.tiny_study import text

from securefl.api.callbacks import MLflow, TensorBoard
from securefl.api.callbacks.curves import curves
from securefl.commands.main import cli
from securefl.core.errors import ConfigError
from securefl.study.round_events import Round


def round_(number: int, **changes: Any) -> Round:
    record: dict[str, Any] = {
        "round": number,
        "accuracy": 0.5,
        "loss": 1.0,
        "bytes_up": 10**6,
        "bytes_down": 10**6,
        "seconds": 1.0,
        "watt_hours": 1.0,
        "wall_seconds": 0.5,
        "epsilon": {"server": float("inf"), "key-holder": 0.0, "others": 1.0},
        "selected": [0, 1],
        "answered": [1],
        "asked": 1,
        "ended": False,
    }
    return Round.of({**record, **changes}, rounds=3)


def test_what_is_not_finite_or_not_known_is_left_out() -> None:
    found = curves(round_(1, accuracy=None, loss=float("nan")))
    assert found == {
        "megabytes": 2.0,
        "epsilon/key-holder": 0.0,
        "epsilon/others": 1.0,
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_goes_on_in_the_same_curves(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for numbers in ((1, 2), (3,)):  # a second process, as after an interruption
        with TensorBoard(tmp_path) as board:
            for number in numbers:
                board("Own bodies", 3, round_(number, accuracy=number / 10))
    found = events.EventAccumulator(str(tmp_path / "own-bodies" / "seed-3"))
    found.Reload()
    told = [(event.step, round(event.value, 3)) for event in found.Scalars("accuracy")]
    assert told == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert "epsilon/server" not in found.Tags()["scalars"]


@dataclass
class Client:
    """MLflow's client as far as it is used."""

    tracking_uri: str
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    away: bool = False

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return name

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        number = str(len(self.runs))
        self.runs[number] = {"tags": tags, "metrics": [], "status": "RUNNING"}
        return SimpleNamespace(info=SimpleNamespace(run_id=number))

    def search_runs(self, experiments: list[str], where: str, max_results: int) -> list[Any]:
        assert "tags.`securefl.arm` = 'it\\'s'" in where
        left = [number for number, run in self.runs.items() if run["status"] == "RUNNING"]
        return [SimpleNamespace(info=SimpleNamespace(run_id=number)) for number in left]

    def log_param(self, run: str, name: str, value: object) -> None: ...

    def log_metric(self, run: str, name: str, value: float, step: int) -> None:
        if self.away:
            raise sys.modules["mlflow.exceptions"].MlflowException("no answer.")
        if name == "accuracy":
            self.runs[run]["metrics"].append((step, value))

    def set_terminated(self, run: str) -> None:
        self.runs[run]["status"] = "FINISHED"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Client:
    """A stand-in for the package `mlflow`, whose client is this one."""
    made = Client("here")
    mlflow, exceptions = ModuleType("mlflow"), ModuleType("mlflow.exceptions")
    mlflow.MlflowClient = lambda tracking_uri: made  # type: ignore[attr-defined]
    exceptions.MlflowException = type("MlflowException", (Exception,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", exceptions)
    return made


def test_mlflow_goes_on_in_the_run_that_was_left_open(server: Client) -> None:
    for numbers in ((1, 2), (3,), (1,)):
        with MLflow("here") as flow:
            for number in numbers:
                flow("it's", 3, round_(number))
    assert [run["metrics"] for run in server.runs.values()] == [[(1, 0.5), (2, 0.5), (3, 0.5)], [(1, 0.5)]]
    assert [run["status"] for run in server.runs.values()] == ["FINISHED", "RUNNING"]


def test_an_mlflow_server_that_is_away_is_explained(server: Client) -> None:
    flow = MLflow("here")
    server.away = True
    with pytest.raises(ConfigError, match=r"at here .* no answer"):
        flow("it's", 3, round_(1))


@every(("option", "missing"), [("--tensorboard", "tensorboard"), ("--mlflow", "mlflow")])
def test_what_is_not_installed_is_told_before_the_run(
    option: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    (tmp_path / "tiny.toml").write_text(text())
    out = tmp_path / "run"
    words = ["run", str(tmp_path / "tiny.toml"), "--out", str(out), option, str(tmp_path / "there")]
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, ConfigError)
    assert f"pip install '{missing}" in str(done.exception)
    assert not out.exists()
