"""No record moves a clipped sum by more than C, whatever weights the server sent and whatever the record is.

In every way in which gradients are clipped: by layers, by a sampler, alone, and side by side. Weights,
records and targets have any magnitude of float32, from subnormal numbers to infinity, and nan. The move is
the exact distance of two float64 vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any, Final

import numpy as np
import pytest
import torch
from hypothesis import Phase, event, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.every import every
from support.examples import examples
from support.tiny_dpsgd import Own, Twice, config, seeded
from torch import Tensor, nn

from securefl.core.errors import ConfigError
from securefl.training import to_vector
from securefl.training.cohorts import clipped_sums
from securefl.training.devices import in_mode, one_thread
from securefl.training.dpsgd import _summing
from securefl.training.losses import Loss
from securefl.training.models import MLP, ModelConfig
from securefl.training.row_wise import outside
from securefl.training.stack import Stack, Tail

Records = tuple[Tensor, Tensor]
WIDTH, CLASSES, BASE = 4, 3, 37
"""BASE: so many records beside the one that is tried, in two chunks."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What the server and the owner of the record choose.

    weights: the powers of ten of the model's parameters, in turn. x, y: those of the record and its targets.
    odd: a value that replaces an entry of the weights, the record, or nothing; or any bits in place of all
    of both. label: of the record. like: whether the records beside it are of its magnitude too.
    """

    clip_norm: float
    weights: tuple[float, ...]
    x: float
    y: float = 0.0
    odd: tuple[str, float] = ("", 0.0)
    label: int = 0
    like: bool = False
    flushed: bool = False
    seed: int = 0


class Alone(nn.Module):
    """A model behind a forward that no list knows, so its records pass one by one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


def mlp() -> nn.Module:
    return ModelConfig(kind="mlp", hidden=(5,)).build((WIDTH,), CLASSES, 0)


def convolved() -> nn.Module:
    shaped = nn.Unflatten(1, (1, 2, 2))
    return nn.Sequential(
        shaped, nn.Conv2d(1, 2, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(18, CLASSES)
    )


def circular() -> nn.Module:
    """Neither Opacus nor this package has a sampler of such a convolution."""
    convolution = nn.Conv1d(1, 3, 3, padding=1, padding_mode="circular")
    return nn.Sequential(nn.Unflatten(1, (1, 4)), convolution, nn.Flatten(), nn.Linear(12, CLASSES))


def sequence() -> nn.Module:
    first, last = nn.Linear(2, 2), nn.Linear(4, CLASSES)
    return nn.Sequential(nn.Unflatten(1, (2, 2)), first, nn.Tanh(), nn.Flatten(), last)


def half_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    model.get_parameter("0.bias").requires_grad_(False)
    model.get_parameter("2.weight").requires_grad_(False)
    return model


MODELS: Final[dict[str, Callable[[], nn.Module]]] = {
    "by layers": mlp,
    "half frozen": half_frozen,
    "convolution": convolved,
    "alone, circular": circular,
    "sequence": sequence,
    "alone": lambda: Alone(mlp()),
    "alone, used twice": Twice,
    "alone, a layer of one's own": Own,
    "side by side": mlp,
}


@cache
def model_of(way: str) -> nn.Module:
    """Made once, since a model's public passes run once."""
    return seeded(MODELS[way])


def summed(way: str, sent: Sent, records: Records, loss: Loss) -> NDArray[np.float64] | None:
    """The sum of the records' clipped gradients on `model_of(way)`, or None if it refuses these weights."""
    model, settings = model_of(way), config(clip_norm=sent.clip_norm, expected_batch=32)
    with flushed(sent.flushed), one_thread(), in_mode(model, training=True):
        if way == "side by side":
            assert isinstance(model, MLP)
            stack = Stack(model, [to_vector(model)], Tail(loss=loss), slots=2)
            with torch.no_grad():
                return np.asarray(stack.layout.rows(clipped_sums(stack, [records], settings)).numpy()[0])
        assert bool(outside(model)) == way.startswith("alone")
        try:
            with _summing(model, *records, settings, loss) as total:
                return np.asarray(total(*records).numpy())
        except ConfigError:
            return None


@contextmanager
def flushed(on: bool) -> Iterator[None]:
    """A context in which the processor takes subnormal numbers for zero."""
    torch.set_flush_denormal(on)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def scaled(rng: np.random.Generator, shape: tuple[int, ...], power: float) -> NDArray[np.float32]:
    with np.errstate(over="ignore", under="ignore"):
        return (rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape) * 10.0**power).astype(np.float32)


def any_bits(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)


def written(model: nn.Module, sent: Sent) -> None:
    rng, bits = np.random.default_rng(sent.seed), sent.odd[0] == "bits"
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            shape, power = tuple(parameter.shape), sent.weights[number % len(sent.weights)]
            values = any_bits(rng, shape) if bits else scaled(rng, shape, power)
            parameter.copy_(torch.from_numpy(np.asarray(values)))  # a number, if it has no dimension
        if sent.odd[0] == "weights":
            next(model.parameters()).view(-1)[0] = sent.odd[1]


def records_of(sent: Sent, loss: Loss) -> tuple[Records, Records]:
    """The records beside it, and the one that is tried."""
    rng = np.random.default_rng(sent.seed + 1)
    x = np.concatenate([
        scaled(rng, (BASE, WIDTH), sent.x if sent.like else 0.0), scaled(rng, (1, WIDTH), sent.x)
    ])  # fmt: skip
    if sent.odd[0] == "record":
        x[-1, 0] = sent.odd[1]
    if sent.odd[0] == "bits":
        x[-1] = any_bits(rng, (WIDTH,))
    targets: NDArray[Any] = np.append(rng.integers(0, CLASSES, BASE), sent.label)
    if loss == "mse":
        targets = scaled(rng, (BASE + 1, CLASSES), sent.y)
    columns = torch.from_numpy(x), torch.from_numpy(targets)
    return (columns[0][:-1], columns[1][:-1]), (columns[0][-1:], columns[1][-1:])


def joined(*parts: Records) -> Records:
    x, y = (torch.cat(own) for own in zip(*parts, strict=True))
    return x, y


def square(of: NDArray[np.float64], less: NDArray[np.float64]) -> Fraction:
    """The exact squared distance."""
    pairs = zip(of.tolist(), less.tolist(), strict=True)
    return sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs if a != b), Fraction(0))


powers = st.floats(-45, 39).map(lambda power: round(power, 1))
odd_values = st.sampled_from([np.inf, -np.inf, np.nan, 0.0, 1e-45, 1e-38, 3.4e38])
wild = st.builds(
    Sent,
    clip_norm=st.sampled_from([1e-30, 1e-3, 1.0, 1e30]),
    weights=st.tuples(powers, powers, powers, powers),
    x=powers,
    y=powers,
    odd=st.tuples(st.sampled_from(["", "", "weights", "record", "bits"]), odd_values),
    label=st.integers(-1, CLASSES),
    like=st.booleans(),
    flushed=st.booleans(),
    seed=st.integers(0, 3),
)


def tiny_slopes(sent: Sent, size: float, half: float, sure: float) -> Sent:
    """Slopes of 10^(2 half), and of e^-sure, at inputs of 10^size, that the first layer takes back.

    Nothing overflows on the way, and in float32 the squares of the slopes vanish.
    """
    weights = (-size, 0.0, 0.0, sure) if sure else (-size, 0.0, half, half)
    return replace(sent, x=size, weights=weights, y=half, odd=("", 0.0))


tiny = st.builds(
    tiny_slopes,
    wild,
    st.floats(10, 18),
    st.floats(-18, -11),
    st.one_of(st.just(0.0), st.floats(1.6, 1.9)),
)
SLOPES: Final = Sent(clip_norm=1e-30, weights=(), x=0.0)


def hold(way: str, loss: Loss, sent: Sent) -> None:
    written(model_of(way), sent)
    base, one = records_of(sent, loss)
    whole_batch = joined(base, one)
    turned = whole_batch[0].flip(0), whole_batch[1].flip(0)
    found = [summed(way, sent, own, loss) for own in (one, base, whole_batch, turned)]
    if any(refused := [own is None for own in found]):
        event(f"{way}: refused")
        assert all(refused), "A refusal follows from the weights alone."
        return
    alone, without, whole, other = (own for own in found if own is not None)
    assert all(np.isfinite(own).all() for own in (alone, without, whole))
    most = Fraction(sent.clip_norm) ** 2
    length = square(alone, np.zeros_like(alone))
    event(f"{way}: " + ("nothing" if not length else "clipped" if length > most * Fraction(0.9) else "whole"))
    assert length <= most
    assert square(whole, without) <= most
    # No bit of a gradient depends on the batch: what is left is the rounding of sums in float64.
    room = most * (Fraction(BASE + 1) / 2**48) ** 2
    assert max(square(whole - without, alone), square(whole, other)) <= room


@every("loss", ["cross_entropy", "mse"])
@every("way", MODELS)
@settings(examples(6), phases=(Phase.explicit, Phase.generate))
@example(sent=tiny_slopes(replace(SLOPES, seed=3), 18, -12, 0.0))
@example(sent=tiny_slopes(replace(SLOPES, seed=1, label=1), 18, -12, 1.6))
@example(sent=tiny_slopes(replace(SLOPES, seed=4, flushed=True), 18, -12, 1.85))
@example(sent=tiny_slopes(replace(SLOPES, seed=2), 14, -12, 0.0))  # clipped, no normal float32 holds them
@given(sent=wild | tiny)
def test_no_record_moves_a_sum_by_more_than_the_clipping_norm(way: str, loss: Loss, sent: Sent) -> None:
    hold(way, loss, sent)


@pytest.mark.slow
@pytest.mark.parametrize("way", MODELS)
@settings(examples(1500), phases=[Phase.generate])
@given(loss=st.sampled_from(["cross_entropy", "mse"]), sent=wild | tiny)
def test_nor_does_it_under_many_weights(way: str, loss: Loss, sent: Sent) -> None:
    hold(way, loss, sent)


def filled(way: str, *values: Any) -> None:
    """Put a number, or a row, in place of each parameter of the model."""
    with torch.no_grad():
        for parameter, value in zip(model_of(way).parameters(), values, strict=True):
            parameter.copy_(torch.as_tensor(value))


ONE: Final = torch.zeros(1, dtype=torch.int64)


@every("bad", [np.nan, np.inf])
def test_rows_without_a_record_add_nothing_under_weights_that_are_not_finite(bad: float) -> None:
    filled("side by side", *[bad] * 4)
    found = summed(
        "side by side", replace(SLOPES, clip_norm=1.0), (torch.ones(1, WIDTH), ONE), "cross_entropy"
    )
    assert found is not None
    assert not found.any()


@every("way", ["by layers", "alone", "side by side"])
@every(("clip_norm", "flush"), [(1e-4, False), (1e-5, False), (1e-4, True), (1e-20, True)])
def test_slopes_whose_squares_vanish_in_float32_are_clipped(way: str, clip_norm: float, flush: bool) -> None:
    """Slopes below 2.6e-23, at activations near 1e19."""
    filled(way, 0.0, 9e18, 0.0, [53.0, 0.0, 0.0])
    sent = replace(SLOPES, clip_norm=clip_norm, flushed=flush)
    found = summed(way, sent, (torch.zeros(1, WIDTH), ONE), "cross_entropy")
    assert found is not None
    most = Fraction(clip_norm) ** 2
    assert Fraction(99, 100) * most <= square(found, np.zeros_like(found)) <= most


def test_the_norm_of_many_equal_entries_is_not_low() -> None:
    """In float32 the norm of 10^5 of them is low by 6e-5, and that of 8 10^6 by 2e-3."""
    width, outputs = 1000, 100
    shaped = nn.Unflatten(1, (1, width))
    model = nn.Sequential(shaped, nn.Linear(width, outputs, bias=False), nn.Flatten(), nn.Linear(outputs, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.get_parameter("3.weight")[0] = 1.0
    one = torch.ones(1, width), torch.zeros(1, dtype=torch.int64)
    with (
        in_mode(model, training=True),
        _summing(model, *one, config(clip_norm=1.0), "cross_entropy") as total,
    ):
        found = np.asarray(total(*one).numpy())
    assert 0.999 < np.linalg.norm(found) <= 1


@every("clip_norm", [0.0, -1.0, float("nan"), float("inf"), 1e-31, 1e31, 5e-324, 1e300])
def test_a_clip_norm_that_float64_cannot_keep_is_refused(clip_norm: float) -> None:
    with pytest.raises(ValueError, match="clip_norm"):
        config(clip_norm=clip_norm)


def test_the_least_and_the_largest_clip_norm_are_taken() -> None:
    assert [config(clip_norm=own).clip_norm for own in (1e-30, 1e30)] == [1e-30, 1e30]
