"""Whatever the labels and numbers: no record twice, no client empty, the same seed the same parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from securefl.core.errors import ConfigError
from securefl.data.partitions import (
    dirichlet,
    dominant_class,
    fedcor,
    iid,
    natural,
    normal_sizes,
    shards,
    sized,
)

Parts = tuple[NDArray[np.int64], ...]
Draw = Callable[[np.random.Generator], Parts]

label_lists = st.lists(st.integers(0, 5), min_size=1, max_size=120).map(lambda seen: np.array(seen, np.int64))
client_counts = st.integers(1, 15)
seeds = st.integers(0, 2**32)


def check(draw: Draw, seed: int, n: int, clients: int, *, everything: bool) -> Parts | None:
    """The parts, checked; None where the request was refused in words."""
    try:
        parts = draw(np.random.default_rng(seed))
    except ConfigError:
        return None
    whole = np.concatenate(parts)
    assert len(parts) == clients
    assert all(len(part) > 0 and part.dtype == np.int64 for part in parts)
    assert len(np.unique(whole)) == len(whole)
    assert whole.min() >= 0
    assert whole.max() < n
    assert not everything or len(whole) == n
    again = draw(np.random.default_rng(seed))
    assert [part.tolist() for part in parts] == [part.tolist() for part in again]
    return parts


@given(n=st.integers(1, 200), clients=client_counts, seed=seeds)
def test_iid(n: int, clients: int, seed: int) -> None:
    parts = check(lambda rng: iid(n, clients, rng), seed, n, clients, everything=True)

    assert (parts is None) == (clients > n)
    if parts is not None:
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@given(labels=label_lists, clients=client_counts, per_client=st.integers(1, 4), seed=seeds)
def test_shards(labels: NDArray[np.int64], clients: int, per_client: int, seed: int) -> None:
    n = len(labels)
    parts = check(lambda rng: shards(labels, clients, per_client, rng), seed, n, clients, everything=True)

    assert (parts is None) == (clients * per_client > n)


@settings(deadline=None)  # refused set-ups draw a hundred times
@given(labels=label_lists, clients=client_counts, alpha=st.floats(0.01, 50), seed=seeds)
def test_dirichlet(labels: NDArray[np.int64], clients: int, alpha: float, seed: int) -> None:
    check(lambda rng: dirichlet(labels, clients, alpha, rng, 1), seed, len(labels), clients, everything=True)


@settings(deadline=None)
@given(labels=label_lists, clients=client_counts, concentration=st.floats(0.05, 50), seed=seeds)
def test_fedcor(labels: NDArray[np.int64], clients: int, concentration: float, seed: int) -> None:
    check(
        lambda rng: fedcor(labels, clients, concentration, rng),
        seed,
        len(labels),
        clients,
        everything=True,
    )


@given(labels=label_lists, clients=client_counts, share=st.floats(0.05, 1), seed=seeds)
def test_dominant_class(labels: NDArray[np.int64], clients: int, share: float, seed: int) -> None:
    n = len(labels)
    parts = check(lambda rng: dominant_class(labels, clients, share, rng), seed, n, clients, everything=False)

    for part in parts or ():
        assert len(part) == n // clients
        # some class has exactly the share: the favourite, which gets no record beyond it
        assert round(share * len(part)) in np.bincount(labels[part], minlength=6)


@given(
    n=st.integers(1, 200),
    clients=client_counts,
    mean=st.floats(0.1, 300),
    deviation=st.floats(0, 300),
    seed=seeds,
)
def test_normal_sizes(n: int, clients: int, mean: float, deviation: float, seed: int) -> None:
    def draw(rng: np.random.Generator) -> Parts:
        return sized(n, normal_sizes(n, clients, mean, deviation, rng), rng)

    parts = check(draw, seed, n, clients, everything=False)

    assert (parts is None) == (clients > n)


@given(groups=label_lists, clients=client_counts, seed=seeds)
def test_natural(groups: NDArray[np.int64], clients: int, seed: int) -> None:
    parts = check(lambda rng: natural(groups, clients, rng), seed, len(groups), clients, everything=False)

    for part in parts or ():
        assert len(part) == np.count_nonzero(groups == groups[part[0]])
        assert len(np.unique(groups[part])) == 1
