from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from securefl.training import profile

SHAPES = st.tuples(st.integers(1, 60), st.integers(1, 5))


@settings(deadline=None, max_examples=150)
@given(
    shape=SHAPES,
    seed=st.integers(0, 2**32 - 1),
    mean=st.sampled_from([0.0, 1.0, -300.0, 1e6]),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 50.0]),
    batch=st.integers(1, 60),
)
def test_merged_moments_are_those_of_two_passes(
    shape: tuple[int, int], seed: int, mean: float, spread: float, batch: int
) -> None:
    values = np.random.default_rng(seed).normal(mean, spread, shape)
    found = profile(nn.Sequential(nn.Identity()), "0", values, batch=batch)
    assert found.count == shape[0]
    np.testing.assert_allclose(found.mean, values.mean(0), rtol=1e-12, atol=1e-9)
    # float64 cannot hold a record near 1e6 more finely than 1e-10, which is what the absolute part allows for
    np.testing.assert_allclose(found.variance, values.var(0), rtol=1e-6, atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 80), seed=st.integers(0, 2**32 - 1), batch=st.integers(1, 90))
def test_a_profile_does_not_depend_on_the_batch(n: int, seed: int, batch: int) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).double()
    x = np.random.default_rng(seed).normal(1e6, 1.0, (n, 3))
    found, whole = profile(model, "0", x, batch=batch), profile(model, "0", x, batch=n)
    with torch.no_grad():
        out = model[0](torch.from_numpy(x)).numpy()
    assert found.count == n
    np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(found.variance, whole.variance, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.variance, out.var(0), rtol=1e-6, atol=1e-8)
