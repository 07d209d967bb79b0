"""The graph of neighbours, and the calculator that says how large it must be."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_secagg import entropy

from securefl.core.cohort import colluding, dropping
from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.secagg.graph import draw
from securefl.secagg.policy import Parameters, Policy, parameters
from securefl.secagg.rings import Met, log2_apart

SEED = bytes(range(32))


def test_a_small_cohort_is_complete() -> None:
    graph = draw((0, 2, 5), 9, SEED)
    assert graph == {0: (2, 5), 2: (0, 5), 5: (0, 2)}
    assert graph.holders(2) == (0, 2, 5)


@every(("count", "degree"), [(60, 16), (101, 30), (200, 50)])
def test_a_sparse_graph_is_symmetric_and_has_at_most_its_degree(count: int, degree: int) -> None:
    members = tuple(range(3, 3 + 2 * count, 2))
    graph = draw(members, degree, SEED)
    sizes = [len(near) for near in graph.values()]
    assert max(sizes) <= degree
    # of degree draws with repetition so many are distinct on average; 5 % is 10 deviations or more
    assert np.mean(sizes) == pytest.approx(
        (count - 1) * (1 - (1 - 2 / (count - 1)) ** (degree // 2)), rel=0.05
    )
    for member, near in graph.items():
        assert member not in near
        assert near == tuple(sorted(set(near)))
        assert all(member in graph[other] for other in near)


def test_the_graph_follows_from_the_seed_and_from_nothing_else() -> None:
    members = tuple(range(100))
    assert draw(members, 20, SEED) == draw(members, 20, SEED)
    other = draw(members, 20, bytes(32))
    assert sum(other[m] == draw(members, 20, SEED)[m] for m in members) == 0


def test_every_pair_is_joined_equally_often() -> None:
    """4,000 seeds; the counts of member 0's neighbours by chi-square, false alarm 1e-6."""
    random, members = entropy("pairs"), tuple(range(24))
    counts = np.zeros(24)
    for _ in range(4000):
        counts[list(draw(members, 6, random(32))[0])] += 1
    assert counts[0] == 0
    share = 1 - (1 - 2 / 23) ** 3  # three rings
    statistic = ((counts[1:] - 4000 * share) ** 2).sum() / (4000 * share * (1 - share))
    assert statistic < 77.0  # chi-square with 23 degrees of freedom: more than that of counts in fixed sum


@every("degree", [3, 0, -2])
def test_a_degree_that_no_rings_have_is_refused(degree: int) -> None:
    with pytest.raises(LocalProtocolError, match="Expected an even degree"):
        draw(range(10), degree, SEED)


# The calculator -------------------------------------------------------------------------------------


@every(
    ("corrupt", "dropout", "mode", "threshold"),
    [
        (0.0, 0.1, "active", 16),
        (0.1, 0.1, "active", 17),
        (0.2, 0.1, "active", 19),
        (0.1, 0.1, "semi-honest", 16),
        (0.6, 0.1, "semi-honest", 19),
    ],
)
def test_a_complete_graph_has_the_majorities_of_the_proofs(
    corrupt: float, dropout: float, mode: str, threshold: int
) -> None:
    found = parameters(30, corrupt, dropout, mode)  # type: ignore[arg-type]
    assert found.complete
    assert found.threshold == threshold
    assert found.quorum == (threshold if mode == "active" else 0)
    assert (found.least_survivors, found.security) == (27, math.inf)


@every(("corrupt", "low", "high"), [(0.1, 52, 74), (0.2, 90, 158)])
def test_a_thousand_clients_need_the_thresholds_of_the_literature(
    corrupt: float, low: int, high: int
) -> None:
    found = parameters(1000, corrupt, 0.1, "active")
    assert low <= found.threshold <= high
    assert found.neighbours < 200
    assert 2 * found.quorum > 1000 + found.corrupt
    assert found.failure <= 2**-30
    assert found.security >= 40


def met(others: int, marked: int, count: int) -> list[Fraction]:
    """The law of marked neighbours in so many rings, in whole numbers: a uniformly random pair in each."""
    law = [Fraction(1)]
    for _ in range(count):
        after = [Fraction(0)] * (len(law) + 2)
        for seen, chance in enumerate(law):
            new = marked - seen
            for more in range(min(new, 2) + 1):
                ways = comb(new, more) * comb(others - new, 2 - more)
                after[seen + more] += chance * Fraction(ways, comb(others, 2))
        law = after
    return law


@every(("clients", "corrupt", "dropout"), [(200, 0.05, 0.1), (120, 0.1, 0.2)])
def test_threshold_and_least_degree_are_at_their_edges_by_an_exact_count(
    clients: int, corrupt: float, dropout: float
) -> None:
    """The union is over all clients; the corrupt ones are among the survivors, which is worst."""
    found = parameters(clients, corrupt, dropout, "active")
    count, left = found.neighbours // 2, found.least_survivors - 1
    colludes, stays = met(left, found.corrupt, count), met(clients - 1, left, count)
    bad = [clients * sum(colludes[t:]) for t in (found.threshold, found.threshold - 1)]
    assert bad[0] <= Fraction(1, 2**101) < bad[1]
    lonely = [clients * sum(stays[:d]) for d in (found.least_degree, found.least_degree + 1)]
    assert lonely[0] <= Fraction(1, 2**30) < lonely[1]
    assert found.failure == pytest.approx(float(lonely[0]), rel=1e-9)
    within = found.least_degree - found.threshold + 1
    apart = log2_apart(clients, found.least_survivors, found.corrupt, count, within)
    assert apart <= -101
    assert found.security == pytest.approx(-math.log2(float(bad[0]) + 2.0**apart) - 60, rel=1e-9)


@every(("clients", "corrupt", "dropout"), [(200, 0.0, 0.1), (1000, 0.1, 0.1), (300, 0.0, 0.3)])
def test_one_ring_fewer_would_not_do(clients: int, corrupt: float, dropout: float) -> None:
    found = parameters(clients, corrupt, dropout, "active")
    count, left = found.neighbours // 2 - 1, found.least_survivors - 1
    colludes, stays = Met(left, found.corrupt), Met(clients - 1, left)
    for _ in range(count):
        colludes.turn()
        stays.turn()
    threshold = max(2, int(np.argmax(clients * colludes.at_least <= 2.0**-101)))
    least = int(np.argmax(clients * stays.at_most > 2.0**-30))
    within = least - threshold + 1
    assert within < 1 or log2_apart(clients, found.least_survivors, found.corrupt, count, within) > -101


def test_no_honest_group_can_be_cut_off() -> None:
    """The calculator's bound against the cut it must exclude, searched for by removing one arc's border."""
    found = parameters(200, 0.1, 0.2, "active")
    rng = np.random.default_rng(1)
    graph = draw(tuple(range(200)), found.neighbours, SEED)
    for _ in range(200):
        group = set(rng.choice(200, 20, replace=False).tolist())
        border = {other for member in group for other in graph[member]} - group
        assert len(border) > 200 - found.least_survivors + found.corrupt


def test_shares_are_read_as_the_decimals_that_were_written() -> None:
    assert parameters(100, 0.29, 0.0, "semi-honest", complete_up_to=100).corrupt == 29
    assert parameters(30, 0.1, 0.1, "active").corrupt == 3


@every(
    ("share", "clients", "corrupt", "drop"),
    [(0.1, 9, 1, 0), (0.1, 10, 1, 1), (0.1, 11, 2, 1), (0.29, 100, 29, 29), (0.0, 7, 0, 0), (0.34, 3, 2, 1)],
)
def test_corrupt_clients_are_rounded_up_and_droppers_down(
    share: float, clients: int, corrupt: int, drop: int
) -> None:
    assert (colluding(share, clients), dropping(share, clients)) == (corrupt, drop)


def test_a_tenth_of_nine_clients_is_one() -> None:
    found = parameters(9, 0.1, 0.1, "active")
    assert (found.corrupt, found.quorum, found.least_survivors) == (1, 6, 9)


# Later attempts, and what they keep -----------------------------------------------------------------


@every("mode", ["active", "semi-honest"])
@every(("ordered", "complete"), [(10, True), (30, True), (200, False)])
def test_a_later_attempt_keeps_what_the_ordered_cohort_had(mode: Any, ordered: int, complete: bool) -> None:
    first = parameters(ordered, 0.1, 0.3, mode)
    assert first.complete == complete
    for clients in range(first.least_survivors, ordered):
        later = parameters(clients, 0.1, 0.3, mode, ordered=ordered)
        assert (later.ordered, later.clients) == (ordered, clients)
        assert (later.corrupt, later.quorum, later.least_survivors) == (
            first.corrupt,
            first.quorum,
            first.least_survivors,
        )
        if mode == "active":
            assert later.signers >= first.signers
        # Alone, so few clients would have had a lower bar.
        alone = parameters(clients, 0.1, 0.0, mode)
        assert alone.corrupt <= later.corrupt
        assert alone.quorum <= later.quorum
        assert later.digest() != alone.digest()
    for clients in (first.least_survivors - 1, ordered + 1):
        with pytest.raises(ConfigError, match=f"of the {ordered} ordered"):
            parameters(clients, 0.1, 0.3, mode, ordered=ordered)


def test_more_clients_than_were_ordered_cannot_be_had() -> None:
    with pytest.raises(ConfigError, match="were ordered"):
        replace(parameters(10, 0.1, 0.3, "active"), ordered=9)


@every(
    ("clients", "dropout", "mode", "signers"),
    [
        (10, 0.3, "active", 6),  # the quorum: floor((10 + 1) / 2) + 1
        (10, 0.3, "semi-honest", 5),  # 7 secrets of 6 shares, 10 holders each: 42 / 10, rounded up
        (10, 0.0, "semi-honest", 6),
        (200, 0.1, "active", 111),
    ],
)
def test_the_fewest_signers_are_counted(clients: int, dropout: float, mode: Any, signers: int) -> None:
    assert parameters(clients, 0.1, dropout, mode).signers == signers


def test_no_fewer_answers_open_every_secret_of_a_semi_honest_sum() -> None:
    """Greedily few holders of a sparse graph that have `threshold` shares of each survivor's secret."""
    found = parameters(200, 0.1, 0.1, "semi-honest")
    graph = draw(tuple(range(200)), found.neighbours, SEED)
    wanted = dict.fromkeys(range(found.least_survivors), found.threshold)
    answering: set[int] = set()
    while any(need > 0 for need in wanted.values()):
        gains = {
            m: sum(wanted.get(d, 0) > 0 for d in graph.holders(m)) for m in range(200) if m not in answering
        }
        best = max(gains, key=gains.__getitem__)
        answering.add(best)
        for dealer in graph.holders(best):
            wanted[dealer] = wanted.get(dealer, 0) - 1
    assert len(answering) >= found.signers > found.corrupt


# What a client insists on ---------------------------------------------------------------------------

POLICY = Policy(mode="active", corrupt=0.1, dropout=0.3, min_cohort_size=9, min_honest=5, least_survivors=7)


def test_a_policy_takes_its_own_parameters() -> None:
    POLICY.check(POLICY.parameters(10))
    POLICY.check(POLICY.parameters(9, ordered=10))


@every(
    "change",
    [
        {"threshold": 7},
        {"quorum": 7},
        {"corrupt": 2},
        {"least_degree": 5},
        {"least_survivors": 8},
        {"failure": 0.5},
        {"ordered": 11},
    ],
)
def test_parameters_that_the_client_did_not_work_out_are_refused(change: dict[str, Any]) -> None:
    """Stricter ones too: whoever sets them knows something else than the plan."""
    with pytest.raises(ConfigError):
        POLICY.check(replace(POLICY.parameters(10), **change))


def test_a_cohort_one_below_the_least_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 9 clients, got 8"):
        POLICY.check(POLICY.parameters(8))
    with pytest.raises(ConfigError, match="at least 9 clients, got 8"):
        POLICY.check(POLICY.parameters(8, ordered=10))


def test_too_few_honest_signers_or_survivors_are_refused() -> None:
    """T - c is 6 - 1 here."""
    with pytest.raises(ConfigError, match="6 honest signers, got 5"):
        replace(POLICY, min_honest=6).check(POLICY.parameters(10))
    with pytest.raises(ConfigError, match="8 survivors, got 7"):
        replace(POLICY, least_survivors=8).check(POLICY.parameters(10))


def test_a_policy_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(ConfigError):
        replace(POLICY, corrupt=0.9).parameters(10)


@every(
    ("clients", "corrupt", "dropout"),
    [
        (10, 0.4, 0.4),
        (30, 0.9, 0.1),
        (200, 0.4, 0.4),
        (2, 0.5, 0.0),
        (9, 0.1, 0.5),
        (1, 0, 0),
        (10, 1.0, 0),
        (10, 0, -0.1),
    ],
)
def test_what_cannot_be_had_is_refused(clients: int, corrupt: float, dropout: float) -> None:
    with pytest.raises(ConfigError):
        parameters(clients, corrupt, dropout, "active")


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="mode"):
        parameters(5, 0, 0, "honest")  # type: ignore[arg-type]


def test_parameters_without_a_majority_cannot_be_made() -> None:
    good = {
        "mode": "active",
        "ordered": 10,
        "clients": 10,
        "corrupt": 2,
        "neighbours": 9,
        "threshold": 7,
        "quorum": 7,
        "least_survivors": 8,
        "least_degree": 7,
        "failure": 0.0,
        "security": math.inf,
    }
    Parameters(**good)  # type: ignore[arg-type]
    for change in ({"quorum": 6}, {"threshold": 6}, {"least_survivors": 6}, {"least_survivors": 11}):
        with pytest.raises(ConfigError):
            Parameters(**(good | change))  # type: ignore[arg-type]


def test_the_digest_tells_parameters_apart() -> None:
    digests = {
        parameters(n, corrupt, dropout, mode).digest()
        for n in (10, 11)
        for corrupt in (0.0, 0.2)
        for dropout in (0.0, 0.2)
        for mode in ("active", "semi-honest")
    }
    assert len(digests) == 16


@every("degree", [6, 40])
def test_degrees_in_one_pass_are_those_of_the_rows(degree: int) -> None:
    """On a sparse graph and on the complete one, among some members and among all."""
    members = (*range(3), *range(4, 42))
    rows = draw(members, degree, SEED)
    for alive in (members, members[::2], members[5:6]):
        counted = [len({*rows[member]} & {*alive}) for member in alive]
        assert rows.degrees(alive).tolist() == counted
