"""Noise is of exact integers: noise that an int64 does not hold would be a constant, at a finite epsilon."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.hidden_plans import hidden

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.grid import Grid
from securefl.core.release import SERVER
from securefl.dp.correlated import CorrelatedNoise
from securefl.dp.gaussian import rounded
from securefl.dp.noise import Source
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.outside import Outside

SPEC = ValueSpec(
    name="own",
    reduction="sum",
    reveals="it",
    accumulates=True,
    sensitivity={("client", "zero-out"): 1.0},
    grid=Grid(step=2.0**-20, bound=64.0),
    cohort=8,
)
PLAN = Plan(
    unit="client",
    adjacency="zero-out",
    delta=1e-5,
    max_rounds=70,
    noise="central",
    noise_multiplier=3.0,
    separation=2,
    corrupt=0.0,
    adversaries=("others",),
)
HELD = hidden(PLAN, 8, sum="two-server", noise="key-holder", min_cohort_size=8)
PLANS = [PLAN, replace(PLAN, noise="local"), replace(PLAN, noise="distributed"), HELD]


@every("plan", PLANS)
@every("multiplier", (1e9, 1e30, 1.7e308))
def test_noise_beyond_exact_integers_is_refused_before_anything_is_charged(
    plan: Plan, multiplier: float
) -> None:
    """Each remedy is tried: less noise, or a coarser grid."""
    wide = Protection(replace(plan, noise_multiplier=multiplier), SPEC)
    with pytest.raises(ConfigError, match=r"within 2\^52 grid.* smaller noise_multiplier, or a coarser"):
        wide.charge()
    assert Protection(plan, SPEC).charge()
    coarse = Grid(step=1e6, bound=1e13)
    assert multiplier > 1e9 or Protection(wide.plan, replace(SPEC, grid=coarse)).charge()


@every("plan", [PLAN, HELD])
@every("rounds", (70, 3000))
def test_an_inverse_that_grows_is_refused(plan: Plan, rounds: int) -> None:
    """C^-1 of (1, 2) doubles with each row, and beyond 1,024 rows it is no float."""
    grown = replace(plan, coefficients=(1.0, 2.0), max_rounds=rounds)
    with pytest.raises(ConfigError, match=r"within 2\^52 grid units.* take coefficients of CorrelatedNoise"):
        Protection(grown, SPEC).charge()
    own = CorrelatedNoise.optimised(rounds=70, separation=2).coefficients
    assert Protection(replace(grown, coefficients=own), SPEC).charge()


def test_no_cast_makes_a_constant_of_noise() -> None:
    """The second line, for callers that no plan meets. It asks for no draw, so it says nothing of one."""
    unused: Any = SimpleNamespace(normal=lambda count: pytest.fail("it drew"))
    with pytest.raises(ConfigError, match="2\\^52"):
        rounded(3, 1e18, unused)
    for noise, rows in ((CorrelatedNoise((1.0,), 1, 1), 1), (CorrelatedNoise((1.0, 2.0), 2, 35), 70)):
        with pytest.raises(ConfigError, match="2\\^52"):
            noise.noise(3, 1e18 if rows == 1 else 2.0**20, [unused] * rows)


def test_the_largest_noise_is_as_wide_as_it_is_charged() -> None:
    sigma, alone = 2.0**52 / 13, CorrelatedNoise((1.0,), 1, 1)
    for drawn in (rounded(4000, sigma, Source()), alone.noise(4000, sigma, [Source()])):
        assert drawn.std() == pytest.approx(sigma, rel=0.1)
        assert np.array_equal(drawn.astype(np.float64).astype(np.int64), drawn)


def test_noise_of_another_distribution_is_exact_too() -> None:
    """In a sum without a modulus: a client's value plus such noise would wrap, and be told."""
    drawn = np.full(3, 2**62, np.int64)
    kind: Any = lambda plan, spec: SimpleNamespace(total_by=SERVER, total_noise=lambda *asked: drawn)  # noqa: E731
    kind.total_by = SERVER
    own = Outside("wide", kind, PLAN, SPEC)
    with pytest.raises(LocalProtocolError, match="headroom"):
        own.total_noise(SERVER, 3, Source())
    drawn >>= 10
    assert own.total_noise(SERVER, 3, Source()) is drawn
