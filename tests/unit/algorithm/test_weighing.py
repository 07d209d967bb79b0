"""Orders of hidden sums: each party holds cohort, draws and n against its own plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.every import every
from support.hidden_plans import lawless

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.algorithm.weighing import Weights, admits, require_allowed
from securefl.core.errors import ConfigError

OWN = ValueSpec(name="own", reduction="sum", reveals="it")
SIZES: dict[str, Any] = {
    "min_cohort_size": 3,
    "max_cohort_size": 7,
    "min_honest": 2,
    "max_client_weight": 0.5,
}
PLAN = Plan(sum="masked", delta=1e-5, max_rounds=1, corrupt=0.1, **SIZES)


def refused(plan: Plan, weights: Weights, spec: ValueSpec = OWN) -> bool:
    try:
        require_allowed(plan, [spec], weights)
    except ConfigError:
        return True
    return False


def test_an_equal_order_draws_each_client_once() -> None:
    assert not refused(PLAN, Weights((1,) * 5))
    for draws in ((2, 2, 2, 2, 2), (1, 1, 1, 1, 2), (1, 1, 1, 1, 0)):
        assert refused(PLAN, Weights(draws)), draws


def test_an_order_leaves_enough_honest_contributors() -> None:
    """A plan is held to this in the cohorts it names. One that was changed after that is refused here."""
    strict = lawless(PLAN, min_honest=4)
    assert refused(strict, Weights((1,) * 4)), "one of four may collude"
    assert not refused(strict, Weights((1,) * 5))


@every(("records", "allowed"), [(49, False), (50, True), (60, True), (61, False)])
def test_an_n_is_within_the_plans_bounds(records: int, allowed: bool) -> None:
    """Under a huge n small clients' values round to 0, and the sum is one client's."""
    words: dict[str, Any] = {"min_records": 50, "max_records": 60, "public_num_examples": 10}
    plan = replace(PLAN, weights={"own": "counts"}, **words)
    spec = replace(OWN, weighs="counts")
    assert refused(plan, Weights((1,) * 5, records=records), spec) != allowed


def test_draws_are_as_many_as_the_plan_says() -> None:
    plan = replace(PLAN, weights={"own": "draws"}, draws=10)
    spec = replace(OWN, weighs="draws")
    assert not refused(plan, Weights((2, 2, 2, 2, 1, 1), whole=10), spec)
    assert not refused(plan, Weights((1,) * 6, whole=6), spec), "fewer, with each client drawn once"
    for draws, whole in (
        ((2, 2, 2, 2, 1, 1), 9),
        ((2, 2, 2, 2, 2, 1), 11),
        ((2, 2, 2, 1, 1, 1), 9),
        ((1,) * 6, 10),
    ):
        assert refused(plan, Weights(draws, whole=whole), spec), draws
    assert admits(plan, {0: 2, 1: 2, 2: 2, 3: 2, 4: 1, 5: 1})
    assert not admits(plan, {0: 5, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1}), "one client stands out"
