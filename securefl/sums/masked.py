"""Masked sums: clients mask each other's integers, and a quorum of them opens the masks of one set.

The protocol is `secagg`; here it becomes a way of summing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from securefl.core.agreement import Identity, Roster
from securefl.core.machine import Machine
from securefl.core.release import SERVER
from securefl.plan import Plan, fewest_contributions
from securefl.rounds import Sends
from securefl.secagg import Aborted, Agreement, Channels, Client, Policy, Server, Summed, centred
from securefl.secagg.checks import CONSISTENCY, UNMASK
from securefl.storage.journal import Journal
from securefl.sums.way import Attempt, Identities, Opened, Unopened


class Masked:
    """`sum = "masked"`: secure aggregation among the clients alone, under one plan.

    Channels are agreed once for a cohort, and kept over its rounds.
    """

    key_holder_learns = ""

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self._plan = plan
        self._identities = Identities(journal)
        self._channels: dict[tuple[str, bytes, bytes], Channels] = {}

    def check(self, sends: Sends, cohort: int) -> None:
        policy = self._policy([sends], cohort)
        policy.check(policy.parameters(cohort))

    def machines(self, attempt: Attempt) -> Mapping[str, Machine[Any]]:
        policy = self._policy(attempt.sends, len(attempt.cohort))
        identities = self._identities.of(attempt)
        agreed = Agreement(
            header=attempt.header,
            roster=Roster(tuple(identity.member() for identity in identities)),
            vectors=attempt.vectors(),
            plan=self._plan.digest(),
            task=attempt.task,
            parameters=policy.parameters(len(identities), attempt.ordered),
        )
        clients: dict[str, Machine[Any]] = {
            identity.name: Client(
                agreement=attempt.agreement_of(identity.name, agreed),
                channels=self._channel(identity, agreed.roster, attempt.header.session),
                policy=policy,
            )
            for identity in identities
            if identity.name in attempt.told
        }
        policy.check(agreed.parameters)
        return {SERVER: Server(agreement=agreed), **clients}

    def outcome(self, server: Any, result: Summed | Aborted) -> Opened | Unopened:
        if isinstance(result, Aborted):
            return Unopened(
                reason=f"No sum, in phase {result.phase}: {result.reason}",
                final=result.phase in (CONSISTENCY, UNMASK),
                culprits={} if result.culprit is None else {result.culprit: result.reason},
            )
        vectors = server.agreement.vectors
        return Opened(
            totals={vector.name: centred(result.totals[vector.name], vector.bits) for vector in vectors},
            survivors=result.survivors,
        )

    def _policy(self, sends: Sequence[Sends], cohort: int) -> Policy:
        """What every client of the plan insists on; shares of noise were sized for the declared cohorts."""
        plan = self._plan
        return Policy(
            mode=plan.secagg,
            corrupt=plan.corrupt or 0.0,
            dropout=plan.dropout,
            least_cohort=max(2, plan.least_cohort),
            least_honest=plan.least_honest,
            least_survivors=max(2, fewest_contributions(plan, cohort, sends)),
        )

    def _channel(self, identity: Identity, roster: Roster, session: bytes) -> Channels:
        key = (identity.name, roster.digest, session)
        if key not in self._channels:
            self._channels[key] = Channels(identity, roster, session)
        return self._channels[key]
