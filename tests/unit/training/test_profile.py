from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.every import every
from torch import Tensor, nn

from securefl.core.errors import ConfigError, DataError
from securefl.matching.profiles import VARIANCE_FLOOR, Anchor
from securefl.training import ModelConfig, outputs, probe_profile, profile


def records(n: int, *shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).random((n, *shape), dtype=np.float32)


def test_a_dense_layers_profile_is_that_of_its_pre_activation() -> None:
    model = ModelConfig(kind="mlp").build((9,), 2, 0)
    x = records(300, 9)
    found = profile(model, "fc1", x)
    with torch.no_grad():
        out = model.get_submodule("fc1")(torch.from_numpy(x)).double().numpy()
    assert (out < 0).any()
    assert found.count == 300
    np.testing.assert_allclose(found.mean, out.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.variance, out.var(0), atol=1e-6)


def test_a_convolutions_profile_is_that_of_its_sums_over_the_map() -> None:
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(5 * 16, 3))
    x = records(40, 2, 6, 6)
    found = profile(model, "0", x, batch=7)
    with torch.no_grad():
        out = model[0](torch.from_numpy(x)).double().sum((2, 3)).numpy()
    np.testing.assert_allclose(found.mean, out.mean(0), atol=1e-5)
    np.testing.assert_allclose(found.variance, out.var(0), atol=1e-5)


def test_shufflenet_has_a_profile_of_1024_elements() -> None:
    config = ModelConfig(kind="shufflenet_v2", width=0.25)
    model = config.build((3, 32, 32), 10, 0)
    found = profile(model, config.layer, records(6, 3, 32, 32))
    assert len(found) == 1024
    assert (found.variance > 0).all()


def test_profiles_are_taken_in_evaluation_mode_and_modes_are_restored() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[1].eval()
    x = records(50, 4) * 10
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = profile(model, "1", x)
    assert [module.training for module in model.modules()] == [True, True, False]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        out = model.eval()(torch.from_numpy(x)).double().numpy()
    np.testing.assert_allclose(found.mean, out.mean(0), atol=1e-5)


@every(
    ("layer", "x", "error"),
    [
        ("0", records(5, 4), None),
        ("0", np.full((5, 4), np.nan, np.float32), DataError),
        ("0", np.empty((0, 4), np.float32), DataError),
        ("0", records(5, 3), RuntimeError),
        ("2", records(5, 4), ConfigError),
    ],
)
def test_no_hook_is_left_behind_and_modes_are_restored(layer: str, x: Any, error: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Unflatten(1, (2, 3)))
    if error is None:
        profile(model, layer, x)
    else:
        with pytest.raises(error):
            profile(model, layer, x)
    assert all(not module._forward_hooks for module in model.modules())
    assert all(module.training for module in model.modules())


def test_infinite_outputs_in_a_later_batch_are_an_error() -> None:
    x = records(10, 4)
    x[9, 2] = np.inf
    with pytest.raises(DataError, match="not finite"):
        profile(nn.Sequential(nn.Linear(4, 3)), "0", x, batch=4)


def test_one_record_has_variance_zero() -> None:
    found = profile(nn.Sequential(nn.Linear(4, 3)), "0", records(1, 4))
    assert found.count == 1
    assert found.variance.tolist() == [0, 0, 0]


class Twice(nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.layer(x)
        return x


@every("times", [0, 2])
def test_a_layer_that_does_not_run_once_a_record_is_refused(times: int) -> None:
    with pytest.raises(ConfigError if times else (ConfigError, DataError), match="once"):
        profile(Twice(times), "layer", records(5, 4))


def test_the_anchor_depends_on_model_and_public_seed_alone() -> None:
    model = ModelConfig(kind="mlp").build((9,), 2, 0)
    other = ModelConfig(kind="mlp").build((9,), 2, 1)
    np.random.seed(0)  # noqa: NPY002  # the global generator must not matter
    anchor = Anchor.of(probe_profile(model, "fc1", (9,), seed=4))
    torch.manual_seed(9)
    again = Anchor.of(probe_profile(model, "fc1", (9,), seed=4))
    assert np.array_equal(anchor.centre, again.centre)
    assert np.array_equal(anchor.scale, again.scale)
    assert not np.array_equal(anchor.centre, Anchor.of(probe_profile(model, "fc1", (9,), seed=5)).centre)
    assert not np.array_equal(anchor.centre, Anchor.of(probe_profile(other, "fc1", (9,), seed=4)).centre)


def test_the_anchor_standardises_uniform_inputs() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(torch.tensor([[1.0, 0.0], [0.0, -2.0]]))
    anchor = Anchor.of(probe_profile(model, "0", (2,), seed=0, samples=4096))
    np.testing.assert_allclose(anchor.centre, [0.5, -1.0], atol=0.05)
    np.testing.assert_allclose(anchor.scale, [12**-0.5, 2 * 12**-0.5], rtol=0.05)


def test_a_constant_element_still_has_a_positive_scale() -> None:
    model = nn.Sequential(nn.Linear(2, 1))
    with torch.no_grad():
        model.get_parameter("0.weight").zero_()
    assert Anchor.of(probe_profile(model, "0", (2,), seed=0)).scale[0] == pytest.approx(VARIANCE_FLOOR**0.5)


def test_tensors_and_other_floats_are_records_too() -> None:
    model, x = ModelConfig(kind="mlp").build((9,), 2, 0), records(20, 9)
    expected = profile(model, "fc1", x).mean
    for given in (torch.tensor(x, requires_grad=True), x.astype(np.float64), x.tolist()):
        assert (profile(model, "fc1", given).mean == expected).all()  # type: ignore[arg-type]
        assert len(outputs(model, "fc1", given)) == 20  # type: ignore[arg-type]
    for bad in (np.array([[None] * 9], object), "abc", np.array([["a"] * 9])):
        with pytest.raises(DataError, match="numbers"):
            profile(model, "fc1", bad)  # type: ignore[arg-type]
