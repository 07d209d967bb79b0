from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from support.every import every
from torch import nn

from securefl.core.errors import ConfigError, DataError
from securefl.training import ModelConfig, load_vector, local_statistics, size, to_vector

whole = partial(to_vector, statistics=True)


def norm_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))


def test_the_vector_holds_parameters_and_running_statistics_in_state_dict_order_and_no_integers() -> None:
    model = norm_model()
    assert size(model) == 3 * 4 + 4 + 4 * 4 + 4 * 2
    model(torch.randn(50, 3) * 3 + 1)  # moves the running statistics and the integer count of batches
    vector = whole(model)
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
    load_vector(target, whole(source))
    assert np.array_equal(whole(source), whole(target))
    with torch.no_grad():
        assert torch.equal(source.eval()(x), target.eval()(x))


@every("make", [norm_model, lambda: nn.Linear(3, 1, bias=False)])
def test_the_vector_is_a_copy_and_loading_copies(make: Callable[[], nn.Module]) -> None:
    """Also that of one parameter."""
    model = make()
    vector = whole(model)
    kept = vector.copy()
    vector[:] = 7
    assert np.array_equal(whole(model), kept)
    load_vector(model, vector)
    vector[:] = 0
    assert (whole(model) == 7).all()


def test_read_only_float64_vectors_load() -> None:
    model = nn.Linear(2, 1)
    vector = np.array([1.0, 2.0, 3.0])
    vector.flags.writeable = False
    load_vector(model, vector)
    assert whole(model).tolist() == [1.0, 2.0, 3.0]


@every("shape", [(11,), (13,), (1, 12), ()])
def test_a_vector_of_another_length_is_refused_and_changes_nothing(shape: tuple[int, ...]) -> None:
    model = nn.Linear(5, 2)
    before = whole(model)
    with pytest.raises(DataError, match=r"shape \(12,\)"):
        load_vector(model, np.zeros(shape, np.float32))
    assert np.array_equal(whole(model), before)


def test_a_tensor_of_two_names_counts_once_and_frozen_by_one_of_them_not_at_all() -> None:
    table, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    head.weight = table.weight
    tied = nn.ModuleList([table, head])
    assert whole(tied).shape == (15,)
    load_vector(tied, np.arange(15, dtype=np.float32))
    assert table.weight.flatten().tolist() == head.weight.flatten().tolist() == [*map(float, range(15))]
    head.weight = nn.Parameter(table.weight.detach(), requires_grad=False)
    assert whole(tied).shape == (0,)


def test_statistics_of_one_norm_under_two_names_count_once() -> None:
    norm = nn.BatchNorm1d(4, affine=False)
    assert whole(nn.Sequential(norm, nn.Linear(4, 2), norm)).shape == (10 + 8,)


def test_running_statistics_are_among_no_weights_unless_a_loop_says_so_and_both_remedies_work() -> None:
    """Noise in a loop made variances negative without a word."""
    model = norm_model()
    with pytest.raises(ConfigError, match=r"1\.running_mean.*local_statistics.*statistics=True"):
        to_vector(model)
    assert to_vector(model, statistics=True).shape == (size(model),)
    weights = to_vector(local_statistics(model))
    assert weights.shape == (3 * 4 + 4 + 2 * 4 + 4 * 2,)
    load_vector(model, weights)
    assert to_vector(norm_model().requires_grad_(False)).shape == (0,)  # a frozen norm has constants
