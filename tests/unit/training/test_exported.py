"""An exported model: damage, pickles and foreign files are refused, and own modules have to fit."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save as foreign
from support.every import every
from support.exported_cards import CARD, MODEL, RECORDS, values
from torch import Tensor, nn

from securefl.core.errors import ConfigError, DataError
from securefl.training import exported
from securefl.training.evaluation import outputs_on
from securefl.training.exported import read, save
from securefl.training.models import ModelConfig
from securefl.training.trained import load

X = np.random.default_rng(0).normal(size=(5, 6))


class Net(nn.Module):
    """The same model in a caller's own words."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(torch.relu(self.fc1(x)))
        return out


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save(tmp_path / "model.safetensors", values(), CARD)
    return tmp_path / "model.safetensors"


def changed(**model: Any) -> dict[str, Any]:
    return {**CARD, "model": {**MODEL, **model}}


def test_predictions_have_the_bits_of_the_reported_accuracy(tmp_path: Path) -> None:
    """For layers of a width at which kernels differ, and more records than a batch."""
    model, records = {**MODEL, "shape": [784], "hidden": [64]}, {**RECORDS, "shape": [784]}
    made = ModelConfig(kind="mlp", hidden=(64,)).build((784,), 3, 7)
    arrays = {name: value.numpy() for name, value in made.state_dict().items()}
    save(tmp_path / "wide.safetensors", arrays, {**CARD, "model": model, "records": records})
    x = np.random.default_rng(1).normal(size=(600, 784)).astype(np.float32)
    measured = outputs_on(made, x, np.zeros(600, np.int64), "classification")
    assert np.array_equal(load(tmp_path / "wide.safetensors").outputs(x), measured)


def test_it_predicts_what_the_model_says(file: Path) -> None:
    made = ModelConfig(kind="mlp", hidden=(4,)).build((6,), 3, 7)
    outputs = made(torch.from_numpy(X.astype(np.float32))).detach().numpy()
    trained = load(file)
    np.testing.assert_allclose(trained.outputs(X), outputs, rtol=1e-5, atol=1e-6)
    assert np.array_equal(trained.predict(X.tolist()), outputs.argmax(1))
    assert isinstance(trained, nn.Module)
    assert not trained.training
    assert not trained.module.training
    assert list(trained.state_dict()) == list(values())


def test_a_flipped_bit_is_refused(file: Path) -> None:
    whole, taken = file.read_bytes(), []
    for place in range(0, 1700, 13):
        raw = bytearray(whole)
        raw[place % len(raw)] ^= 1 << place % 8
        file.write_bytes(raw)
        try:
            load(file)
        except (DataError, ConfigError):
            continue
        taken.append(place)
    assert not taken


@pytest.mark.parametrize("length", [0, 1, 8, 9, 200, -1])
def test_a_file_that_was_cut_is_refused(length: int, file: Path) -> None:
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(DataError, match="get the file again"):
        load(file)


class Trap:
    """Unpickled, it says so."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return pytest.fail, ("it was unpickled",)


def torch_archive() -> bytes:
    whole = io.BytesIO()
    torch.save({"fc1.weight": Trap()}, whole)
    return whole.getvalue()


@pytest.mark.parametrize("protocol", [0, 1, 2, 5, "torch"])
def test_a_pickle_is_not_opened(protocol: int | str, file: Path) -> None:
    file.write_bytes(torch_archive() if protocol == "torch" else pickle.dumps(Trap(), protocol))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="a pickle"):
        load(file)


@pytest.mark.parametrize("content", [b"", b"[study]\nname = 1\n", b"\x93NUMPY\x01\x00", bytes(200)])
def test_another_file_is_refused(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    with pytest.raises(DataError, match="Expected"):
        load(file)


def test_a_file_for_other_programs_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08\x12\x07pytorch" * 20)
    with pytest.raises(DataError, match=r"model.onnx: an .onnx file"):
        load(tmp_path / "model.onnx")


def test_safetensors_without_a_card_are_refused(file: Path) -> None:
    file.write_bytes(foreign(values(), metadata={"format": "pt"}))
    with pytest.raises(DataError, match="a model with a card"):
        load(file)


def test_a_card_of_another_form_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported, "FORMAT", "securefl model 2")
    save(file, values(), CARD)
    monkeypatch.undo()
    with pytest.raises(DataError, match="got 'securefl model 2'"):
        load(file)


def test_a_file_that_is_too_large_is_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exported, "_LARGEST", 100)
    with pytest.raises(DataError, match="of at most 100 bytes"):
        load(file)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="Check the path"):
            load(path)


@every("bad", [np.nan, np.inf])
def test_a_diverged_model_is_not_written(bad: float, tmp_path: Path) -> None:
    found = values()
    found["fc1.bias"][0] = bad
    with pytest.raises(DataError, match="it diverged"):
        save(tmp_path / "m", found, CARD)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", [Net, Net(), lambda: Net(), lambda shape, outputs: Net()])
def test_an_own_module_is_filled(model: Any, file: Path) -> None:
    """And a module that was given stays as it was."""
    before = {n: v.clone() for n, v in model.state_dict().items()} if isinstance(model, nn.Module) else {}
    assert np.array_equal(load(file, model=model).predict(X), load(file).predict(X))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (lambda: Net(5), r"fc1.weight has the shape \(4, 6\), got one with \(5, 6\)"),
        (lambda: nn.Linear(6, 3), "got one without fc1.bias, fc1.weight, fc2.bias and 1 more"),
        (lambda: nn.ModuleDict({"fc1": nn.Linear(6, 4)}), "got one without fc2.bias, fc2.weight"),
        (lambda: nn.Sequential(), "got one without"),
        (lambda: 3, "to return an nn.Module, got int"),
        (lambda much: Net(), "one that needs much too"),
        (3, "as a module or a function that makes one, got int"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(model: Any, match: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        load(file, model=model)


def test_every_value_comes_from_the_file(file: Path) -> None:
    class More(Net):
        def __init__(self) -> None:
            super().__init__()
            self.fc3 = nn.Linear(2, 2)

    with pytest.raises(ConfigError, match=r"fc3\.weight, fc3\.bias"):
        load(file, model=More)


def test_a_model_of_nobody_here_asks_for_its_class(tmp_path: Path) -> None:
    save(tmp_path / "m", values(), changed(kind="my_package:Net"))
    with pytest.raises(ConfigError, match="'my_package:Net' is not"):
        load(tmp_path / "m")
    assert load(tmp_path / "m", model=Net).predict(X).shape == (5,)


def test_a_shared_part_fills_a_module_and_predicts_nothing(tmp_path: Path) -> None:
    head = {name: value for name, value in values().items() if name.startswith("fc2")}
    save(tmp_path / "m", head, {**CARD, "part": "shared"})
    own = Net()
    for model in (None, Net):
        with pytest.raises(ConfigError, match=r"keeps the rest|has fc1"):
            load(tmp_path / "m", model=model)
    found = load(tmp_path / "m", model=own)
    assert torch.equal(found.module.state_dict()["fc1.weight"], own.fc1.weight)
    assert np.array_equal(found.module.state_dict()["fc2.weight"].numpy(), head["fc2.weight"])
    with pytest.raises(ConfigError, match="Name one client"):
        found.predict(X)


@pytest.mark.parametrize(
    "x", [X[0], X[:, :5], [], [[np.nan] * 6], "text", [["a"] * 6], None, X[:0], 3.0, [[1], [2, 3]]]
)
def test_records_of_another_shape_are_refused(x: Any, file: Path) -> None:
    """By an error that scikit-learn takes for its own, too."""
    with pytest.raises(DataError, match="Expected") as refused:
        load(file).predict(x)
    assert isinstance(refused.value, ValueError)


def test_nothing_of_the_file_is_left_open(file: Path) -> None:
    tensors, card = read(file)
    file.write_bytes(b"")
    assert card == CARD
    assert np.array_equal(tensors["fc1.weight"], values()["fc1.weight"])
