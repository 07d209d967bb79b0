"""A run of objects from Python, read by commands that do not have them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_study import text
from torch import nn

import securefl
from securefl.core.errors import ConfigError, DataError
from securefl.protocols.averaging import Averaging
from securefl.study.comparison import compared
from securefl.study.config import BROUGHT, Brought, brought_of, note_brought
from securefl.study.export import taken
from securefl.study.folder import study_of
from securefl.study.privacy_statement import statements
from securefl.study.session import reopen
from securefl.sweep.cells import Sweep, parse_sweep, require_own
from securefl.sweep.gathered import gather

pytestmark = pytest.mark.filterwarnings("ignore:.*learnt nothing, or stopped early:RuntimeWarning")


class Net(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, x: Any) -> Any:
        return self.layer(x.flatten(1))


def mine(problem: Any, fraction: float) -> Averaging:
    return Averaging(problem=problem, fraction=fraction)


def records() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(240, 3))
    return x, (x.sum(1) > 0).astype(int)


STUDY = text('[[arm]]\nname = "Mine"\nfraction = 0.5\n', rounds=1)
STUDY = STUDY.replace('[model]\nkind = "mlp"\nhidden = [8]\n', "").replace('source = "digits"', "classes = 2")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a sweep of one cell, which are only read."""
    home = tmp_path_factory.mktemp("brought")
    objects: dict[str, Any] = {"data": records, "model": Net, "protocol": mine, "progress": False}
    securefl.run(STUDY, out=home / "run", **objects)
    securefl.run_sweep(STUDY + '[sweep.grid]\n"study.rounds" = [1, 2]\n', out=home / "sweep", **objects)
    return home / "run"


def test_readers_need_none_of_the_objects(run: Path) -> None:
    sweep = run.parent / "sweep"
    assert (run / BROUGHT).read_text() == (
        f"data {__name__}:records\nmodel {__name__}:Net\nprotocol {__name__}:mine\n"
    )
    assert study_of(run).arms[0].protocol == f"{__name__}:mine"
    assert [own.label for own in gather([run]).unprotected] == ["Mine, no noise"]
    assert len(gather([sweep]).series) == 2
    assert [*statements(run)] == ["Mine"]
    assert compared([run, sweep / "cells" / "rounds-2"]).series["rounds"].tolist() == [1, 2]


@every("read", [lambda run: reopen(run), lambda run: taken(study_of(run), run, None, None, None)])
def test_what_needs_the_records_asks_for_the_objects(read: Any, run: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"`data` that was handed over in Python .* securefl\.run or run_sw"
    ):
        read(run)


def test_the_same_call_writes_the_report_and_the_model_again(run: Path, tmp_path: Path) -> None:
    (run / "report.html").unlink()
    found = securefl.run(STUDY, data=records, model=Net, protocol=mine, out=run, progress=False)
    assert (run / "report.html").is_file()
    found.export(tmp_path / "m.safetensors")
    assert securefl.load(tmp_path / "m.safetensors", model=Net) is not None


def test_a_sweep_goes_on_with_the_code_that_it_began_with_alone(run: Path) -> None:
    def sweep(protocol: Any) -> Sweep:
        brought = Brought(data=records, model=Net, protocol=protocol)
        return parse_sweep(STUDY + '[sweep.grid]\n"study.rounds" = [1, 2]\n', brought=brought)

    require_own(run.parent / "sweep", sweep(mine))
    with pytest.raises(ConfigError, match=r"finished cells, which are not run again.* another `out`"):
        require_own(run.parent / "sweep", sweep(partial(mine, fraction=1.0)))


def test_nothing_from_python_is_noted_as_nothing(tmp_path: Path) -> None:
    note_brought(tmp_path, Brought())
    assert [*tmp_path.iterdir()] == []
    assert brought_of(tmp_path) == Brought()
    (tmp_path / BROUGHT).write_text("code x\n")
    with pytest.raises(DataError, match="expected data, model or protocol"):
        brought_of(tmp_path)
