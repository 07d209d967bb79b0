"""A party of clients that a server gave one order, as bytes, and now calls to the sum of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Value, ValueSpec
from securefl.core.messages import Broadcast, Cohort, Order, client_name
from securefl.core.release import SERVER
from securefl.core.wire import Header, Limit, encode
from securefl.engine.calls import QueryCall, SumCall, bits_of, encode_call
from securefl.engine.drive import Driver, Packet
from securefl.engine.party.clients import ClientParty
from securefl.storage.journal import Journal
from support import tiny_orders
from support.tiny_orders import order
from support.tiny_parties import Session, session
from support.tiny_secagg import entropy

ORDERED, SIZE = (0, 1, 2, 3, 4, 5), 3
PINNED = (*ORDERED, 6)
"""Client 6 is pinned, and no order names it."""
SENDS = ValueSpec(name="own", reduction="sum", reveals="it", weighs="draws")
GIVES = (ClientFunction(SENDS, lambda context: Value(clear=np.full(SIZE, float(len(context.x))))),)
PLAN = Plan(
    sum="two-server",
    delta=1e-5,
    max_rounds=3,
    max_retries=2,
    non_private=("own",),
    corrupt=0.0,
    dropout=0.3,
    min_cohort_size=4,
    max_cohort_size=9,
    min_honest=2,
    max_client_weight=0.9,
    weights={"own": "draws"},
    draws=8,
)
MODEL = Broadcast(model=np.zeros(2, np.float32), names=(), arrays=())
EVERYBODY = tuple(map(client_name, ORDERED))


COHORT = Cohort(members=ORDERED, draws=(2, 2, 1, 1, 1, 1))


def summing(cohort: Cohort = COHORT, **changes: Any) -> Order:
    """An order for a sum that weighs by draws."""
    good: dict[str, Any] = {
        "sums": ("own",),
        "cohort": cohort.digest,
        "draws": 0,
        "whole": 8,
        "most": 2,
    }
    return order(**{**good, **changes})


def sum_call(**changes: Any) -> SumCall:
    """The call that fits this order, with defects on demand."""
    draws, members = changes.pop("draws", COHORT.draws), bits_of(changes.pop("members", ORDERED))
    good = {"ordered": len(draws), "draws": draws, "whole": summing().whole, "lengths": (SIZE,)}
    return tiny_orders.sum_call(members=members, **{**good, **changes})


@dataclass
class Ordered:
    """Clients as one party, with all keys of their session."""

    party: ClientParty
    parties: Session
    at: Header

    def tell(
        self,
        *messages: Any,
        to: Sequence[str] = EVERYBODY,
        at: Header | None = None,
        cohort: Cohort | None = COHORT,
    ) -> Driver:
        """Call the clients to an exchange with this cohort, and send them these messages."""
        place, most = at or self.at, Limit(10**6, 99)
        self.party.call(to, encode_call(place, QueryCall.of(most, None, cohort=cohort)))
        assert self.party.drive is not None
        drive = self.party.drive
        drive.begin()
        for message in messages:
            for name in to:
                drive.deliver(Packet(SERVER, name, encode(place, message)))
        return drive

    def call(self, call: SumCall, *, to: Sequence[str] = EVERYBODY, at: Header | None = None) -> Driver:
        """Call them to the sum, in the next attempt of the place."""
        place = at or replace(self.at, attempt=self.at.attempt + 1)
        self.party.call(to, encode_call(place, call))
        assert self.party.drive is not None
        return self.party.drive


def clients(plan: Plan = PLAN, gives: Sequence[Any] = GIVES) -> Ordered:
    """The clients in a session, before any call. Their keys are the same in every test."""
    journal = Journal(random=entropy("ordered clients"))
    parties = session(PINNED, journal=journal)
    own = {k: (np.ones((k + 1, 2)), np.zeros(k + 1)) for k in PINNED}
    ledger = Ledger(None, plan.terms())
    party = ClientParty(plan, gives, ledger, journal, own, rng=lambda *_: np.random.default_rng(0))
    party.enter(parties.directory)
    return Ordered(party, parties, Header(bytes(32), 1, 0, 0))


def ordered(plan: Plan = PLAN, cohort: Cohort = COHORT) -> Ordered:
    """The clients after they took in an order for a sum over this cohort."""
    made = clients(plan)
    drive = made.tell(summing(cohort), MODEL, cohort=cohort)
    drive.work()
    assert drive.traffic.rejected_from == {}
    return made
