"""The first layer as a broadcast and a product: steps as those of the weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from securefl.core.errors import ConfigError, DataError
from securefl.training import LocalTraining, ModelConfig, cohorts
from securefl.training.cohorts import Batched, require_alike
from securefl.training.factored import Factored, steps_factored
from securefl.training.fit import Fit
from securefl.training.fitting import one_by_one
from securefl.training.stack import Stack
from securefl.training.task import Problem
from tests.support.side_by_side import CLASSES, SHAPE, fits, local, problem, vectors

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


def wide(**changes: Any) -> Problem:
    """A problem whose first layer is `Factored` for three steps, of ROWS records each."""
    here = problem(local(batch_size=8, epochs=1, **changes))
    assert steps_factored(ROWS, 130) == 3
    return replace(here, model=ModelConfig(kind="mlp", hidden=(130, 8)))


def test_clients_that_end_before_and_after_it_have_their_own_bits() -> None:
    """The clients of `fits` have 1 to 7 steps."""
    here, train = wide(), Batched(one_by_one, 10)
    together = train(fits(here))
    np.testing.assert_allclose(vectors(together), vectors(one_by_one(fits(here))), atol=1e-6)
    for left in ([0], [2, 0], [9], [0, 4, 9], [1, 2]):
        for k, found in zip(left, train([fits(here)[k] for k in left]), strict=True):
            np.testing.assert_array_equal(found, together[k])


@pytest.mark.parametrize("most", [3, 10])
def test_an_update_is_the_model_minus_its_start(most: int) -> None:
    """Of clients of at most three steps, and of all."""
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
    here = problem(local(learning_rate=1.0, epochs=1), kind="regression")
    start = np.zeros_like(here.initial)
    first, second = 16 * 30, 16 * 31 + 8 * 16
    start[first : first + 16] = 1.0  # all units are on, whatever the record
    start[16 * 31 : second] = 1.0
    start[second : second + 8] = 1.0
    start[second + 8 : -4] = 1.0
    x, y = np.zeros((2, *SHAPE), np.float32), np.zeros((2, CLASSES), np.float32)
    huge = np.full_like(x, 1e37)
    own = [
        replace(fit, start=start, update=True, context=replace(fit.context, broadcast=start))
        for fit in fits(here, [(huge, y), (x, y)])
    ]
    came, fine = Batched(one_by_one, 2)(own)
    assert isinstance(fine, np.ndarray)
    assert np.isfinite(fine).all()
    assert isinstance(came, DataError)
    assert "diverged" in str(came)


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


def test_the_first_layer_is_a_product_for_the_broadcast_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    expect = Stack.expect

    def noted(stack: Stack, x: Tensor, rows: int) -> None:
        told.append(x.shape[1] // rows)
        expect(stack, x, rows)

    monkeypatch.setattr(Stack, "expect", noted)
    here = wide()
    Batched(one_by_one)(fits(here))
    assert told == [1, 2, 3, 1, 3], "the tests of the kernels, and the pass"
    for changes in ({"momentum": 0.5}, {"proximal": 0.1}, {"weight_decay": 0.1}, {"optimizer": "adam"}):
        told.clear()
        Batched(one_by_one)(fits(wide(**changes)))
        assert not told, changes
    Batched(one_by_one)([replace(fit, start=fit.start.copy()) for fit in fits(here)])
    assert not told


def test_kernels_whose_bits_follow_the_number_of_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fit, *_ = fits(wide())
    require_alike(fit, ROWS, 4)

    def by_height(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return x @ weight.t() * (1 + 1e-6 * (len(x) > 4 * ROWS))

    monkeypatch.setattr("securefl.training.factored.quick", by_height)
    with pytest.raises(ConfigError, match="clients cannot be trained side by side"):
        require_alike(fit, ROWS, 4)


def test_several_blocks_of_records_train_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    here = wide(learning_rate=0.05)
    expected = vectors(one_by_one(fits(here)))
    for gathered in (1, 10 * ROWS * 30 * 2, 10 * ROWS * 30 * 3, 10 * ROWS * 30 * 4, 2**20):
        monkeypatch.setattr(cohorts, "_GATHERED", gathered)
        np.testing.assert_allclose(vectors(Batched(one_by_one, 10)(fits(here))), expected, atol=1e-6)


def test_a_training_of_many_passes_stays_near_that_of_a_client_alone() -> None:
    here = wide(learning_rate=0.1)
    here = replace(here, local=LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=5, batch_size=8))
    came = Batched(one_by_one)(fits(here))
    np.testing.assert_allclose(vectors(came), vectors(one_by_one(fits(here))), atol=1e-5)
