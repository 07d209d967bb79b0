"""The server's noise on a total: once for each total at each place, and as wide as it is charged."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.every import every

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, CohortQuery, Sum, Total, ValueSpec
from securefl.core.errors import LocalProtocolError
from securefl.core.grid import Grid
from securefl.core.keys import SecretKey
from securefl.core.wire import Header
from securefl.mechanisms.totals import with_noise

GRID = Grid(step=2.0**-10, bound=64.0)
OWN = ValueSpec(
    name="own", reduction="sum", reveals="it", sensitivity={("record", "add-remove"): 1.0}, grid=GRID
)
BARE = replace(OWN, name="bare", sensitivity={})
PLAN = Plan(
    adjacency="add-remove",
    delta=1e-5,
    max_rounds=1,
    noise="central",
    noise_multiplier=3.0,
    adversaries=("others",),
    non_private=("bare",),
)
HERE = Header(bytes(32), 1, 0, 0)


def released(header: Header = HERE, more: float = 0.0, spec: ValueSpec = OWN, secret: Any = bytes(32)) -> Any:
    record: Any = SimpleNamespace(secret=lambda session, number: secret and SecretKey(secret))
    asked = CohortQuery(cohort=(0,), broadcast=np.zeros(1, np.float32), sums=(Sum(spec, 3000),))
    answers = Answers(survivors=(0,), totals={spec.name: Total(np.full(3000, more), 1.0)}, per_client={})
    return with_noise(PLAN, record, asked, answers, header).totals[spec.name].value


def noised(more: float = 0.0, **own: Any) -> Any:
    return released(more=more, **own) - more


def test_a_round_that_is_run_again_has_the_noise_that_it_had() -> None:
    """Fresh noise on one total would be a second release. One draw on two totals tells their difference."""
    assert np.array_equal(noised(), noised())
    places = [replace(HERE, round=2), replace(HERE, stage=2), replace(HERE, attempt=2)]
    others = [
        *(noised(header=place) for place in places),
        noised(more=1.0),
        noised(spec=replace(OWN, name="other")),
    ]
    for one in (*others, noised(secret=bytes(31) + b"s")):
        assert abs(np.corrcoef(one, noised())[0, 1]) < 0.1


@every("step", [0.1, 0.01, 1e-3, 1e-6, 2.0**-10])
def test_the_attack_a_neighbour_that_the_low_bits_of_a_noised_total_rule_out(step: float) -> None:
    """Total and noise were rounded apart: one number told its total with probability 0.06 to 0.69."""
    spec = replace(OWN, grid=Grid(step=step, bound=step * 2**20))
    for total in (7.0, 12345.0):
        found = released(more=total * step, spec=spec)
        assert np.array_equal(found, np.rint(found / step) * step), "it tells total and noise together alone"


def test_a_value_without_a_sensitivity_gets_none() -> None:
    assert not noised(spec=BARE).any()


def test_totals_that_were_not_opened_get_none() -> None:
    asked = CohortQuery(cohort=(0,), broadcast=np.zeros(1, np.float32), sums=(Sum(OWN, 3),))
    record: Any = SimpleNamespace(secret=None)
    answers = Answers(survivors=(), totals={}, per_client={})
    assert with_noise(PLAN, record, asked, answers, HERE) == answers
    nobody = replace(answers, totals={OWN.name: Total(np.zeros(3), 0.0)})
    assert with_noise(PLAN, record, asked, nobody, HERE) == nobody, "in the clear zeros of nobody are opened"


def test_a_round_that_is_over_gets_no_total() -> None:
    with pytest.raises(LocalProtocolError):
        noised(secret=None)
