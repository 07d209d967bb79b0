"""Clients that are asked answer alike, whether their own draws let them take part or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from support.every import every
from support.four_clients import CLIENTS, PLACE, SESSION, records

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientContext, ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum, Value, ValueSpec
from securefl.core.errors import DataError
from securefl.core.grid import Grid
from securefl.engine.inprocess import simulated

SIZE, ROUNDS = 3, 8
GRID = Grid(step=2.0**-10, bound=64.0)
SPEC = ValueSpec(
    name="own", reduction="sum", reveals="it", sensitivity={("client", "zero-out"): 1.0}, grid=GRID
)
PLAN = Plan(
    noise="central",
    noise_multiplier=1.0,
    sampling_rate=0.5,
    unit="client",
    adjacency="zero-out",
    delta=1e-3,
    adversaries=("others",),
    max_rounds=ROUNDS,
)


def own(context: ClientContext) -> Value:
    return Value(integers=np.full(SIZE, 9 * len(context.x)), step=GRID.step)


def refuses_nothing(context: ClientContext) -> Value:
    if not len(context.x):
        raise DataError("Expected records, got none.")
    return own(context)


def fails(context: ClientContext) -> Value:
    raise ValueError("no mean of an empty slice")


def of_another_length(context: ClientContext) -> Value:
    return Value(integers=np.ones(SIZE + 1, np.int64), step=GRID.step)


@every("compute", [own, refuses_nothing, fails, of_another_length])
def test_an_answer_and_its_bytes_do_not_tell_the_draw(compute: Callable[[ClientContext], Value]) -> None:
    x, y = records()[0]
    held = [(x, y), (x[:0], y[:0]), *records()[2:]]  # one has no records at all
    rng: Any = lambda number, client, query: np.random.default_rng(0)  # noqa: E731
    calls = list[int]()

    def watched(context: ClientContext) -> Value:
        calls.append(context.client)
        return compute(context)

    ledger = Ledger(None, PLAN.terms())
    engine = simulated(PLAN, [ClientFunction(SPEC, watched)], ledger, held, rng=rng)
    engine._enter(SESSION)
    query = CohortQuery(
        cohort=tuple(range(CLIENTS)), broadcast=np.zeros(SIZE, np.float32), sums=(Sum(SPEC, SIZE),)
    )
    for number in range(1, ROUNDS + 1):
        answers, log = engine.query(query, replace(PLACE, round=number))
        assert answers.survivors == query.cohort
        assert not log.abstained
        assert len({log.traffic.sent[f"client-{k:04}"] for k in query.cohort}) == 1
    assert CLIENTS <= len(calls) < CLIENTS * ROUNDS, "who is not drawn computes nothing"
