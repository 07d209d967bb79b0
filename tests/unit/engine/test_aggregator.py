"""A foreign loop's values leave by the door alone: charged first, masked or encrypted, through bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import isinf
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
    CohortQuery,
    Sum,
    Value,
    ValueSpec,
)
from securefl.core.errors import BudgetExceeded, ConfigError, LocalProtocolError, RemoteProtocolError
from securefl.core.grid import Grid
from securefl.core.release import SERVER
from securefl.core.wire import Header
from securefl.dp.calibration import sigma
from securefl.engine.aggregator import SecureAggregator
from securefl.engine.exchange import MOST, Client

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


def opened(
    plan: Plan, path: Path, spec: ValueSpec = UPDATE, compute: Any = None, of: Any = None, **options: Any
) -> SecureAggregator:
    gives = [ClientFunction(spec, compute or (summed if spec.sensitivity else update))]
    return SecureAggregator(plan, gives, of or records(), **{"ledger": path / "ledger.sqlite", **options})


def tensors() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.tensor(x, requires_grad=True), torch.tensor(y)) for x, y in records()]


@every(("how", "of"), [("clear", tensors()), ("masked", None), ("ckks", None), ("two-server", None)])
def test_the_sum_is_that_of_the_loop_s_own_values(tmp_path: Path, how: Any, of: Any) -> None:
    with opened(replace(MASKED, sum=how), tmp_path, of=of) as aggregator:
        answers = aggregator.query(query((0, 1, 2, 4), model=np.full(1, 0.5, np.float32)))
    expected = sum(records()[k][0].sum(0) + 0.5 for k in (0, 1, 2, 4))
    assert answers.survivors == (0, 1, 2, 4)
    assert np.abs(answers.totals["update"].value - expected).max() <= 4 * UPDATE.grid.step
    assert answers.totals["update"].weight == 4


def test_the_charge_is_in_the_file_before_the_value_is_computed(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def looking(context: ClientContext) -> Value:
        seen.append([row[7] for row in aggregator.ledger.rows()])
        return update(context)

    with opened(MASKED, tmp_path, compute=looking) as aggregator:
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
    computed, drawn, four = [], set[float](), (0, 1, 2, 3)

    def counting(context: ClientContext) -> Value:
        computed.append(context.round)
        drawn.add(float(context.rng.random()))
        return summed(context)

    with opened(plan, tmp_path, spec, counting) as aggregator:
        for _ in range(3):
            assert aggregator.query(query(four, spec)).survivors == four
        spent = aggregator.ledger.epsilon(2, "server")
        assert 1.99 < spent <= 2.0
        # Who refused is named where another one did not.
        assert aggregator.query(query(spec=spec)).survivors == ()
        assert list(aggregator.log.refused) == list(four)
        with pytest.raises(BudgetExceeded, match=r"client 0: .* 0 rounds"):
            aggregator.query(query(four, spec))
        assert "0 rounds like it remain" in aggregator.log.abstained[2]
        assert aggregator.ledger.epsilon(2, "server") == spent
    assert sorted(computed) == [*sorted([1, 2, 3] * 4), 4]
    assert len(drawn) == len(computed), "each client and query has a stream of its own"


@every(
    "given",
    [
        {"integers": np.zeros(LENGTH)},
        {"integers": np.zeros(LENGTH, np.int32)},
        {"integers": np.zeros((LENGTH, 1), np.int64)},
        {"integers": np.zeros(1, np.int64), "clear": np.zeros(1)},
        {"clear": np.zeros(1), "after_noise": lambda noised: Value(clear=noised)},
    ],
)
def test_integers_are_a_flat_vector_of_int64(given: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        Value(**given, step=1.0)


def test_what_may_not_leave_is_told_at_the_door(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="non_private"):
        opened(replace(OPEN, non_private=()), tmp_path)
    with pytest.raises(ConfigError, match="no homomorphic key"):
        opened(replace(OPEN, scores="pads"), tmp_path, parameters="compact")
    with pytest.raises(ConfigError, match="each name once"):
        SecureAggregator(OPEN, [ClientFunction(UPDATE, update)] * 2, records(), ledger=tmp_path / "l")
    assert not list(tmp_path.iterdir())


def test_nobody_answers_after_the_schedule(tmp_path: Path) -> None:
    with opened(replace(OPEN, max_rounds=1), tmp_path) as aggregator:
        assert aggregator.query(query()).survivors == EVERYBODY
        with pytest.raises(BudgetExceeded, match="schedule is over"):
            aggregator.query(query())
        assert "Have all parties agree on a plan with more" in aggregator.log.abstained[0]


def test_doors_and_studies_over_the_same_records_share_one_budget(tmp_path: Path) -> None:
    plan, spec = noised(2, 2.0)
    plan = replace(plan, budget=2.5, max_rounds=2)
    shared = tmp_path / "people.ledger"

    def aggregator(name: str, people: Any = None) -> SecureAggregator:
        own = tmp_path / f"{name}.sqlite"
        return opened(plan, tmp_path, spec, ledger=own, shared=shared, people=people)

    with aggregator("a") as first:
        assert first.query(query(spec=spec)).survivors == EVERYBODY
    assert runs_of(shared).epsilon("server") == pytest.approx(2.0, abs=0.02)
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
        return opened(plan, tmp_path, spec, ledger=tmp_path / own, shared=shared and tmp_path / shared)

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


@every(
    ("weighs", "weights"),
    [("equal", {"records": 20}), ("equal", {"whole": 5, "most": 1}), ("equal", {}), ("counts", {})],
)
def test_the_attack_a_server_that_weighs_a_clear_sum_by_the_private_count(weighs: Any, weights: Any) -> None:
    """A server that lies orders so, whatever its own copy of the plan says: the client itself refuses.

    By counts one record moves the weight beside the value: 1 was charged, and 2 - 1/n moved.
    """
    plan = replace(OPEN, weights={"update": weighs}, max_num_examples=16) if weighs == "counts" else OPEN
    own = {"update": replace(UPDATE, weighs=weighs)}
    client = Client(number=0, header=AT, plan=plan, contributions=own, most=MOST)
    asked = order("update", draws=1, lengths=(LENGTH,), **weights)
    lies = weights or weighs == "counts"
    with pytest.raises(RemoteProtocolError, match="weighs 'update'") if lies else nullcontext():
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


def test_an_argument_of_another_type_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Expected `seed` as "):
        opened(OPEN, tmp_path, seed="x")
