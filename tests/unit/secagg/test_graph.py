"""The graph of neighbours, and the calculator that says how large it must be."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from support.every import every

from securefl.core.cohort import colluding, dropping
from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.secagg.graph import draw
from securefl.secagg.policy import Policy, parameters
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
    assert max(map(len, graph.values())) <= degree
    for member, near in graph.items():
        assert member not in near
        assert near == tuple(sorted(set(near)))
        assert all(member in graph[other] for other in near)


def test_the_graph_follows_from_the_seed_and_from_nothing_else() -> None:
    members = tuple(range(100))
    assert draw(members, 20, SEED) == draw(members, 20, SEED)
    other = draw(members, 20, bytes(32))
    assert sum(other[m] == draw(members, 20, SEED)[m] for m in members) == 0


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


@every(("clients", "corrupt", "dropout"), [(200, 0.05, 0.1), (120, 0.1, 0.2)])
def test_threshold_and_least_degree_are_at_their_edges(clients: int, corrupt: float, dropout: float) -> None:
    """The union is over all clients; the corrupt ones are among the survivors, which is worst."""
    found = parameters(clients, corrupt, dropout, "active")
    count, left = found.neighbours // 2, found.least_survivors - 1
    colludes, stays = Met(left, found.corrupt), Met(clients - 1, left)
    for _ in range(count):
        colludes.turn()
        stays.turn()
    bad = clients * colludes.at_least
    assert bad[found.threshold] <= 2.0**-101 < bad[found.threshold - 1]
    lonely = clients * stays.at_most
    assert lonely[found.least_degree - 1] <= 2.0**-30 < lonely[found.least_degree]
    assert found.failure == pytest.approx(lonely[found.least_degree - 1], rel=1e-9)
    within = found.least_degree - found.threshold + 1
    apart = log2_apart(clients, found.least_survivors, found.corrupt, count, within)
    assert apart <= -101
    assert found.security == pytest.approx(-math.log2(bad[found.threshold] + 2.0**apart) - 60, rel=1e-9)


@every(
    ("share", "clients", "corrupt", "drop"),
    [(0.1, 9, 1, 0), (0.1, 10, 1, 1), (0.1, 11, 2, 1), (0.29, 100, 29, 29), (0.0, 7, 0, 0), (0.34, 3, 2, 1)],
)
def test_corrupt_clients_are_rounded_up_and_droppers_down(
    share: float, clients: int, corrupt: int, drop: int
) -> None:
    assert (colluding(share, clients), dropping(share, clients)) == (corrupt, drop)


# Later attempts, and what they keep -----------------------------------------------------------------


@every("mode", ["active", "semi-honest"])
@every(("ordered", "complete"), [(10, True), (30, True), (200, False)])
def test_a_later_attempt_keeps_what_the_ordered_cohort_had(mode: Any, ordered: int, complete: bool) -> None:
    first = parameters(ordered, 0.1, 0.3, mode)
    assert first.complete == complete
    for clients in range(first.least_survivors, ordered):
        later = parameters(clients, 0.1, 0.3, mode, ordered=ordered)
        assert (later.ordered, later.clients) == (ordered, clients)
        for name in ("corrupt", "quorum", "least_survivors"):
            assert getattr(later, name) == getattr(first, name)
        if mode == "active":
            assert later.signers >= first.signers
    for clients in (first.least_survivors - 1, ordered + 1):
        with pytest.raises(ConfigError, match=f"of the {ordered} ordered"):
            parameters(clients, 0.1, 0.3, mode, ordered=ordered)


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


# What a client insists on ---------------------------------------------------------------------------

POLICY = Policy(mode="active", corrupt=0.1, dropout=0.3)


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


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="mode"):
        parameters(5, 0, 0, "honest")  # type: ignore[arg-type]


@every("degree", [6, 40])
def test_degrees_in_one_pass_are_those_of_the_rows(degree: int) -> None:
    """On a sparse graph and on the complete one, among some members and among all."""
    members = (*range(3), *range(4, 42))
    rows = draw(members, degree, SEED)
    for alive in (members, members[::2], members[5:6]):
        counted = [len({*rows[member]} & {*alive}) for member in alive]
        assert rows.degrees(alive).tolist() == counted
