"""A run that starts from given weights: a safetensors file of another program, or an exported model."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors
from support.every import every
from support.private_studies import private
from support.tiny_study import run, text, world
from torch import nn

from securefl.core.errors import ConfigError, DataError, SecureFLError
from securefl.study.config import Brought, Study, parse
from securefl.study.export import taken
from securefl.training.trained import load
from securefl.training.vector import to_vector

SHAPES = {"fc1.weight": (8, 64), "fc1.bias": (8,), "fc2.weight": (10, 8), "fc2.bias": (10,)}
PUBLIC = 'trained_on = "public"'


def starting(path: Path | str, more: str = PUBLIC, privacy: str = "", **changes: Any) -> Study:
    written = text(**changes).replace("hidden = [8]", f'hidden = [8]\nweights = "{path}"\n{more}')
    if privacy:
        written = written.replace("budget = inf\n", "")
    return parse(written.replace("[privacy]", f"[privacy]\n{privacy}"), home=Path("/"))


def values(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(values(), tmp_path / "plain.safetensors")
    return tmp_path / "plain.safetensors"


def test_a_run_starts_from_the_values_of_another_programs_file(file: Path) -> None:
    here = world(starting(file))
    expected = np.concatenate([own.ravel() for own in values().values()])
    np.testing.assert_array_equal(here.problem.initial, expected)
    np.testing.assert_array_equal(to_vector(here.problem.layers), expected)
    (sentence,) = here.marks.outside
    assert "plain.safetensors" in sentence
    assert "no epsilon covers" in sentence
    assert "SHA-256" in here.marks.words["initial weights"]
    half = {name: own.astype(np.float16) for name, own in values().items()}
    save_file(half, file)
    assert world(starting(file)).problem.initial[0] == np.float32(half["fc1.weight"][0, 0])
    brain = {name: torch.from_numpy(own).bfloat16() for name, own in values().items()}
    save_tensors(brain, file)
    assert world(starting(file)).problem.initial[0] == brain["fc1.weight"][0, 0].float()


def test_a_path_that_no_system_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got .*null byte.* Check the path"):
        world(starting("a\\u0000"))


class Normed(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.Linear(8, outputs))


def test_a_private_export_whose_batch_norm_became_group_norm_starts_a_private_run(tmp_path: Path) -> None:
    def normed(weights: Path | None = None, *, noised: bool = True, train: str = "") -> Study:
        own = (
            private("fedavg", 'fraction = 1.0\naggregation = "partial"', rounds=1).text if noised else text()
        )
        more = "" if weights is None else f'weights = "{weights}"\n{PUBLIC}\n'
        more += f'train = "{train}"\n' if train else ""
        own = own.replace('kind = "mlp"\nhidden = [8]\n', more)
        return parse(own, home=Path("/"), brought=Brought(model=Normed))

    first = normed()
    run(first, tmp_path / "first")
    taken(first, tmp_path / "first", first.arms[0].name).write(tmp_path / "model.safetensors")
    here = world(normed(tmp_path / "model.safetensors"))
    found = load(tmp_path / "model.safetensors", model=Normed).module
    np.testing.assert_array_equal(here.problem.initial, to_vector(found))
    assert found[2].weight.std() > 0
    with pytest.raises(ConfigError, match=r"without 2.running_mean, 2.running_var.* train it under"):
        world(normed(tmp_path / "model.safetensors", noised=False))
    for noised in (True, False):
        with pytest.raises(ConfigError, match=r"without 2.running_mean, .* leave `train` out under .dpsgd"):
            world(normed(tmp_path / "model.safetensors", noised=noised, train="head"))


def test_a_resumed_run_refuses_another_file(file: Path, tmp_path: Path) -> None:
    own = starting(file)
    run(own, tmp_path / "run")
    save_file(values(1), file)
    with pytest.raises(DataError, match="other initial weights"):
        run(own, tmp_path / "run")


def _torch(path: Path) -> None:
    path.write_bytes(pickle.dumps({"fc1.bias": [1.0]}))


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pickle": (_torch, "not opened: a pickle can run any code"),
    "other shapes": (lambda path: save_file(values() | {"fc1.bias": np.ones(9, np.float32)}, path), "shape"),
    "another model": (
        lambda path: save_file({"conv.bias": np.ones(8, np.float32)}, path),
        "without conv.bias",
    ),
    "a part": (lambda path: save_file({"fc1.bias": np.ones(8, np.float32)}, path), "also has fc1.weight"),
    "nan": (lambda path: save_file(values() | {"fc1.bias": np.full(8, np.nan, np.float32)}, path), "finite"),
    "a variance below zero": (
        lambda path: save_file(values() | {"norm.running_var": np.full(8, -1, np.float32)}, path),
        "no variance below zero",
    ),
    "none": (lambda path: None, "Check the path"),
    "damage": (lambda path: path.write_bytes(b"\x08" + bytes(15)), "damage"),
}


@every(("made", "message"), FILES.values())
def test_a_file_that_does_not_fit_is_refused(
    made: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    made(tmp_path / "model.safetensors")
    with pytest.raises(SecureFLError, match=message):
        world(starting(tmp_path / "model.safetensors"))


def test_what_is_behind_the_weights_is_said_or_the_run_is_refused_and_the_remedies_work(
    file: Path, tmp_path: Path
) -> None:
    for more in ("", 'trained_on = "ledger"'):
        with pytest.raises(ConfigError, match=r'trained_on = "public" under .model.'):
            world(starting(file, more))
    with pytest.raises(ConfigError, match="Name the file"):
        world(parse(text().replace("hidden = [8]", f"hidden = [8]\n{PUBLIC}")))
