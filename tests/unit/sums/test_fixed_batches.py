"""Fixed batches: whatever sums of several rounds are taken off each other, batches come or go as a whole."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.every import every
from support.examples import examples
from support.one_value import engine
from support.tiny_study import FEDAVG, FEDPROF, run, text, with_privacy

from securefl.algorithm.clients import Population, State
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum, Value, ValueSpec
from securefl.algorithm.weighing import require_batches
from securefl.core.errors import ConfigError
from securefl.core.wire import Header
from securefl.engine import server
from securefl.engine.privacy_card import learns
from securefl.protocols.averaging import Uniform
from securefl.study.config import Study, parse

CLIENTS, BATCH = 9, 3
TERMS: dict[str, Any] = {
    "delta": 1e-5,
    "max_rounds": 9,
    "non_private": ("own",),
    "corrupt": 0.0,
    "min_cohort_size": 3,
    "max_cohort_size": CLIENTS,
    "min_honest": 2,
    "max_client_weight": 0.5,
    "fixed_batch": BATCH,
}
OWN = ValueSpec(name="own", reduction="sum", reveals="it", form="real")


def plan(how: str = "masked", **words: Any) -> Plan:
    return Plan(sum=how, **{**TERMS, **words})


def summed(how: str, cohorts: list[tuple[int, ...]]) -> list[Any]:
    """The totals of rounds over these cohorts, None where nothing opened. The server asks what it likes."""
    parties = engine(
        plan(how), OWN, lambda context: Value(clear=np.full(2, float(context.client))), [1] * CLIENTS
    )
    found = []
    with mock.patch.object(server, "require_allowed"), mock.patch.object(server, "require_batches"):
        for number, cohort in enumerate(cohorts, 1):
            query = CohortQuery(cohort=cohort, broadcast=np.zeros(1, np.float32), sums=(Sum(OWN, 2),))
            answers, _ = parties.query(query, Header(bytes(32), number, 0, 0))
            found.append(answers.totals["own"].value[0] if answers.totals else None)
    return found


@every("how", ["masked", "two-server", "ckks"])
def test_a_cohort_that_cuts_through_a_batch_opens_nothing(how: str) -> None:
    cohorts = [(0, 1, 2, 6, 7, 8), (0, 1, 2, 6, 7), (1, 2, 6, 7, 8), (0, 3, 6), (3, 4, 5)]
    assert summed(how, cohorts) == [24.0, None, None, None, 12.0]


@examples(100)
@given(st.lists(st.sets(st.integers(0, CLIENTS - 1), min_size=3), min_size=1, max_size=8))
def test_differences_of_allowed_rounds_are_sums_of_batches(cohorts: list[set[int]]) -> None:
    """Every row of what is opened has one coefficient in a batch, and so has each combination of rows."""
    for cohort in cohorts:
        row = np.isin(np.arange(CLIENTS), sorted(cohort)).reshape(-1, BATCH)
        whole = bool((row.all(1) | ~row.any(1)).all())
        try:
            require_batches(plan(), sorted(cohort), (1,) * len(cohort))
        except ConfigError:
            assert not whole
        else:
            assert whole


def test_draws_that_differ_would_cut_through_a_batch_too() -> None:
    with pytest.raises(ConfigError, match="each client drawn once"):
        require_batches(plan(), (0, 1, 2), (2, 1, 1))


@every(
    ("words", "said"),
    [
        ({"dropout": 0.2}, "Expected dropout = 0 with fixed_batch"),
        ({"min_cohort_size": 4}, "whole batches, got 4 to 9"),
        ({"max_cohort_size": 8}, "whole batches, got 3 to 8"),
        ({"fixed_batch": 1, "min_cohort_size": 4}, "honest contributors"),
        ({"corrupt": 0.2, "min_cohort_size": 9}, "got 1 in batches of 3, since 2 of a cohort may collude"),
        ({"fixed_batch": 0}, "fixed_batch as a whole number from 1"),
        ({"fixed_batch": True}, "`fixed_batch` as int"),
        ({"fixed_batch": 1, "min_honest": 1}, "got up to 1 in batches of 1"),
        ({"max_client_weight": 0.49}, "got up to 0.5 in batches of 3"),
    ],
)
def test_batches_that_hold_nothing_are_refused(words: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(**words)


def test_the_way_on_is_larger_batches_and_no_larger_cohort() -> None:
    few: dict[str, Any] = {"corrupt": 0.25, "max_client_weight": 0.9}
    for size in (8, 16, 64):  # the more clients of a cohort collude, all of them in one batch
        with pytest.raises(ConfigError) as refused:
            plan(**few, fixed_batch=2, min_cohort_size=size, max_cohort_size=size)
        assert "fixed_batch" in str(refused.value)
        assert "min_cohort_size" not in str(refused.value)
    plan(**few, fixed_batch=8, min_cohort_size=8, max_cohort_size=8)
    plan(corrupt=0.0, fixed_batch=4, max_cohort_size=8, min_cohort_size=8)


def test_a_uniform_selection_draws_whole_batches_without_those_of_the_retired() -> None:
    population = Population(
        clients=CLIENTS, seconds=np.ones(CLIENTS), fixed_batch=BATCH, retired=frozenset({4})
    )
    state = State(np.zeros(1, np.float32))
    seen = set()
    for seed in range(20):
        choice = Uniform().choose(state, population, 3, 1, np.random.default_rng(seed))
        with pytest.raises(StopIteration) as ended:
            next(choice)
        drawn, _ = ended.value.value
        seen.add(tuple(sorted(drawn)))
    assert seen == {(0, 1, 2), (6, 7, 8)}


def batched(arm: str, clients: int = 12) -> Study:
    """A study whose clients are in batches of three."""
    said = {"sum": '"masked"', "dropout": "0.0", "corrupt": "0.0", "fixed_batch": "3", "min_cohort_size": "6"}
    return parse(with_privacy(text(arm + 'aggregation = "partial"\n', clients=clients), said))


def test_a_study_learns_in_batches(tmp_path: Any) -> None:
    finished = run(batched(FEDAVG), tmp_path)
    for record in finished.records:
        chosen = np.array(record["answered"]).reshape(-1, 3)
        assert len(chosen) == 2
        assert (chosen % 3 == [0, 1, 2]).all()


def test_what_draws_clients_one_by_one_is_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="draws whole batches"):
        run(batched(FEDPROF), tmp_path)


def test_clients_that_make_no_whole_batches_are_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="batches of 3"):
        run(batched(FEDAVG, clients=13), tmp_path)


def test_the_card_says_what_differences_tell() -> None:
    said = learns(plan(), [OWN], "server")
    assert "sums of fixed batches of 3, and no single client" in said
    assert "errs by 0.7 of it" in said, "of a batch of three, which is less than a cohort"
    assert "several rounds' sums are not protected" in learns(plan(fixed_batch=None), [OWN], "server")
