"""Encrypted scores equal plain ones within their error bound, whatever profiles are inside the bounds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.every import every
from support.tiny_he import BOUNDS as TIGHT
from support.tiny_he import scored

from securefl.core.errors import ConfigError
from securefl.dp.moments import MeanVariance
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED, Parameters, capacity
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Anchor, Bounds, Variant, divergence, features, linear_query

BOUNDS = {STRONG: Bounds(), COMPACT: TIGHT}
COARSE = {STRONG: 2e-4, COMPACT: 0.05}


def drawn(rng: np.random.Generator, q: int, mean: float, low: float, high: float) -> MeanVariance:
    """Log-uniform variances; one element in five is constant on a client."""
    variance = np.exp(rng.uniform(np.log(low), np.log(high), q))
    constant = (rng.random(q) < 0.2) & (low < 1e-5)
    return MeanVariance(rng.uniform(-mean, mean, q), np.where(constant, 0.0, variance), 50)


@every("variant", Variant)
@every("q", [1, 10, 84, 512])
@every("parameters", [STRONG, COMPACT])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32), spread=st.sampled_from([0.1, 3.0, 10.0]))
def test_encrypted_equals_plain(
    parameters: Parameters, q: int, variant: Variant, seed: int, spread: float
) -> None:
    """The flooding is seeded: the bound, which one score in 10^6 exceeds, holds always or never."""
    rng, bounds = np.random.default_rng(seed), BOUNDS[parameters]
    anchor = Anchor(rng.normal(size=q), rng.uniform(0.8, 1.2, q))
    profile, base = drawn(rng, q, spread, 1e-6, 40), drawn(rng, q, 2.0, 0.4, 8)
    f = features(profile, anchor, bounds)
    assert f.clipped == 0
    split = f.split(variant)
    score = scored(parameters, linear_query(base, anchor, bounds, variant), split.hidden, split.clear)
    assert abs(score.value - divergence(profile, base)) <= score.error_bound <= COARSE[parameters]


@every(("parameters", "q"), [(STRONG, 512), (COMPACT, 190)])
def test_scores_at_the_declared_bounds_do_not_wrap(parameters: Parameters, q: int) -> None:
    """Every feature at its bound, against the largest weights: for compact, close to its capacity."""
    bounds = Bounds()
    terms = LinearTerms(parameters=parameters, bounds=bounds.linear(q, Variant.FULL), scores=500)
    anchor, sign = Anchor(np.zeros(q), np.ones(q)), np.where(np.arange(q) % 2, 1.0, -1.0)
    far = MeanVariance(sign * bounds.mean * 2, np.full(q, bounds.variance_high * 2), 1)
    edge = MeanVariance(sign * bounds.mean, np.full(q, bounds.variance_high), 1)
    base = MeanVariance(-sign * 0.05, np.full(q, 0.51 / bounds.weight), 1)
    split = features(far, anchor, bounds).split(Variant.FULL)
    score = scored(parameters, linear_query(base, anchor, bounds), split.hidden)
    assert 0.9 * terms.largest < q * score.value < capacity(parameters)
    assert abs(score.value - divergence(edge, base)) <= score.error_bound


def test_beyond_the_capacity_a_score_would_wrap_so_the_terms_are_refused() -> None:
    with pytest.raises(ConfigError, match="the query's bounds"):
        LinearTerms(parameters=COMPACT, bounds=Bounds().linear(220, Variant.FULL), scores=500)


SIZES = (1e-18, 1e-9, 1e-3, 1.0, 1e3, 1e9, 1e18)
VARIANCES = (
    (1e-18, 1e-18),
    (1e-18, 1.0),
    (0.9, 1.1),
    (1e-9, 1e-3),
    (2.0**-24, 512.0),
    (1e-7, 1e18),
    (1e18, 1e18),
)


def test_what_terms_accept_fits_the_modulus_with_its_scales() -> None:
    """Products, features and weights, over 10 orders of magnitude either way."""
    accepted = 0
    for parameters, variant in product((STRONG, COMPACT, STRONG_ENCRYPTED), Variant):
        for mean, (low, high), weight in product(SIZES, VARIANCES, SIZES):
            bounds = Bounds(mean=mean, variance_low=low, variance_high=high, weight=weight)
            try:
                made = LinearTerms(parameters=parameters, bounds=bounds.linear(3, variant), scores=50)
            except ConfigError:
                continue
            accepted += 1
            assert made.data_scale * parameters.weight_scale < parameters.modulus
            assert made.data_scale * made.feature_norm <= parameters.modulus / 8
            assert parameters.weight_scale * made.weight_norm <= parameters.modulus / 8
            assert made.capacity >= made.largest
    assert accepted > 500


@pytest.mark.parametrize("parameters", [STRONG, COMPACT, STRONG_ENCRYPTED], ids=lambda p: p.name)
def test_narrow_bounds_give_scores(parameters: Parameters) -> None:
    """They leave room for a product's scale beyond the modulus, which SEAL does not take."""
    narrow = ((0.9, 1.1), (1.0, 1.0), (1e-18, 1.0), (1e-9, 1e-3))
    for mean, (low, high), weight in product((1e-18, 1.0), narrow, (1.0, 1000.0)):
        bounds = Bounds(mean=mean, variance_low=low, variance_high=high, weight=weight)
        require_score(parameters, bounds)


def require_score(parameters: Parameters, bounds: Bounds, q: int = 3) -> None:
    mean, low, high = bounds.mean, bounds.variance_low, bounds.variance_high
    anchor = Anchor(np.zeros(q), np.ones(q))
    own = MeanVariance(np.array([mean, 0.0, -mean]), np.array([low, high, high]), 1)
    asked = linear_query(MeanVariance(np.zeros(q), np.full(q, high), 1), anchor, bounds)
    if np.linalg.norm(asked.hidden) > bounds.weight_norm(q):
        with pytest.raises(ConfigError, match="weights of norm"):
            asked.row(encrypted=False)
        return
    f = features(own, anchor, bounds)
    score = scored(parameters, asked, f.split(Variant.FULL).hidden, scores=50)
    ratio = f.variance / np.full(q, high)
    expected = 0.5 * float(np.mean(ratio - np.log(ratio) - 1 + f.mean**2 / high))
    assert abs(score.value - expected) <= score.error_bound
