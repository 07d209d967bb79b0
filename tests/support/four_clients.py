"""Four clients and a server that sum one short vector, in the clear or hidden."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum, Value, ValueSpec
from securefl.core.release import SERVER
from securefl.core.wire import Header
from securefl.engine.calls import SumCall, bits_of
from securefl.engine.party.clients import ClientParty
from securefl.engine.server import ServerParty
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord
from support import tiny_orders
from support.hidden_plans import hidden

CLIENTS, SIZE = 4, 3
SESSION = bytes(32)
SENDS = ValueSpec(name="own", reduction="sum", reveals="it")
CLEAR = Plan(delta=1e-5, max_rounds=3, non_private=("own",))
MASKED = hidden(CLEAR, CLIENTS, min_cohort_size=3, dropout=0.25)
TWO = replace(MASKED, sum="two-server")
ASK = CohortQuery(cohort=tuple(range(CLIENTS)), broadcast=np.zeros(2, np.float32), sums=(Sum(SENDS, SIZE),))
PLACE = Header(SESSION, 1, 0, 0)


def given(compute: Any = lambda context: Value(clear=np.full(SIZE, float(len(context.x))))) -> ClientFunction:
    return ClientFunction(SENDS, compute)


def records() -> list[tuple[Any, Any]]:
    return [(np.ones((k + 1, 2)), np.zeros(k + 1)) for k in range(CLIENTS)]


def sum_call(**changes: Any) -> SumCall:
    """A call to all of them, with defects on demand."""
    good = {"members": bits_of(range(CLIENTS)), "ordered": CLIENTS, "lengths": (SIZE,)}
    return tiny_orders.sum_call(**{**good, **changes})


def client(plan: Plan, numbers: Any = (0,), ledger: Ledger | None = None) -> ClientParty:
    own = dict(enumerate(records()))
    return ClientParty(
        plan,
        [given()],
        ledger or Ledger(None, plan.terms()),
        Journal(),
        {k: own[k] for k in numbers},
        rng=lambda number, who, query: np.random.default_rng(0),
    )


def server(plan: Plan) -> ServerParty:
    return ServerParty(plan, {"own": SENDS}, OwnRecord(SERVER, Journal()), clients=CLIENTS)
