"""What every scheme holds a hidden sum against: the plan, the order and the clients that are called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.every import every

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.algorithm.weighing import Weights
from securefl.core.errors import ConfigError
from securefl.sums.masked import Masked
from securefl.sums.scheme import least_opened, required_contributions

OWN = ValueSpec(name="own", reduction="sum", reveals="it")
SIZES: dict[str, Any] = {
    "min_cohort_size": 6,
    "max_cohort_size": 10,
    "min_honest": 2,
    "max_client_weight": 0.5,
}
PLAN = Plan(sum="masked", delta=1e-5, max_rounds=1, corrupt=0.2, dropout=0.2, **SIZES)


def test_no_total_of_one_client_opens() -> None:
    """A plan with such cohorts is refused. The key holder's own least number does not lean on that."""
    assert [least_opened(PLAN, clients, [OWN]) for clients in (1, 2, 10)] == [2, 2, 8]


def test_a_key_holder_holds_orders_against_its_own_plan() -> None:
    assert required_contributions(PLAN, [OWN], 10, Weights((1,) * 10)) == 8
    for weights in (Weights((1,) * 11), Weights((2,) * 10), Weights((9, *[1] * 9), whole=18)):
        with pytest.raises(ConfigError):
            required_contributions(PLAN, [OWN], 10, weights)


@every(("called", "fits"), [(7, False), (8, True), (10, True), (11, False)])
def test_as_many_are_called_as_open_a_total_and_no_more_than_ordered(called: int, fits: bool) -> None:
    try:
        assert required_contributions(PLAN, [OWN], called, Weights((1,) * 10)) == 8
        assert fits
    except ConfigError:
        assert not fits


def test_a_masked_sum_follows_the_plan() -> None:
    policy = Masked(PLAN).policy([OWN], 10)
    assert (policy.mode, policy.corrupt, policy.dropout) == ("active", 0.2, 0.2)
    assert (policy.min_cohort_size, policy.min_honest, policy.least_survivors) == (6, 2, 8)
    trusted = Masked(replace(PLAN, secagg="semi-honest", corrupt=0.0)).policy([OWN], 10)
    assert (trusted.mode, trusted.corrupt) == ("semi-honest", 0.0)
