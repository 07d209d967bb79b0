"""One record moves a sum of clipped gradients by at most C, whatever bits the server broadcasts.

The sums are float64, and fractions compare them, so nothing is rounded beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.every import every
from support.tiny_dpsgd import Own, config
from torch import Tensor, nn

from securefl.core.errors import ConfigError
from securefl.training import load_vector
from securefl.training.clipped import Whole
from securefl.training.cohorts import clipped_sums
from securefl.training.dpsgd import _summing
from securefl.training.models import MLP
from securefl.training.private_steps import DPSGD
from securefl.training.stack import Stack, Tail
from securefl.training.vector import size

CLASSES = 3
Batch = tuple[NDArray[np.float32], NDArray[np.int64]]
Sums = NDArray[np.float64]
Way = Callable[[NDArray[np.float32], Batch, DPSGD], Sums]


class Alone(nn.Module):
    """A `forward` that no list knows, so its records pass one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)))


def convolved() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(4, CLASSES)
    )


def dense() -> MLP:
    return MLP(4, CLASSES, (4,))


def by_hooks(make: Callable[[], nn.Module]) -> Way:
    @cache
    def model() -> nn.Module:  # a model is probed once
        return make().train()

    def total(weights: NDArray[np.float32], batch: Batch, settings: DPSGD) -> Sums:
        made = model()
        load_vector(made, weights)
        x, y = (torch.from_numpy(part) for part in batch)
        with _summing(made, x, y, settings, "cross_entropy") as summed:
            return np.asarray(summed(x, y).numpy())

    return total


def in_a_stack(weights: NDArray[np.float32], batch: Batch, settings: DPSGD) -> Sums:
    x, y = (torch.from_numpy(part) for part in batch)
    with torch.no_grad():
        stack = Stack(dense(), [weights], Tail(loss="cross_entropy"), slots=2)
        return np.asarray(stack.layout.rows(clipped_sums(stack, [(x, y)], settings)).numpy()[0])


WAYS: dict[str, tuple[Way, Callable[[], nn.Module]]] = {
    "hooks of a dense model": (by_hooks(dense), dense),
    "hooks of a convolution": (by_hooks(convolved), convolved),
    "hooks of a layer of one's own": (by_hooks(Own), Own),
    "each record alone": (by_hooks(Alone), Alone),
    "side by side": (in_a_stack, dense),
}


@contextmanager
def flushed(on: bool) -> Iterator[None]:
    """Denormals of float32 are zeros, in this thread, as a caller of the package can have it."""
    torch.set_flush_denormal(on)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


# What a server can send ---------------------------------------------------------------------------


def any_bits(rng: np.random.Generator, shape: Sequence[int]) -> NDArray[np.float32]:
    """Any float32: denormals, infinities and nan among them."""
    return rng.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32)


def scaled(rng: np.random.Generator, shape: Sequence[int]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return (rng.normal(size=shape) * 10 ** rng.uniform(-46, 39)).astype(np.float32)


def mixed(rng: np.random.Generator, shape: Sequence[int]) -> NDArray[np.float32]:
    return np.where(rng.random(shape) < 0.9, scaled(rng, shape), any_bits(rng, shape))


def broadcast(model: nn.Module, rng: np.random.Generator) -> NDArray[np.float32]:
    """Every parameter of another scale. Half of the time the classes are so far apart that slopes are tiny,
    whatever the activations are."""
    found = []
    for name, one in model.named_parameters():
        drawn = [any_bits, mixed, scaled, scaled, scaled][rng.integers(5)](rng, tuple(one.shape))
        found.append((name, drawn))
    steep = rng.random() < 0.5
    parts = []
    for number, (_, values) in enumerate(found):
        if steep and number == len(found) - 1:
            values = np.array([rng.uniform(0, 110), *[0] * (CLASSES - 1)], np.float32)
        elif steep and number == len(found) - 2:
            values = values * 0 if np.isfinite(values).all() else np.zeros_like(values)
        parts.append(values.ravel())
    return np.concatenate(parts)


def records(rng: np.random.Generator, n: int) -> Batch:
    x = np.array([[scaled, scaled, mixed][rng.integers(3)](rng, (4,)) for _ in range(n)])
    return x.reshape(n, 4), rng.integers(0, CLASSES, n) * (rng.random() < 0.5)


def norm_squared(values: Sums) -> Fraction:
    return sum((Fraction(float(one)) ** 2 for one in values), Fraction(0))


def sums_of(way: str, seed: int, flush: bool) -> tuple[float, int, Callable[[Sequence[int]], Sums]]:
    """C, the number of records, and the sum over the records at these places; skips what is refused."""
    rng = np.random.default_rng(seed)
    total, make = WAYS[way]
    weights = broadcast(make(), rng)
    assert len(weights) == size(make())
    n = int(rng.choice([1, 2, 4, 33]))
    x, y = records(rng, n)
    clip_norm = float(10 ** rng.uniform(-30, 30) if rng.random() < 0.7 else rng.choice([1e-4, 1.0]))

    def of(places: Sequence[int]) -> Sums:
        with flushed(flush):
            return total(weights, (x[list(places)], y[list(places)]), config(clip_norm=clip_norm))

    return clip_norm, n, of


def hold(way: str, seed: int, flush: bool) -> None:
    clip_norm, n, of = sums_of(way, seed, flush)
    try:
        whole, less, alone = of(range(n)), of(range(n - 1)), of([n - 1])
        turned = of(range(n)[::-1])
    except ConfigError:
        return  # a model that cannot be trained so, whatever its records are
    assert np.isfinite(whole).all()
    bound = Fraction(clip_norm) ** 2
    assert norm_squared(whole - less) <= bound * (1 + Fraction(1, 2**50))  # the difference is rounded
    assert norm_squared(alone) <= bound
    # No bit of a gradient depends on the batch: what is left is the rounding of sums in float64.
    room = (n * 2.0**-48 * clip_norm) ** 2
    assert norm_squared(whole - less - alone) <= room
    assert norm_squared(whole - turned) <= room


@every("way", WAYS)
@settings(max_examples=8, phases=[Phase.generate])
@given(seed=st.integers(0, 2**32), flush=st.booleans())
def test_no_record_moves_a_sum_further_than_the_clip_norm(way: str, seed: int, flush: bool) -> None:
    hold(way, seed, flush)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=1500, phases=[Phase.generate])
@given(seed=st.integers(0, 2**32), flush=st.booleans())
def test_nor_does_it_under_many_broadcasts(way: str, seed: int, flush: bool) -> None:
    hold(way, seed, flush)


@every("bad", [np.nan, np.inf])
def test_rows_without_a_record_add_nothing_under_weights_that_are_not_finite(bad: float) -> None:
    weights = np.full(size(dense()), bad, np.float32)
    assert not in_a_stack(weights, (np.ones((1, 4), np.float32), np.zeros(1, np.int64)), config()).any()


def attack(outputs: int) -> tuple[NDArray[np.float32], Batch]:
    """A dense model whose slopes are below 2.6e-23, at activations near 1e19, and its record."""
    body = [np.zeros((4, 4)), np.full(4, 9e18)]
    head = [np.zeros((outputs, 4)), np.array([53.0, *[0.0] * (outputs - 1)])]
    return np.concatenate([part.ravel() for part in (*body, *head)]).astype(np.float32), (
        np.zeros((1, 4), np.float32),
        np.zeros(1, np.int64),
    )


@every("way", [way for way, (_, make) in WAYS.items() if make in (dense, Alone)])
@every(("clip_norm", "flush"), [(1e-4, False), (1e-5, False), (1e-4, True), (1e-20, True)])
def test_slopes_whose_squares_vanish_in_float32_are_clipped(way: str, clip_norm: float, flush: bool) -> None:
    total, _ = WAYS[way]
    weights, batch = attack(CLASSES)
    with flushed(flush):
        found = total(weights, batch, config(clip_norm=clip_norm))
    assert Fraction(99, 100) * Fraction(clip_norm) ** 2 <= norm_squared(found) <= Fraction(clip_norm) ** 2


# Clip norms that cannot be ------------------------------------------------------------------------


@every("clip_norm", [0.0, -1.0, float("nan"), float("inf"), 1e-31, 1e31, 5e-324, 1e300])
def test_a_clip_norm_that_float64_cannot_keep_is_refused(clip_norm: float) -> None:
    with pytest.raises(ValueError, match="clip_norm"):
        config(clip_norm=clip_norm)


def test_the_least_and_the_largest_clip_norm_are_taken() -> None:
    made: list[Any] = [config(clip_norm=1e-30), config(clip_norm=1e30)]
    assert [one.clip_norm for one in made] == [1e-30, 1e30]


def test_the_norm_of_a_gradient_of_many_entries_is_not_too_short() -> None:
    """In float32 it is short by 9e-4 at 10^6 entries, where SLACK is 1e-5."""
    gradients = torch.full((1, 1_000_000), 0.1)
    exact = Fraction(float(gradients[0, 0])) ** 2 * gradients.shape[1]
    found = Fraction(float(Whole(gradients).squares()))
    assert abs(found / exact - 1) < Fraction(1, 10**9)
