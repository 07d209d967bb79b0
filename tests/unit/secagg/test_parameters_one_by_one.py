"""Each bound of the parameters, met and missed by one, and the small graphs that stand at an edge of the
search."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from support.every import every

from securefl.core.errors import ConfigError
from securefl.secagg import Parameters, Policy
from securefl.secagg.policy import parameters

GOOD = Parameters(
    mode="active",
    ordered=10,
    clients=10,
    corrupt=2,
    neighbours=9,
    threshold=7,
    quorum=7,
    least_survivors=8,
    least_degree=7,
    failure=0.0,
    security=math.inf,
)
SPARSE = replace(GOOD, neighbours=6, threshold=3, least_degree=4)
CURIOUS = replace(GOOD, mode="semi-honest", quorum=0, threshold=6)

# What parameters say of themselves ---------------------------------------------------------------------


@every(
    ("least", "missed", "why"),
    [
        (GOOD, {"quorum": 6}, "quorum of at least 7 of 10"),
        (GOOD, {"threshold": 6}, "threshold of at least 7"),
        (CURIOUS, {"threshold": 5}, "threshold of at least 6"),
        (replace(GOOD, clients=8, neighbours=7), {"quorum": 6}, "quorum of at least 7 of 10"),
        (replace(GOOD, clients=8, neighbours=7), {"threshold": 6}, "threshold of at least 7"),
        (replace(GOOD, quorum=8), {"least_survivors": 7}, "at least 8 survivors"),
        (replace(GOOD, threshold=8), {"least_survivors": 7}, "at least 8 survivors"),
        (replace(SPARSE, quorum=8), {"least_survivors": 7}, "at least 8 survivors"),
        (replace(CURIOUS, corrupt=5), {"least_survivors": 6}, "at least 7 survivors"),
        (replace(CURIOUS, corrupt=6, threshold=7), {"least_survivors": 7}, "at least 8 survivors"),
        (replace(GOOD, least_survivors=10), {"least_survivors": 11}, "survivors of 10 clients"),
        (replace(GOOD, clients=8, neighbours=7), {"clients": 7, "neighbours": 6}, "survivors of 7 clients"),
        (GOOD, {"ordered": 9}, "at most the 9 clients"),
    ],
)
def test_parameters_hold_at_each_bound_and_not_one_below(
    least: Parameters, missed: dict[str, int], why: str
) -> None:
    """A later attempt over fewer clients keeps the majority of those who were ordered."""
    with pytest.raises(ConfigError, match=why):
        replace(least, **missed)


def test_a_quorum_is_asked_of_the_active_mode_alone() -> None:
    assert CURIOUS.quorum == 0
    with pytest.raises(ConfigError, match="quorum"):
        replace(CURIOUS, mode="active", threshold=7)


@every("neighbours", [4, 6, 8])
def test_only_the_complete_graph_needs_a_majority_of_shares(neighbours: int) -> None:
    """A sparse graph has its threshold from a tail. One neighbour short of everybody is sparse."""
    sparse = replace(SPARSE, neighbours=neighbours)
    assert not sparse.complete
    assert replace(sparse, neighbours=9, threshold=7).complete
    with pytest.raises(ConfigError, match="threshold"):
        replace(sparse, neighbours=9)


# What can be asked for ---------------------------------------------------------------------------------


@every("mode", ["active", "semi-honest"])
@every(
    ("clients", "corrupt", "dropout"),
    [(1, 0.0, 0.0), (10, -0.1, 0.0), (10, 1.0, 0.0), (10, 0.0, -0.1), (10, 0.0, 1.0), (0, 0.0, 0.0)],
)
def test_figures_that_no_cohort_has_are_told_as_such(
    clients: int, corrupt: float, dropout: float, mode: Any
) -> None:
    """Fewer corrupt clients than none would lower the majority."""
    with pytest.raises(ConfigError, match="two clients or more"):
        parameters(clients, corrupt, dropout, mode)


@every("mode", ["active", "semi-honest"])
def test_two_clients_without_drop_outs_are_the_smallest_cohort(mode: Any) -> None:
    found = parameters(2, 0.0, 0.0, mode)
    assert (found.threshold, found.least_survivors, found.least_degree) == (2, 2, 1)


def test_the_largest_complete_cohort_is_the_one_that_was_named() -> None:
    assert parameters(200, 0.05, 0.1, "active", complete_up_to=200).complete
    assert not parameters(200, 0.05, 0.1, "active", complete_up_to=199).complete


# The search for a sparse graph -------------------------------------------------------------------------

SMALL: dict[str, tuple[tuple[int, float, float], tuple[int, int, int, int, int]]] = {
    "no graph is as dense as the least roster": ((8, 0.2, 0.2), (7, 6, 6, 7, 6)),
    "the search begins at four neighbours": ((6, 0.0, 0.0), (4, 2, 4, 6, 2)),
    "it ends at two below the least roster": ((5, 0.0, 0.0), (4, 3, 3, 5, 4)),
    "the least degree may be the threshold": ((20, 0.0, 0.2), (6, 2, 11, 16, 2)),
    "one that drops cuts no ring": ((12, 0.0, 0.1), (4, 2, 7, 11, 2)),
    "two that drop do": ((20, 0.0, 0.1), (4, 2, 11, 18, 2)),
    "those that collude count as those that drop": ((12, 0.1, 0.1), (6, 3, 8, 11, 3)),
}


@every("rule", SMALL)
def test_small_cohorts_stand_at_the_edges_of_the_search(rule: str) -> None:
    """Neighbours, threshold, quorum, least survivors and least degree, with next to no security asked for."""
    (clients, corrupt, dropout), expected = SMALL[rule]
    found = parameters(
        clients, corrupt, dropout, "active", complete_up_to=4, security=1, grinding=0, failure=0.5
    )
    got = (found.neighbours, found.threshold, found.quorum, found.least_survivors, found.least_degree)
    assert got == expected


def test_as_many_survivors_as_a_quorum_are_enough_for_a_sparse_graph() -> None:
    found = parameters(400, 0.0, 0.4975, "active")
    assert found.quorum == found.least_survivors == 201
    assert (found.neighbours, found.threshold, found.least_degree) == (72, 2, 8)


def test_no_corrupt_client_still_leaves_two_shares_for_a_secret() -> None:
    """With one share each holder would open it."""
    for clients in (60, 200):
        assert parameters(clients, 0.0, 0.1, "active", complete_up_to=50).threshold >= 2


@every("mode", ["active", "semi-honest"])
@every(("clients", "corrupt", "dropout"), [(200, 0.6, 0.4), (60, 0.9, 0.1), (10, 0.6, 0.4), (2, 0.5, 0.0)])
def test_a_cohort_with_too_few_honest_survivors_cannot_be_had(
    clients: int, corrupt: float, dropout: float, mode: Any
) -> None:
    with pytest.raises(ConfigError, match=r"survivors|threshold"):
        parameters(clients, corrupt, dropout, mode)


# What a client insists on ------------------------------------------------------------------------------

OWN = Policy(mode="active", corrupt=0.1, dropout=0.3)
HONEST = Policy(mode="semi-honest", corrupt=0.1, dropout=0.3)


@every(
    ("policy", "bound", "reached"),
    [
        (OWN, "min_cohort_size", 9),
        (OWN, "min_honest", 5),
        (OWN, "least_survivors", 7),
        (HONEST, "min_cohort_size", 9),
        (HONEST, "min_honest", 4),
        (HONEST, "least_survivors", 7),
    ],
)
def test_a_client_takes_what_reaches_its_bound_and_nothing_below(
    policy: Policy, bound: str, reached: int
) -> None:
    """Of an attempt over 9 of 10: cohort 9, signers less the corrupt one, 7 survivors."""
    given = policy.parameters(9, ordered=10)
    replace(policy, **{bound: reached}).check(given)
    with pytest.raises(ConfigError, match=f"at least {reached + 1} .*, got {reached}"):
        replace(policy, **{bound: reached + 1}).check(given)
