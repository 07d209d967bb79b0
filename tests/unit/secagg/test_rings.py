"""The probabilities of random rings: each against every order that there is, the bound against attacks."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations, permutations, product
from math import comb, log2

import numpy as np
import pytest
from scipy.stats import binom, chisquare
from support.every import every
from support.tiny_secagg import entropy

from securefl.secagg.graph import draw
from securefl.secagg.policy import parameters
from securefl.secagg.rings import _SLOPES, Met, _log2_moments, _log2_unmixed, log2_apart

FALSE_ALARM = 1e-6


def rings(members: int) -> list[tuple[int, ...]]:
    """Every circular order, once from each of the two sides."""
    return [(0, *rest) for rest in permutations(range(1, members))]


def links(ring: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(ring, (*ring[1:], ring[0]), strict=True))


@every(("members", "marked", "count"), [(5, 2, 2), (5, 4, 2), (6, 3, 1), (4, 0, 3)])
def test_the_law_of_marked_neighbours_is_that_of_all_orders(members: int, marked: int, count: int) -> None:
    """The first `marked` members beside member `members - 1`, in every choice of so many rings."""
    found = [Fraction(0)] * (2 * count + 1)
    last, every = members - 1, rings(members)
    beside = [{a if b == last else b for a, b in links(ring) if last in (a, b)} for ring in every]
    for chosen in product(beside, repeat=count):
        seen = {other for near in chosen for other in near if other < marked}
        found[len(seen)] += Fraction(1, len(every) ** count)
    met = Met(members - 1, marked)
    for _ in range(count):
        met.turn()
    assert met.law == pytest.approx([float(one) for one in found], abs=1e-12)
    assert met.at_least[0] == pytest.approx(1)
    assert met.at_least[-1] == 0
    assert met.at_most[-1] == pytest.approx(1)


@every(("members", "honest"), [(7, 6), (7, 5), (7, 4), (8, 4), (6, 2)])
def test_a_group_is_unmixed_as_often_as_in_all_orders(members: int, honest: int) -> None:
    """Members 0 to size - 1 are the group, those up to `honest` are outside, and the rest is neither."""
    every = rings(members)
    for size in range(1, honest // 2 + 1):
        apart = sum(not any(min(a, b) < size <= max(a, b) < honest for a, b in links(ring)) for ring in every)
        found = 2.0 ** _log2_unmixed(members, honest)[size - 1]
        assert found == pytest.approx(apart / len(every), abs=1e-12)


@every("members", [5, 7])
def test_links_within_a_group_are_those_of_all_orders(members: int) -> None:
    every, most = rings(members), members // 2
    moments = _log2_moments(members, most)
    for size in range(1, most + 1):
        inside = [sum(max(a, b) < size for a, b in links(ring)) for ring in every]
        for slope, row in zip(_SLOPES[:6], moments, strict=False):
            expected = log2(sum(2.0 ** (slope * one) for one in inside) / len(every))
            assert row[size - 1] == pytest.approx(expected, abs=1e-9)


def can_be_cut(neighbours: list[int], survivors: int, corrupt: int, within: int) -> bool:
    """Whether a server that sees this graph (bits of neighbours) can leave a group apart, by trying all.

    The first `corrupt` members collude with it.
    """
    count = len(neighbours)
    for size in range(within + 1, (survivors - corrupt) // 2 + 1):
        for group in combinations(range(corrupt, count), size):
            bits, around = sum(1 << one for one in group), 0
            for one in group:
                if (neighbours[one] & bits).bit_count() < within:
                    break
                around |= neighbours[one]
            else:
                drop = around & ~bits & ~((1 << corrupt) - 1)
                if drop.bit_count() <= count - survivors:
                    return True
    return False


@pytest.mark.parametrize(
    ("clients", "survivors", "corrupt", "count", "within"),
    [(9, 7, 0, 2, 1), (11, 9, 0, 2, 2), (11, 8, 0, 3, 1), (10, 8, 1, 3, 1)],
)
def test_no_server_cuts_more_graphs_than_the_bound_says(
    clients: int, survivors: int, corrupt: int, count: int, within: int
) -> None:
    """800 graphs. If the bound is right, the test fails in one of a million runs; the source is seeded."""
    random, cut, turns = entropy("cut", clients, within), 0, 800
    for _ in range(turns):
        rows = draw(range(clients), 2 * count, random(32))
        near = [sum(1 << other for other in rows[k]) for k in range(clients)]
        cut += can_be_cut(near, survivors, corrupt, within)
    bound = 2.0 ** log2_apart(clients, survivors, corrupt, count, within)
    assert 0 < bound < 0.5
    assert 0 < cut <= binom(turns, bound).ppf(1 - FALSE_ALARM)


def test_every_ring_is_equally_likely() -> None:
    """2,400 graphs of one ring of 5: 12 circular orders. A fair draw fails in one of a million runs."""
    random, counts = entropy("ring"), Counter[tuple[tuple[int, ...], ...]]()
    for _ in range(2_400):
        rows = draw(range(5), 2, random(32))
        counts[tuple(rows.values())] += 1
    assert len(counts) == 12
    assert chisquare(list(counts.values())).pvalue > FALSE_ALARM


def test_members_beside_each_other_in_one_ring_are_so_in_another_by_chance_alone() -> None:
    """2,000 graphs of two rings of 6: member 0 meets three others with 6 / 10. The false alarm is 1e-6."""
    random, both, turns = entropy("two rings"), 0, 2_000
    for _ in range(turns):
        both += len(draw(range(6), 4, random(32))[0]) == 3
    # of the 10 pairs of others, one is that of the first ring, 6 share a member with it, and 3 share none
    low, high = binom(turns, 6 / 10).interval(1 - FALSE_ALARM)
    assert low <= both <= high


# What the bound says of extreme cohorts -------------------------------------------------------------------


def test_extreme_cohorts() -> None:
    # One member that drops cuts no ring, nobody drops or lies, or a single honest member survives.
    for cohort in ((100, 99, 0, 1, 0), (100, 100, 0, 2, 0), (10, 9, 8, 2, 1)):
        assert log2_apart(*cohort) == -np.inf
    # Two that drop cut one. Groups larger than half count as the largest: a bound over no sizes is not zero.
    for cohort in ((100, 98, 0, 1, 0), (40, 30, 0, 4, 29)):
        assert log2_apart(*cohort) > -np.inf


def test_each_demand_makes_a_group_apart_less_likely() -> None:
    base = log2_apart(300, 270, 30, 32, 4)
    for more in ((270, 30, 33, 4), (270, 30, 32, 5), (280, 30, 32, 4), (270, 20, 32, 4)):
        assert log2_apart(300, *more) < base


def test_the_ways_to_drop_members_count() -> None:
    """Without them the bound would be that of members that drop by chance (Bell et al. 2020)."""
    size = 5
    ways = comb(100, size) * comb(95, 10)
    chance = _log2_unmixed(100, 90)[size - 1]
    assert log2_apart(100, 90, 0, 9, size - 1) > log2(ways) + 9 * chance - 1e-9


def test_the_degree_grows_with_the_logarithm_of_the_cohort() -> None:
    degrees = [parameters(n, 0.0, 0.1, "active").neighbours for n in (1_000, 6_000)]
    assert max(degrees) <= 28
    assert [parameters(n, 0.1, 0.1, "active").neighbours for n in (1_000, 3_000)] == [94, 110]
