from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.every import every

from securefl.core.errors import ConfigError, DataError
from securefl.dp.moments import MeanVariance
from securefl.matching.profiles import (
    Anchor,
    Bounds,
    Features,
    ProfileQuery,
    Variant,
    divergence,
    features,
    query,
)

WIDE = Bounds(mean=1e6, variance_low=1e-12, variance_high=1e9)


def profile(mean: list[float], variance: list[float]) -> MeanVariance:
    return MeanVariance(np.array(mean), np.array(variance), 10)


def drawn(rng: np.random.Generator, q: int) -> MeanVariance:
    return MeanVariance(rng.normal(size=q) * 3, rng.uniform(0.01, 5, size=q), 100)


def expanded(f: Features, w: ProfileQuery, variant: Variant) -> float:
    left, right = f.split(variant), w.split(variant)
    return float(left.hidden @ right.hidden + left.clear @ right.clear + w.constant)


@every(
    ("client", "base", "expected"),
    [((0, 1), (0, 1), 0.0), ((1, 1), (0, 1), 0.5), ((0, 2), (0, 1), 0.5 * (1 - math.log(2)))],
)
def test_check_values(client: tuple[float, float], base: tuple[float, float], expected: float) -> None:
    got = divergence(profile([client[0]], [client[1]]), profile([base[0]], [base[1]]))
    assert got == pytest.approx(expected, abs=1e-15)


def test_divergence_is_the_mean_over_elements_and_floors_both_sides() -> None:
    assert divergence(profile([1, 0], [1, 1]), profile([0, 0], [1, 1])) == pytest.approx(0.25)
    assert divergence(profile([0], [0]), profile([0], [0])) == 0.0
    assert divergence(profile([0], [0]), profile([0], [1e-6])) == 0.0
    assert divergence(profile([1e-3], [1e-6]), profile([0], [0])) == pytest.approx(0.5)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_divergence_is_not_negative_and_blind_to_order_and_anchor(seed: int, q: int) -> None:
    rng = np.random.default_rng(seed)
    client, base, order = drawn(rng, q), drawn(rng, q), rng.permutation(q)
    c, t = rng.normal(size=q), rng.uniform(0.1, 10, q)
    value = divergence(client, base)
    assert value >= 0
    shuffled = [MeanVariance(p.mean[order], p.variance[order], p.count) for p in (client, base)]
    assert divergence(*shuffled) == pytest.approx(value, rel=1e-12)
    moved = [MeanVariance((p.mean - c) / t, p.variance / t**2, p.count) for p in (client, base)]
    assert divergence(*moved) == pytest.approx(value, rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_the_inner_product_is_the_divergence_in_both_variants(seed: int, q: int) -> None:
    rng = np.random.default_rng(seed)
    client, base = drawn(rng, q), drawn(rng, q)
    anchor = Anchor(rng.normal(size=q), rng.uniform(0.5, 2, q))
    f, w = features(client, anchor, WIDE), query(base, anchor, WIDE)
    full, mean_only = (expanded(f, w, variant) for variant in Variant)
    assert full == pytest.approx(q * divergence(client, base), rel=1e-9, abs=1e-9)
    assert mean_only == pytest.approx(full, rel=1e-9, abs=1e-9)


def test_without_an_anchor_the_expanded_form_cancels_and_with_one_it_does_not() -> None:
    client, base = profile([1e4], [1e-5]), profile([1e4 + 1e-3], [1e-5])
    nothing, good = Anchor(np.zeros(1), np.ones(1)), Anchor(np.array([1e4]), np.array([3e-3]))
    bare, anchored = (
        expanded(features(client, a, WIDE), query(base, a, WIDE), Variant.FULL) for a in (nothing, good)
    )
    assert abs(bare - divergence(client, base)) > 1e-4
    assert anchored == pytest.approx(divergence(client, base), abs=1e-9)


def test_mean_only_hides_the_means_and_nothing_else() -> None:
    anchor = Anchor(np.zeros(2), np.ones(2))
    f = features(profile([1, 2], [3, 4]), anchor, Bounds()).split(Variant.MEAN_ONLY)
    assert f.hidden.tolist() == [1, 2, 1, 4]
    assert f.clear.tolist() == [3, 4, pytest.approx(math.log(12))]
    full = features(profile([1, 2], [3, 4]), anchor, Bounds()).split(Variant.FULL)
    assert full.hidden.tolist() == [1, 2, 4, 8, pytest.approx(math.log(12))]
    assert full.clear.size == 0


def test_features_floor_in_original_units_then_anchor_then_clip() -> None:
    anchor = Anchor(np.zeros(4), np.array([1e-3, 1.0, 1.0, 1.0]))
    bounds = Bounds(mean=5, variance_low=1e-3, variance_high=100)
    f = features(profile([0, 9, -9, 1], [0, 1, 1e4, 0]), anchor, bounds)
    assert f.variance.tolist() == pytest.approx([1.0, 1.0, 100.0, 1e-3])
    assert f.mean.tolist() == [0, 5, -5, 1]
    assert f.clipped == 4
    assert query(profile([9], [0]), Anchor(np.zeros(1), np.ones(1)), bounds).variance.tolist() == [1e-3]


def test_weights_are_those_of_the_specification() -> None:
    w = query(profile([3], [2]), Anchor(np.zeros(1), np.ones(1)), Bounds())
    assert w.split(Variant.FULL).hidden.tolist() == [-1.5, 0.25, -0.5]
    assert w.constant == pytest.approx(0.5 * math.log(2) + 9 / 4 - 0.5)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 10, 84]))
def test_bounds_contain_what_clipping_lets_through(seed: int, q: int) -> None:
    rng = np.random.default_rng(seed)
    bounds, anchor = Bounds(mean=8, variance_high=32, weight=4), Anchor(np.zeros(q), np.ones(q))
    client = MeanVariance(rng.choice([-99.0, 0, 99], q), rng.choice([0.0, 1, 99], q), 1)
    base = MeanVariance(rng.normal(size=q), rng.uniform(0.5, 9, q), 1)
    f, w = features(client, anchor, bounds), query(base, anchor, bounds)
    assert np.linalg.norm(w.split(Variant.FULL).hidden) <= bounds.weight_norm(q)
    for variant in Variant:
        hidden = f.split(variant).hidden
        assert np.linalg.norm(hidden) <= bounds.feature_norm(q)
        assert abs(hidden @ w.split(variant).hidden) <= bounds.largest_product(q)


def test_bad_profiles_are_refused_with_the_reason() -> None:
    with pytest.raises(DataError, match="mean, got 2 of 3"):
        profile([np.nan, 0, np.inf], [1, 1, 1])
    with pytest.raises(DataError, match="one length"):
        profile([0, 0], [1])
    with pytest.raises(DataError, match="1 of 2 that are negative"):
        profile([0, 0], [1, -1])
    with pytest.raises(DataError, match="at least one element"):
        profile([], [])
    with pytest.raises(DataError, match="count=0"):
        MeanVariance(np.zeros(1), np.ones(1), 0)
    with pytest.raises(DataError, match="scales above 0, got 1"):
        Anchor(np.zeros(2), np.array([1.0, 0.0]))
    with pytest.raises(DataError, match="one length"):
        divergence(profile([0], [1]), profile([0, 0], [1, 1]))
    with pytest.raises(ConfigError, match="variance_low"):
        Bounds(variance_low=2, variance_high=1)


def test_a_profile_keeps_its_own_unchangeable_values() -> None:
    mean = np.zeros(2)
    kept = MeanVariance(mean, np.ones(2), 1)
    mean[:] = 7
    assert kept.mean.tolist() == [0, 0]
    with pytest.raises(ValueError, match="read-only"):
        kept.mean[0] = 1


def test_anchor_of_a_constant_public_element_is_usable() -> None:
    assert Anchor.of(profile([2, 2], [4, 0])).scale.tolist() == pytest.approx([2, 1e-3])
