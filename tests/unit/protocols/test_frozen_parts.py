"""Frozen parts of a model: no protocol, no noise and no clip moves them, and no client sends them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.every import every
from support.private_studies import DISTRIBUTED, KEY_HOLDER, client_level
from support.tiny_study import composed, run, spied, text, world
from torch import nn

import securefl
from securefl.core.errors import ConfigError
from securefl.study.config import Brought, Study, parse
from securefl.study.forecast import forecast, lines
from securefl.training.own_models import OwnModelSection

WIDTH = 6


def half_frozen(inputs: int, outputs: int) -> nn.Module:
    """A model whose own code freezes its first layer."""
    body = nn.Linear(inputs, WIDTH).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), body, nn.ReLU(), nn.Linear(WIDTH, outputs))


class Placed(nn.Module):
    """A model with a constant that is no parameter, such as an encoding of positions."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, WIDTH), nn.Linear(WIDTH, outputs)
        self.register_buffer("places", torch.linspace(-1, 1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last((self.first(x.flatten(1)) + self.places).relu())
        return found


def brought(of: Study, model: Any, **section: Any) -> Study:
    return replace(of, model=OwnModelSection(**section), brought=Brought(model=model))


def values(of: Study, folder: Path) -> tuple[dict[str, NDArray[np.float32]], ...]:
    """All values of the model, by name: before the first round, and after the last one."""
    spy, _ = spied(of, folder)
    algorithm: Any = composed(of)[0]
    before, after = (algorithm.learnt(spy.states[at], None, {}).tensors() for at in (0, -1))
    return before, after


def still(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before if before[name].tobytes() == after[name].tobytes()}


NOISES: dict[str, dict[str, str]] = {
    "distributed": {**DISTRIBUTED, "sum": '"masked"'},
    "local": {"noise": '"local"'},
    "central": {},
    "key holder": KEY_HOLDER,
}


@every("noise", NOISES.values())
def test_noise_moves_no_frozen_weight(noise: dict[str, str], tmp_path: Path) -> None:
    before, after = values(brought(client_level(**noise), half_frozen), tmp_path)
    assert still(before, after) == {"1.weight", "1.bias"}


def test_noise_moves_no_constant(tmp_path: Path) -> None:
    before, after = values(brought(client_level(**NOISES["local"]), Placed), tmp_path)
    assert still(before, after) == {"places"}


PROTOCOLS = {
    "fedavg": "fraction = 1.0",
    "fedprox": "fraction = 1.0",
    "fedadam": "fraction = 1.0",
    "stc": "fraction = 1.0\np = 0.1",
    "cs_fl": "fraction = 1.0\nsparsity = 0.01",
    "fltrust": "fraction = 1.0",
    "fedprof": "fraction = 1.0",
    "fedper": "",
    "lg_fedavg": "layers = 2",
    "fedrep": "",
    "fedbabu": "fine_tune_epochs = 1",
    "pfedme": "lamda = 5.0",
    "feddbe": "",
}


def of(name: str, options: str, train: str = 'train = ["fc2", "fc3"]', **changes: Any) -> Study:
    arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\n{options}\n'
    changes = {"clients": 4, "rounds": 1} | changes
    return parse(text(arm, **changes).replace("hidden = [8]\n", f"hidden = [8, 6]\n{train}\n"))


@every(("name", "options"), PROTOCOLS.items())
def test_under_every_protocol_frozen_layers_keep_their_bits(name: str, options: str, tmp_path: Path) -> None:
    whole = of(name, options)
    spy, finished = spied(whole, tmp_path)
    algorithm: Any = composed(whole)[0]
    start = world(whole).problem.layers.state_dict()
    personal = name in ("fedper", "lg_fedavg", "fedrep", "fedbabu", "pfedme", "feddbe")
    found = algorithm.learnt(spy.states[-1], 0 if personal else None, {}).tensors()
    for key in ("fc1.weight", "fc1.bias"):
        assert found[key].tobytes() == start[key].numpy().tobytes()
    assert spy.states[0].broadcast.tobytes() != spy.states[-1].broadcast.tobytes()
    assert len(finished.records[0]["answered"]) >= 3


def test_a_plan_says_how_many_values_travel() -> None:
    whole = of("fedavg", "fraction = 1.0", 'train = "head"')
    found = forecast(whole, whole.arms[0], world(whole))
    assert found.values == (70, 574)
    assert "  trains 70 of 644 values of the model; the others are frozen" in "\n".join(lines(whole, [found]))


REFUSED: dict[str, tuple[str, str, str, str]] = {
    "FedLog under a frozen body": ("fedlog", 'body = "private"', 'train = "head"', 'Set body = "public"'),
    "FedPer without a trained body": ("fedper", "", 'train = "head"', "leave one free"),
    "FedBABU without a trained body": ("fedbabu", "", 'train = "head"', "leave one free"),
    "FedRep under a frozen head": ("fedrep", "", 'train = ["fc1"]', "such as fedavg"),
    "FedDBE under a frozen head": ("feddbe", "", 'train = ["fc1"]', "such as fedavg"),
    "heads under a frozen head": ("heads", "", 'train = ["fc1"]', "such as fedavg"),
    "subnets": ("adds", "fraction = 1.0", 'train = "head"', "such as fedavg"),
    "no such layer": ("fedavg", "fraction = 1.0", 'train = ["fc4"]', "did you mean `fc"),
    "no name": ("fedavg", "fraction = 1.0", "train = []", "Leave it out to train all"),
}


@every(("name", "options", "train", "remedy"), REFUSED.values())
def test_what_cannot_be_is_refused_before_a_run_with_a_remedy(
    name: str, options: str, train: str, remedy: str
) -> None:
    permitted = '["statistic"]' if name in ("fedlog", "heads") else None
    whole = of(name, options, train, non_private=permitted)
    with pytest.raises(ConfigError) as told:
        composed(whole)[0].start()
    assert remedy in str(told.value)


@every(
    ("name", "options", "train"),
    [("fedlog", 'body = "public"', 'train = "head"'), ("fedavg", "fraction = 1.0", 'train = ["fc1"]')],
)
def test_the_remedies_work(name: str, options: str, train: str, tmp_path: Path) -> None:
    permitted = '["statistic"]' if name == "fedlog" else None
    assert len(run(of(name, options, train, non_private=permitted), tmp_path).records) == 1


def test_an_export_has_the_frozen_values_too(tmp_path: Path) -> None:
    whole = of("fedavg", "fraction = 1.0", 'train = "head"')
    finished = securefl.run(whole.text, out=tmp_path / "run", progress=False)
    loaded = securefl.load(finished.export(tmp_path / "x.safetensors", "x"))
    start, state = world(whole).problem.layers.state_dict(), loaded.state_dict()
    assert {name for name in start if torch.equal(start[name], state[name])} == {
        f"fc{number}.{part}" for number in (1, 2) for part in ("weight", "bias")
    }
    x, _ = finished.test_records()
    assert np.array_equal(loaded.predict(x), finished.model().predict(x))
