from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from support.every import every
from support.tiny_training import small_data, small_model
from torch import nn
from torch.nn.functional import cross_entropy

from securefl.core.errors import ConfigError, DataError
from securefl.training import LocalTraining, load_vector, to_vector, train


def config(**changes: Any) -> LocalTraining:
    settings: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.1, "epochs": 1, "batch_size": 8}
    return LocalTraining(**(settings | changes))


def trained(
    settings: LocalTraining, *, seed: int = 0, round_number: int = 0, start: nn.Module | None = None
) -> NDArray[np.float32]:
    model = copy.deepcopy(start or small_model())
    train(model, *small_data(), settings, "cross_entropy", np.random.default_rng(seed), round_number)
    return to_vector(model)


@every(
    ("settings", "reference"),
    [
        ({"learning_rate": 0.05}, lambda p: torch.optim.SGD(p, lr=0.05)),
        (
            {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.1},
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
        ),
        (
            {"optimizer": "adam", "learning_rate": 0.01, "weight_decay": 0.1},
            lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
        ),
    ],
)
def test_updates_are_those_of_torch(settings: dict[str, Any], reference: Any) -> None:
    x, y = (torch.from_numpy(part) for part in small_data())
    model = small_model()
    optimizer = reference(model.parameters())
    rng = np.random.default_rng(3)
    for _ in range(3):
        order = rng.permutation(30)
        for at in range(0, 30, 8):
            optimizer.zero_grad()
            loss: Any = cross_entropy(model(x[order[at : at + 8]]), y[order[at : at + 8]])
            loss.backward()
            optimizer.step()
    found = trained(config(epochs=3, **settings), seed=3)
    np.testing.assert_allclose(found, to_vector(model), rtol=1e-4, atol=1e-6)


def test_training_draws_nothing_from_global_generators() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    trained(config())
    assert torch.equal(torch.get_rng_state(), before)


class Recorder(nn.Module):
    """Notes the first entry of every record that it sees, and insists on training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.seen: list[list[float]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.training
        self.seen.append(x[:, 0].tolist())
        out: torch.Tensor = self.layer(x * 0)
        return out


@every(
    ("settings", "sizes"),
    [
        ({"epochs": 2}, [4, 4, 2, 4, 4, 2]),
        ({"epochs": None, "steps": 2}, [4, 4]),
        ({"epochs": None, "steps": 5}, [4, 4, 2, 4, 4]),
        ({"epochs": 1, "batch_size": 100}, [10]),
    ],
)
def test_passes_and_steps_go_through_all_records_in_fresh_orders(
    settings: dict[str, Any], sizes: list[int]
) -> None:
    model, x = Recorder(), np.arange(10, dtype=np.float32)[:, None]
    made = config(**({"batch_size": 4} | settings))
    train(model.eval(), x, np.zeros(10, np.int64), made, "cross_entropy", np.random.default_rng(0), 0)
    assert [len(batch) for batch in model.seen] == sizes
    flat = [value for batch in model.seen for value in batch]
    assert len(set(flat[:10])) == min(10, len(flat))
    assert flat[:10] != sorted(flat[:10])
    if len(flat) == 20:
        assert sorted(flat[10:]) == sorted(flat[:10])
        assert flat[10:] != flat[:10]


def test_the_learning_rate_decays_each_round_or_at_milestones() -> None:
    each = config(decay=0.5)
    assert [each.rate(r) for r in range(3)] == [0.1, 0.05, 0.025]
    at = config(decay=0.5, milestones=(150, 300))
    assert [at.rate(r) for r in (0, 149, 150, 299, 300)] == [0.1, 0.1, 0.05, 0.05, 0.025]


def test_training_uses_the_decayed_rate() -> None:
    one = config(epochs=None, steps=1, decay=0.5)
    start = to_vector(small_model())
    first, later = trained(one) - start, trained(one, round_number=2) - start
    np.testing.assert_allclose(later, first / 4, rtol=1e-3, atol=1e-7)


def test_the_proximal_step_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    load_vector(model, np.array([1.0]))
    x, y = np.array([[1.0]], np.float32), np.array([[0.0]], np.float32)
    settings = config(epochs=None, steps=2, batch_size=1, proximal=0.5)
    train(model, x, y, settings, "mse", np.random.default_rng(0), 0)
    # w1 = 1 - 0.1 * 2; w2 = 0.8 - 0.1 * (2 * 0.8 + 0.5 * (0.8 - 1))
    np.testing.assert_allclose(to_vector(model), [0.8 - 0.1 * 1.5], rtol=1e-6)


def norm_model() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


@pytest.mark.timeout(20)
@every("length", [{"epochs": 2}, {"epochs": None, "steps": 2}])
def test_without_records_nothing_changes(length: dict[str, Any]) -> None:
    model = norm_model()
    before = to_vector(model, statistics=True)
    rng = np.random.default_rng(0)
    train(model, *small_data(0), config(weight_decay=0.5, **length), "cross_entropy", rng, 0)
    assert np.array_equal(to_vector(model, statistics=True), before)


def test_one_record_trains_the_weights_and_leaves_running_statistics_alone() -> None:
    model = norm_model()
    before = copy.deepcopy(model.state_dict())
    train(model, *small_data(1), config(epochs=3), "cross_entropy", np.random.default_rng(0), 0)
    after = model.state_dict()
    assert torch.equal(after["1.running_mean"], before["1.running_mean"])
    assert torch.equal(after["1.running_var"], before["1.running_var"])
    assert not torch.equal(after["0.weight"], before["0.weight"])


def test_batches_of_more_records_move_the_running_statistics_even_after_a_batch_of_one() -> None:
    model = norm_model()
    x, y = small_data(9)  # batches of 8 and 1, twice: the second pass must be back in training mode
    train(model, x, y, config(epochs=2, learning_rate=1e-9), "cross_entropy", np.random.default_rng(0), 0)
    assert int(model.state_dict()["1.num_batches_tracked"]) == 2
    assert np.abs(model.state_dict()["1.running_mean"].numpy()).max() > 0


def test_each_modules_mode_is_restored_even_when_training_fails() -> None:
    model = norm_model()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    train(model, *small_data(), config(), "cross_entropy", np.random.default_rng(0), 0)
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(RuntimeError):
        train(
            model,
            *(small_data()[0][:, :2], small_data()[1]),
            config(),
            "cross_entropy",
            np.random.default_rng(0),
            0,
        )
    assert [module.training for module in model.modules()] == modes


def test_frozen_parameters_stay_and_parameters_own_their_memory_afterwards() -> None:
    start = small_model()
    for parameter in start.get_submodule("fc2").parameters():
        parameter.requires_grad_(False)
    model = copy.deepcopy(start)
    train(model, *small_data(), config(weight_decay=0.1), "cross_entropy", np.random.default_rng(0), 0)
    assert torch.equal(model.get_parameter("fc2.weight"), start.get_parameter("fc2.weight"))
    assert not torch.equal(model.get_parameter("fc1.weight"), start.get_parameter("fc1.weight"))
    owners = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert len(owners) == 4
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="frozen"):
        train(model, *small_data(), config(), "cross_entropy", np.random.default_rng(0), 0)


def test_divergence_is_an_error_that_says_what_to_do() -> None:
    x, _ = small_data()
    y = np.ones((30, 3), np.float32)
    with pytest.raises(DataError, match=r"learning rate 1e\+20"):
        train(small_model(), x, y, config(learning_rate=1e20, epochs=5), "mse", np.random.default_rng(0), 0)


def test_records_that_are_not_finite_are_an_error() -> None:
    x, y = small_data()
    x[7] = np.nan
    with pytest.raises(DataError, match="are not finite"):
        train(small_model(), x, y, config(), "cross_entropy", np.random.default_rng(0), 0)


def test_running_statistics_that_are_not_finite_are_an_error() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    x, y = small_data()
    # 1e20 squared overflows the variance, while the normalised output, and so loss and slopes, stay finite
    with pytest.raises(DataError, match="diverged"):
        train(model, x * np.float32(1e20), y, config(), "cross_entropy", np.random.default_rng(0), 0)


@every(
    "changes",
    [
        {"epochs": None},
        {"steps": 3},
        {"epochs": 0},
        {"epochs": None, "steps": 0},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"batch_size": 0},
        {"momentum": 1.0},
        {"momentum": 0.9, "optimizer": "adam"},
        {"weight_decay": -0.1},
        {"decay": 0.0},
        {"decay": 1.1},
        {"milestones": [-1]},
        {"proximal": -1.0},
        {"optimizer": "lbfgs"},
    ],
)
def test_settings_out_of_range_are_refused_when_read(changes: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.1, "epochs": 1, "batch_size": 8}
    assert TypeAdapter(LocalTraining).validate_python(settings) == config()
    with pytest.raises(ValidationError):
        TypeAdapter(LocalTraining).validate_python(settings | changes)


def test_single_thread_pins_torch_and_may_be_called_late() -> None:
    script = (
        "import torch; from securefl.training import single_thread; single_thread();"
        "assert (torch.get_num_threads(), torch.get_num_interop_threads()) == (1, 1);"
        "torch.set_num_threads(2); single_thread(); assert torch.get_num_threads() == 1"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
