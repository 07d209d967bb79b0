"""Private training: which records, models and settings it takes, and what it leaves behind."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.tiny_dpsgd import SETTINGS, Own, Twice, config, images, keyed, seeded, trained
from support.tiny_training import small_data, small_model
from torch import Tensor, nn

from securefl.accounting.events import steps_event
from securefl.core.errors import ConfigError, DataError
from securefl.core.reading import convert
from securefl.dp.noise import Source
from securefl.training import ModelConfig, record_losses, to_vector
from securefl.training import dpsgd as module
from securefl.training.dpsgd import train_privately
from securefl.training.private_layers import make_private
from securefl.training.private_steps import DPSGD
from securefl.training.row_wise import RowHook


@pytest.mark.parametrize("n", [0, 1, 30])
def test_the_event_is_the_same_whatever_the_records(n: int) -> None:
    model = small_model()
    settings = config()
    before = to_vector(model)
    event = train_privately(model, *small_data(n), settings, "cross_entropy", Source())
    assert event == settings.event == steps_event(0.5, 1.0, 3)
    assert not np.allclose(to_vector(model), before)


def test_an_empty_batch_is_a_noised_step_too() -> None:
    asked = []

    class Counting(Source):
        def normal(self, count: int) -> NDArray[np.float64]:
            asked.append(count)
            return super().normal(count)

    model = small_model()
    train_privately(model, *small_data(1), config(sampling_rate=1e-9, steps=5), "cross_entropy", Counting())
    assert asked == [len(to_vector(model))] * 5


BAD: dict[str, tuple[Any, int]] = {
    "nan": (np.nan, 0),
    "infinite": (np.inf, 0),
    "a label too large": (1.0, 99),
    "a label below 0": (1.0, -1),
    "the label torch ignores": (1.0, -100),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("kind", ["mlp", "lenet5"])
def test_a_bad_record_counts_as_none_bit_by_bit(kind: Any, bad: str) -> None:
    model = ModelConfig(kind=kind).build((1, 28, 28), 10, 0)
    x, y = images((1, 28, 28), 9)
    fill, label = BAD[bad]
    spoilt = (np.concatenate([x, np.full_like(x[:1], fill)]), np.append(y, label))
    settings = config(sampling_rate=0.7, steps=4)
    assert np.array_equal(trained(settings, spoilt, start=model), trained(settings, (x, y), start=model))
    middle = (np.insert(x, 4, spoilt[0][-1], axis=0), np.insert(y, 4, label))
    settings = config(sampling_rate=1.0, steps=2)
    assert np.array_equal(trained(settings, middle, start=model), trained(settings, (x, y), start=model))


def test_a_target_that_is_not_finite_counts_as_none() -> None:
    x, y = small_data(9)[0], np.ones((9, 3), np.float32)
    y[4, 1] = np.nan
    models = small_model(), small_model()
    settings = config(sampling_rate=1.0)
    train_privately(models[0], x, y, settings, "mse", keyed())
    train_privately(models[1], np.delete(x, 4, 0), np.delete(y, 4, 0), settings, "mse", keyed())
    assert np.array_equal(to_vector(models[0]), to_vector(models[1]))


def state(model: nn.Module) -> list[Any]:
    hooks = [
        [len(value) for key, value in vars(layer).items() if "hooks" in key and value is not None]
        for layer in model.modules()
    ]
    return [
        hooks,
        [layer.training for layer in model.modules()],
        [sorted(vars(layer)) for layer in model.modules()],
        [sorted(vars(parameter)) for parameter in model.parameters()],
        [parameter.grad for parameter in model.parameters()],
    ]


@pytest.mark.parametrize("make", [small_model, Own, Twice])
def test_nothing_is_left_on_the_model_even_when_training_fails(make: Callable[[], nn.Module]) -> None:
    model = seeded(make)
    next(model.children()).eval()
    before = state(model)
    train_privately(model, *small_data(), config(), "cross_entropy", keyed())
    assert state(model) == before
    x, y = small_data()
    with pytest.raises(ConfigError, match="records of this shape"):
        train_privately(model, x[:, :3], y, config(), "cross_entropy", keyed())
    assert state(model) == before
    owners = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert len(owners) == len(list(model.parameters()))


def test_training_is_in_training_mode() -> None:
    modes = []

    model = seeded(lambda: nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 3))).eval()
    model[0].register_forward_hook(RowHook(lambda layer, given, found: modes.append(layer.training)))
    train_privately(model, *small_data(), config(steps=2), "cross_entropy", keyed())
    assert len(modes) > 2
    assert all(modes)
    assert not model.training


def test_frozen_layers_stay_and_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    start = ModelConfig(kind="lenet5").build((1, 28, 28), 10, 0)
    for name in ("conv1", "conv2", "fc1"):
        start.get_submodule(name).requires_grad_(False)
    watched = []
    original = module.get_gradient_edge

    def edge(output: Tensor) -> Any:
        watched.append(output.shape[1])
        return original(output)

    monkeypatch.setattr(module, "get_gradient_edge", edge)
    model = copy.deepcopy(start)
    train_privately(model, *images((1, 28, 28), 6), config(sampling_rate=1.0), "cross_entropy", keyed())
    assert watched == [84, 10] * 3
    for name, parameter in model.named_parameters():
        frozen = not parameter.requires_grad
        assert torch.equal(parameter, start.get_parameter(name)) == frozen, name


def test_a_frozen_model_is_an_error() -> None:
    model = small_model().requires_grad_(False)
    with pytest.raises(ConfigError, match="frozen"):
        train_privately(model, *small_data(), config(), "cross_entropy", keyed())


class Overwriting(nn.Module):
    """Changes a layer's input behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        out = self.fc2(self.fc1(x))
        x.zero_()
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x[None])[0][0]


def hooked(register: str) -> nn.Module:
    """A model whose first weights have a hook, which a pass of single records would not call."""
    model = nn.Sequential(nn.Linear(4, 3))
    getattr(model[0].weight, register)(lambda one: None)
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hooked("register_hook"), "hook"),
        (lambda: hooked("register_post_accumulate_grad_hook"), "hook"),
        (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), "make_private"),
        (lambda: nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)), "make_private"),
        (
            lambda: nn.Sequential(
                nn.BatchNorm1d(4, track_running_stats=False).requires_grad_(False).eval(), nn.Linear(4, 3)
            ),
            "make_private",
        ),
        (lambda: nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Linear(4, 3)), "apart"),
        (Recurrent, "`make_private` replaces"),
        (Overwriting, "in place"),
    ],
    ids=[
        "hook",
        "hook behind accumulation",
        "batch norm",
        "plain",
        "frozen",
        "instance norm",
        "lstm",
        "overwriting",
    ],
)
def test_models_that_cannot_be_trained_privately_are_errors(
    make: Callable[[], nn.Module], message: str
) -> None:
    model = seeded(make)
    before = to_vector(model, statistics=True)
    with pytest.raises(ConfigError, match=message):
        train_privately(model, *small_data(), config(sampling_rate=1.0), "cross_entropy", keyed())
    assert np.array_equal(to_vector(model, statistics=True), before)


def test_batch_norm_is_replaced_in_a_copy_and_reported() -> None:
    model = ModelConfig(kind="adds_cnn", width=0.25).build((1, 8, 8), 10, 0)
    made, changes = make_private(model)
    assert isinstance(model.get_submodule("norm1"), nn.BatchNorm2d)
    assert [change.split(" became ")[1].split(",")[0] for change in changes] == [
        "GroupNorm(8",
        "GroupNorm(16",
        "GroupNorm(32",
    ]
    assert changes[0].startswith("norm1: BatchNorm2d(16, ")
    train_privately(made, *images((1, 8, 8), 5), config(), "cross_entropy", keyed())
    assert make_private(made)[1] == ()
    assert np.array_equal(to_vector(make_private(model)[0]), to_vector(make_private(model)[0]))
    model.get_submodule("norm2").requires_grad_(False)
    made, changes = make_private(model)  # a frozen one keeps its statistics, and no record moves them
    assert len(changes) == 2
    assert isinstance(made.get_submodule("norm2"), nn.BatchNorm2d)
    train_privately(made, *images((1, 8, 8), 5), config(), "cross_entropy", keyed())
    assert not made.get_buffer("norm2.num_batches_tracked")


def test_group_norm_behind_a_dense_layer_lets_something_through() -> None:
    for layer in (nn.BatchNorm1d(32), nn.Sequential(nn.BatchNorm1d(32))):
        made, changes = make_private(layer)
        assert len(changes) == 1
        through = made(torch.randn(3, 32, generator=torch.Generator().manual_seed(0)))
        assert float(through.detach().std()) > 0.5


def test_divergence_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"learning rate 1e\+38"):
        trained(config(learning_rate=1e38, expected_batch=1e-3), small_data())


@pytest.mark.parametrize(
    "changes",
    [
        {"clip_norm": 0.0},
        {"clip_norm": float("inf")},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": float("nan")},
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.01},
        {"sampling_rate": float("nan")},
        {"expected_batch": 0.0},
        {"steps": 0},
        {"learning_rate": 0.0},
        {"momentum": 1.0},
        {"momentum": 0.9, "optimizer": "adam"},
        {"weight_decay": -0.1},
        {"proximal": -1.0},
        {"optimizer": "lbfgs"},
        {"noise": 1.0},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_when_read(changes: dict[str, Any]) -> None:
    assert convert(DPSGD, SETTINGS, "dpsgd") == config()
    with pytest.raises(ConfigError, match="(?i)" + next(iter(changes))):
        convert(DPSGD, SETTINGS | changes, "dpsgd")


@pytest.mark.slow
def test_one_module_of_training_needs_opacus_and_leaves_the_log_alone() -> None:
    assert module.__name__ == "securefl.training.dpsgd"
    script = (
        "import logging, sys, securefl.training.private_steps, securefl.training.per_record; "
        "assert 'opacus' not in sys.modules; "
        "import securefl.training.dpsgd; assert not logging.root.handlers"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=120)


@pytest.mark.parametrize(
    ("batch", "rows"), [(2.0**-10, 32), (32, 32), (63.9, 32), (64, 64), (250, 224), (256, 256), (1e12, 256)]
)
def test_a_chunk_follows_from_the_public_batch(batch: float, rows: int) -> None:
    assert config(expected_batch=batch).chunk == rows
    assert config(expected_batch=batch, chunk=96).chunk == 96


def test_a_finite_loss_with_a_gradient_without_end_counts_as_none_bit_by_bit() -> None:
    model = seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(18, 3)))
    with torch.no_grad():
        model.get_parameter("0.weight").mul_(1e-3)
    x, y = np.random.default_rng(0).normal(size=(5, 1, 3, 3)).astype(np.float32), np.arange(5) % 3
    huge = np.full((1, 1, 3, 3), 3e38, np.float32)
    with torch.no_grad():
        least = int(model(torch.from_numpy(huge)).argmin())  # of another label its loss would be flat
    whole = np.insert(x, [2], huge, axis=0), np.insert(y, 2, least)
    losses = record_losses(model, *whole, "cross_entropy")
    assert np.isfinite(losses).all()
    assert losses[2] > 1e30
    settings = config(sampling_rate=1.0)
    assert np.array_equal(trained(settings, whole, start=model), trained(settings, (x, y), start=model))
