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
from securefl.protocols.adds.supernet import Supernet


@given(
    some.lists(some.floats(0, 1), min_size=1, max_size=40),
    some.floats(0.01, MOST),
    some.sampled_from([1.0, 0.3, 1e-2, 1e-4]),
)
def test_chances_sum_to_the_rate_and_rise_with_importance(
    importance: list[float], alpha: float, temperature: float
) -> None:
    values = np.array(importance)
    (chances,), _ = probabilities(values[None], np.array([[alpha]]), temperature)
    order = np.argsort(values)
    assert (np.diff(chances[order]) >= -1e-12).all()
    assert chances.mean() == pytest.approx(alpha, abs=1e-6)


def test_a_small_temperature_is_hard_pruning() -> None:
    (chances,), _ = probabilities(np.array([[0.1, 0.9, 0.5, 0.2]]), np.array([[0.5]]), 1e-4)
    np.testing.assert_allclose(chances, [0, 1, 1, 0], atol=1e-6)


@every("temperature", [1e-8, 1e-12, 1e-300])
@every("importance", [[1.0] * 8, [1.0, 0.5, 0.5, 0.0], [1.0, 0.9]])
def test_chances_come_to_an_end_for_any_temperature(importance: list[float], temperature: float) -> None:
    chances, _ = probabilities(np.array([importance]), np.array([[0.73]]), temperature)
    assert ((chances >= 0) & (chances <= 1)).all()


def test_a_layers_chances_are_its_own_whatever_was_guessed() -> None:
    """Beside other clients and layers, and from a guess far away or near."""
    rng = np.random.default_rng(0)
    importance, alpha, starts = rng.random((6, 14)), rng.uniform(0.1, 0.9, (6, 2)), (0, 5)
    together, beta = probabilities(importance, alpha, 0.05, starts)
    for near in (beta, beta + 1e-3, beta + 40, np.full_like(beta, np.nan)):
        again, _ = probabilities(importance, alpha, 0.05, starts, near)
        np.testing.assert_allclose(again, together, atol=1e-8)
    for row in range(6):
        for layer, own in enumerate((slice(0, 5), slice(5, 14))):
            rates = alpha[row : row + 1, layer : layer + 1]
            alone, _ = probabilities(importance[row : row + 1, own], rates, 0.05)
            np.testing.assert_allclose(together[row, own], alone[0], atol=1e-12)
            assert alone.mean() == pytest.approx(rates.item(), abs=1e-8)


def gates_of(net: Supernet, alpha: float, temperature: float, *, scaled: bool, seed: int = 4) -> Gates:
    """The gates of one client whose units matter more and more, with lots."""
    rates = torch.full((1, len(net.sampled)), alpha, dtype=torch.float64)
    gates = Gates(net, rates, temperature, scaled=scaled)
    gates.importance[0] = np.concatenate([np.linspace(0.5, 1, own.units) for own in net.sampled])
    return drawn(gates, np.random.default_rng(seed))


def drawn(gates: Gates, rng: np.random.Generator) -> Gates:
    gates.lots = gates.draw(rng)
    gates.solve()
    gates.passes()
    return gates


def masks_in(gates: Gates, net: Supernet) -> list[np.ndarray]:
    return [gates.masks[0, own.own].numpy() for own in net.sampled]


def test_masks_of_late_rounds_keep_the_rate_among_equal_units() -> None:
    """0.98^2000 is below what floats resolve beside an importance of 1."""
    net, rng = supernet(MLP), np.random.default_rng(0)
    gates = gates_of(net, 0.5, 0.98**2000, scaled=False)
    gates.importance[:] = 1
    kept = np.mean([mask.mean() for _ in range(200) for mask in masks_in(drawn(gates, rng), net)])
    assert kept == pytest.approx(0.5, abs=0.1)


@every("scaled", [False, True])
def test_the_gradient_in_a_rate_is_that_of_the_chances(scaled: bool) -> None:
    """Eq. 18 beside a difference quotient of sum_c g_c p_c(alpha)."""
    net, rng = supernet(MLP), np.random.default_rng(1)
    gates = gates_of(net, 0.6, 0.4, scaled=scaled)
    slopes = rng.standard_normal(gates.importance.shape)
    (found,) = gates.slopes(slopes)
    for place, own in enumerate(net.sampled):
        importance, slope = gates.importance[:, own.own], slopes[0, own.own]
        scale = masks_in(gates, net)[place].max()
        up, down = (
            slope @ probabilities(importance, np.array([[0.6 + d]]), 0.4)[0][0] for d in (1e-4, -1e-4)
        )
        assert found[place] == pytest.approx(scale * (up - down) / 2e-4, rel=1e-4)


def test_masks_are_drawn_with_the_chances() -> None:
    """The mean of 400 masks, within 6 deviations of each chance: false alarm 4e-8."""
    net, rng = supernet(MLP), np.random.default_rng(2)
    gates = gates_of(net, 0.7, 0.5, scaled=False)
    means = np.mean([masks_in(drawn(gates, rng), net)[0] for _ in range(400)], axis=0)
    (chances,), _ = probabilities(gates.importance[:, net.sampled[0].own], np.array([[0.7]]), 0.5)
    assert (np.abs(means - chances) < 6 * np.sqrt(chances * (1 - chances) / 400)).all()


def test_lots_of_a_round_keep_a_unit_until_its_chance_falls() -> None:
    """Two passes have one mask, whose mean is 1, and the final subnet has its units."""
    net = supernet(MLP)
    gates = gates_of(net, 0.5, 1.0, scaled=True)
    first, final = masks_in(gates, net), gates.subnet(0, by_lots=True)
    gates.passes()
    for layer, mask, second in zip(net.sampled, first, masks_in(gates, net), strict=True):
        np.testing.assert_array_equal(mask, second)
        assert mask.mean() == pytest.approx(1)
        kept = mask > 0
        within = final[layer.own] & kept
        assert within.sum() == min(final[layer.own].sum(), kept.sum()), "one of the two holds the other"
    gates.alpha[:] = 0.3
    gates.solve()
    gates.passes()
    for mask, smaller in zip(first, masks_in(gates, net), strict=True):
        assert not ((smaller > 0) & (mask == 0)).any()


def test_a_layer_never_passes_nothing() -> None:
    net, rng = supernet(MLP), np.random.default_rng(4)
    gates = gates_of(net, 0.01, 0.1, scaled=False)
    for _ in range(20):
        assert all(mask.sum() >= 1 for mask in masks_in(drawn(gates, rng), net))


def test_the_final_subnet_has_the_most_important_units_and_never_none() -> None:
    kept = most_important(np.array([0.2, 0.9, 0.2, 0.5]), 0.5)
    np.testing.assert_array_equal(kept, [False, True, False, True])
    np.testing.assert_array_equal(most_important(np.zeros(5), 0.5), [True, True, True, False, False])
    assert most_important(np.ones(3), 1e-9).sum() == 1
    assert most_important(np.ones(10), 0.7).sum() == 7
    assert most_important(np.ones(10), 1.0).all()
