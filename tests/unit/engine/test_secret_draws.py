"""Clients that are asked answer alike, whether their own draws let them take part or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.four_clients import CLIENTS, PLACE, SESSION, records
from support.residents import NAMES, Deployment, turn_in
from support.tiny_orders import order

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientContext, ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum, Value, ValueSpec
from securefl.core.errors import DataError, RemoteProtocolError
from securefl.core.grid import Grid
from securefl.core.release import SERVER
from securefl.core.wire import Limit
from securefl.deployment.messages import REFUSED
from securefl.engine.exchange import Client
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


QUERY = CohortQuery(
    cohort=tuple(range(CLIENTS)), broadcast=np.zeros(SIZE, np.float32), sums=(Sum(SPEC, SIZE),)
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
    for number in range(1, ROUNDS + 1):
        answers, log = engine.query(QUERY, replace(PLACE, round=number))
        assert answers.survivors == QUERY.cohort
        assert not log.abstained
        assert len({log.traffic.sent[f"client-{k:04}"] for k in QUERY.cohort}) == 1
    assert CLIENTS <= len(calls) < CLIENTS * ROUNDS, "who is not drawn computes nothing"


def test_a_party_that_dies_in_a_round_pays_for_its_draw_once_and_answers_no_second_time() -> None:
    """It dies once its answer is charged and made, before the server has it. What it drew is then lost."""
    calls = list[int]()

    def watched(context: ClientContext) -> Value:
        calls.append(context.client)
        return own(context)

    victim = NAMES[2]
    deployment = Deployment(PLAN, compute=watched, spec=SPEC)

    def dies(name: str, said: bytes) -> bytes:
        if name == victim:
            deployment.start(name)
        return REFUSED if name == victim else said

    for number in range(1, ROUNDS + 1):
        deployment.enter(SESSION)
        deployment.lost = dies if number % 2 else lambda name, said: said
        survivors = deployment.query(number, QUERY).survivors
        assert survivors == ((0, 1, 3) if number % 2 else QUERY.cohort)
        deployment.lost, drawn = lambda name, said: said, calls.count(2)
        asked = next(data for name, data in deployment.said[::-1] if name == victim)
        deployment.enter(SESSION)
        # The server, which knows the round's call, asks for it again in the new visit.
        again = deployment.signed(victim, turn_in(asked))
        assert deployment.residents[victim].answer(again) == REFUSED
        assert "places go up" in deployment.why(victim)
        assert calls.count(2) == drawn
        assert len(deployment.files[victim].ledger.rows()) == number
    assert 0 < calls.count(2) < ROUNDS


@every("lengths", [(2**62,), (2**28,), (2**27, 2**27), (-1,), (2**62, -(2**62))])
def test_no_order_of_a_length_that_no_frame_holds_is_taken(lengths: tuple[int, ...]) -> None:
    """A client that is not drawn sends as many zeros as the order says. 2^62 of them ended its party."""
    specs = {name: replace(SPEC, name=name) for name in ("own", "other")[: len(lengths)]}
    client = Client(number=0, header=PLACE, plan=PLAN, contributions=specs, most=Limit(999, 99))
    with pytest.raises(RemoteProtocolError, match="1073741824 bytes"):
        client.receive(client.begin().state, SERVER, order(*specs, lengths=lengths))
    sized = order(*specs, lengths=(2**20,) * len(specs))
    assert client.receive(client.begin().state, SERVER, sized).state.order == sized  # type: ignore[union-attr]
