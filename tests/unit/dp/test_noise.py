"""Noise: of the law that is stated, fresh, and exact on the grid."""

from __future__ import annotations

import math
import os
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Context, Decimal, localcontext
from math import sqrt
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from scipy import stats
from support.every import every

from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.keys import SecretKey
from securefl.dp import gaussian, noise
from securefl.dp.noise import Source

PRECISE = Context(prec=60)


def fixed(label: int) -> Source:
    return Source(SecretKey(bytes([label]) * 32))


def test_noise_is_fresh_and_takes_no_seed() -> None:
    np.random.seed(0)  # noqa: NPY002  # the legacy seed must not matter
    first = Source().normal(8)
    np.random.seed(0)  # noqa: NPY002
    assert not np.array_equal(first, Source().normal(8))
    assert np.array_equal(fixed(1).normal(8), fixed(1).normal(8))


@every("sigma", [4.0, 37.3, 1000.0])
def test_the_rounded_gaussian_has_the_rounded_law(sigma: float) -> None:
    """Kolmogorov-Smirnov against the normal law with half a unit of rounding; false alarm 1e-6."""
    drawn = gaussian.rounded(200_000, sigma, fixed(2)) + Source().normal(1)[0] * 0
    jitter = fixed(3).words(200_000) * 2.0**-64 - 0.5  # uniform: rounding undone in distribution
    spread = sqrt(sigma**2 + 1 / 12 + 1 / 12)
    variance = np.var(drawn + jitter) / spread**2
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], 200_000) / 200_000
    assert low < variance < high
    assert abs(np.mean(drawn)) < 5.2 * sigma / sqrt(200_000)


@every("sigma", [4.0, 5.5, 20.0])
def test_the_discrete_gaussian_has_its_exact_law(sigma: float) -> None:
    """Chi-square against exp(-k^2 / 2 sigma^2) over all cells of at least 20; false alarm 1e-6."""
    count = 300_000
    drawn = gaussian.discrete(count, sigma, fixed(4))
    support = np.arange(-int(6 * sigma), int(6 * sigma) + 1)
    expected = np.exp(-(support**2) / (2 * sigma**2))
    expected *= count / np.exp(-(np.arange(-400, 401) ** 2) / (2 * sigma**2)).sum()
    seen = np.array([np.sum(drawn == k) for k in support])
    enough = expected >= 20
    rest_seen, rest = count - seen[enough].sum(), count - expected[enough].sum()
    statistic = (
        np.sum((seen[enough] - expected[enough]) ** 2 / expected[enough]) + (rest_seen - rest) ** 2 / rest
    )
    assert stats.chi2.sf(statistic, enough.sum()) > 1e-6


@every("sigma", [127.0, 128.0, 1e5, 2.0**24 - 1])
def test_a_wide_discrete_gaussian_has_its_law_and_costs_no_wide_table(sigma: float) -> None:
    """Chi-square over 100 cells of equal normal probability, which at these sigmas is the discrete one's to
    1e-3 of a cell's deviation; false alarm 1e-6. A table of every integer would take 4 kB times sigma."""
    count, cells = 400_000, 100
    tracemalloc.start()
    drawn = gaussian.discrete(count, sigma, fixed(5))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 300 * count
    edges = np.rint(sigma * stats.norm.ppf(np.arange(1, cells) / cells)) - 0.5
    expected = count * np.diff(stats.norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]) / sigma))
    seen = np.bincount(np.searchsorted(edges, drawn), minlength=cells)
    assert stats.chi2.sf(np.sum((seen - expected) ** 2 / expected), cells - 1) > 1e-6
    residues = np.bincount(drawn & 15, minlength=16)  # none within a block is favoured
    assert stats.chisquare(residues).pvalue > 1e-6


class Words(Source):
    """Words that are given."""

    def __init__(self, *words: int) -> None:
        self.given = np.array(words, dtype=np.uint64)

    def words(self, count: int) -> np.ndarray:
        assert count == len(self.given)
        return self.given


@every("gap", [2**10, 2**70, 2**81, 2**100])
@every(
    ("sigma", "block", "rest", "width"),
    [(200.0, 0, 1, 2), (4096.0, 100, 63, 64), (2.0**24 - 1, 5, 99_999, 2**17)],
)
def test_a_proposal_is_kept_with_its_exact_probability(
    sigma: float, block: int, rest: int, width: int, gap: int
) -> None:
    """Words of 128 bits on both sides of exp(-(x^2 - b^2) / 2 sigma^2), 2^-118 from it and farther."""
    x = block * width + rest
    with localcontext(PRECISE):
        exponent = (x**2 - (block * width) ** 2) * Decimal(1 / (2 * sigma**2))
        threshold = int((-exponent).exp() * 2**128)
    high, _ = gaussian._table(sigma / width)
    chosen = int(high[block - 1]) + 1 if block else 0
    for word, kept in ((threshold - gap, [-x]), (threshold + gap, [])):
        source = Words(chosen, 0, 2**63 + rest, word >> 64, word & (2**64 - 1))
        assert gaussian._kept(1, sigma, source).tolist() == kept


def test_the_table_is_exact() -> None:
    """Against Python's own rational sums of 60-digit exponentials, at every entry."""
    sigma = 4.0
    high, low = gaussian._table(sigma)
    weights = [(-Decimal(k * k) / Decimal(32)).exp(PRECISE) for k in range(len(high))]
    assert len(weights) == 53  # 13 sigma
    with localcontext(PRECISE):
        whole, total = sum(weights), Decimal(0)
        for h, lo, weight in zip(high, low, weights, strict=True):
            total += weight
            assert abs(Decimal((int(h) << 64) + int(lo) + 1) - total / whole * 2**128) < 2**8
    assert (int(high[-1]) << 64) + int(low[-1]) == 2**128 - 1


def test_distributed_noise_is_refused_where_the_grid_is_too_coarse() -> None:
    with pytest.raises(ConfigError, match="too coarse"):
        gaussian.discrete_event(63.0, 1.0)
    for few in (3.9, math.nan):
        with pytest.raises(ConfigError, match="at least 4"):
            gaussian.discrete(1, few, Source())
    with pytest.raises(ConfigError, match="coarser grid"):
        gaussian.discrete(1, 2.0**24, Source())
    with pytest.raises(ConfigError, match="coarser grid"):
        gaussian.share(2.0**26, 20, 4)
    assert gaussian.discrete_event(64.0, 2.0) == GaussianDpEvent(sqrt(64**2 - 4) / 2)
    assert gaussian.share(64.0, 20, 4) == 16.0
    with pytest.raises(ConfigError, match="survivors"):
        gaussian.share(64.0, 4, 4)


def test_a_source_says_no_word_twice() -> None:
    """One word in two draws would be noise that two values share."""
    source = fixed(5)
    words = np.concatenate([source.words(40), source.words(40), source.words(3)])
    assert len(set(words.tolist())) == 83
    assert np.array_equal(source.restarted().words(83), words)


def in_child(ask: Callable[[], bytes]) -> bytes:
    """What a forked child says."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(theirs, ask())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as said:
        found = said.read()
    os.waitpid(child, 0)
    return found


def words(source: Source) -> bytes:
    return source.words(8).tobytes()


def in_grandchild(source: Source) -> bytes:
    return in_child(lambda: words(source))


@every("begun", [False, True])
def test_a_child_repeats_no_word_of_its_parents_source(begun: bool) -> None:
    """One stream in two processes would be one noise on two values."""
    source = Source()
    told = [words(source)] if begun else []
    told += [in_child(lambda: words(source)), in_child(lambda: in_grandchild(source))]
    told += [in_child(lambda: words(source.restarted())), words(source), words(source)]
    assert all(len(one) == 64 for one in told)
    assert len({one[at : at + 8] for one in told for at in range(0, 64, 8)}) == 8 * len(told)


def refusal(source: Source) -> bytes:
    try:
        return words(source)
    except LocalProtocolError:
        return b"refused"


def test_a_child_does_not_go_on_with_a_keyed_stream() -> None:
    source = fixed(7)
    first = words(source)
    assert in_child(lambda: refusal(source)) == b"refused"
    assert in_child(lambda: in_child(lambda: refusal(source))) == b"refused"
    # A round that is run again has the same noise, in whichever process.
    assert in_child(lambda: words(source.restarted())) == in_child(lambda: words(fixed(7))) == first
    assert words(source) != first, "the parent goes on"


def test_a_process_with_the_number_of_an_earlier_one_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of processes come back, and the first process of each container has number 1."""
    source = Source()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    first = words(source)
    assert in_child(lambda: words(source.restarted())) != first


def test_threads_that_begin_a_source_at_once_draw_no_word_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    source, both, cipher = fixed(7), Barrier(2), noise.Cipher

    def together(*given: Any, **more: Any) -> Any:
        both.wait(30)
        return cipher(*given, **more)

    monkeypatch.setattr(noise, "Cipher", together)
    with ThreadPoolExecutor(2) as pool:
        found = np.concatenate(list(pool.map(lambda _: source.words(1000), range(2))))
    assert len(np.unique(found)) == 2000


def test_threads_share_a_stream_word_by_word() -> None:
    source = fixed(7)
    with ThreadPoolExecutor(4) as pool:
        found = np.concatenate(list(pool.map(lambda _: source.words(2**13), range(64))))
    assert np.array_equal(np.sort(found), np.sort(fixed(7).words(64 * 2**13)))
