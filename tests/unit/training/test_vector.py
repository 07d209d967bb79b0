from __future__ import annotations

import numpy as np
import pytest
import torch
from support.every import every
from torch import nn

from securefl.core.errors import DataError
from securefl.training import ModelConfig, load_vector, size, to_vector


def norm_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))


def test_the_vector_holds_parameters_and_running_statistics_in_state_dict_order_and_no_integers() -> None:
    model = norm_model()
    assert size(model) == 3 * 4 + 4 + 4 * 4 + 4 * 2
    model(torch.randn(50, 3) * 3 + 1)  # moves the running statistics and the integer count of batches
    vector = to_vector(model)
    state = model.state_dict()
    assert vector.dtype == np.float32
    assert vector.shape == (size(model),)
    assert np.array_equal(vector[:12], state["0.weight"].numpy().ravel())
    assert np.array_equal(vector[24:28], state["1.running_mean"].numpy())
    assert np.array_equal(vector[28:32], state["1.running_var"].numpy())
    assert np.abs(vector[24:28]).max() > 0


@every("kind", ["mlp", "lenet5", "fedcor_cnn", "adds_cnn", "shufflenet_v2"])
def test_loading_a_vector_makes_the_same_function(kind: str) -> None:
    config = ModelConfig(kind=kind)  # type: ignore[arg-type]  # a Literal, spelt by the parametrisation
    source, target = (config.build((1, 28, 28), 10, seed) for seed in (1, 2))
    x = torch.rand(4, 1, 28, 28)
    with torch.no_grad():
        source(x)
    load_vector(target, to_vector(source))
    assert np.array_equal(to_vector(source), to_vector(target))
    with torch.no_grad():
        assert torch.equal(source.eval()(x), target.eval()(x))


def test_the_vector_is_a_copy_and_loading_copies() -> None:
    model = norm_model()
    vector = to_vector(model)
    kept = vector.copy()
    vector[:] = 7
    assert np.array_equal(to_vector(model), kept)
    load_vector(model, vector)
    vector[:] = 0
    assert (to_vector(model) == 7).all()


def test_one_parameter_is_copied_too() -> None:
    model = nn.Linear(3, 1, bias=False)
    vector = to_vector(model)
    vector[:] = 9
    assert (model.weight != 9).all()


def test_read_only_float64_vectors_load() -> None:
    model = nn.Linear(2, 1)
    vector = np.array([1.0, 2.0, 3.0])
    vector.flags.writeable = False
    load_vector(model, vector)
    assert to_vector(model).tolist() == [1.0, 2.0, 3.0]


@every("shape", [(11,), (13,), (1, 12), ()])
def test_a_vector_of_another_length_is_refused_and_changes_nothing(shape: tuple[int, ...]) -> None:
    model = nn.Linear(5, 2)
    before = to_vector(model)
    with pytest.raises(DataError, match=r"shape \(12,\)"):
        load_vector(model, np.zeros(shape, np.float32))
    assert np.array_equal(to_vector(model), before)


def test_a_tensor_of_two_names_counts_once_and_frozen_by_one_of_them_not_at_all() -> None:
    table, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    head.weight = table.weight
    tied = nn.ModuleList([table, head])
    assert to_vector(tied).shape == (15,)
    load_vector(tied, np.arange(15, dtype=np.float32))
    assert table.weight.flatten().tolist() == head.weight.flatten().tolist() == [*map(float, range(15))]
    head.weight = nn.Parameter(table.weight.detach(), requires_grad=False)
    assert to_vector(tied).shape == (0,)


def test_statistics_of_one_norm_under_two_names_count_once() -> None:
    norm = nn.BatchNorm1d(4, affine=False)
    assert to_vector(nn.Sequential(norm, nn.Linear(4, 2), norm)).shape == (10 + 8,)
