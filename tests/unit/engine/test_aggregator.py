"""A foreign loop's values leave by the door alone: charged first, masked or encrypted, through bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import inf, isinf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.every import every
from support.hidden_plans import hidden
from support.tiny_orders import order

from securefl.accounting.ledger import Ledger
from securefl.accounting.shared import runs_of
from securefl.algorithm.clients import ClientContext, ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import (
    ByCount,
    ByDraws,
    CohortQuery,
    PerClient,
    Schedule,
    Sum,
    Value,
    ValueSpec,
)
from securefl.core.errors import BudgetExceeded, ConfigError, LocalProtocolError, RemoteProtocolError
from securefl.core.grid import Grid
from securefl.core.release import SERVER
from securefl.core.wire import Header
from securefl.dp.calibration import sigma
from securefl.dp.moments import MeanVariance
from securefl.engine.aggregator import SecureAggregator
from securefl.engine.exchange import MOST, Client
from securefl.matching.profiles import Anchor, Bounds, Variant, divergence, features, linear_query

CLIENTS, LENGTH = 5, 12
EVERYBODY = tuple(range(CLIENTS))
NOTHING = np.zeros(0, np.float32)
AT = Header(bytes(32), 1, 0, 0)
UPDATE = ValueSpec(name="update", reduction="sum", reveals="its update")
GRID = Grid(step=2.0**-10, bound=2.0**12)
OPEN = Plan(delta=1e-5, max_rounds=50, non_private=("update", "profile"))
MASKED = hidden(OPEN, CLIENTS, min_cohort_size=4, dropout=0.2, corrupt=0.2)


def records() -> list[tuple[NDArray[Any], NDArray[Any]]]:
    rng = np.random.default_rng(3)
    return [(rng.normal(size=(9, LENGTH)), np.zeros(9, np.int64)) for _ in range(CLIENTS)]


def update(context: ClientContext) -> Value:
    return Value(clear=context.x.sum(0) + context.broadcast.sum())


def summed(context: ClientContext) -> Value:
    """The same as integers of the noised value's grid."""
    return Value(integers=np.rint(update(context).clear / GRID.step).astype(np.int64), step=GRID.step)


def query(cohort: tuple[int, ...] = EVERYBODY, spec: ValueSpec = UPDATE, model: Any = NOTHING) -> CohortQuery:
    return CohortQuery(cohort=cohort, broadcast=model, sums=(Sum(spec, LENGTH),))


def opened(plan: Plan, path: Path, spec: ValueSpec = UPDATE, parameters: str = "strong") -> SecureAggregator:
    compute = summed if spec.sensitivity else update
    gives = [ClientFunction(spec, compute)]
    return SecureAggregator(plan, gives, records(), ledger=path / "ledger.sqlite", parameters=parameters)


@every("how", ["clear", "masked", "ckks", "two-server"])
def test_the_sum_is_that_of_the_loop_s_own_values(tmp_path: Path, how: Any) -> None:
    with opened(replace(MASKED, sum=how), tmp_path) as aggregator:
        answers = aggregator.query(query((0, 1, 2, 4), model=np.full(1, 0.5, np.float32)))
    expected = sum(records()[k][0].sum(0) + 0.5 for k in (0, 1, 2, 4))
    assert answers.survivors == (0, 1, 2, 4)
    assert np.abs(answers.totals["update"].value - expected).max() <= 4 * UPDATE.grid.step
    assert answers.totals["update"].weight == 4


def test_tensors_are_records_as_arrays_are(tmp_path: Path) -> None:
    given = [(torch.tensor(x, requires_grad=True), torch.tensor(y)) for x, y in records()]
    with SecureAggregator(OPEN, [ClientFunction(UPDATE, update)], given, ledger=tmp_path / "l") as aggregator:
        total = aggregator.query(query()).totals["update"].value
    assert np.abs(total - sum(x.sum(0) for x, _ in records())).max() <= 5 * UPDATE.grid.step


def test_the_charge_is_in_the_file_before_the_value_is_computed(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def looking(context: ClientContext) -> Value:
        seen.append([row[7] for row in aggregator.ledger.rows()])
        return update(context)

    with SecureAggregator(
        MASKED, [ClientFunction(UPDATE, looking)], records(), ledger=tmp_path / "ledger.sqlite"
    ) as aggregator:
        aggregator.query(query())
        assert seen == [["reserved"] * CLIENTS] * CLIENTS
        assert [row[7] for row in aggregator.ledger.rows()] == ["committed"] * CLIENTS
        assert all(isinf(aggregator.ledger.epsilon(k, "server")) for k in EVERYBODY)
        assert aggregator.ledger.worst("key-holder") == 0


@every(
    ("changed", "said"),
    [
        ({"dropout": 2.0}, "dropout from 0 to below 1"),
        ({"dropout": float("nan")}, "dropout from 0 to below 1"),
        ({"corrupt": -0.5}, "corrupt from 0 to 1"),
        ({"noise": "local", "noise_multiplier": float("nan")}, "a finite noise_multiplier"),
        ({"noise": "local", "noise_multiplier": -1.0}, "a finite noise_multiplier"),
    ],
)
def test_a_plan_that_no_study_could_have_is_refused(changed: dict[str, Any], said: str) -> None:
    """A corrupt share below 0 would count honest clients twice, a dropout above 1 lets two be enough."""
    with pytest.raises(ConfigError, match=said):
        replace(MASKED, **changed)


@every("how", ["masked", "ckks", "two-server", "two_server"])
def test_a_door_through_which_no_sum_could_go_is_not_opened(how: str, tmp_path: Path) -> None:
    """And leaves no ledger behind."""
    known, more = how != "two_server", CLIENTS + 1
    plan = replace(MASKED, sum=how, **{"min_cohort_size": more, "max_cohort_size": more} if known else {})
    with pytest.raises(ConfigError, match="a cohort of 6 to 6 clients" if known else "Expected sum among"):
        opened(plan, tmp_path)
    assert not list(tmp_path.iterdir())


@every("cohort", [(-1, 0, 1), (0, 1, CLIENTS), (0, 1, 2.0)])
@every("how", ["clear", "masked", "two-server"])
def test_a_client_that_there_is_not_is_not_asked(how: Any, cohort: Any, tmp_path: Path) -> None:
    """-1 would be the last client under another name, and so with a second budget."""
    with opened(replace(MASKED, sum=how), tmp_path) as aggregator:
        for ask in (aggregator.query, lambda asked: aggregator._engine.query(asked, AT)):
            with pytest.raises(LocalProtocolError, match="among the clients 0 to 4"):
                ask(query(cohort))
        assert not aggregator.ledger.rows()
        assert aggregator.query(query(tuple(np.arange(CLIENTS)))).survivors == EVERYBODY


def noised(releases: int, budget: float) -> tuple[Plan, ValueSpec]:
    spec = replace(
        UPDATE,
        sensitivity={("record", "add-remove"): 1.0},
        grid=GRID,
        cohort=CLIENTS,
    )
    z = sigma(budget, 1e-5, releases=releases, sensitivity=1.0)
    plan = replace(
        MASKED, noise="distributed", noise_multiplier=z, adjacency="add-remove", non_private=(), budget=budget
    )
    return plan, spec


def test_a_spent_budget_refuses_and_nothing_is_computed_or_opened(tmp_path: Path) -> None:
    plan, spec = noised(3, 2.0)
    computed = []

    def counting(context: ClientContext) -> Value:
        computed.append(context.round)
        return summed(context)

    with SecureAggregator(
        plan, [ClientFunction(spec, counting)], records(), ledger=tmp_path / "ledger.sqlite"
    ) as aggregator:
        for _ in range(3):
            assert aggregator.query(query(spec=spec)).survivors == EVERYBODY
        spent = aggregator.ledger.epsilon(2, "server")
        assert 1.99 < spent <= 2.0
        with pytest.raises(BudgetExceeded, match=r"client 0: .* 0 rounds"):
            aggregator.query(query(spec=spec))
        assert "0 rounds like it remain" in aggregator.log.abstained[2]
        assert aggregator.ledger.epsilon(2, "server") == spent
    assert sorted(computed) == sorted([1, 2, 3] * CLIENTS)


def test_who_refused_is_named_where_others_answered(tmp_path: Path) -> None:
    plan, spec = noised(3, 2.0)
    with opened(plan, tmp_path, spec) as aggregator:
        for _ in range(3):
            assert aggregator.query(query((0, 1, 2, 3), spec)).survivors == (0, 1, 2, 3)
        answers = aggregator.query(query(spec=spec))
        assert answers.survivors == ()
        assert list(aggregator.log.refused) == [0, 1, 2, 3]
        assert aggregator.log.refused.keys() <= aggregator.log.abstained.keys()


def test_floats_are_refused_under_noise_by_name(tmp_path: Path) -> None:
    """On the grid or off it: a declared sensitivity says nothing of what rounding adds to it."""
    plan, spec = noised(3, 2.0)
    said = r"integers of the grid for 'update', which is charged as noised"
    with (
        SecureAggregator(
            plan, [ClientFunction(spec, update)], records(), ledger=tmp_path / "ledger.sqlite"
        ) as aggregator,
        pytest.raises(LocalProtocolError, match=said),
    ):
        aggregator.query(query(spec=spec))


@every(
    "given",
    [np.zeros(LENGTH), np.zeros(LENGTH, np.int32), np.zeros((LENGTH, 1), np.int64)],
)
def test_integers_are_a_flat_vector_of_int64(given: NDArray[Any]) -> None:
    with pytest.raises(LocalProtocolError, match="flat vector of int64"):
        Value(integers=given, step=1.0)
    with pytest.raises(LocalProtocolError, match="got both"):
        Value(integers=np.zeros(1, np.int64), step=1.0, clear=np.zeros(1))
    with pytest.raises(LocalProtocolError, match="with `after_noise`"):
        Value(clear=np.zeros(1), after_noise=lambda noised: Value(clear=noised))


def test_what_was_spent_counts_behind_another_door(tmp_path: Path) -> None:
    plan, spec = noised(3, 2.0)
    for _ in range(3):
        with opened(plan, tmp_path, spec) as aggregator:
            assert aggregator.query(query(spec=spec)).survivors == EVERYBODY
    with (
        opened(plan, tmp_path, spec) as aggregator,
        pytest.raises(BudgetExceeded, match="rounds like it remain"),
    ):
        aggregator.query(query(spec=spec))
    with pytest.raises(ConfigError, match="budget"):
        opened(replace(plan, budget=9.0), tmp_path, spec)


def test_the_noise_is_in_the_sum(tmp_path: Path) -> None:
    plan, spec = noised(3, 2.0)
    with opened(plan, tmp_path, spec) as aggregator:
        total = aggregator.query(query(spec=spec)).totals["update"].value
    error = total - sum(x.sum(0) for x, _ in records())
    assert 0.2 * plan.noise_multiplier < error.std() < 3 * plan.noise_multiplier


@every("scores", ["clear", "ckks", "pads"])
def test_a_profile_is_compared_and_its_owner_s_ledger_says_infinity(tmp_path: Path, scores: Any) -> None:
    anchor = Anchor(np.zeros(LENGTH), np.ones(LENGTH))

    def own(x: NDArray[Any]) -> MeanVariance:
        return MeanVariance(x.mean(0), x.var(0), len(x))

    def compute(context: ClientContext) -> Value:
        parts = features(own(context.x), anchor, Bounds()).split(Variant.FULL)
        return Value(hidden=parts.hidden)

    spec = ValueSpec(
        name="profile",
        reduction="none",
        reveals="its profile",
        reveals_encrypted="a score",
        schedule=Schedule(max_releases=1),
    )
    baseline = own(np.random.default_rng(4).normal(size=(40, LENGTH)))
    per_client = PerClient(spec, linear_query(baseline, anchor, Bounds()))
    question = CohortQuery(cohort=EVERYBODY, broadcast=NOTHING, per_client=(per_client,))
    plan, ledger = replace(OPEN, scores=scores), tmp_path / "ledger.sqlite"
    own_function = ClientFunction(spec, compute, Bounds().linear(LENGTH, Variant.FULL))
    with SecureAggregator(plan, [own_function], records(), ledger=ledger) as aggregator:
        found = aggregator.query(question).per_client["profile"]
        assert aggregator.ledger.worst("server") == inf
    for k, (x, _) in enumerate(records()):
        assert found[k] == pytest.approx(divergence(own(x), baseline), abs=1e-3)


def test_what_may_not_leave_is_told_at_the_door(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="non_private"):
        opened(replace(OPEN, non_private=()), tmp_path)
    with pytest.raises(ConfigError, match="no homomorphic key"):
        opened(replace(OPEN, scores="pads"), tmp_path, parameters="compact")
    with pytest.raises(ConfigError, match="each name once"):
        SecureAggregator(
            OPEN, [ClientFunction(UPDATE, update)] * 2, records(), ledger=tmp_path / "ledger.sqlite"
        )
    assert not (tmp_path / "ledger.sqlite").exists()


def test_nobody_answers_after_the_schedule(tmp_path: Path) -> None:
    with opened(replace(OPEN, max_rounds=1), tmp_path) as aggregator:
        assert aggregator.query(query()).survivors == EVERYBODY
        with pytest.raises(BudgetExceeded, match="schedule is over"):
            aggregator.query(query())
        assert "Have all parties agree on a plan with more" in aggregator.log.abstained[0]


def test_a_stream_of_its_own_for_every_client_and_ask(tmp_path: Path) -> None:
    drawn: list[float] = []

    def draw(context: ClientContext) -> Value:
        drawn.append(float(context.rng.random()))
        return Value(clear=np.full(LENGTH, drawn[-1]))

    with SecureAggregator(
        OPEN, [ClientFunction(UPDATE, draw)], records(), ledger=tmp_path / "ledger.sqlite"
    ) as aggregator:
        aggregator.query(query())
        aggregator.query(query())
    assert len(set(drawn)) == 2 * CLIENTS


def test_doors_and_studies_over_the_same_records_share_one_budget(tmp_path: Path) -> None:
    plan, spec = noised(2, 2.0)
    plan = replace(plan, budget=2.5, max_rounds=2)
    shared = tmp_path / "people.ledger"

    def aggregator(name: str, people: Any = None) -> SecureAggregator:
        gives = [ClientFunction(spec, summed)]
        own = tmp_path / f"{name}.sqlite"
        return SecureAggregator(plan, gives, records(), ledger=own, shared=shared, people=people)

    with aggregator("a") as first:
        assert first.query(query(spec=spec)).survivors == EVERYBODY
    with aggregator("a") as again:  # the same ledger goes on, and is charged nothing twice
        assert again.query(query(spec=spec)).survivors == EVERYBODY
        with pytest.raises(BudgetExceeded):
            again.query(query(spec=spec))
    account = runs_of(shared)
    assert len(account.entries) == 1
    assert account.epsilon("server") == pytest.approx(2.0, abs=0.02)
    with pytest.raises(BudgetExceeded, match="beside 1 run"):
        aggregator("b")
    with pytest.raises(ConfigError, match="expected the records"):
        aggregator("c", [*records(), records()[0]])
    whole = [tuple(np.concatenate(part) for part in zip(*records(), strict=True))]
    with pytest.raises(BudgetExceeded):  # the same records, otherwise dealt
        aggregator("d", whole)
    assert len(runs_of(shared).entries) == 1


def test_the_attack_a_ledger_that_goes_on_without_the_shared_ledger_that_counts_it(tmp_path: Path) -> None:
    """The run had spent 1.84, and the shared ledger said 0.43 and lent the rest to others."""
    plan, spec = noised(2, 2.0)
    plan = replace(plan, budget=4.5, max_rounds=2)

    def made(own: str, shared: str | None) -> SecureAggregator:
        gives, home = [ClientFunction(spec, summed)], tmp_path / own
        at = shared and tmp_path / shared
        return SecureAggregator(plan, gives, records(), ledger=home, shared=at)

    with made("counted", "people") as first, made("own", None) as alone:
        for one in (first, alone):
            assert one.query(query(spec=spec)).survivors == EVERYBODY
    for wrong in (None, "other people"):
        with pytest.raises(ConfigError, match="expected the shared ledger that counts this ledger"):
            made("counted", wrong)
    with pytest.raises(ConfigError, match="a new ledger with `shared`, got one that was made without"):
        made("own", "people")
    assert len(runs_of(tmp_path / "people").entries) == 1
    for own, shared in (("counted", "people"), ("own", None), ("anew", "people")):  # what the refusals say
        with made(own, shared) as again:
            assert again.query(query(spec=spec)).survivors == EVERYBODY


def test_a_total_below_a_clients_count_gives_it_no_weight_above_one(tmp_path: Path) -> None:
    """The sensitivity of a sum assumes weights up to 1, whatever total the server states."""
    plan, spec = (
        replace(OPEN, weights={"update": "counts"}, max_num_examples=16),
        replace(UPDATE, weighs="counts"),
    )
    ask = replace(query(spec=spec), weights=ByCount(3))
    with opened(plan, tmp_path, spec) as aggregator:
        answers = aggregator.query(ask)
    assert answers.survivors == EVERYBODY
    expected = sum(x.sum(0) for x, _ in records())
    assert np.abs(answers.totals["update"].value - expected).max() <= 5 * UPDATE.grid.step


BY_COUNTS = replace(OPEN, weights={"update": "counts"}, max_num_examples=16)
DRAWN = ByDraws(dict.fromkeys(EVERYBODY, 1))


@every(
    "plan, weighs, by", [(OPEN, "equal", ByCount(45)), (OPEN, "equal", DRAWN), (BY_COUNTS, "counts", None)]
)
def test_a_sum_in_the_clear_is_weighed_as_spec_and_plan_say_or_not_at_all(
    plan: Plan, weighs: Any, by: Any, tmp_path: Path
) -> None:
    """By counts one record moves the weight beside the value: 1 was charged, and 2 - 1/n moved."""
    spec = replace(UPDATE, weighs=weighs)
    with opened(plan, tmp_path, spec) as aggregator:
        answers = aggregator.query(replace(query(spec=spec), weights=by))
        assert (answers.survivors, aggregator.ledger.worst("server")) == ((), 0.0)
        assert "Expected an order that weighs 'update'" in aggregator.log.abstained[SERVER]


@every("weights", [{"records": 20}, {"whole": 5, "most": 1}, {}])
def test_the_attack_a_server_that_weighs_a_clear_sum_by_the_private_count(weights: dict[str, int]) -> None:
    """A server that lies orders so, whatever its own copy of the plan says: the client itself refuses."""
    client = Client(number=0, header=AT, plan=OPEN, contributions={"update": UPDATE}, most=MOST)
    asked = order("update", draws=1, lengths=(LENGTH,), **weights)
    said = pytest.raises(RemoteProtocolError, match="weighs 'update' equally") if weights else nullcontext()
    with said:
        client.receive(client.begin().state, SERVER, asked)


def test_a_client_whose_ledger_has_another_version_of_a_value_sends_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions of one value reveal more than the one that was charged."""
    monkeypatch.setattr(Ledger, "repeats", lambda self, release: release.key.holder != "client 2")
    with opened(OPEN, tmp_path) as aggregator:
        assert aggregator.query(query()).survivors == (0, 1, 3, 4)


def test_another_thread_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with opened(OPEN, tmp_path) as aggregator, ThreadPoolExecutor(1) as other:
        for call in (partial(aggregator.query, query()), aggregator.close):
            with pytest.raises(LocalProtocolError, match=r"each thread.*SecureAggregator"):
                other.submit(call).result()
        with pytest.raises(LocalProtocolError, match="the thread that opened it"):
            other.submit(aggregator.ledger.worst, "server").result()
        assert not aggregator.ledger.rows()
        assert aggregator.query(query()).survivors == EVERYBODY
    with pytest.raises(LocalProtocolError, match="until it is closed"):
        aggregator.ledger.worst("server")


def test_a_fork_is_refused_and_makes_one_of_its_own_on_the_same_ledger(tmp_path: Path) -> None:
    """The attack: forks share session and round, so the ledger has one row for the answers of all of them."""

    def forked() -> None:
        for call in (partial(aggregator.query, query()), aggregator.close):
            with pytest.raises(LocalProtocolError, match=r"each thread and process.*SecureAggregator"):
                call()
        with opened(OPEN, tmp_path) as own:
            assert own.query(query()).survivors == EVERYBODY

    with opened(OPEN, tmp_path) as aggregator:
        child = get_context("fork").Process(target=forked)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert len(aggregator.ledger.rows()) == CLIENTS
        assert aggregator.query(query()).survivors == EVERYBODY
        assert len(aggregator.ledger.rows()) == 2 * CLIENTS


def test_each_thread_has_an_aggregator_of_its_own_on_one_ledger(tmp_path: Path) -> None:
    def asked() -> tuple[int, ...]:
        with opened(OPEN, tmp_path) as aggregator:
            return aggregator.query(query()).survivors

    with ThreadPoolExecutor(2) as pool:
        assert {each.result() for each in [pool.submit(asked) for _ in range(3)]} == {EVERYBODY}
    with opened(OPEN, tmp_path) as aggregator:
        assert len(aggregator.ledger.rows()) == 3 * CLIENTS


@pytest.mark.parametrize("reads", ["unknown", "none"])
@pytest.mark.parametrize("trust", ["active", "semi-honest"])
def test_the_log_says_once_that_state_of_a_loop_is_not_held(
    reads: Any, trust: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = replace(UPDATE, reads_state=reads)
    caplog.set_level("WARNING", logger="securefl")
    with opened(replace(MASKED, secagg=trust), tmp_path, own) as aggregator:
        for _ in range(2):
            aggregator.query(query(spec=own))
    said = [one for one in caplog.messages if "update" in one and "state" in one]
    assert len(said) == (reads == "unknown" and trust == "active")


@every(
    "wrong",
    [
        {"plan": None},
        {"records": None},
        {"functions": ["x"]},
        {"ledger": 5},
        {"parameters": ["x"]},
        {"seed": "x"},
    ],
)
def test_an_argument_of_another_type_is_refused_by_name(wrong: dict[str, Any], tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "plan": OPEN,
        "functions": [ClientFunction(UPDATE, update)],
        "records": records(),
    }
    with pytest.raises(ConfigError, match=f"Expected `{next(iter(wrong))}` as "):
        SecureAggregator(**{**given, "ledger": tmp_path / "ledger.sqlite", **wrong})
