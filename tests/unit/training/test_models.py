from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from support.every import every
from torch import nn
from torch.nn.functional import max_pool2d

from securefl.core.errors import ConfigError
from securefl.training import ModelConfig, to_vector
from securefl.training.models import MLP, AddsCNN, FedCorCNN, LeNet5, ShuffleNetV2, Unit, shuffle


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@every(
    ("model", "expected"),
    [
        (MLP(784, 10, hidden=(64, 30)), 784 * 64 + 64 + 64 * 30 + 30 + 30 * 10 + 10),
        (LeNet5(1, 28, 10), 61_706),  # LeCun et al. 1998, with full connection of S2 to C3
        (FedCorCNN(3, 32, 10), (27 + 1) * 32 + (288 + 1) * 64 + (576 + 1) * 64 + 1025 * 64 + 65 * 10),
        # table II of the ADDS paper: 369.22K in convolutions, 5.31M dense; batch norm adds 2 a channel
        (AddsCNN(1, 28, 62), 369_216 + 5_308_478 + 2 * (64 + 128 + 256)),
        # of each layer, as FedLog's paper and code have them
        (ModelConfig(kind="fedlog_cnn").build((1, 28, 28), 10, 0), 260 + 5_020 + 16_050 + 510),
        (ModelConfig(kind="fedlog_cnn").build((3, 32, 32), 10, 0), 456 + 2_416 + 48_120 + 12_100 + 1_010),
        # torchvision's counts for shufflenet_v2_x0_5 and x1_0 with 1000 classes
        (ShuffleNetV2(3, 1000, 0.5), 1_366_792),
        (ShuffleNetV2(3, 1000, 1.0), 2_278_604),
    ],
)
def test_models_have_the_published_number_of_parameters(model: nn.Module, expected: int) -> None:
    assert parameters(model) == expected


@every(
    ("config", "shape"),
    [
        (ModelConfig(kind="mlp", hidden=()), (4,)),
        (ModelConfig(kind="lenet5"), (3, 32, 32)),
        (ModelConfig(kind="fedlog_cnn"), (1, 28, 28)),
        (ModelConfig(kind="fedlog_cnn"), (3, 32, 32)),
        (ModelConfig(kind="fedcor_cnn"), (1, 18, 18)),
        (ModelConfig(kind="adds_cnn", width=0.1), (1, 4, 4)),
        (ModelConfig(kind="adds_cnn", width=0.1), (1, 30, 30)),
        (ModelConfig(kind="shufflenet_v2", width=0.25), (3, 32, 32)),
        (ModelConfig(kind="shufflenet_v2", width=1.0), (1, 28, 28)),
    ],
)
def test_every_model_maps_records_to_outputs_and_has_its_profiled_layer(
    config: ModelConfig, shape: tuple[int, ...]
) -> None:
    model = config.build(shape, outputs=7, seed=1)
    assert model(torch.rand(3, *shape)).shape == (3, 7)
    assert config.layer in dict(model.named_modules())


def test_the_recurrent_model_maps_characters_to_the_next_one() -> None:
    config = ModelConfig(kind="char_lstm", width=0.05)
    model = config.build((20,), outputs=65, seed=1)
    assert model(torch.randint(0, 65, (3, 20))).shape == (3, 65)
    assert model(config.blank((20,))).shape == (1, 65)
    assert config.layer == "fc1"
    with pytest.raises(IndexError):
        model(torch.tensor([[65]]))


def test_dense_layers_come_before_their_activation_and_are_numbered_from_the_input() -> None:
    model = MLP(3, 2, hidden=(5, 4))
    x = torch.randn(6, 3)
    layers = [model.get_submodule(name) for name in ("fc1", "fc2", "fc3")]
    expected = layers[2](torch.relu(layers[1](torch.relu(layers[0](x)))))
    torch.testing.assert_close(model(x), expected)


def test_lenet_is_the_textbook_composition() -> None:
    model, x = LeNet5(1, 28, 10), torch.rand(2, 1, 28, 28)
    h = max_pool2d(torch.relu(model.conv1(x)), 2)
    h = max_pool2d(torch.relu(model.conv2(h)), 2).flatten(1)
    h = torch.relu(model.fc2(torch.relu(model.fc1(h))))
    torch.testing.assert_close(model(x), model.fc3(h))


def test_the_fedcor_cnn_is_the_published_composition() -> None:
    model, x = FedCorCNN(3, 32, 10), torch.rand(2, 3, 32, 32)
    h = max_pool2d(torch.relu(model.conv1(x)), 2)
    h = max_pool2d(torch.relu(model.conv2(h)), 2)
    h = torch.relu(model.conv3(h)).flatten(1)
    assert h.shape == (2, 1024)
    torch.testing.assert_close(model(x), model.fc2(torch.relu(model.fc1(h))))


def test_the_adds_cnn_is_the_published_composition() -> None:
    model, x = AddsCNN(1, 28, 62, width=0.25), torch.rand(2, 1, 28, 28)
    h = max_pool2d(model.norm1(model.conv1(x)), 2)
    h = max_pool2d(model.norm2(model.conv2(torch.relu(h))), 2)
    h = max_pool2d(model.norm3(model.conv3(torch.relu(h))), 2, ceil_mode=True)
    assert h.shape == (2, 64, 4, 4)
    h = torch.relu(model.fc2(torch.relu(model.fc1(h.flatten(1)))))
    torch.testing.assert_close(model(x), model.fc3(h), rtol=1e-4, atol=1e-5)


@every(
    "config",
    [
        ModelConfig(kind="mlp", hidden=(8, 7), dropout=0.5),
        ModelConfig(kind="lenet5", dropout=0.5),
        ModelConfig(kind="fedlog_cnn", dropout=0.5),
        ModelConfig(kind="fedcor_cnn", dropout=0.5),
        ModelConfig(kind="adds_cnn", width=0.1, dropout=0.5),
        ModelConfig(kind="char_lstm", width=0.05, dropout=0.5),
    ],
)
def test_dropout_is_behind_each_hidden_dense_layer_in_training_alone(config: ModelConfig) -> None:
    shape = (5,) if config.reads_text else (1, 28, 28)
    bare, model = (own.build(shape, 10, seed=1) for own in (replace(config, dropout=0.0), config))
    np.testing.assert_array_equal(*(to_vector(own, statistics=True) for own in (bare, model)))
    assert config.draws
    assert not replace(config, dropout=0.0).draws
    x = config.blank(shape).expand(3, *shape)
    with torch.no_grad():
        assert torch.equal(bare.eval()(x), model.eval()(x))
    seen: list[int] = []
    (dropout,) = (layer for layer in model.modules() if isinstance(layer, nn.Dropout))
    dropout.register_forward_hook(lambda layer, given, output: seen.append(given[0].shape[1]))
    dropout.train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model(x)
    dense = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert seen == [layer.out_features for layer in dense[:-1]]


@every("kind", ["mlp", "lenet5", "fedlog_cnn", "shufflenet_v2"])
def test_images_are_augmented_in_training_alone(kind: Any) -> None:
    config = ModelConfig(kind=kind, augment="crops")
    bare, model = (own.build((1, 28, 28), 10, seed=1) for own in (replace(config, augment=None), config))
    np.testing.assert_array_equal(*(to_vector(own, statistics=True) for own in (bare, model)))
    assert config.draws
    x = torch.arange(2 * 784.0).view(2, 1, 28, 28) / 784
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        assert torch.equal(bare.eval()(x), model.eval()(x))
        place = model.get_submodule("augmentation").train()
        moved = model(x)
        torch.manual_seed(1)
        assert torch.equal(moved, bare(place(x)))
        assert not torch.equal(moved, bare(x))


def test_only_images_are_augmented() -> None:
    with pytest.raises(ValueError, match="`augment` with a model of images, got kind 'char_lstm'"):
        ModelConfig(kind="char_lstm", augment="crops")
    with pytest.raises(ConfigError, match=r"Expected images .* got records of shape \(9,\)"):
        ModelConfig(kind="mlp", augment="crops").build((9,), 2, seed=0)


@every(
    ("settings", "said"),
    [
        ({"kind": "mlp", "hidden": ()}, "got kind 'mlp' with hidden = .*Leave `dropout` out"),
        ({"kind": "shufflenet_v2"}, "got kind 'shufflenet_v2'. Leave `dropout` out"),
        ({"kind": "mlp", "dropout": 1.0}, "dropout in .*got 1.0"),
        ({"kind": "mlp", "dropout": -0.1}, "dropout in .*got -0.1"),
        ({"kind": "mlp", "dropout": float("nan")}, "dropout in .*got nan"),
    ],
)
def test_dropout_that_would_do_nothing_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ModelConfig(**{"dropout": 0.5, **settings})
    ModelConfig(**{**settings, "dropout": 0.0})


def test_shuffle_interleaves_the_halves_and_half_the_channels_pass_a_unit_of_stride_one() -> None:
    x = torch.arange(6.0).view(1, 6, 1, 1).expand(2, 6, 4, 4)
    assert shuffle(x)[0, :, 0, 0].tolist() == [0, 3, 1, 4, 2, 5]
    out = Unit(6, 6, 1)(x)
    assert out[0, ::2, 0, 0].tolist() == [0, 1, 2]


def test_a_strided_unit_halves_the_map_and_sees_all_channels() -> None:
    unit = Unit(4, 10, 2).eval()
    x = torch.rand(1, 4, 8, 8)
    assert unit(x).shape == (1, 10, 4, 4)
    moved = [unit(x + torch.eye(4)[c].view(1, 4, 1, 1)).ne(unit(x)).flatten(2).any(2) for c in range(4)]
    assert all(change[0, ::2].any() and change[0, 1::2].any() for change in moved)


@every("kind", ["mlp", "shufflenet_v2"])
def test_a_seed_fixes_the_model_and_leaves_the_global_generator_alone(kind: Any) -> None:
    config = ModelConfig(kind=kind)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = to_vector(config.build((3, 32, 32), 10, seed=2**63 - 1), statistics=True)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    assert np.array_equal(first, to_vector(config.build((3, 32, 32), 10, seed=2**63 - 1), statistics=True))
    assert not np.array_equal(first, to_vector(config.build((3, 32, 32), 10, seed=1), statistics=True))


@every(
    "settings",
    [
        {"kind": "lenet5", "hidden": [64]},
        {"kind": "mlp", "hidden": [64, 0]},
        {"kind": "mlp", "width": 0.5},
        {"kind": "lenet5", "width": 1.0},
        {"kind": "adds_cnn", "width": 0.0},
        {"kind": "adds_cnn", "width": 1.5},
        {"kind": "shufflenet_v2", "width": 0.75},
        {"kind": "resnet"},
    ],
)
def test_settings_that_do_not_fit_the_kind_are_refused_when_read(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(ModelConfig).validate_python(settings)


@every(
    ("config", "shape", "message"),
    [
        (ModelConfig(kind="lenet5"), (1, 8, 8), "28x28 or 32x32"),
        (ModelConfig(kind="fedlog_cnn"), (1, 30, 30), "28x28 or 32x32"),
        (ModelConfig(kind="lenet5"), (9,), "square images"),
        (ModelConfig(kind="shufflenet_v2"), (3, 32, 16), "square images"),
        (ModelConfig(kind="fedcor_cnn"), (3, 17, 17), "at least 18x18"),
        (ModelConfig(kind="adds_cnn"), (3, 3, 3), "at least 4x4"),
        (ModelConfig(kind="mlp", profiled_layer="fc9"), (9,), "nearest names are fc"),
        (ModelConfig(kind="char_lstm"), (1, 28, 28), "rows of characters"),
    ],
)
def test_shapes_and_layers_that_a_kind_cannot_take_are_named(
    config: ModelConfig, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config.build(shape, 10, 0)


def test_a_model_too_large_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(ConfigError, match=r"\(30000, 30000\)"):
        ModelConfig(kind="mlp", hidden=(30_000, 30_000)).build((64,), 10, 0)
    with pytest.raises(ConfigError, match="100,000,000 parameters"):
        ModelConfig(kind="lenet5").build((1, 28, 28), 10**8, 0)
    for outputs in (0, -1, 10**30):
        with pytest.raises(ConfigError, match=f"and {outputs} outputs"):
            ModelConfig(kind="lenet5").build((1, 28, 28), outputs, 0)
    for hidden in ((10**9, 32), (10**30,), (32, 0)):
        with pytest.raises(ValueError, match=r"Expected hidden in \[1, 10\^8\]"):
            ModelConfig(kind="mlp", hidden=hidden)
    with pytest.raises(ValueError, match="at most 100 hidden layers"):
        ModelConfig(kind="mlp", hidden=(1,) * 101)


def test_parameters_are_counted_as_they_are_made() -> None:
    config, before = ModelConfig(kind="mlp", hidden=(64, 32)), torch.get_rng_state()
    made = config.build((9,), 2, 7)
    assert config.parameters((9,), 2) == sum(entry.numel() for entry in made.parameters()) == 2786
    assert ModelConfig(kind="mlp", hidden=(20_000, 20_000)).parameters((9,), 2) == 400_260_002
    assert torch.equal(torch.get_rng_state(), before)
