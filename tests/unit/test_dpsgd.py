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
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from securefl.accounting.composition import compose, rdp_epsilon
from securefl.accounting.events import History, steps_event
from securefl.core.errors import ConfigError, DataError
from securefl.core.keys import SecretKey
from securefl.core.reading import convert
from securefl.dp.noise import Source
from securefl.training import ModelConfig, evaluate, load_vector, to_vector
from securefl.training import dpsgd as module
from securefl.training.dpsgd import make_private, train_privately
from securefl.training.dpsgd_config import DPSGD
from securefl.training.per_record import SLACK, ClippedSum

Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


def config(**changes: Any) -> DPSGD:
    settings: dict[str, Any] = {
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "sampling_rate": 0.5,
        "expected_batch": 8,
        "steps": 3,
        "optimizer": "sgd",
        "learning_rate": 0.1,
    }
    return DPSGD(**(settings | changes))


def keyed(key: bytes = b"k") -> Source:
    return Source(SecretKey(key * 32))


class Quiet(Source):
    """Samples as ever, and takes the noise away, so that what lies under it can be looked at."""

    def normal(self, count: int) -> NDArray[np.float64]:
        return np.zeros(count)


def small_model(seed: int = 0) -> nn.Module:
    return ModelConfig(kind="mlp", hidden=(6,)).build((4,), 3, seed)


def small_data(n: int = 30, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 4)).astype(np.float32), rng.integers(3, size=n)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return make()


def trained(
    settings: DPSGD, data: Arrays, *, start: nn.Module | None = None, source: Source | None = None
) -> NDArray[np.float32]:
    model = copy.deepcopy(start or small_model())
    train_privately(model, *data, settings, "cross_entropy", source or keyed())
    return to_vector(model)


def summed(model: nn.Module, data: Arrays, clip_norm: float) -> NDArray[np.float64]:
    """The clipped sum of all records, read off one noiseless step of the real training."""
    made = copy.deepcopy(model)
    before = to_vector(made).astype(np.float64)
    settings = config(
        clip_norm=clip_norm, sampling_rate=1.0, steps=1, learning_rate=1.0, expected_batch=2.0**-10
    )
    train_privately(made, *data, settings, "cross_entropy", Quiet())
    difference: NDArray[np.float64] = (before - to_vector(made)) * 2.0**-10
    return difference


def by_hand(model: nn.Module, data: Arrays, clip_norm: float) -> NDArray[np.float64]:
    """The same, record by record."""
    made = copy.deepcopy(model).train()
    x, y = (torch.from_numpy(part) for part in data)
    free = [parameter for parameter in made.parameters() if parameter.requires_grad]
    total = np.zeros(sum(p.numel() for p in free))
    for i in range(len(x)):
        loss = cross_entropy(made(x[i : i + 1]), y[i : i + 1])
        slopes = torch.autograd.grad(loss, free, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([slope.reshape(-1) for slope in slopes]).double().numpy()
        total += gradient * min(1.0, clip_norm / np.linalg.norm(gradient))
    return total


def images(shape: tuple[int, ...], n: int) -> Arrays:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(10, size=n)


def built(kind: Any) -> nn.Module:
    return make_private(ModelConfig(kind=kind).build((3, 32, 32), 10, 0))[0]


@pytest.mark.parametrize("kind", ["mlp", "lenet5", "fedcor_cnn", "shufflenet_v2"])
def test_every_model_sums_its_records_clipped_gradients(kind: str) -> None:
    model, data = built(kind), images((3, 32, 32), 4)
    for clip_norm in (1e6, 0.5):
        expected = by_hand(model, data, clip_norm)
        found = summed(model, data, clip_norm)
        # of many thousand ReLUs one may fall on either side of its kink, by the size of the batch
        tolerance = 2e-2 if kind == "shufflenet_v2" else 1e-4
        assert np.linalg.norm(found - expected) < tolerance * np.linalg.norm(expected)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_the_clipped_sum_is_that_of_opacus() -> None:
    model = seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)))
    data = images((3, 8, 8), 12)
    wrapped = GradSampleModule(copy.deepcopy(model))
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=0.7,
        expected_batch_size=1,
    )
    cross_entropy(wrapped(torch.from_numpy(data[0])), torch.from_numpy(data[1])).backward()
    optimizer.step()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in optimizer.params]).numpy()
    np.testing.assert_allclose(summed(model, data, 0.7), expected, atol=1e-4)


class Twice(nn.Module):
    """A layer that is used twice, and another whose weight is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.same, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.same.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.same(torch.tanh(self.first(torch.tanh(self.first(x))))))


class Own(nn.Module):
    """A layer of a kind that no sampler knows, with a layer of a known kind in it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.scale * x))


class Sequence(nn.Module):
    """Dense layers on (n, 2, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.view(-1, 2, 2))).flatten(1))


class Circular(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 3, padding=1, padding_mode="circular")

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x[:, None]).square().sum(2)


def half_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    model.get_parameter("0.bias").requires_grad_(False)
    model.get_submodule("2").requires_grad_(False)
    model.get_parameter("4.weight").requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "make",
    [
        Twice,
        Own,
        Sequence,
        Circular,
        half_frozen,
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3, bias=False)),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.Linear(8, 3)),
    ],
    ids=["used twice", "own layer", "sequence", "circular", "half frozen", "in place", "norms"],
)
def test_unusual_models_sum_their_records_clipped_gradients(make: Callable[[], nn.Module]) -> None:
    model, data = seeded(make), small_data(7)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    for clip_norm in (1e6, 0.3):
        made = copy.deepcopy(model)
        settings = config(
            clip_norm=clip_norm, sampling_rate=1.0, steps=1, learning_rate=1.0, expected_batch=1
        )
        train_privately(made, *data, settings, "cross_entropy", Quiet())
        found = torch.cat([(model.get_parameter(n) - made.get_parameter(n)).reshape(-1) for n in names])
        np.testing.assert_allclose(found.detach().numpy(), by_hand(model, data, clip_norm), atol=2e-5)


def test_a_batch_of_several_parts_is_one_sum() -> None:
    data = small_data(300)
    np.testing.assert_allclose(summed(small_model(), data, 0.2), by_hand(small_model(), data, 0.2), atol=1e-3)


def largest_move(model: nn.Module, make: Callable[[float], Arrays]) -> float:
    """How far one record, of several scales, moves the sum at most."""
    moves = [np.linalg.norm(summed(model, make(scale), 1.0)) for scale in (1e-3, 1.0, 30.0, 1e4, 1e8)]
    return float(max(moves))


CLIPPED: dict[str, tuple[Callable[[], nn.Module], Callable[[float], Arrays]]] = {
    "dense": (small_model, lambda scale: (np.full((1, 4), scale, np.float32), np.array([0]))),
    "lenet5": (
        lambda: ModelConfig(kind="lenet5").build((1, 28, 28), 10, 0),
        lambda scale: (scale * images((1, 28, 28), 1)[0], np.array([3])),
    ),
}


@pytest.mark.parametrize("kind", CLIPPED)
def test_no_record_moves_the_sum_by_more_than_the_clipping_norm(kind: str) -> None:
    make, record = CLIPPED[kind]
    assert 1 - 10 * SLACK < largest_move(make(), record) <= 1


@pytest.mark.parametrize("kind", CLIPPED)
def test_a_skipped_clip_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "clamp_", lambda scale, max: scale.fill_(1.0))
    make, record = CLIPPED[kind]
    assert largest_move(make(), record) > 2


def test_a_step_by_hand() -> None:
    model = nn.Linear(2, 1, bias=False)
    load_vector(model, np.array([0.5, 0.1]))
    x, y = np.array([[3.0, 4.0], [0.01, 0.0]], np.float32), np.zeros((2, 1), np.float32)
    settings = config(clip_norm=2.0, sampling_rate=1.0, steps=1, learning_rate=0.5, expected_batch=4)
    train_privately(model, x, y, settings, "mse", Quiet())
    # 2 * 1.9 * (3, 4) has norm 19 and becomes 2 * (0.6, 0.8); 2 * 0.005 * (0.01, 0) stays
    expected = np.array([0.5, 0.1]) - 0.5 / 4 * np.array([1.2 + 1e-4, 1.6])
    np.testing.assert_allclose(to_vector(model), expected, rtol=2e-5)


def test_the_square_loss_is_the_mean_over_a_records_targets() -> None:
    x, _ = small_data(6)
    y = np.ones((6, 3), np.float32)
    model, made = small_model(), small_model()
    loss = torch.nn.functional.mse_loss(model(torch.from_numpy(x)), torch.from_numpy(y))
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    settings = config(clip_norm=1e6, sampling_rate=1.0, steps=1, learning_rate=1.0, expected_batch=6)
    train_privately(made, x, y, settings, "mse", Quiet())
    expected = np.concatenate([slope.numpy().ravel() for slope in slopes])
    np.testing.assert_allclose(to_vector(model) - to_vector(made), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ({"weight_decay": 0.3}, lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.3)),
        ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.1)),
    ],
    ids=["momentum", "weight decay", "adam"],
)
def test_updates_are_those_of_torch(settings: dict[str, Any], reference: Any) -> None:
    data = small_data(8)
    whole = config(clip_norm=1e6, sampling_rate=1.0, steps=4, expected_batch=8, **settings)
    model = small_model()
    optimizer = reference(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        cross_entropy(model(torch.from_numpy(data[0])), torch.from_numpy(data[1])).backward()
        optimizer.step()
    np.testing.assert_allclose(trained(whole, data, source=Quiet()), to_vector(model), rtol=1e-3, atol=1e-5)


def test_the_proximal_term_pulls_towards_the_model_that_came() -> None:
    start = to_vector(small_model())
    settings = config(steps=50, sampling_rate=1.0, expected_batch=30)
    free = trained(settings, small_data(), source=Quiet())
    near = trained(
        config(steps=50, sampling_rate=1.0, expected_batch=30, proximal=2.0), small_data(), source=Quiet()
    )
    assert np.linalg.norm(near - start) < 0.6 * np.linalg.norm(free - start)


# Randomness -------------------------------------------------------------------------------------------


class Watching(nn.Module):
    """Writes down which records come; the first feature is a record's number plus 1, and 0 where none is."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(1, 2)
        self.seen: list[list[int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append([int(value) - 1 for value in x[:, 0] if value >= 1])
        return self.fc1(x)


def batches(n: int, source: Source, **changes: Any) -> list[list[int]]:
    model = seeded(Watching)
    x, y = np.arange(1, n + 1, dtype=np.float32)[:, None], np.zeros(n, np.int64)
    train_privately(model, x, y, config(chunk=64, **changes), "cross_entropy", source)
    assert isinstance(model, Watching)
    return model.seen[2:]  # the model is tried on two public chunks first


def test_seeds_of_torch_and_numpy_decide_neither_noise_nor_batches() -> None:
    found, drawn = [], []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            np.random.seed(0)  # noqa: NPY002 - that it does nothing is the point
            found.append(trained(config(), small_data(0), source=Source()))
            drawn.append(batches(60, Source()))
    assert not np.allclose(found[0], found[1])
    assert drawn[0] != drawn[1]


def test_the_generators_of_torch_and_numpy_are_left_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    trained(config(), small_data(), source=Source())
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_one_key_repeats_a_run_and_another_key_does_not() -> None:
    one, same, other = (trained(config(), small_data(), source=keyed(key)) for key in (b"a", b"a", b"b"))
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)


def test_each_step_draws_its_batch_anew_and_rate_one_draws_all() -> None:
    drawn = batches(60, keyed())
    assert len(drawn) == 3
    assert drawn[0] != drawn[1] != drawn[2]
    assert all(10 < len(batch) < 50 for batch in drawn)  # 8 standard deviations: 2.5e-7 for a wrong alarm
    assert batches(60, keyed(), sampling_rate=1.0) == [list(range(60))] * 3


def test_a_record_is_drawn_whatever_others_there_are() -> None:
    fewer, more = batches(40, keyed()), batches(60, keyed())
    assert [[i for i in batch if i < 40] for batch in more] == fewer


def test_the_noise_does_not_depend_on_the_number_of_records() -> None:
    still = config(clip_norm=1e-12, noise_multiplier=1e12, sampling_rate=0.3)
    ends = [trained(still, small_data(n)) for n in (0, 1, 30)]
    assert np.allclose(ends[0], ends[1], atol=1e-6)
    assert np.allclose(ends[0], ends[2], atol=1e-6)


# Records, models and events ---------------------------------------------------------------------------


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
    "overflowing": (3e38, 0),
    "a norm that overflows": (1e25, 0),
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
    if bad == "a norm that overflows" and kind == "lenet5":
        fill = 1e30
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
    with pytest.raises(RuntimeError):
        train_privately(model, x[:, :3], y, config(), "cross_entropy", keyed())
    assert state(model) == before
    owners = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert len(owners) == len(list(model.parameters()))


def test_training_is_in_training_mode() -> None:
    modes = []

    class Mode(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            modes.append(self.training)
            return super().forward(x)

    model = seeded(lambda: nn.Sequential(Mode(4, 3).requires_grad_(False), nn.Linear(3, 3))).eval()
    train_privately(model, *small_data(), config(steps=2), "cross_entropy", keyed())
    assert modes == [True] * 4  # two public chunks, and two steps
    assert not model.training


def test_frozen_layers_stay_and_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    start = ModelConfig(kind="lenet5").build((1, 28, 28), 10, 0)
    for name in ("conv1", "conv2", "fc1"):
        start.get_submodule(name).requires_grad_(False)
    watched = []
    original = ClippedSum._parts

    def parts(self: ClippedSum, *arguments: Any) -> Any:
        watched.append([use.layer.out_features for use in self.uses])  # type: ignore[union-attr]
        return original(self, *arguments)

    monkeypatch.setattr(ClippedSum, "_parts", parts)
    model = copy.deepcopy(start)
    train_privately(model, *images((1, 28, 28), 6), config(sampling_rate=1.0), "cross_entropy", keyed())
    assert watched == [[84, 10]] * 3
    for name, parameter in model.named_parameters():
        frozen = not parameter.requires_grad
        assert torch.equal(parameter, start.get_parameter(name)) == frozen, name


def test_a_frozen_model_is_an_error() -> None:
    model = small_model().requires_grad_(False)
    with pytest.raises(ConfigError, match="frozen"):
        train_privately(model, *small_data(), config(), "cross_entropy", keyed())


class Flattening(nn.Module):
    """Its layer's rows are not records."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc1(x.reshape(-1, 2)).view(len(x), 2, 3).sum(1)


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


class Elsewhere(nn.Module):
    """Uses a layer's weight, but not the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.fc1.weight.T


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Bilinear(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc1(x, x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), "make_private"),
        (lambda: nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)), "make_private"),
        (
            lambda: nn.Sequential(nn.BatchNorm1d(4).requires_grad_(False).eval(), nn.Linear(4, 3)),
            "make_private",
        ),
        (lambda: nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Linear(4, 3)), "apart"),
        (Recurrent, "(?i)freeze it"),
        (TwoInputs, "one tensor"),
        (Elsewhere, "depend on a trained layer"),
        (Flattening, "one row a record"),
        (Overwriting, "in place"),
    ],
    ids=[
        "batch norm",
        "plain",
        "frozen",
        "instance norm",
        "lstm",
        "two inputs",
        "elsewhere",
        "flattening",
        "overwriting",
    ],
)
def test_models_that_cannot_be_trained_privately_are_errors(
    make: Callable[[], nn.Module], message: str
) -> None:
    model = seeded(make)
    before = to_vector(model)
    with pytest.raises(ConfigError, match=message):
        train_privately(model, *small_data(), config(sampling_rate=1.0), "cross_entropy", keyed())
    assert np.array_equal(to_vector(model), before)


def test_batch_norm_is_replaced_in_a_copy_and_reported() -> None:
    model = ModelConfig(kind="adds_cnn", width=0.25).build((1, 8, 8), 10, 0)
    model.get_submodule("norm2").requires_grad_(False)
    made, changes = make_private(model)
    assert isinstance(model.get_submodule("norm1"), nn.BatchNorm2d)
    assert [change.split(" became ")[1].split(",")[0] for change in changes] == [
        "GroupNorm(8",
        "GroupNorm(16",
        "GroupNorm(32",
    ]
    assert changes[0].startswith("norm1: BatchNorm2d(16, ")
    assert not any(parameter.requires_grad for parameter in made.get_submodule("norm2").parameters())
    train_privately(made, *images((1, 8, 8), 5), config(), "cross_entropy", keyed())
    assert make_private(made)[1] == ()
    assert np.array_equal(to_vector(make_private(model)[0]), to_vector(make_private(model)[0]))


def test_group_norm_behind_a_dense_layer_lets_something_through() -> None:
    for layer in (nn.BatchNorm1d(32), nn.Sequential(nn.BatchNorm1d(32))):
        made, changes = make_private(layer)
        assert len(changes) == 1
        through = made(torch.randn(3, 32, generator=torch.Generator().manual_seed(0)))
        assert float(through.detach().std()) > 0.5


def test_divergence_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"learning rate 1e\+38.*Lower the learning rate"):
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
    settings: dict[str, Any] = {
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "sampling_rate": 0.5,
        "expected_batch": 8,
        "steps": 3,
        "optimizer": "sgd",
        "learning_rate": 0.1,
    }
    assert convert(DPSGD, settings, "dpsgd") == config()
    with pytest.raises(ConfigError, match="(?i)" + next(iter(changes))):
        convert(DPSGD, settings | changes, "dpsgd")


def test_a_private_model_learns_real_digits() -> None:
    digits, order = load_digits(), np.random.default_rng(1).permutation(1797)
    x, y = (digits.images[order] / 16).astype(np.float32)[:, None], digits.target[order].astype(np.int64)
    model = ModelConfig(kind="mlp", hidden=(32,)).build(x.shape[1:], 10, seed=0)
    settings = config(sampling_rate=0.1, expected_batch=130, steps=150, learning_rate=1.0)
    event = train_privately(model, x[:1300], y[:1300], settings, "cross_entropy", keyed())
    assert compose({event: 1}, 1e-4) < 9
    assert evaluate(model, x[1300:], y[1300:], "classification").accuracy > 0.8


# The ledger's figures against Opacus' accountants -------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "z", "steps"),
    [(0.02, 1.1, 50), (0.02, 1.1, 5000), (0.05, 1.0, 100), (0.3, 2.0, 10), (0.004, 0.6, 1000)],
)
def test_epsilon_is_that_of_opacus(q: float, z: float, steps: int) -> None:
    """PRV gives an upper bound with an error of 0.01 on either side; RDP differs by its orders."""
    event = config(sampling_rate=q, noise_multiplier=z, steps=steps).event
    prv, rdp = PRVAccountant(), RDPAccountant()
    prv.history = rdp.history = [(z, q, steps)]
    assert 0 <= prv.get_epsilon(1e-5, eps_error=0.01) - compose({event: 1}, 1e-5) <= 0.02
    assert rdp_epsilon(History.of({event: 1}), 1e-5) == pytest.approx(rdp.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize(
    ("rounds", "expected", "by_rdp"),
    [((100, 100), 9.4756, 10.2194), ((100, 0), 7.8609, 8.5148), ((0, 100), 4.3772, 4.7285)],
)
def test_reference_ledgers(rounds: tuple[int, int], expected: float, by_rdp: float) -> None:
    """100 rounds of 50 steps of (0.02, 1.1), of a Gaussian of multiplier 10 (a step of rate 1), or both."""
    trainings, gaussians = rounds
    training = config(sampling_rate=0.02, noise_multiplier=1.1, steps=50).event
    gaussian = config(sampling_rate=1.0, noise_multiplier=10.0, steps=1).event
    events = {event: times for event, times in ((training, trainings), (gaussian, gaussians)) if times}
    assert compose(events, 1e-5) == pytest.approx(expected, abs=2e-3)
    assert rdp_epsilon(History.of(events), 1e-5) == pytest.approx(by_rdp, abs=2e-3)
    rdp = RDPAccountant()
    rdp.history = [(1.1, 0.02, 50 * trainings)] * bool(trainings) + [(10.0, 1.0, gaussians)] * bool(gaussians)
    assert rdp.get_epsilon(1e-5) == pytest.approx(by_rdp, abs=2e-3)


def test_importing_opacus_leaves_the_log_alone() -> None:
    script = "import logging, securefl.training.dpsgd; assert not logging.root.handlers"
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=120)


def test_only_one_module_of_training_needs_opacus() -> None:
    assert module.__name__ == "securefl.training.dpsgd"
    script = (
        "import sys, securefl.training.dpsgd_config, securefl.training.per_record; "
        "assert 'opacus' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
