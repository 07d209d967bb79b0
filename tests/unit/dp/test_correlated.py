"""Noise that is correlated over rounds: its coefficients, its sensitivity by search, and the noise itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from scipy.linalg import toeplitz
from support.every import every

from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.dp.correlated import CorrelatedNoise
from securefl.dp.gaussian import rounded
from securefl.dp.noise import Source

REFERENCE = {
    (100, 20): (
        *(1.0, 0.537307, 0.421328, 0.362393, 0.324653, 0.297439, 0.276335, 0.259141, 0.244623, 0.232027),
        *(0.22086, 0.210781, 0.201545, 0.192964, 0.184889, 0.177189, 0.169741, 0.162407, 0.154993, 0.147107),
    ),
    (100, 10): (
        *(1.0, 0.591506, 0.486507, 0.430474, 0.392285, 0.362672, 0.337674, 0.315091, 0.293227, 0.269813),
    ),
    (12, 3): (1.0, 0.546649, 0.393158),
}
"""By rounds and bands, `toeplitz.optimize_banded_toeplitz` of jax_privacy 2.0.0, over its first entry."""
SMALL = CorrelatedNoise.optimised(rounds=9, separation=3)


def strategy(noise: CorrelatedNoise, rounds: int) -> Any:
    """C as a matrix."""
    column = np.zeros(rounds)
    column[: len(noise.coefficients)] = noise.coefficients[:rounds]
    return toeplitz(column, np.zeros(rounds))


def sources(rows: int, seed: str = "") -> list[Source]:
    """The sources of the rows from the newest to the first."""
    return [Source(SecretKey(f"{seed}{row}".encode().rjust(32, b"0"))) for row in range(rows, 0, -1)]


def test_coefficients_are_those_of_another_implementation() -> None:
    for (rounds, bands), wanted in REFERENCE.items():
        found = CorrelatedNoise.optimised(rounds=rounds, separation=bands).coefficients
        assert found == pytest.approx(wanted, abs=0.0005 + 1e-6)  # they are rounded to three digits


@every(("rounds", "separation", "most"), [(100, 20, 0.40), (100, 10, 0.45), (200, 50, 0.30)])
def test_prefix_sums_have_little_of_the_error_of_independent_noise(
    rounds: int, separation: int, most: float
) -> None:
    """By the noise that is drawn, in integers; 50 entries of each row show the ratio to 0.03."""
    noise = CorrelatedNoise.optimised(rounds=rounds, separation=separation)
    drawn = [noise.noise(50, 1e6 * noise.column_norm, sources(row)) for row in range(1, rounds + 1)]
    # Of independent noise, t of its totals have a variance of t together.
    found = np.sqrt((np.cumsum(drawn, 0) ** 2.0).mean() / ((rounds + 1) / 2)) / 1e6
    assert found <= most
    assert found == pytest.approx(noise.error(rounds), rel=0.1)


@every(("rounds", "bands", "most"), [(1000, 2, 0.712), (2000, 2, 0.710), (5000, 2, 0.709), (1000, 50, 0.196)])
def test_the_search_ends_at_the_optimum_in_long_runs(rounds: int, bands: int, most: float) -> None:
    """A step to coefficients whose inverse grows would overflow in so many rounds, and end the search."""
    with warnings.catch_warnings(action="error"):
        noise = CorrelatedNoise.optimised(rounds=rounds, separation=bands)
    assert noise.error(rounds) <= most
    for scale in (0.98, 1.02):  # no better ones are near
        rest = (scale * own for own in noise.coefficients[1:])
        other = CorrelatedNoise((1.0, *rest), bands, noise.max_participations)
        assert noise.error(rounds) <= other.error(rounds)


def patterns(rounds: int, separation: int, most: int) -> Iterator[tuple[int, ...]]:
    """The rounds in which one client can take part, in all ways."""
    for count in range(1, most + 1):
        for rows in combinations(range(rounds), count):
            if all(later - row >= separation for row, later in pairwise(rows)):
                yield rows


def worst(noise: CorrelatedNoise, rounds: int, separation: int) -> float:
    """How far one client moves C x at most: its contributions of norm 1 may point all in one direction."""
    c = strategy(noise, rounds)
    return max(
        float(np.linalg.norm(c[:, rows].sum(1)))
        for rows in patterns(rounds, separation, noise.max_participations)
    )


@every("rounds", (7, 9))
def test_no_pattern_of_participation_moves_more_than_the_sensitivity(rounds: int) -> None:
    """The proof's bound by search, and that it is reached; with a separation less one it would not hold."""
    noise = CorrelatedNoise.optimised(rounds=rounds, separation=3)
    assert worst(noise, rounds, 3) <= noise.sensitivity * (1 + 1e-12)
    assert worst(SMALL, 9, 3) == pytest.approx(SMALL.sensitivity, rel=1e-12)
    assert worst(noise, rounds, 2) > 1.1 * noise.sensitivity


def test_a_row_draws_the_noise_of_rows_before_it_again() -> None:
    """C times the noise of all rows is z: the noise of each row alone."""
    rows = np.array([SMALL.noise(4, 1e9, sources(row)) for row in range(1, 10)])
    z = np.array([Source(source._given).normal(4) for source in reversed(sources(9))])
    assert strategy(SMALL, 9) @ rows / 1e9 == pytest.approx(z, abs=1e-7)


def test_the_noise_of_a_total_is_within_its_reach() -> None:
    """The key holder's modulus must hold it, whichever rows are lost."""
    d = SMALL.inverse(9)
    for row in range(1, 10):
        for lost in range(row):
            weights = sum(np.r_[np.zeros(i), d[: row - i]] for i in range(lost + 1))
            assert np.linalg.norm(weights) <= SMALL.reach(9)


def test_one_band_is_independent_noise_bit_for_bit() -> None:
    one = CorrelatedNoise.optimised(rounds=9, separation=3, bands=1)
    assert one.column_norm == one.reach(9) == 1
    assert one.error(9) == pytest.approx(1)
    [own, *_] = sources(9)
    assert np.array_equal(one.noise(100, 50.0, sources(9)), rounded(100, 50.0, own))


@every(
    ("changes", "said"),
    [
        ({"coefficients": ()}, "finite coefficients of which the first is 1"),
        ({"coefficients": (0.5, 1.0)}, "the first is 1"),
        ({"coefficients": (1.0, float("nan"))}, "finite coefficients"),
        ({"coefficients": (1.0, 10**400)}, "finite coefficients"),
        ({"coefficients": (1.0, "0.5")}, "finite coefficients .* got .1.0, '0.5'"),
        ({"coefficients": "10"}, "finite coefficients"),
        ({"coefficients": (1.0, None)}, "finite coefficients"),
        ({"coefficients": None}, "finite coefficients .* got None"),
        ({"coefficients": (True, 0.5)}, "finite coefficients"),
        ({"coefficients": np.ones((2, 2))}, "finite coefficients"),
        ({"coefficients": (1.0, 0.5, 0.4, 0.3)}, "at most 3 coefficients"),
        ({"min_separation": 0}, "min_separation as a whole number from 1"),
        ({"max_participations": 2.0}, "max_participations as a whole number"),
    ],
)
def test_noise_without_a_proof_is_refused(changes: dict[str, Any], said: str) -> None:
    own = {"coefficients": (1.0, 0.5), "min_separation": 3, "max_participations": 4}
    CorrelatedNoise(**own)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=said):
        CorrelatedNoise(**{**own, **changes})  # type: ignore[arg-type]


def test_more_bands_than_rounds_or_separation_are_refused() -> None:
    for bands in (0, 4, 10):
        with pytest.raises(ConfigError, match="got " + str(bands)):
            CorrelatedNoise.optimised(rounds=9, separation=3, bands=bands)


@every(
    "given", [(1, 0.5), [1.0, 0.5], np.array([1, 0.5]), (np.float32(1), np.float64(0.5)), (np.int64(1), 0.5)]
)
def test_any_numbers_are_floats(given: Any) -> None:
    """Equal plans have equal digests, which parties compare."""
    own = CorrelatedNoise(given, 3, 4).coefficients
    assert own == (1.0, 0.5)
    assert {type(one) for one in own} == {float}
    plans = [Plan(delta=1e-5, max_rounds=9, separation=3, coefficients=one) for one in (given, (1.0, 0.5))]
    assert plans[0] == plans[1]
    assert plans[0].digest() == plans[1].digest()
