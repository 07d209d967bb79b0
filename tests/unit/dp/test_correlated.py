"""Noise that is correlated over rounds: its coefficients, its sensitivity by search, and the noise itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal

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
BUFFERS = {(100, 20): (0.4993069, 0.89382459), (100, 10): (0.60994516, 0.83290854)}
"""By rounds and separation, weight and decay by `buffered_toeplitz.optimize_loss` with one buffer."""
SMALL = CorrelatedNoise.optimised(rounds=9, separation=3)
BUFFERED = CorrelatedNoise((1.0, 0.2, 0.5), 3, 3, (0.3, 0.8))


def strategy(noise: CorrelatedNoise, rounds: int) -> Any:
    """C as a matrix, by its definition."""
    column = np.zeros(rounds)
    column[: len(noise.coefficients)] = noise.coefficients[:rounds]
    if noise.decays:
        later = [
            sum(w * decay**j for w, decay in zip(noise.coefficients[1:], noise.decays, strict=True))
            for j in range(rounds - 1)
        ]
        column = np.array([1.0, *later])
    return toeplitz(column, np.zeros(rounds))


def sources(rows: int, seed: str = "") -> list[Source]:
    """The sources of the rows from the first one."""
    return [Source(SecretKey(f"{seed}{row}".encode().rjust(32, b"0"))) for row in range(1, rows + 1)]


def test_coefficients_are_those_of_another_implementation() -> None:
    for (rounds, bands), wanted in REFERENCE.items():
        found = CorrelatedNoise.optimised(rounds=rounds, separation=bands).coefficients
        assert found == pytest.approx(wanted, abs=0.0005 + 1e-6)  # they are rounded to three digits


def test_buffers_are_those_of_another_implementation() -> None:
    for (rounds, separation), wanted in BUFFERS.items():
        found = CorrelatedNoise.optimised(rounds=rounds, separation=separation, bands="blt")
        assert (found.coefficients[1], *found.decays) == pytest.approx(wanted, abs=0.0005)
    two = CorrelatedNoise.optimised(rounds=200, separation=50, bands="blt")
    assert len(two.decays) == 2
    assert two.error(200) < 0.2815 < 0.2836, "of its two buffers, which are alike"


def test_the_errors_are_those_that_the_page_of_mechanisms_quotes() -> None:
    page = " ".join((Path(__file__).parents[3] / "docs/how-to/mechanism.md").read_text("utf-8").split())
    first, second, third = (
        CorrelatedNoise.optimised(rounds=rounds, separation=separation).error(rounds)
        for rounds, separation in ((100, 20), (100, 10), (200, 50))
    )
    buffers = CorrelatedNoise.optimised(rounds=100, separation=20, bands="blt").error(100)
    assert f"({buffers:.2f} in place of {first:.2f} below)" in page
    assert f"a separation of 20, sums over rounds have {first:.2f} of the error of independent noise" in page
    assert f"with 10 they have {second:.2f}, and with 200 rounds and 50 they have {third:.2f}." in page


@every(("rounds", "separation"), [(100, 20), (100, 5), (200, 50), (1000, 200), (2000, 5), (3, 7), (6, 1)])
def test_buffers_err_little_more_than_bands(rounds: int, separation: int) -> None:
    bands, buffers = (
        CorrelatedNoise.optimised(rounds=rounds, separation=separation, bands=own) for own in (None, "blt")
    )
    assert len(buffers.decays) <= 2
    assert bands.error(rounds) - 1e-9 <= buffers.error(rounds) <= 1.07 * bands.error(rounds)
    assert buffers.max_participations == bands.max_participations
    # No better ones are near.
    for scale in (0.98, 1.02):
        rest = (scale * own for own in buffers.coefficients[1:])
        other = replace(buffers, coefficients=(1.0, *rest))
        assert buffers.error(rounds) <= other.error(rounds) * (1 + 1e-5)


def test_bands_that_overlap_would_gain_nothing() -> None:
    """Why more bands than the separation are refused: of 40 at a separation of 20, the best have 20."""
    best = CorrelatedNoise.optimised(rounds=100, separation=20)
    tail = 0.147 * 0.9 ** np.arange(1, 21)

    def error(own: np.ndarray) -> float:
        column = np.r_[own, np.zeros(100 - len(own))]
        together = np.cumsum(column.reshape(5, 20), 0)
        prefixes = np.cumsum(np.linalg.solve(toeplitz(column, np.zeros(100)), np.eye(100)[0]))
        squared = (np.arange(100, 0, -1) * prefixes**2).sum()
        return float(np.sqrt((together**2).sum() / 5 * 2 * squared / (100 * 101)))

    assert error(np.array(best.coefficients)) == pytest.approx(best.error(100), rel=1e-9)
    for scale in (1.0, 0.3, 0.1, 0.01):
        assert error(np.r_[best.coefficients, scale * tail]) > best.error(100)


@every(
    ("bands", "rounds", "separation", "most"),
    [
        *((None, 100, 20, 0.40), (None, 100, 10, 0.45), (None, 200, 50, 0.30)),
        *(("blt", 100, 20, 0.40), ("blt", 100, 10, 0.46), ("blt", 200, 50, 0.30)),
    ],
)
def test_prefix_sums_have_little_of_the_error_of_independent_noise(
    bands: Literal["blt"] | None, rounds: int, separation: int, most: float
) -> None:
    """By the noise that is drawn, in integers; 50 entries of each row show the ratio to 0.03."""
    noise = CorrelatedNoise.optimised(rounds=rounds, separation=separation, bands=bands)
    sigma = 1e6 * noise.column_norm
    drawn = [noise.noise(50, sigma, sources(row), row - 1) for row in range(1, rounds + 1)]
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


@every(
    ("noise", "rounds", "tight"),
    [
        (BUFFERED, 9, 0.99),
        (BUFFERED, 7, 0.9),
        (CorrelatedNoise((1.0, 1.0), 2, 5, (1.0,)), 9, 0.8),
        (CorrelatedNoise((1.0, 0.4, 0.3), 1, 7, (0.9, 0.0)), 7, 0.99),
        (CorrelatedNoise.optimised(rounds=12, separation=3, bands="blt"), 12, 0.99),
        (CorrelatedNoise.optimised(rounds=10, separation=4, bands="blt"), 10, 0.9),
    ],
)
def test_no_pattern_moves_buffers_that_overlap_by_more_than_each_participation_is_charged(
    noise: CorrelatedNoise, rounds: int, tight: float
) -> None:
    """For every number of participations, since a ledger may stop after any: m cost sqrt(m) of one."""
    c, apart, moved = strategy(noise, rounds), noise.min_separation, {}
    for rows in patterns(rounds, apart, noise.max_participations):
        far = float(np.linalg.norm(c[:, rows].sum(1))) / np.sqrt(len(rows))
        moved[len(rows)] = max(far, moved.get(len(rows), 0.0))
    assert max(moved.values()) <= noise.column_norm * (1 + 1e-12)
    assert max(moved.values()) >= tight * noise.column_norm
    # Without overlap one column's norm would do. It does not here.
    assert np.linalg.norm(c[:, 0]) < max(moved.values())


@every("rounds", (7, 9))
def test_no_pattern_of_participation_moves_more_than_the_sensitivity(rounds: int) -> None:
    """The proof's bound by search, and that it is reached; with a separation less one it would not hold."""
    noise = CorrelatedNoise.optimised(rounds=rounds, separation=3)
    assert worst(noise, rounds, 3) <= noise.sensitivity * (1 + 1e-12)
    assert worst(SMALL, 9, 3) == pytest.approx(SMALL.sensitivity, rel=1e-12)
    assert worst(noise, rounds, 2) > 1.1 * noise.sensitivity


@every("noise", (SMALL, BUFFERED))
def test_a_row_draws_the_noise_of_rows_before_it_again(noise: CorrelatedNoise) -> None:
    """C times the noise of all rows is z: the noise of each row alone."""
    rows = np.array([noise.noise(4, 1e9, sources(row), row - 1) for row in range(1, 10)])
    z = np.array([source.normal(4) for source in sources(9)])
    assert strategy(noise, 9) @ rows / 1e9 == pytest.approx(z, abs=1e-7)
    together = noise.noise(4, 1e9, sources(9), 2)
    assert np.array_equal(together, rows[2:].sum(0)), "each row is rounded by itself"


@every("noise", (SMALL, BUFFERED))
def test_the_noise_of_a_total_is_within_its_reach(noise: CorrelatedNoise) -> None:
    """The key holder's modulus must hold it, whichever rows are lost."""
    d = noise.inverse(9)
    assert strategy(noise, 9) @ d == pytest.approx([1.0, *[0.0] * 8], abs=1e-12)
    for row in range(1, 10):
        for lost in range(row):
            weights = sum(np.r_[np.zeros(i), d[: row - i]] for i in range(lost + 1))
            assert np.linalg.norm(weights) <= noise.reach(9)


def test_one_band_is_independent_noise_bit_for_bit() -> None:
    one = CorrelatedNoise.optimised(rounds=9, separation=3, bands=1)
    assert one.column_norm == one.reach(9) == 1
    assert one.error(9) == pytest.approx(1)
    *_, own = sources(9)
    assert np.array_equal(one.noise(100, 50.0, sources(9), 8), rounded(100, 50.0, own))


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
        ({"decays": (0.5, 0.5)}, "a decay from 0 to 1 for each coefficient"),
        ({"decays": (1.1,)}, "a decay from 0 to 1"),
        ({"decays": (-0.1,)}, "a decay from 0 to 1"),
        ({"decays": (float("nan"),)}, "a decay from 0 to 1"),
        ({"decays": None}, "a decay from 0 to 1"),
        ({"decays": (0.5,), "coefficients": (1.0, -0.5)}, "a column that rises"),
        ({"decays": (0.5, 0.9), "coefficients": (1.0, 0.6, 0.5)}, "a column that rises"),
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
