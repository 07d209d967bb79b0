"""Models that are loaded to be read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny_heads import problem
from torch import nn

from securefl.core.errors import DataError
from securefl.training import vector as module
from securefl.training.devices import Hardware
from securefl.training.vector import Loaded, to_vector


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the vectors that were loaded."""
    seen: list[int] = []
    own = module.load_vector

    def noted(model: nn.Module, vector: np.ndarray) -> None:
        seen.append(vector.size)
        own(model, vector)

    monkeypatch.setattr(module, "load_vector", noted)
    return seen


def test_equal_vectors_in_a_row_are_loaded_once(times: list[int]) -> None:
    read, one = Loaded(nn.Linear(2, 2), Hardware()), np.arange(6, dtype=np.float32)
    for vector in (one, one.copy(), one.copy()):
        np.testing.assert_array_equal(to_vector(read(vector)), one)
    assert times == [6]
    np.testing.assert_array_equal(to_vector(read(one + 1)), one + 1)
    np.testing.assert_array_equal(to_vector(read(one)), one)
    assert times == [6, 6, 6]


def test_an_array_that_was_written_to_is_loaded_anew(times: list[int]) -> None:
    read, vector = Loaded(nn.Linear(2, 2), Hardware()), np.zeros(6, np.float32)
    read(vector)
    vector[3] = np.nan
    assert np.isnan(to_vector(read(vector))[3])
    read(vector)
    assert times == [6, 6], "a value that is not a number is equal to itself here"
    vector[3] = -0.0
    assert np.signbit(to_vector(read(vector))[3])


def test_a_vector_of_another_shape_is_refused_though_its_bytes_are_the_same() -> None:
    read, vector = Loaded(nn.Linear(2, 2), Hardware()), np.ones(6, np.float32)
    read(vector)
    for wrong in (vector[:, None], vector[:5]):
        with pytest.raises(DataError):
            read(wrong)
    assert torch.equal(torch.from_numpy(to_vector(read(vector))), torch.ones(6))


def test_what_could_not_be_loaded_is_not_taken_for_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    read, vector, own = Loaded(nn.Linear(2, 2), Hardware()), np.ones(6, np.float32), module.load_vector
    read(vector)

    def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(module, "load_vector", broken)
    with pytest.raises(RuntimeError):
        read(vector + 1)
    monkeypatch.setattr(module, "load_vector", own)
    np.testing.assert_array_equal(to_vector(read(vector)), vector)


def test_what_is_read_is_another_module_than_what_is_trained() -> None:
    here = problem()
    read = here.to_read(here.initial)
    trained = here.module(here.initial + 1)
    assert here.to_read(here.initial) is read
    assert read is not trained
    np.testing.assert_array_equal(to_vector(read), here.initial)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(to_vector(here.to_read(here.initial)), here.initial)
