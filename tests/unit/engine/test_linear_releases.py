"""Queries that vary read a vector, one linear equation a release: so its client's ledger counts releases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.every import every

from securefl.algorithm.clients import ClientContext, ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, PerClient, Schedule, Value, ValueSpec
from securefl.core.abstaining import Reason
from securefl.core.errors import BudgetExceeded
from securefl.core.linear import LinearBounds, LinearQuery, Range
from securefl.core.wire import Header
from securefl.engine.account import Account
from securefl.engine.aggregator import SecureAggregator

VECTOR = np.array([0.5, -0.25, 0.75])
H = len(VECTOR)
BOUNDS = LinearBounds(hidden_length=H, norm=1.0, weight_norm=1.0, row_norm=1.0, product=1.0)
HERE = Header(session=bytes(32), round=1, attempt=0, stage=0)
PLAN = Plan(
    scores="pads", unit="client", adjacency="zero-out", delta=1e-5, max_rounds=2 * H, non_private=("vector",)
)
RECORDS = [(np.zeros((1, 1)), np.zeros(1))] * 2


def spec(most: Any, **changes: Any) -> ValueSpec:
    declared: dict[str, Any] = {
        "name": "vector",
        "reduction": "none",
        "reveals": "its vector",
        "reveals_encrypted": "a number",
        "on_model": False,
        "schedule": Schedule(max_releases=most),
    }
    return ValueSpec(**declared | changes)


def vector(context: ClientContext) -> Value:
    return Value(hidden=VECTOR)


def opened(
    home: Path, most: Any, plan: Plan = PLAN, compute: Any = vector, own: LinearBounds | None = BOUNDS
) -> SecureAggregator:
    gives = [ClientFunction(spec(most), compute, own)]
    return SecureAggregator(plan, gives, RECORDS, ledger=home / "ledger.sqlite")


def asked(aggregator: SecureAggregator, *per_client: PerClient) -> Any:
    """What each client answers, by the value's name."""
    query = CohortQuery(cohort=(0, 1), broadcast=np.zeros(0, np.float32), per_client=per_client)
    return aggregator.query(query).per_client


def one(aggregator: SecureAggregator, most: Any, weights: NDArray[np.float64]) -> float:
    """What client 0 answers this query with. BudgetExceeded where its ledger lets nothing out any more."""
    answer: float = asked(aggregator, PerClient(spec(most), LinearQuery(BOUNDS, weights)))["vector"][0]
    return answer


def attack(aggregator: SecureAggregator, most: Any, queries: int) -> tuple[NDArray[np.float64], str]:
    """The server's best guess of the vector, from as many different queries as are answered."""
    rows, numbers, why = [], [], ""
    for k in range(queries):
        try:
            numbers.append(one(aggregator, most, np.eye(H)[k % H]))
        except BudgetExceeded as error:
            why = str(error)
            break
        rows.append(np.eye(H)[k % H])
    if not rows:
        return np.zeros(H), why
    found, *_ = np.linalg.lstsq(np.array(rows), np.array(numbers), rcond=None)
    return np.asarray(found), why


@every("scores", ["pads", "ckks", "clear"])
def test_as_many_queries_as_entries_read_the_vector_and_fewer_do_not(tmp_path: Path, scores: Any) -> None:
    plan = replace(PLAN, scores=scores)
    (tmp_path / "open").mkdir()
    with opened(tmp_path / "open", H, plan) as aggregator:
        found, why = attack(aggregator, H, H)
    assert np.allclose(found, VECTOR, atol=1e-3), "the attack works: h equations, h unknowns"
    assert why == ""
    with opened(tmp_path, H - 1, plan) as aggregator:
        found, why = attack(aggregator, H - 1, H)
        assert len(aggregator.ledger.rows()) == 2 * (H - 1)
    assert abs(found[-1] - VECTOR[-1]) > 0.5
    for said in (
        f"expected at most {H - 1} releases of 'vector' on this ledger",
        f"1 more after {H - 1}",
        "Declare more (`max_releases`)",
    ):
        assert said in why


def test_two_sessions_on_one_ledger_share_the_number(tmp_path: Path) -> None:
    with opened(tmp_path, 3) as first, opened(tmp_path, 3) as other:
        one(first, 3, np.eye(H)[0])
        one(other, 3, np.eye(H)[1])
        one(first, 3, np.eye(H)[2])
        for aggregator in (first, other):
            with pytest.raises(BudgetExceeded, match="1 more after 3"):
                one(aggregator, 3, np.eye(H)[0])


def test_a_ledger_of_releases_that_nobody_limited_is_held_to_the_number_now(tmp_path: Path) -> None:
    """Ledgers have their releases on file, not the number: an older one opens, and counts what is in it."""
    with opened(tmp_path, "schedule") as aggregator:
        for k in range(H):
            one(aggregator, "schedule", np.eye(H)[k])
    with (
        opened(tmp_path, 1) as aggregator,
        pytest.raises(BudgetExceeded, match=f"at most 1 .* 1 more after {H}"),
    ):
        one(aggregator, 1, np.eye(H)[0])
    with opened(tmp_path, H + 1) as aggregator:
        one(aggregator, H + 1, np.eye(H)[0])
        with pytest.raises(BudgetExceeded, match=f"1 more after {H + 1}"):
            one(aggregator, H + 1, np.eye(H)[0])


def test_the_schedule_s_number_is_what_a_run_asks_for() -> None:
    often = Schedule(period=2, initial=1, extra=3, max_releases="schedule")
    assert often.most_releases(10) == often.asked(10) == 5 + 1 + 3
    assert Schedule(max_releases=4).most_releases(10) == 4
    assert Schedule().most_releases(10) is None


@every("scores", ["pads", "ckks"])
def test_a_vector_above_its_bounds_leaves_no_client(tmp_path: Path, scores: Any) -> None:
    plan = replace(PLAN, scores=scores)
    with opened(tmp_path, 2, plan, lambda context: Value(hidden=3 * VECTOR)) as aggregator:
        assert asked(aggregator, PerClient(spec(2), LinearQuery(BOUNDS, np.eye(H)[0])))["vector"] == {}
        assert set(aggregator.log.abstained) == {0, 1}
        assert "3 hidden values of norm up to 1, got 3 of norm 2.8" in aggregator.log.abstained[0]
        assert aggregator.log.reasons[0] is Reason.ORDER, "no client has another vector"


@every("scores", ["pads", "ckks"])
def test_a_norm_that_its_records_made_too_large_reaches_nobody(tmp_path: Path, scores: Any) -> None:
    """The key holder has a finite epsilon and would see the silence: the client answers as one of none."""
    plan = replace(PLAN, scores=scores)
    with opened(
        tmp_path, 2, plan, lambda context: Value(hidden=(1 + 2 * len(context.x)) * VECTOR)
    ) as aggregator:
        assert one(aggregator, 2, np.eye(H)[0]) == pytest.approx(VECTOR[0], abs=1e-3)
        assert "of norm up to 1, got 3 of norm 2.8" in aggregator.log.blank[0]
        assert aggregator.log.abstained == {}


def test_the_server_asks_nobody_who_lets_nothing_out_any_more() -> None:
    """It knows from what it asked for: an order would cost the client's other values too."""
    account = Account(PLAN, {"vector": spec(2)}, clients=2)
    for asked in ((0, 1), (0,)):
        assert account.retired(1) == frozenset()
        account.query(["vector"], asked, HERE, initial=False)
    assert account.retired(3) == {0}
    account.query(["vector"], (1,), HERE, initial=True)
    assert account.retired(3) == {0, 1}


@every("scores", ["pads", "ckks"])
def test_two_queries_of_one_exchange_are_each_of_their_own_values(tmp_path: Path, scores: Any) -> None:
    plan = replace(PLAN, scores=scores, non_private=("vector", "other"))
    second = spec(1, name="other")
    gives = [
        ClientFunction(spec(1), vector, BOUNDS),
        ClientFunction(second, lambda context: Value(hidden=VECTOR[::-1].copy()), BOUNDS),
    ]
    first, last = np.eye(H)[0], np.eye(H)[1]
    with SecureAggregator(plan, gives, RECORDS, ledger=tmp_path / "ledger.sqlite") as aggregator:
        found = asked(
            aggregator,
            PerClient(spec(1), LinearQuery(BOUNDS, first)),
            PerClient(second, LinearQuery(BOUNDS, last)),
        )
    for k in (0, 1):
        assert found["vector"][k] == pytest.approx(VECTOR[0], abs=1e-3)
        assert found["other"][k] == pytest.approx(VECTOR[1], abs=1e-3)


def abstained(home: Path, value: Value, own: LinearBounds | None = BOUNDS) -> tuple[str, set[str]]:
    """Why a client with these declared bounds does not answer, and the states of its charges."""
    with opened(home, 2, PLAN, lambda context: value, own) as aggregator:
        assert asked(aggregator, PerClient(spec(2), LinearQuery(BOUNDS, np.eye(H)[0])))["vector"] == {}
        states = {row[7] for row in aggregator.ledger.rows()}
        assert states <= {"reserved"}, "no byte left"
        return aggregator.log.abstained[0], states


def test_bounds_that_differ_in_their_weights_alone_are_both_told(tmp_path: Path) -> None:
    own = replace(BOUNDS, weights=(Range(H, 0.25, 0.5),))
    why, charged = abstained(tmp_path, Value(hidden=VECTOR), own)
    assert own.text() in why
    assert f"{H}*[0.25,0.5]" in why
    assert charged == set()


def test_a_client_answers_no_query_under_a_looser_spread_than_its_own(tmp_path: Path) -> None:
    """It never sees the weights: it answers for its own bound alone, which the key holder checks."""
    why, charged = abstained(tmp_path, Value(hidden=VECTOR), replace(BOUNDS, spread=1.5))
    assert "spread=1.5" in why
    assert charged == set()


def test_a_value_without_declared_bounds_is_not_concealed(tmp_path: Path) -> None:
    why, charged = abstained(tmp_path, Value(hidden=VECTOR), None)
    assert "where it declares none (linear_bounds)" in why
    assert charged == set()


def test_values_beside_the_declared_clear_ones_do_not_leave(tmp_path: Path) -> None:
    """Else a vector would leave in the clear beside its score."""
    why, charged = abstained(tmp_path, Value(hidden=VECTOR, clear=VECTOR))
    assert "Expected of 'vector', as its declared bounds have it, 0 values in the clear, got 3" in why
    assert charged == {"reserved"}, "it depends on the value, so it comes after the charge"


def test_a_server_that_asks_in_other_bounds_burns_no_budget(tmp_path: Path) -> None:
    """Before, each such query was charged, and the client's number of releases was soon used up."""
    wide = replace(BOUNDS, weight_norm=2.0, product=2.0)
    with opened(tmp_path, 1) as aggregator:
        for _ in range(3):
            assert asked(aggregator, PerClient(spec(1), LinearQuery(wide, np.eye(H)[0])))["vector"] == {}
            assert aggregator.log.reasons[0] is Reason.ORDER
            assert aggregator.ledger.rows() == []
        assert one(aggregator, 1, np.eye(H)[0]) == pytest.approx(VECTOR[0], abs=1e-3)
