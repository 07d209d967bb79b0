"""Every protocol, summed in every way, noised in every place: what is opened is the sum of what left.

And who has records shows in no pattern of messages where epsilon is finite. In `make test` each protocol is
run under noise of the clients and under noise of whoever sums, by turns in each way; `make slow` runs all
combinations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.combinations import (
    ALL,
    ARMS,
    NOISES,
    REPLACED,
    TRUSTED,
    TURNS,
    WAYS,
    Combination,
    allowed,
    study,
)
from support.noises import noised, reach
from support.tiny_study import composed, world
from support.transcripts import require_alike, transcript
from support.watched_sums import Watched

from securefl.core.errors import ConfigError
from securefl.core.release import OTHERS
from securefl.mechanisms.charges import Protection, unbounded
from securefl.sums.registry import names


def as_declared(noise: Any, sigma: float) -> bool:
    """Chi-square of noise that was added to a total, false alarm 1e-9."""
    low, high = stats.chi2.ppf([5e-10, 1 - 5e-10], noise.size)
    return bool(low < np.sum((noise / sigma) ** 2) < high)


def check(one: Combination, folder: Path, records: int, neighbours: Sequence[str]) -> None:
    """records: of each client, at most. neighbours: those of `support.transcripts`."""
    _, scheme, noise = one
    of = study(one, rounds=3 if one[0][0] == "fedcor" else 1)  # its trial is in round 3
    here = world(of)
    here = replace(here, records=[(x[:records], y[:records]) for x, y in here.records])
    with pytest.MonkeyPatch.context() as patch:
        watched = Watched(patch)
        base = transcript(of, here, folder / "base")
    algorithm, plan = composed(of, here)
    assert (plan.sum, plan.noise) == (scheme, noise)
    assert base.finished is not None
    assert not any(record["rejected_from"] or record["abstained"] for record in base.finished.records)
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
    charges = [Protection(plan, contribution.spec).charge() for contribution in algorithm.contributions]
    if not any(unbounded([charge], (OTHERS,)) for charge in charges):
        require_alike(of, folder, neighbours, here, base)


def named(one: Combination) -> str:
    (name, options), scheme, noise = one
    return f"{name} {options}, {scheme}, {noise}"


@pytest.mark.parametrize("one", TURNS, ids=named)
def test_by_turns(one: Combination, tmp_path: Path) -> None:
    check(one, tmp_path, 16, ["none"])


@pytest.mark.slow
@pytest.mark.parametrize("one", ALL, ids=named)
def test_all(one: Combination, tmp_path: Path) -> None:
    check(one, tmp_path, 10**6, ["none", "one", "one less", "several spoilt", "all nan"])


def refused(one: Combination) -> bool:
    try:
        of = study(one)
        composed(of)
    except ConfigError:
        return True
    return False


def test_what_is_left_out_is_refused() -> None:
    """And shares of noise without a least cohort."""
    left_out = [one for one in product(ARMS[:1], WAYS, NOISES) if not allowed(one)]
    assert left_out
    assert not [one for one in [*left_out, (REPLACED, "masked", "distributed")] if not refused(one)]


def test_every_protocol_way_and_noise_has_its_turns() -> None:
    """Each protocol has two; each way and noise that can stand together have two protocols or more."""
    assert set(WAYS) == set(names())
    assert set(TURNS) < set(ALL)
    for arm in ARMS:
        assert len({one[1:] for one in TURNS if one[0] == arm and one[2] != "none"}) == 2
    for way, noise in {one[1:] for one in ALL}:
        assert len({one[0] for one in TURNS if one[1:] == (way, noise)}) >= (1 if noise == "none" else 2)
