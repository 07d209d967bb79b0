"""Export to ONNX: the outputs are the model's to 1e-5, the card travels, and refusals say what to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.every import every
from support.exported_cards import CARD
from support.tiny_problem import tiny_problem
from torch import nn

from securefl.core.errors import ConfigError
from securefl.training.heads import Bounded, Projection
from securefl.training.learnt import Learnt
from securefl.training.models import ModelConfig
from securefl.training.own_models import OwnModel

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
from securefl.training import onnx_export  # noqa: E402 - after the extra was found
from securefl.training.onnx_export import save_onnx  # noqa: E402 - after the extra was found

RANDOM = Projection(kind="random", features=32, width=4, seed=3)


def learnt(model: Any, shape: tuple[int, ...], outputs: int = 5, features: Bounded | None = None) -> Learnt:
    problem = tiny_problem(model=model, shape=shape, outputs=outputs)
    return Learnt(problem=problem, vector=problem.initial, features=features)


def compared(of: Learnt, path: Path, n: int = 7) -> float:
    """The largest difference of the outputs of file and model, on other records and a batch of n."""
    save_onnx(path, of, CARD)
    rng = np.random.default_rng(0)
    shape = (n, *of.problem.shape)
    text = of.problem.model.reads_text
    x: Any = rng.integers(0, 50, shape) if text else rng.normal(size=shape).astype(np.float32)
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(["outputs"], {"x": x})
    with torch.inference_mode():
        return float(np.abs(found - of.module()(torch.from_numpy(x)).numpy()).max())


def own() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 5))


CASES: dict[str, Callable[[], Learnt]] = {
    "linear": lambda: learnt(ModelConfig(kind="mlp", hidden=()), (6,)),
    "projected": lambda: learnt(
        ModelConfig(kind="mlp"), (6,), features=Bounded(kind="clip-l2", bound=2.0, projection=RANDOM)
    ),
    "own": lambda: learnt(OwnModel(factory=own, name="own"), (6,)),
}
SLOW: dict[str, Callable[[], Learnt]] = {
    "unit norm": lambda: learnt(ModelConfig(kind="mlp"), (6,), features=Bounded(kind="unit-l2")),
    "images": lambda: learnt(ModelConfig(kind="lenet5"), (1, 28, 28)),
    "shufflenet": lambda: learnt(ModelConfig(kind="shufflenet_v2"), (3, 32, 32)),
    "text": lambda: learnt(ModelConfig(kind="char_lstm"), (20,), outputs=80),
}


@every("of", CASES.values())
def test_outputs_are_the_models_and_the_card_travels(of: Callable[[], Learnt], tmp_path: Path) -> None:
    assert compared(of(), tmp_path / "model.onnx") < 1e-5
    found = onnxruntime.InferenceSession(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(found["securefl"]) == {"format": "securefl 8 model", "card": CARD}
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.slow
@pytest.mark.parametrize("of", SLOW.values(), ids=list(SLOW))
def test_outputs_of_more_models_are_the_models(of: Callable[[], Learnt], tmp_path: Path) -> None:
    assert compared(of(), tmp_path / "model.onnx") < 1e-5


@every("gone", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_extra_the_command_says_how_to_get_it(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, gone, None)
    with pytest.raises(ConfigError, match=rf"{gone}.* pip install 'onnx>=.*' 'onnxruntime>="):
        save_onnx(tmp_path / "model.onnx", CASES["linear"](), CARD)
    assert not list(tmp_path.iterdir())


def test_a_shared_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="with --client"):
        save_onnx(tmp_path / "model.onnx", CASES["linear"](), {**CARD, "part": "shared"})


def test_a_graph_of_other_outputs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check that each export makes: an exporter that errs must not err silently."""
    right = onnx_export._graph
    other = learnt(ModelConfig(kind="mlp", hidden=(3,)), (6,)).module()
    monkeypatch.setattr(onnx_export, "_graph", lambda model, x: right(other, x))
    with pytest.raises(ConfigError, match="within 1e-05"):
        save_onnx(tmp_path / "model.onnx", CASES["linear"](), CARD)
    assert not list(tmp_path.iterdir())


class Branching(nn.Linear):
    """A model whose computation depends on its numbers, which no graph can hold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        return found if float(found.sum()) > 1 else -found


def test_a_model_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    of = learnt(OwnModel(factory=lambda: Branching(6, 5), name="own"), (6,))
    with pytest.raises(ConfigError, match=r"Export it as \.safetensor"):
        save_onnx(tmp_path / "model.onnx", of, CARD)
    assert not list(tmp_path.iterdir())
