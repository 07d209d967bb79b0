"""A model of one's own under record-level privacy: it trains, or is refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.command_line import said as command
from support.own_study import DATA, folder, written
from support.private_studies import DPSGD
from support.tiny_study import FEDAVG, run, text
from torch import Tensor, nn
from torch.nn.functional import linear

from securefl.core.errors import ConfigError
from securefl.study import world
from securefl.study.config import Brought, Study, parse
from securefl.training import per_record


class Borrowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(linear(x, self.first.weight).relu())
        return found


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.last = nn.Parameter(torch.ones(3)), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(x * self.scale)
        return found


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(x - x.mean(0))
        return found


def study(model: Callable[[], nn.Module], private: str = DPSGD) -> Study:
    data = "\n[data]\nclasses = 2\nclients = 4\npublic_num_examples = 10\npartition = { kind = 'iid' }\n"
    x = np.random.default_rng(0).normal(size=(60, 3))
    brought = Brought(data=(x, (x.sum(1) > 0).astype(int)), model=model)
    return parse(written(data=data, model="", extra=private, rounds=1), brought=brought)


@pytest.mark.parametrize("model", [Scaling, Borrowing])
def test_it_trains_with_parameters_of_its_own(model: Callable[[], nn.Module], tmp_path: Path) -> None:
    """Scaling has one outside of any layer, Borrowing uses one without calling its layer."""
    assert len(run(study(model), tmp_path).records) == 1


def test_batch_norm_is_replaced_and_told() -> None:
    here = world.build(study(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))), 3)
    assert "became GroupNorm" in here.problem.changes[0]


def test_what_cannot_be_trained_so_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"to train with .dpsgd., got ConfigError: .*got Centred"):
        world.build(study(Centred), 3)


def test_it_is_tried_on_a_record_that_is_surely_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise IndexError("dimension out of range")

    monkeypatch.setattr(per_record, "clip", fails)
    rare = DPSGD.replace("sampling_rate = 0.1", "sampling_rate = 1e-9")
    with pytest.raises(ConfigError, match=r"to train with .dpsgd., got IndexError: dimension out of range"):
        world.build(study(Scaling, rare), 3)


def test_a_plan_says_how_records_are_kept_apart(tmp_path: Path) -> None:
    of = folder(tmp_path, data=DATA.replace("[data]\n", "[data]\npublic_num_examples = 15\n"), extra=DPSGD)
    said = command("plan", of)
    assert said.exit_code == 0, said.output
    told = " ".join(said.output.split())
    assert "records apart: each record's gradient is computed alone, as a batch of one under vmap" in told
    assert "since the model (Net) is not on the list of row-wise layers" in told
    packaged = tmp_path / "packaged.toml"
    packaged.write_text(text(FEDAVG, rounds=1, extra=DPSGD), encoding="utf-8")
    told = " ".join(command("plan", packaged).output.split())
    assert "records apart: row-wise layers compute a batch as a whole" in told
