"""One ledger for a loop: three kinds of call, the caller's own ids, and one budget for each client."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Sequence
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.every import every

import securefl
from securefl.accounting.events import NON_PRIVATE
from securefl.accounting.ledger import DeclaredQuery, Ledger
from securefl.accounting.named_ledger import NamedLedger
from securefl.algorithm import ByDraws, ClientFunction, CohortQuery, Sum, Value, ValueSpec
from securefl.core.errors import BudgetExceeded, ConfigError, DataError, LocalProtocolError
from securefl.core.release import ReleaseKey

IDS: tuple[Any, ...] = (1, "ann", ("north", 3), "eve")
TRUST: dict[str, Any] = {"corrupt": 0.0, "min_honest": 1, "max_client_weight": 0.5}
TERMS: dict[str, Any] = {"delta": 1e-5, "budget": 9.0}
PLAN = securefl.Plan(unit="client", adjacency="zero-out", max_rounds=1, **TERMS)
OWN_TERMS = PLAN.terms()
RECORD = (np.full((1, 2), 0.1), np.zeros(1))
STEP = ValueSpec(
    name="step",
    reduction="sum",
    reveals="a step",
    sensitivity={("client", "zero-out"): 1.0, ("client", "replace-one"): 2.0, ("record", "add-remove"): 1.0},
    cohort=3,
)


class Twin(str):
    """A text that two of are two keys of a mapping."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Repeated(UserDict[str, Any]):
    """A mapping that gives each of its keys twice."""

    def __iter__(self) -> Iterator[str]:
        return iter([*self.data, *self.data])


def summed(path: Path, ids: Sequence[Any] = IDS, **options: Any) -> Any:
    own = {**TRUST, **TERMS, "clip": 1.0, "noise_multiplier": 1.0, "ledger": path, **options}
    return securefl.masked_sum({client: [0.1, 0.2] for client in ids}, **own)


def chosen(path: Path, ids: Sequence[Any] = IDS, **options: Any) -> Any:
    profiles, rng = {client: ([0.1], [1.0]) for client in ids}, np.random.default_rng(0)
    own = {**TERMS, "alpha": 1.0, "rng": rng, "scores": "pads", "ledger": path, **options}
    return securefl.select_by_profile(profiles, ([0.0], [1.0]), 2, **own)


def aggregator(path: Path, ids: Sequence[Any] = IDS, **options: Any) -> securefl.SecureAggregator:
    noised: dict[str, Any] = {"noise": "distributed", "noise_multiplier": 1.0}
    size: dict[str, Any] = {"min_cohort_size": 3, "max_cohort_size": 4, "max_rounds": 9}
    terms = {"unit": "client", "adjacency": "zero-out", **TERMS, **options}
    plan = securefl.Plan(sum="masked", **noised, **size, **TRUST, **terms)

    def step(context: Any) -> Value:
        assert context.client in ids
        return Value.summed(context.x, STEP.grid, 1.0)

    records = dict.fromkeys(ids, RECORD)
    return securefl.SecureAggregator(plan, [ClientFunction(STEP, step)], records, ledger=path)


def query(*ids: Any, **options: Any) -> CohortQuery:
    return CohortQuery(cohort=ids, broadcast=np.zeros(0, np.float32), sums=(Sum(STEP, 2),), **options)


def spent(path: Path) -> list[tuple[Any, ...]]:
    with closing(NamedLedger(path, OWN_TERMS)) as ledger:
        return [(row[0], row[5], row[7]) for row in ledger.rows()]


def test_three_kinds_of_call_have_one_budget_and_the_callers_ids(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    first = summed(path)
    assert first.survivors == IDS
    with aggregator(path) as own:
        assert own.query(query(("north", 3), "eve", 1)).survivors == (1, ("north", 3), "eve")
        assert own.ledger.epsilon(("north", 3), "server") > own.ledger.epsilon("ann", "server") > 0
        assert first.epsilon["server"] == own.ledger.epsilon("ann", "server")
        for figure in (own.ledger.epsilon, own.ledger.rounds_left):
            with pytest.raises(LocalProtocolError, match=r"such as client 'ann'.* got client 'Ann'"):
                figure("Ann", "server")  # type: ignore[arg-type]
        for strange in ("north", 2, "1", True, 1.0, ("ann", None)):
            with pytest.raises(LocalProtocolError, match=r"clients 1 to 'eve', got"):
                own.query(query(strange, "ann", "eve"))
    before = spent(path)
    with pytest.raises(
        BudgetExceeded, match=r"All 4 clients refused\. client 1: .* got inf.* new ledger that has none"
    ):
        chosen(path)
    assert spent(path) == before, "no score was charged, and none left"
    summed(path)  # a restart goes on
    with pytest.raises(
        BudgetExceeded, match=r"1: client 1: .*\('north', 3\): client \('north', 3\): .*add noise"
    ):
        summed(path)
    assert summed(path, noise_multiplier=9.0).survivors == IDS
    with aggregator(path) as own:
        with pytest.raises(BudgetExceeded, match="All 3 clients refused"):
            own.query(query("ann", "eve", 1))
        assert set(own.log.refused) == {1, "ann", "eve"}
        assert "0 rounds like it remain" in own.log.abstained[1]
    free = tmp_path / "free"
    assert summed(free, budget=None).survivors == IDS
    assert set(chosen(free, budget=None).scores) == set(IDS)
    with pytest.raises(BudgetExceeded, match="Declare more"):
        chosen(free, budget=None)
    assert set(chosen(free, budget=None, max_releases=2).scores) == set(IDS)
    assert set(summed(tmp_path / "other", budget=99.0).survivors) == set(IDS)


@every(("one", "other"), [("1", 1), (1, "1"), ((1,), "(1,)"), (("a", 1), ("A", 1)), ((1, 2), ("1", 2))])
def test_ids_that_look_alike_are_refused_over_calls_and_charged_nothing(
    one: Any, other: Any, tmp_path: Path
) -> None:
    path = tmp_path / "ledger"
    summed(path, [one, "b"])
    for call in (summed, chosen, aggregator):
        with pytest.raises(ConfigError, match="differ by more than case or form"):
            call(path, [other, "c", "d"])
    assert {row[0] for row in spent(path)} == {one, "b"}


def test_what_is_one_id_to_a_caller_is_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    summed(path, [1, "ann"])
    found = summed(path, [np.int64(1), np.str_("ann")])
    assert [type(own) for own in found.survivors] == [np.int64, np.str_]
    assert [row[0] for row in spent(path)].count(1) == 2
    for strange in (True, 1.0, "ann ", b"ann", frozenset(), Twin("ann"), torch.tensor(1)):
        for call in (summed, chosen, aggregator):
            with pytest.raises(ConfigError, match="a client's id"):
                call(path, [strange, ("b",), "c"])
    with pytest.raises(ConfigError, match="each name once, got client 'ann' again"):
        securefl.SecureAggregator(PLAN, [], Repeated(ann=RECORD), ledger=path)
    with aggregator(path, [1, "ann", "new"]) as own:
        assert own.ledger.epsilon("new", "server") == 0 < own.ledger.epsilon(np.str_("ann"), "server")
    assert len(spent(path)) == 4


@every("name", [":memory:", "file::memory:", "file:zz?mode=memory"])
def test_a_ledger_that_sqlite_keeps_in_memory_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: a sum leaves, and its charge dies with the call."""
    monkeypatch.chdir(tmp_path)
    for path in (name, Path(name)):
        for call in (summed, chosen, aggregator, spent):
            with pytest.raises(ConfigError, match=r"the path of a file, got .*Name a file, such as ledger"):
                call(path)  # type: ignore[operator]
    assert not list(tmp_path.iterdir())


def test_draws_are_of_the_callers_ids(tmp_path: Path) -> None:
    spec = ValueSpec(name="step", reduction="sum", reveals="a step", weighs="draws", draws=3)
    plan = securefl.Plan(delta=1e-5, max_rounds=1, non_private=("step",), weights={"step": "draws"}, draws=3)
    own = ClientFunction(spec, lambda context: Value(clear=context.x[0]))
    records = {"ann": (np.ones((1, 2)), np.zeros(1)), 0: (np.full((1, 2), 4.0), np.zeros(1))}
    with securefl.SecureAggregator(plan, [own], records, ledger=tmp_path / "ledger") as loop:
        draws = ByDraws({0: 2, "ann": 1})  # type: ignore[dict-item]
        asked = CohortQuery(
            cohort=(0, "ann"), broadcast=np.zeros(0, np.float32), sums=(Sum(spec, 2),), weights=draws
        )
        answers = loop.query(asked)
    assert answers.survivors == ("ann", 0)
    assert answers.totals["step"].value.tolist() == pytest.approx([3.0, 3.0])


def test_an_id_that_another_process_wrote_meanwhile_has_one_budget(tmp_path: Path) -> None:
    """The attack: both open the ledger while it is empty, and then each charges its own spelling."""
    path = tmp_path / "ledger"
    with aggregator(path, ["ann", "bob", 1]) as one, aggregator(path, [("x",), "Bob", 2]) as other:
        one.query(query("ann", "bob", 1))
        with pytest.raises(ConfigError, match="'bob' and 'Bob'"):
            other.query(query(("x",), "Bob", 2))
        assert {row[0] for row in other.ledger.rows()} == {"ann", "bob", 1}


def _tried(path: Path) -> bool:
    try:
        summed(path)
    except BudgetExceeded:
        return False
    return True


def test_two_processes_share_one_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with get_context("fork").Pool(2) as pool:
        done = pool.map(_tried, [path] * 5)
    assert sum(done) == 3
    assert len(spent(path)) == 3 * len(IDS)


def test_a_ledger_of_other_terms_or_holders_is_refused(tmp_path: Path) -> None:
    path, of_study = tmp_path / "ledger", tmp_path / "study"
    summed(path)
    for options in ({"delta": 1e-6}, {"budget": 8.0}, {"budget": None}):
        for call in (summed, chosen, aggregator):
            with pytest.raises(ConfigError, match=r"Expected (delta|budget) = .*this ledger was made"):
                call(path, **options)
    for unit, adjacency in (("client", "replace-one"), ("record", "add-remove")):
        with pytest.raises(ConfigError, match=r"Expected (unit|adjacency) = .*this ledger was made"):
            aggregator(path, unit=unit, adjacency=adjacency)
    with closing(Ledger(of_study, OWN_TERMS)) as ledger:
        key = ReleaseKey("client-0001", bytes(32), 1, 0, 0, "update")
        ledger.book([(key, NON_PRIVATE, DeclaredQuery())])
    for call in (summed, chosen, aggregator):
        with pytest.raises(DataError, match="other holders"):
            call(of_study)
