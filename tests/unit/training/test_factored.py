"""The first layer as a broadcast and a product: steps as those of the weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from securefl.core.errors import ConfigError, DataError
from securefl.training import ModelConfig, cohorts
from securefl.training.cohorts import Batched, require_alike
from securefl.training.factored import Factored, steps_factored
from securefl.training.fit import Fit
from securefl.training.fitting import one_by_one
from securefl.training.stack import Stack
from securefl.training.task import Problem
from tests.support.side_by_side import CLASSES, assert_near, fits, local, problem, vectors

ROWS = 32


@given(
    slots=st.integers(1, 4),
    steps=st.integers(1, 4),
    high=st.integers(1, 6),
    wide=st.integers(1, 6),
    data=st.data(),
)
def test_steps_are_those_of_the_weights(
    slots: int, steps: int, high: int, wide: int, data: st.DataObject
) -> None:
    high, wide, rate = 4 * high, 4 * wide, 0.3
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))

    def drawn(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) - 0.5

    start, x, bias = drawn(high, wide), drawn(slots, steps * ROWS, wide), drawn(slots, high)
    factored, weights = Factored(start, x, ROWS), start.expand(slots, -1, -1)
    done = data.draw(st.integers(1, steps))
    for step in range(done):
        assert not factored.full
        own = x[:, step * ROWS : (step + 1) * ROWS]
        expected = torch.baddbmm(bias[:, None], own, weights.transpose(1, 2))
        torch.testing.assert_close(factored.forward(bias), expected, rtol=1e-5, atol=1e-5)
        slope = drawn(slots, ROWS, high)
        factored.step(slope, rate)
        weights = weights - rate * torch.bmm(slope.transpose(1, 2), own)
    assert factored.full == (done == steps)
    written = torch.full((slots, high, wide), float("nan"))
    factored.write(written)
    torch.testing.assert_close(written, weights, rtol=1e-5, atol=1e-5)
    for slot in range(slots):
        torch.testing.assert_close(factored.change(slot), weights[slot] - start, rtol=1e-5, atol=1e-5)


SHAPE = (16, 8)
STEPS = 4


def wide(*, kind: Any = "classification", **changes: Any) -> Problem:
    """A problem whose first layer is `Factored` for STEPS steps, of ROWS records each."""
    assert steps_factored(ROWS, 512, 128) == STEPS
    here = problem(local(**{"batch_size": 8, "epochs": 1} | changes), kind=kind, shape=SHAPE)
    return replace(here, model=ModelConfig(kind="mlp", hidden=(512, 8)))


def again(given: Sequence[Fit]) -> list[Fit]:
    """The same trainings, with streams of their own."""
    return [replace(fit, context=replace(fit.context, rng=copy.deepcopy(fit.context.rng))) for fit in given]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of steps that stacks expect."""
    seen: list[int] = []
    expect = Stack.expect

    def noted(stack: Stack, x: Tensor, rows: int) -> None:
        seen.append(x.shape[1] // rows)
        expect(stack, x, rows)

    monkeypatch.setattr(Stack, "expect", noted)
    return seen


def test_clients_that_end_before_and_after_it_have_their_own_bits() -> None:
    """The clients of `fits` have 1 to 7 steps."""
    here, train = wide(), Batched(one_by_one, 10)
    together = train(fits(here))
    assert_near(vectors(together), vectors(one_by_one(fits(here))), 1e-6)
    for left in ([0], [2, 0], [9], [0, 4, 9], [1, 2]):
        for k, found in zip(left, train([fits(here)[k] for k in left]), strict=True):
            np.testing.assert_array_equal(found, together[k])


@pytest.mark.parametrize("most", [4, 10])
def test_an_update_is_the_model_minus_its_start(most: int) -> None:
    """Of clients of at most STEPS steps, and of all."""
    here, train = wide(), Batched(one_by_one, 10)
    models = vectors(train(fits(here)[:most]))
    updates = vectors(train([replace(fit, update=True) for fit in fits(here)[:most]]))
    np.testing.assert_allclose(updates, models - here.initial, atol=1e-7)
    assert np.abs(updates).max() > 1e-3


def test_who_diverges_changes_no_bit_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first layer stays a product, as without it. What memory held before is not read."""
    empty = torch.empty

    def of_nan(*size: Any, **how: Any) -> Tensor:
        return empty(*size, **how) if how else empty(*size).fill_(float("nan"))

    monkeypatch.setattr(torch, "empty", of_nan)
    here, train = wide(), Batched(one_by_one, 10)
    own = [replace(fit, update=True) for fit in fits(here)[:3]]
    together = train(own)
    spoilt = [replace(fit, update=True) for fit in fits(here)[:3]]
    x = spoilt[1].context.x.copy()
    x[0] = np.nan
    spoilt[1] = replace(spoilt[1], context=replace(spoilt[1].context, x=x))
    came = train(spoilt)
    assert isinstance(came[1], DataError)
    for k in (0, 2):
        np.testing.assert_array_equal(came[k], together[k])


def test_a_product_that_overflows_is_told_though_its_factors_are_finite() -> None:
    """The slopes, the losses and the other weights are finite, and the change of the first layer is not."""
    here = wide(kind="regression", learning_rate=100.0)
    start = np.zeros_like(here.initial)
    first, second = 512 * 128, 512 * 129 + 8 * 512
    start[first : first + 512] = 1.0  # all units are on, whatever the record
    start[512 * 129 : second] = 1 / 512
    start[second + 8 : -4] = 1.0
    x, y = np.zeros((2, *SHAPE), np.float32), np.zeros((2, CLASSES), np.float32)
    own = [
        replace(fit, start=start, update=True, context=replace(fit.context, broadcast=start))
        for fit in fits(here, [(np.full_like(x, 3e38), y), (x, y)])
    ]
    came, fine = Batched(one_by_one, 2)(own)
    assert isinstance(fine, np.ndarray)
    assert np.isfinite(fine).all()
    assert isinstance(came, DataError)
    assert "diverged" in str(came)


def test_a_finite_model_of_a_huge_norm_is_returned() -> None:
    here = wide()
    start = here.initial.copy()
    start[512 * 128] = -1e20  # the bias of a unit, which is off
    own = [replace(fit, start=start, context=replace(fit.context, broadcast=start)) for fit in fits(here)[:2]]
    for found in Batched(one_by_one, 2)(own):
        assert isinstance(found, np.ndarray)
        assert found[512 * 128] == np.float32(-1e20)


def test_personal_models_train_as_if_nobody_were_beside_them() -> None:
    """A client whose start is no broadcast has the weights written, alone and beside others."""
    here, train = wide(), Batched(one_by_one, 10)

    def personal() -> list[Fit]:
        return [replace(fit, start=fit.start + np.float32(0.01 * k)) for k, fit in enumerate(fits(here)[:4])]

    together = train(personal())
    mixed = train([*personal()[:2], *fits(here)[2:6]])
    for k in range(4):
        np.testing.assert_array_equal(train([personal()[k]])[0], together[k])
    for k in range(2):
        np.testing.assert_array_equal(mixed[k], together[k])
    alone = train(fits(here)[2:6])
    for k in range(4):
        np.testing.assert_array_equal(mixed[2 + k], alone[k])


def test_the_first_layer_is_a_product_for_the_broadcast_alone(told: list[int]) -> None:
    here = wide()
    train = Batched(one_by_one)
    train([replace(fit, start=fit.start.copy()) for fit in fits(here)])
    assert not told
    train(fits(here))
    assert told == [1, 1, 2, STEPS, STEPS], "the tests of the kernels, and the pass"
    for changes in ({"momentum": 0.5}, {"proximal": 0.1}, {"weight_decay": 0.1}, {"optimizer": "adam"}):
        told.clear()
        Batched(one_by_one)(fits(wide(**changes)))
        assert not told, changes
    Batched(one_by_one)(fits(problem(local(), shape=SHAPE)))
    assert not told, "a small layer"


def test_the_records_of_few_steps_may_be_gathered_at_a_time(
    told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohorts, "_GATHERED", 1)
    Batched(one_by_one)(fits(wide()))
    assert told == [1, 1, 2, 1, 1]


def test_copies_of_one_broadcast_share_a_pass(told: list[int]) -> None:
    here = wide()
    together = Batched(one_by_one)(fits(here))
    apart = []
    for fit in fits(here):
        own = here.initial.copy()
        apart.append(replace(fit, start=own, context=replace(fit.context, broadcast=own)))
    told.clear()
    came = Batched(one_by_one)(apart)
    assert told == [1, 1, 2, STEPS, STEPS]
    np.testing.assert_array_equal(vectors(came), vectors(together))


def test_clients_of_two_broadcasts_have_their_own_bits() -> None:
    here = wide()
    other = here.initial * np.float32(1.1)
    own = [
        replace(fit, start=other, context=replace(fit.context, broadcast=other)) if k % 2 else fit
        for k, fit in enumerate(fits(here))
    ]
    together = Batched(one_by_one)(again(own))
    for k, fit in enumerate(again(own)):
        np.testing.assert_array_equal(Batched(one_by_one)([fit])[0], together[k])


def test_a_broadcast_that_changes_afterwards_changes_no_result() -> None:
    here = wide()
    start = here.initial.copy()
    own = [replace(fit, start=start, context=replace(fit.context, broadcast=start)) for fit in fits(here)[:3]]
    expected = vectors(Batched(one_by_one)(again(own)))
    came = Batched(one_by_one)(own)
    start[:] = 1
    np.testing.assert_array_equal(vectors(came), expected)


def test_a_head_alone_is_no_first_layer() -> None:
    here = replace(wide(epochs=2), model=ModelConfig(kind="mlp", hidden=()), outputs=600)
    came = Batched(one_by_one)(fits(here))
    np.testing.assert_allclose(vectors(came), vectors(one_by_one(fits(here))), atol=1e-6)


def test_kernels_whose_bits_follow_the_number_of_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fit, *_ = fits(wide())
    require_alike(fit, ROWS, 4)

    def by_height(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return x @ weight.t() * (1 + 1e-6 * (len(x) > 4 * ROWS))

    monkeypatch.setattr("securefl.training.factored.product", by_height)
    with pytest.raises(ConfigError, match="clients cannot be trained side by side"):
        require_alike(fit, ROWS, 4)


def test_several_blocks_of_records_train_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    here = wide(learning_rate=0.05)
    expected = vectors(one_by_one(fits(here)))
    for steps in (1, 2, 3, STEPS, STEPS + 1, 100):
        monkeypatch.setattr(cohorts, "_GATHERED", 10 * ROWS * 128 * steps)
        assert_near(vectors(Batched(one_by_one, 10)(fits(here))), expected, 1e-6)


def test_a_training_of_many_passes_stays_near_that_of_a_client_alone() -> None:
    here = wide(epochs=5)
    came = Batched(one_by_one)(fits(here))
    assert_near(vectors(came), vectors(one_by_one(fits(here))), 1e-5)
