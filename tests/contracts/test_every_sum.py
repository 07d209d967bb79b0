"""Every protocol, summed in every way, noised in every place: what is opened is the sum of what left.

In `make test` some combinations are run, so that every two of (protocol, way), (protocol, noise) and
(way, noise) come together; `make slow` runs all of them.
"""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.combinations import (
    ALL,
    ARMS,
    COVER,
    NOISES,
    REPLACED,
    TRUSTED,
    WAYS,
    Combination,
    allowed,
    study,
)
from support.noises import noised, reach
from support.tiny_study import run, world
from support.watched_sums import Watched

from securefl.core.errors import ConfigError
from securefl.study.composition import composition
from securefl.sums.registry import names


def as_declared(noise: Any, sigma: float) -> bool:
    """Chi-square of noise that was added to a total, false alarm 1e-9."""
    low, high = stats.chi2.ppf([5e-10, 1 - 5e-10], noise.size)
    return bool(low < np.sum((noise / sigma) ** 2) < high)


def check(one: Combination, folder: Path, patch: pytest.MonkeyPatch) -> None:
    _, scheme, noise = one
    of = study(one, rounds=3 if one[0][0] == "fedcor" else 1)  # its trial is in round 3
    watched = Watched(patch)
    finished = run(of, folder)
    _, plan = composition(of, of.arms[0], world(of))
    assert (plan.sum, plan.noise) == (scheme, noise)
    assert not any(record["blamed"] or record["abstained"] for record in finished.records)
    sums = 0
    for header, query, answers in watched.asked:
        assert not query.sums or answers.survivors == query.cohort
        for question in query.sums:
            spec, total = question.spec, answers.totals[question.spec.name]
            left = np.sum(watched.left(header, spec.name, answers), axis=0)
            added = np.rint(total.value / spec.grid.step).astype(np.int64) - left
            sums += 1
            if noise in TRUSTED and noised(plan, spec):
                sigma = plan.noise_multiplier * reach(plan, spec)
                assert as_declared(added, sigma)
                # of 90 values a quarter of the noise passes once in 10^55, half once in 70; a map has fewer
                assert added.size < 90 or not as_declared(0.25 * added, sigma)
            else:
                assert not added.any()
    assert sums


def named(one: Combination) -> str:
    (name, options), scheme, noise = one
    return f"{name} {options}, {scheme}, {noise}"


@pytest.mark.parametrize("one", COVER, ids=named)
def test_some_of_every_two(one: Combination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(one, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("one", [one for one in ALL if one not in COVER], ids=named)
def test_all(one: Combination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(one, tmp_path, monkeypatch)


def refused(one: Combination) -> bool:
    try:
        of = study(one)
        composition(of, of.arms[0], world(of))
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize(
    "one", [one for one in product(ARMS[:1], WAYS, NOISES) if not allowed(one)], ids=named
)
def test_what_is_left_out_is_refused(one: Combination) -> None:
    assert refused(one)


def test_shares_without_a_least_cohort_are_refused() -> None:
    assert REPLACED in ARMS
    assert refused((REPLACED, "masked", "distributed"))


def test_the_cover_has_every_two() -> None:
    """And is much smaller than the whole; every way that this package knows is in it."""
    assert set(WAYS) == set(names())
    for i, j in combinations(range(3), 2):
        assert {(one[i], one[j]) for one in COVER} == {(one[i], one[j]) for one in ALL}
    assert len(COVER) < len(ALL) / 2
