"""Noise that is drawn from a secret: whatever names its place changes it, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent
from support.every import every
from support.tiny_orders import order
from support.tiny_parties import session
from support.tiny_secagg import entropy

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Schedule, Value, ValueSpec
from securefl.core.grid import Grid
from securefl.core.messages import Broadcast, Order
from securefl.core.release import SERVER
from securefl.core.wire import Header, Limit, encode
from securefl.engine.calls import QueryCall, encode_call
from securefl.engine.drive import Packet
from securefl.engine.party.clients import ClientParty
from securefl.storage.journal import Journal

BOUNDED = {("record", "add-remove"): 1.0}
OWN = ValueSpec(
    name="own",
    reduction="none",
    reveals="it",
    sensitivity=BOUNDED,
    training=GaussianDpEvent(2.0),
    grid=Grid(step=2.0**-10, bound=64.0),
    schedule=Schedule(initial=2, extra=2),
)
PLAN = Plan(
    adjacency="add-remove", delta=1e-5, max_rounds=9, noise="local", noise_multiplier=3.0, max_retries=3
)
# A client's own noise ----------------------------------------------------------------------------------

"""All its numbers differ, so that no two can be exchanged unseen."""


# The noise of training ---------------------------------------------------------------------------------

MODEL = Broadcast(model=np.zeros(2, np.float32), names=(), arrays=())
PLACE = Header(bytes(32), 1, 0, 0)
CLIENT = "client-0000"
NAMES = ("own", "other")


def trained(told: Order, model: Broadcast = MODEL, at: Header = PLACE) -> dict[str, bytes]:
    """What a client that is told so draws for private training, by the name of its value.

    The record is the same in every call, and so is the secret of the round.
    """
    drawn = {}

    def training(name: str) -> Any:
        def compute(context: Any) -> Value:
            drawn[name] = context.source.words(4).tobytes()
            return Value(integers=np.zeros(3, np.int64), step=OWN.grid.step)

        return ClientFunction(replace(OWN, name=name), compute)

    journal, records = Journal(random=entropy("training")), {0: (np.ones((2, 2)), np.zeros(2))}
    parties = session([0], journal=journal)
    party = ClientParty(
        PLAN,
        list(map(training, NAMES)),
        Ledger(None, PLAN.terms()),
        journal,
        records,
        rng=lambda *_: np.random.default_rng(0),
    )
    party.enter(parties.directory)
    party.call([CLIENT], encode_call(at, QueryCall(most=Limit(10**6, 99))))
    assert party.drive is not None
    party.drive.begin()
    for message in (told, model):
        party.drive.deliver(Packet(SERVER, CLIENT, encode(at, message)))
    assert party.drive.traffic.rejected_from == {}
    assert len(party.drive.work()) == 1
    return drawn


def own_order(**changes: Any) -> Order:
    return order(*NAMES, **changes)


QUESTIONS: dict[str, dict[str, int]] = {
    "put anew": {"again": 1},
    "and once more": {"again": 2},
    "extra": {"number": 1},
    "and further": {"number": 2},
    "an introduction": {"initial": 1},
    "and another": {"initial": 2},
    "further, put anew": {"number": 1, "again": 1},
    "an introduction put anew": {"initial": 1, "again": 1},
}


def test_noise_of_training_is_another_for_every_question() -> None:
    """A question that is put anew is charged again, so its noise must be fresh."""
    drawn = [trained(own_order(**one))["own"] for one in ({}, *QUESTIONS.values())]
    assert len(set(drawn)) == len(QUESTIONS) + 1


def test_noise_of_training_is_the_same_in_every_attempt_at_a_question() -> None:
    """Two noises of one value would tell more of it than was charged."""
    first = trained(own_order())
    assert trained(own_order()) == first
    for place in ({"stage": 1}, {"attempt": 1}):
        assert trained(own_order(), at=replace(PLACE, **place)) == first


@every(
    "other",
    [
        replace(MODEL, model=np.ones(2, np.float32)),
        replace(MODEL, model=np.zeros(3, np.float32)),
        replace(MODEL, names=("more",), arrays=(np.zeros(2),)),
    ],
)
def test_noise_of_training_is_another_for_another_broadcast(other: Broadcast) -> None:
    """Two models under one draw of noise would tell their difference."""
    assert trained(own_order(), other)["own"] != trained(own_order())["own"]


def test_two_values_of_one_order_are_trained_under_two_noises() -> None:
    assert len(set(trained(own_order()).values())) == len(NAMES)
