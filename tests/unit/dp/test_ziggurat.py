"""Normal variates by layers: the law, its tails, and no word that serves twice.

Statistics are of fixed keys, so they pass always or never. The false alarm is how likely another key fails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.every import every

from securefl.core.keys import SecretKey
from securefl.dp import ziggurat
from securefl.dp.noise import Source
from securefl.dp.ziggurat import BEYOND, EDGE, LAYERS, normals

WIDTH, HEIGHT, INNER, STEP = ziggurat._WIDTH, ziggurat._HEIGHT, ziggurat._INNER, ziggurat._STEP


def fixed(label: int) -> Source:
    return Source(SecretKey(bytes([label]) * 32))


@pytest.fixture(scope="module")
def drawn() -> NDArray[np.float64]:
    return fixed(1).normal(4_000_000)


def density(x: float) -> Decimal:
    with localcontext(prec=40):
        return (-(Decimal(x) ** 2) / 2).exp()


def given(*parts: Any) -> ziggurat.Words:
    """Words that are given, in parts that must be asked for one by one."""
    left: Iterator[NDArray[np.uint64]] = iter([np.array(part, dtype=np.uint64) for part in parts])

    def words(count: int) -> NDArray[np.uint64]:
        part = next(left) if count else np.zeros(0, np.uint64)
        assert len(part) == count
        return part

    return words


def word(layer: int, place: int) -> int:
    """place: from -2^52 on, below 2^52."""
    return (place % 2**53) << 11 | layer


# The layers --------------------------------------------------------------------------------------------


def test_layers_cover_the_density_and_have_one_area() -> None:
    thickness = ziggurat._THICKNESS
    area = EDGE * float(density(EDGE)) + sqrt(2 * np.pi) * stats.norm.sf(EDGE)
    assert len(WIDTH) == len(HEIGHT) == len(INNER) == LAYERS == 1024
    assert np.allclose(WIDTH * thickness, area, rtol=1e-14, atol=0)
    assert stats.norm.sf(EDGE) == pytest.approx(BEYOND, rel=1e-14)
    assert float(density(EDGE)) == HEIGHT[1]
    # A layer begins where the layers below it end, to 1e-13 of the density there.
    exact = Fraction(0)
    for height, own in zip(HEIGHT, thickness, strict=True):
        assert abs(Fraction(height) - exact) <= Fraction(1, 10**13) * exact
        exact += Fraction(own)
    assert 1 <= exact < 1.01
    for width, height in zip(WIDTH[1:], HEIGHT[1:], strict=True):
        assert density(width) <= Decimal(height) * (1 + Decimal("1e-15"))


def test_a_point_that_its_place_decides_is_under_the_density() -> None:
    for layer in range(1, LAYERS - 1):
        assert density(INNER[layer] * STEP[layer]) > Decimal(HEIGHT[layer + 1])
    assert INNER[0] * STEP[0] == pytest.approx(EDGE, abs=1e-15)
    assert INNER[-1] == 0


def test_the_table_is_the_same_on_every_machine() -> None:
    tables = b"".join(table.astype("<f8").tobytes() for table in (WIDTH, HEIGHT, INNER))
    assert (
        hashlib.sha256(tables).hexdigest()
        == "cd47ebe6b683bbde7db0b9d662cda8b33b2f1847911ce6830b505e41909e45d5"
    )


def test_a_key_has_the_same_noise_on_every_machine() -> None:
    """A vector of 100,000 variates in steps of 2^-40, far above the last bit of a logarithm."""
    steps = np.rint(fixed(9).normal(100_000) * 2.0**40).astype("<i8")
    assert steps[:4].tolist() == [-345748717211, 1533705937493, -636299462100, 88517151353]
    assert (
        hashlib.sha256(steps.tobytes()).hexdigest()
        == "a2275493a3327c7af7bbc2ae200396503208f9df750b8565c5df34b44b301977"
    )


# What words become -------------------------------------------------------------------------------------


@every("layer", [1, 2, 100, 700, 1000, 1022, 1023])
@every("side", [1, -1])
def test_a_doubtful_point_is_kept_by_its_height(layer: int, side: int) -> None:
    """Heights 2^-38 of a layer below the density and above it: one is kept, the other drawn anew."""
    place = int(INNER[layer]) + int((2**52 - INNER[layer]) / 3)
    x = (place + 0.5) * STEP[layer]
    place = place if side > 0 else -place - 1  # the places of both sides are half a step from 0
    share = (float(density(x)) - HEIGHT[layer]) / ziggurat._THICKNESS[layer]
    assert 0 < share < 1
    near, other = word(layer, place), word(500, 2**50)
    kept = normals(1, given([near], [int((share - 2**-38) * 2**64)]))
    assert kept.tolist() == [side * x]
    refused = normals(1, given([near], [int((share + 2**-38) * 2**64)], [other]))
    assert refused.tolist() == [(2**50 + 0.5) * STEP[500]]


def test_places_are_as_many_on_either_side_and_none_is_zero() -> None:
    places = [0, -1, 5, -6, 2**51, -(2**51) - 1]
    found = normals(len(places), given([word(300, place) for place in places]))
    assert np.array_equal(found[::2], -found[1::2])
    assert found[0] == STEP[300] / 2 > 0


@every("side", [1, -1])
@every(
    ("high", "low"),
    [(0, 0), (0, 2**63), (1 << 11, 0), (1 << 12, 7), (1 << 40, 0), (2**64 - 1, 0)],
)
def test_a_tail_has_its_exact_probability(high: int, low: int, side: int) -> None:
    """(2 h + l) / 2^117 of the tail lies beyond: 53 bits of one word, and 64 of another below them."""
    outermost = word(0, 2**52 - 1 if side > 0 else -(2**52))
    (x,) = normals(1, given([outermost], [0], [high, low]))
    share = ((high >> 11) * 2**65 + 2 * low + 1) / 2**118
    assert stats.norm.logsf(side * x) == pytest.approx(np.log(BEYOND * share), rel=1e-13)
    assert EDGE * (1 - 1e-15) <= side * x <= 13.327


def test_a_draw_ends_at_13_deviations_and_not_before() -> None:
    (furthest,) = normals(1, given([word(0, 2**52 - 1)], [0], [0, 0]))
    assert furthest == pytest.approx(13.3268, abs=1e-4)


def test_no_integer_is_out_of_reach_in_the_tails() -> None:
    """At sigma 2^20 grid units and 9.3 deviations, 53-bit probabilities would reach one integer in 80,000."""
    count = 2_000_000
    outermost = np.full(count, word(0, 2**52 - 1), dtype=np.uint64)
    high = np.full(count, 1 << 11, dtype=np.uint64)  # 2^-53 of the tail
    low = np.linspace(0, 2**64 - 1025, count).astype(np.uint64)
    blocks = np.split(outermost, range(ziggurat._BLOCK, count, ziggurat._BLOCK))
    found = normals(count, given(*blocks, np.zeros(count), np.concatenate([high, low]))) * 2.0**20
    assert found.min() > 9.3 * 2**20
    steps = np.diff(np.unique(np.rint(found)))
    assert len(steps) > 50_000
    assert steps.max() == 1


@every("count", [0, 1, 8191, 8192, 8193, 20_000])
def test_any_number_is_drawn_at_little_more_than_a_word_each(count: int) -> None:
    asked = []

    class Counted(Source):
        def words(self, count: int) -> NDArray[np.uint64]:
            asked.append(count)
            return super().words(count)

    found = Counted().normal(count)
    assert found.shape == (count,)
    assert np.isfinite(found).all()
    assert count <= sum(asked) <= 1.02 * count + 50


# What many become --------------------------------------------------------------------------------------


def test_variates_are_normal(drawn: NDArray[np.float64]) -> None:
    """Chi-square of 4 million in 1,000 cells of one probability; false alarm 1e-6."""
    seen = np.bincount((stats.norm.cdf(drawn) * 1000).astype(int), minlength=1000)
    assert stats.chisquare(seen).pvalue > 1e-6


def test_both_tails_are_normal(drawn: NDArray[np.float64]) -> None:
    """How many lie beyond 3 to 4.5 deviations on either side: 8 counts; false alarm of all of them 1e-6."""
    for side in (1, -1):
        for bound in (3.0, 3.5, EDGE, 4.5):
            expected = len(drawn) * stats.norm.sf(bound)
            assert stats.poisson(expected).cdf(seen := np.sum(side * drawn > bound)) > 5e-8
            assert stats.poisson(expected).sf(seen - 1) > 5e-8
    far = np.abs(drawn[np.abs(drawn) > EDGE])
    assert len(far) > 150
    assert stats.kstest(stats.norm.sf(far) / BEYOND, "uniform").pvalue > 1e-6


@every("apart", [1, 2, 8, 1024, ziggurat._BLOCK // 2, ziggurat._BLOCK, 2_000_000])
def test_variates_at_a_distance_are_independent(drawn: NDArray[np.float64], apart: int) -> None:
    """Correlations of values, squares and signs, and of what one layer has; false alarm 1e-6 a distance."""
    near, far = drawn[:-apart], drawn[apart:]
    for one in (near, np.square(near), np.sign(near)):
        for other in (far, np.square(far), np.sign(far)):
            correlation = np.corrcoef(one, other)[0, 1]
            assert abs(correlation) < 5.5 / sqrt(len(near))


def test_a_value_and_its_place_in_the_cell_are_independent(drawn: NDArray[np.float64]) -> None:
    """The lower bits are uniform whatever the value: chi-square of 16 x 16 cells; false alarm 1e-6."""
    coarse = np.clip((drawn * 2 + 8).astype(int), 0, 15)
    for bits in (20, 30, 40):
        fine = (np.floor(drawn * 2.0**bits).astype(np.int64)) & 15
        table = np.histogram2d(coarse, fine, bins=[np.arange(17), np.arange(17)])[0]
        table = table[table.sum(axis=1) > 500]
        assert stats.chi2_contingency(table).pvalue > 1e-6
