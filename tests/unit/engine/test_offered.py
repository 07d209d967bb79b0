"""The asker names what clients offer: another description of it is refused, and introductions are counted."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.hidden_plans import hidden

from securefl.accounting.events import steps_event
from securefl.algorithm.clients import ClientContext, ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, PerClient, Schedule, Sum, Value, ValueSpec
from securefl.core.errors import BudgetExceeded, ConfigError, DataError, LocalProtocolError
from securefl.core.grid import Grid
from securefl.core.release import ReleaseKey
from securefl.engine.aggregator import SecureAggregator
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.protecting import protect

EVERYBODY = (0, 1, 2, 3, 4)
GRID = Grid(step=2.0**-10, bound=2.0**10)
STEP = ValueSpec(
    name="step",
    reduction="sum",
    reveals="a step",
    sensitivity={("record", "add-remove"): 1.0},
    grid=GRID,
    cohort=5,
)
TRAINED = replace(
    STEP, training=steps_event(0.5, 0.4, 100), depends_on="trained-state", schedule=Schedule(initial=2)
)
PLAN = hidden(
    Plan(
        dropout=0.2,
        corrupt=0.2,
        noise="distributed",
        noise_multiplier=4.0,
        adjacency="add-remove",
        delta=1e-5,
        max_rounds=20,
    ),
    len(EVERYBODY),
    min_cohort_size=4,
)
CENTRAL = replace(PLAN, sum="clear", noise="central", adversaries=("others",))


def zeros(context: ClientContext) -> Value:
    return Value(integers=np.zeros(3, np.int64), step=GRID.step)


def opened(path: Path, plan: Plan = PLAN, spec: ValueSpec = STEP, compute: Any = zeros) -> SecureAggregator:
    records = [(np.zeros((4, 3)), np.zeros(4, np.int64))] * 5
    return SecureAggregator(plan, [ClientFunction(spec, compute)], records, ledger=path / "ledger.sqlite")


def query(spec: ValueSpec, cohort: tuple[int, ...] = EVERYBODY, **more: Any) -> CohortQuery:
    return CohortQuery(cohort=cohort, broadcast=np.zeros(0, np.float32), sums=(Sum(spec, 3),), **more)


@every(
    "other",
    [
        {"sensitivity": {}},
        {"sensitivity": {("record", "add-remove"): 1e-3}},
        {"cohort": 0},
        {"cohort": 3},
        {"grid": Grid()},
        {"training": None},
        {"schedule": Schedule(initial=99)},
        {"schedule": Schedule(extra=99)},
        {"schedule": Schedule(once=True)},
        {"name": "another"},
    ],
)
@every("plan", [PLAN, CENTRAL])
def test_another_description_is_refused_and_costs_nothing(tmp_path: Path, plan: Plan, other: Any) -> None:
    offered = TRAINED if "training" in other else STEP
    plan = replace(plan, non_private=("step",))
    with opened(tmp_path, plan, offered) as aggregator:
        with pytest.raises(LocalProtocolError, match="clients contribute"):
            aggregator.query(query(replace(offered, **other)))
        assert aggregator.ledger.rows() == []
        assert aggregator.query(query(offered)).survivors == EVERYBODY


def test_a_sum_is_not_asked_of_each_nor_a_number_in_a_sum(tmp_path: Path) -> None:
    per_client = replace(STEP, reduction="none")
    with opened(tmp_path) as aggregator, pytest.raises(LocalProtocolError, match="query of reduction 'none'"):
        aggregator.query(
            CohortQuery(cohort=EVERYBODY, broadcast=np.zeros(0, np.float32), per_client=(PerClient(STEP),))
        )
    with (
        opened(tmp_path, spec=per_client) as aggregator,
        pytest.raises(LocalProtocolError, match="query of reduction 'sum'"),
    ):
        aggregator.query(query(per_client))


def test_a_model_that_travels_as_a_public_array_is_trained_on_at_its_price(tmp_path: Path) -> None:
    with opened(tmp_path, spec=TRAINED) as aggregator:
        assert aggregator.query(query(TRAINED, public={"model": np.zeros(3)})).survivors == EVERYBODY
        assert 100 < aggregator.ledger.epsilon(0, "server") < inf


def test_introductions_are_counted_over_sessions(tmp_path: Path) -> None:
    """As many as declared, whatever number each bears; the next is refused, and one of a round is not."""
    for _ in range(2):
        with opened(tmp_path, spec=TRAINED) as aggregator:
            assert aggregator.query(query(TRAINED, initial=1)).survivors == EVERYBODY
    done = "at most 2 declared initial queries of 'step', got one more after 2"
    with opened(tmp_path, spec=TRAINED) as aggregator, pytest.raises(BudgetExceeded, match=done):
        aggregator.query(query(TRAINED, initial=2))
    with opened(tmp_path, spec=TRAINED) as aggregator:
        assert aggregator.ledger.epsilon(0, "server") < 10
        assert aggregator.query(query(TRAINED)).survivors == EVERYBODY
        assert aggregator.ledger.epsilon(0, "server") > 100


def test_a_cohort_below_what_shares_were_sized_for_is_not_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Expected a least size"):
        opened(tmp_path, spec=replace(STEP, cohort=0))
    with opened(tmp_path) as aggregator:
        assert aggregator.query(query(STEP, cohort=(0, 1, 2))).survivors == ()
        assert "a sum needs 4" in aggregator.log.abstained["server"]
        assert aggregator.ledger.rows() == []


KEY = ReleaseKey("client-0000", bytes(32), 1, 0, 0, "step")


def test_nothing_is_rounded_after_its_sensitivity_was_declared() -> None:
    """10^4 values that a record moves by 1e-6 in all crossed as many rounding steps: mu 48 for 1 declared."""
    tiny = replace(STEP, sensitivity={("record", "add-remove"): 1e-6}, grid=Grid())
    own, step = Protection(replace(CENTRAL, noise_multiplier=1.0), tiny), tiny.grid.step
    floats = 0.5 * step + np.array([-1, 1])[:, None] * np.full(10_000, 5e-9)
    with pytest.raises(LocalProtocolError, match="integers of the grid"):
        protect(own, Value(clear=floats[0]), key=KEY, weight=1.0)
    values = [Value(integers=np.trunc(one / step).astype(np.int64), step=step) for one in floats]
    assert np.array_equal(*(protect(own, value, key=KEY, weight=1.0)._numbers for value in values))


@every("weight", [1.0, 1 / 3, 0.7, 1 - 2.0**-53, 5e-10])
def test_weights_move_integers_no_further_apart(weight: float) -> None:
    rng = np.random.default_rng(8)
    own = Protection(replace(CENTRAL, noise_multiplier=1.0), STEP)
    one = rng.integers(-GRID.limit, GRID.limit, 100_000)
    other = one + rng.integers(-3, 4, len(one))
    came = [
        protect(own, Value(integers=v, step=GRID.step), key=KEY, weight=weight)._numbers.astype(np.int64)
        for v in (one, other)
    ]
    assert (np.abs(came[0] - came[1]) <= np.abs(one - other)).all()
    assert (np.abs(came[0]) <= np.abs(one)).all()


def test_integers_beyond_their_grid_are_cut_to_it(tmp_path: Path) -> None:
    """To refuse would tell of the record that tips them over; to cut moves neighbours no further apart."""
    beyond = Value(integers=np.array([2**62, -(2**62), 0]), step=GRID.step)
    with opened(tmp_path, CENTRAL, compute=lambda context: beyond) as aggregator:
        total = aggregator.query(query(STEP)).totals["step"].value
    np.testing.assert_allclose(total, [5 * GRID.bound, -5 * GRID.bound, 0], atol=40)


@every(("gone", "there"), [((), 5), ((0,), 4), ((0, 1), 0)])
def test_a_sum_of_too_few_shares_of_noise_is_thrown_away(
    tmp_path: Path, gone: tuple[int, ...], there: int
) -> None:
    """The plan declares one of five as dropping out, so four shares are as much noise as is charged for."""

    def failing(context: ClientContext) -> Value:
        if context.client in gone:
            raise DataError("It cannot read its records.")
        return zeros(context)

    with opened(tmp_path, replace(PLAN, sum="clear"), compute=failing) as aggregator:
        answers = aggregator.query(query(STEP))
        assert (len(answers.survivors), len(answers.totals)) == (there, bool(there))
