"""A party's one ledger lasts over all studies, and each session still asks no more than its plan says."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.tiny_orders import order

from securefl.accounting.ledger import Ledger
from securefl.accounting.store import Terms
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Grid, Value, ValueSpec
from securefl.core.messages import Broadcast
from securefl.core.release import SERVER
from securefl.core.streams import client_stream
from securefl.core.wire import Header, Limit, encode
from securefl.deployment.plan_file import HolderTerms
from securefl.engine.calls import QueryCall, encode_call
from securefl.engine.drive import Packet
from securefl.engine.inprocess import simulated

SPEC = ValueSpec(
    name="step",
    reduction="sum",
    reveals="a step",
    sensitivity={("record", "add-remove"): 1.0},
    grid=Grid(step=2.0**-10, bound=2.0**12),
    reads_state="none",
)
PLAN = Plan(
    noise="local",
    noise_multiplier=20.0,
    adjacency="add-remove",
    delta=1e-5,
    max_rounds=2,
    max_releases={"step": 2},
    budget=None,
)


def answers(terms: Terms, places: list[Header]) -> list[bool]:
    """Whether a party answers orders at these places, one after the other."""
    function = ClientFunction(
        SPEC, lambda client: Value(integers=np.full(1, 3 * 1024, np.int64), step=2.0**-10)
    )
    records = [(np.ones((3, 2)), np.zeros(3))]
    whole = simulated(PLAN, [function], Ledger(None, terms), records, rng=partial(client_stream, 5))
    found = []
    for before, at in zip([None, *places], places, strict=False):
        if before is None or before.session != at.session:
            whole._enter(at.session)
            (party,) = whole._clients
        party.call(["client-0000"], encode_call(at, QueryCall(most=Limit(10**6, 99))))
        party.drive.begin()
        broadcast = Broadcast(model=np.zeros(1, np.float32), names=(), arrays=())
        for message in (order("step", lengths=(1,)), broadcast):
            party.drive.deliver(Packet(SERVER, "client-0000", encode(at, message)))
        found.append(bool([*party.drive.work()]))
    return found


@pytest.mark.parametrize("terms", [PLAN.terms(), HolderTerms.of(PLAN).ledger()], ids=["simulated", "party"])
def test_the_attack_a_server_that_asks_in_attempt_after_attempt_and_averages_the_noise(terms: Terms) -> None:
    """A party without a budget answered 400 of 400 attempts of a plan of one release."""
    places = [Header(bytes(32), 1, attempt, 0) for attempt in range(5)]
    assert answers(terms, places) == [True, True, False, False, False]


def test_another_session_has_its_own_schedule_and_the_budget_bounds_both() -> None:
    places = [Header(bytes([session]) * 32, at, 0, 0) for session in (1, 2) for at in (1, 2)]
    assert answers(HolderTerms.of(PLAN).ledger(), places) == [True] * 4
