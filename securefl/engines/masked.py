"""Masked sums of an in-process study: everybody's lasting keys, and the machines of one aggregation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.messages import client_name
from securefl.plan import Plan, least
from securefl.release import SERVER
from securefl.rounds import Answers, Ask, Total
from securefl.secagg import (
    Agreement,
    Channels,
    Client,
    Identity,
    Roster,
    Server,
    Summed,
    Vector,
    centred,
    parameters,
)
from securefl.wire import Header


class Cohorts:
    """Identities are made once; channels are agreed once for a cohort, and kept over the rounds of a session.

    Everything here but the plan is the clients' own and would be on their devices.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._identities: dict[str, Identity] = {}
        self._channels: dict[tuple[str, bytes, bytes], Channels] = {}

    def machines(self, ask: Ask, cohort: Sequence[int], header: Header) -> dict[str, Any]:
        """Server and clients of one aggregation over this cohort. ConfigError for too small a one."""
        identities = [self._identity(name) for name in sorted(map(client_name, cohort))]
        plan, clients = self._plan, len(identities)
        roster = Roster(tuple(identity.member() for identity in identities))
        agreement = Agreement(
            header=header,
            roster=roster,
            parameters=parameters(clients, plan.corrupt, plan.dropout, plan.secagg),
            vectors=vectors(ask, clients),
        )
        machines = {
            identity.name: Client(
                agreement=agreement,
                channels=self._channel(identity, roster, header.session),
                least_survivors=self._least(ask, clients),
            )
            for identity in identities
        }
        return {SERVER: Server(agreement=agreement), **machines}

    def _least(self, ask: Ask, clients: int) -> int:
        """A client's own minimum: shares of noise were sized for cohorts of the declared size."""
        return max(2, least(self._plan, clients, [question.sends for question in ask.sums]))

    def _identity(self, name: str) -> Identity:
        if name not in self._identities:
            self._identities[name] = Identity.generate(name)
        return self._identities[name]

    def _channel(self, identity: Identity, roster: Roster, session: bytes) -> Channels:
        key = (identity.name, roster.digest, session)
        if key not in self._channels:
            self._channels[key] = Channels(identity, roster, session)
        return self._channels[key]


def vectors(ask: Ask, clients: int) -> tuple[Vector, ...]:
    """The sums of an ask as vectors whose modulus has room for the whole cohort."""
    return tuple(
        Vector(
            name=question.sends.name,
            length=question.size,
            bits=max(8, (clients * question.sends.grid.limit).bit_length() + 1),
            bound=question.sends.grid.limit,
        )
        for question in ask.sums
    )


def centred_totals(agreement: Agreement, summed: Summed) -> dict[str, NDArray[np.int64]]:
    """The totals as signed integers."""
    return {v.name: centred(summed.totals[v.name], v.bits) for v in agreement.vectors}


def totals(ask: Ask, integers: Mapping[str, NDArray[np.int64]], names: Sequence[str]) -> Answers:
    """What the server has of an aggregation; the numbers of the ask come from elsewhere."""
    survivors = tuple(k for k in ask.cohort if client_name(k) in set(names))
    weight = sum(ask.weights.get(k, 1.0) for k in survivors)
    found = {
        sum_.sends.name: Total(integers[sum_.sends.name].astype(np.float64) * sum_.sends.grid.step, weight)
        for sum_ in ask.sums
    }
    return Answers(survivors=survivors, totals=found, each={})


def nobody(ask: Ask) -> Answers:
    """No sum was opened."""
    return Answers(survivors=(), totals={}, each={each.sends.name: {} for each in ask.each})
