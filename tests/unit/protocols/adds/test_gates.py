"""Rates, probabilities and masks: Eqs. 12 to 18."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from support.every import every
from support.supernets import MLP, supernet

from securefl.protocols.adds.subnet_search import MOST, Gates, most_important, probabilities


@given(
    some.lists(some.floats(0, 1), min_size=1, max_size=40),
    some.floats(0.01, MOST),
    some.sampled_from([1.0, 0.3, 1e-2, 1e-4]),
)
def test_chances_sum_to_the_rate_and_rise_with_importance(
    importance: list[float], alpha: float, temperature: float
) -> None:
    values = np.array(importance)
    chances = probabilities(values, alpha, temperature)
    order = np.argsort(values)
    assert (np.diff(chances[order]) >= -1e-12).all()
    assert chances.mean() == pytest.approx(alpha, abs=1e-6)


def test_a_small_temperature_is_hard_pruning() -> None:
    chances = probabilities(np.array([0.1, 0.9, 0.5, 0.2]), 0.5, 1e-4)
    np.testing.assert_allclose(chances, [0, 1, 1, 0], atol=1e-6)


@every("temperature", [1e-8, 1e-12, 1e-300])
@every("importance", [[1.0] * 8, [1.0, 0.5, 0.5, 0.0], [1.0, 0.9]])
def test_chances_come_to_an_end_for_any_temperature(importance: list[float], temperature: float) -> None:
    chances = probabilities(np.array(importance), 0.73, temperature)
    assert ((chances >= 0) & (chances <= 1)).all()


def test_masks_of_late_rounds_keep_the_rate_among_equal_units() -> None:
    """0.98^2000 is below what floats resolve beside an importance of 1."""
    net = supernet(MLP)
    rates = torch.full((2,), 0.5, dtype=torch.float64)
    rng = np.random.default_rng(0)
    gates = Gates(net, rates, 0.98**2000, rng, resample_per_pass=True, scaled=False)
    kept = np.mean([float(gates.draw()[own.own.start].mean()) for _ in range(200) for own in net.sampled])
    assert kept == pytest.approx(0.5, abs=0.1)


def test_the_gradient_in_a_rate_is_that_of_the_chances() -> None:
    """Eq. 18 beside a difference quotient of sum_c g_c p_c(alpha)."""
    net = supernet(MLP)
    alpha = torch.full((2,), 0.6, dtype=torch.float64, requires_grad=True)
    gates = Gates(net, alpha, 0.4, np.random.default_rng(0), resample_per_pass=False, scaled=False)
    rng = np.random.default_rng(1)
    gates.importance = [rng.random(own.units) for own in net.sampled]
    slopes = [rng.standard_normal(own.units) for own in net.sampled]
    drawn = gates.draw()
    loss = sum(
        (drawn[own.own.start] * torch.from_numpy(slope.astype(np.float32))).sum()
        for own, slope in zip(net.sampled, slopes, strict=True)
    )
    (found,) = torch.autograd.grad(loss, alpha)
    for place, (importance, slope) in enumerate(zip(gates.importance, slopes, strict=True)):
        up, down = (slope @ probabilities(importance, 0.6 + d, 0.4) for d in (1e-4, -1e-4))
        assert float(found[place]) == pytest.approx((up - down) / 2e-4, rel=1e-4)


def test_masks_are_drawn_with_the_chances() -> None:
    """The mean of 400 masks, within 6 deviations of each chance: false alarm 4e-8."""
    net = supernet(MLP)
    gates = Gates(
        net,
        torch.full((2,), 0.7, dtype=torch.float64),
        0.5,
        np.random.default_rng(2),
        resample_per_pass=True,
        scaled=False,
    )
    gates.importance = [np.linspace(0, 1, own.units) for own in net.sampled]
    means = np.mean([gates.draw()[0].numpy() for _ in range(400)], axis=0)
    chances = probabilities(gates.importance[0], 0.7, 0.5)
    assert (np.abs(means - chances) < 6 * np.sqrt(chances * (1 - chances) / 400)).all()


def test_lots_of_a_round_keep_a_unit_until_its_chance_falls() -> None:
    """Two passes have one mask, whose mean is 1, and the final subnet has its units."""
    net = supernet(MLP)
    alpha = torch.full((2,), 0.5, dtype=torch.float64)
    gates = Gates(net, alpha, 1.0, np.random.default_rng(4), resample_per_pass=False, scaled=True)
    gates.importance = [np.linspace(0.5, 1, own.units) for own in net.sampled]
    first, second, final = gates.draw(), gates.draw(), gates.subnet()
    for layer in net.sampled:
        mask = first[layer.own.start]
        torch.testing.assert_close(mask, second[layer.own.start])
        assert float(mask.mean()) == pytest.approx(1)
        kept = mask.numpy() > 0
        within = final[layer.own] & kept
        assert within.sum() == min(final[layer.own].sum(), kept.sum()), "one of the two holds the other"
    alpha[:] = 0.3
    smaller = gates.draw()
    for layer in net.sampled:
        assert not ((smaller[layer.own.start] > 0) & (first[layer.own.start] == 0)).any()


def test_a_layer_never_passes_nothing() -> None:
    net = supernet(MLP)
    alpha = torch.full((2,), 0.01, dtype=torch.float64)
    gates = Gates(net, alpha, 0.1, np.random.default_rng(4), resample_per_pass=True, scaled=False)
    for _ in range(20):
        assert all(mask.sum() >= 1 for mask in gates.draw().values())


def test_the_final_subnet_has_the_most_important_units_and_never_none() -> None:
    kept = most_important(np.array([0.2, 0.9, 0.2, 0.5]), 0.5)
    np.testing.assert_array_equal(kept, [False, True, False, True])
    np.testing.assert_array_equal(most_important(np.zeros(5), 0.5), [True, True, True, False, False])
    assert most_important(np.ones(3), 1e-9).sum() == 1
    assert most_important(np.ones(10), 0.7).sum() == 7
    assert most_important(np.ones(10), 1.0).all()
