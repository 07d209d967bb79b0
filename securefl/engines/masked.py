"""Hidden sums of an in-process study: everybody's lasting keys, and the agreement of one attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.agreement import Identity, Roster, Vector
from securefl.journal import Journal
from securefl.messages import client_name
from securefl.plan import Plan, least
from securefl.release import SERVER
from securefl.rounds import Answers, Ask, Sends
from securefl.secagg import Agreement, Channels, Client, Policy, Server, Summed, centred
from securefl.wire import Header


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a hidden sum, as the server calls it.

    Attributes:
        ask: what is asked.
        again: how often it was put anew after an answer was lost.
        cohort: who is called; a subset of the cohort that was ordered.
        ordered: size of that cohort.
        task: digest of what the server told the cohort.
        told: by name, the digest of what each client was told; who was told nothing takes no part.
    """

    ask: Ask
    again: int
    cohort: Sequence[int]
    ordered: int
    header: Header
    task: bytes
    told: Mapping[str, bytes] = field(repr=False)

    def vectors(self) -> tuple[Vector, ...]:
        """The sums of the ask as vectors whose modulus has room for the whole cohort."""
        return tuple(
            Vector(
                name=question.sends.name,
                length=question.size,
                bits=max(8, (len(self.cohort) * question.sends.grid.limit).bit_length() + 1),
                bound=question.sends.grid.limit,
                ask=self.ask.introduction,
                again=self.again,
                once=question.sends.once,
            )
            for question in self.ask.sums
        )


class Cohorts:
    """Identities are made once a session; channels are agreed once for a cohort, and kept over its rounds.

    Everything here but the plan is the clients' own and would be on their devices.
    """

    def __init__(self, plan: Plan, journal: Journal) -> None:
        self._plan = plan
        self._journal = journal
        self._identities: dict[tuple[str, bytes], Identity] = {}
        self._channels: dict[tuple[str, bytes, bytes], Channels] = {}

    def identities(self, attempt: Attempt) -> list[Identity]:
        """The cohort's, in the order of names."""
        names, session = sorted(map(client_name, attempt.cohort)), attempt.header.session
        new = [name for name in names if (name, session) not in self._identities]
        for name, secret in zip(new, self._journal.lasting(new, session) if new else [], strict=True):
            self._identities[name, session] = Identity.of(name, secret)
        return [self._identities[name, session] for name in names]

    def machines(self, attempt: Attempt) -> dict[str, Any]:
        """Server and clients of one attempt. ConfigError for a cohort that the plan does not allow."""
        sends = [question.sends for question in attempt.ask.sums]
        policy = policy_of(self._plan, len(attempt.cohort), sends)
        identities = self.identities(attempt)
        agreed = Agreement(
            header=attempt.header,
            roster=Roster(tuple(identity.member() for identity in identities)),
            vectors=attempt.vectors(),
            plan=self._plan.digest(),
            task=attempt.task,
            parameters=policy.parameters(len(identities), attempt.ordered),
        )
        machines = {
            identity.name: Client(
                agreement=told_to(agreed, attempt.told[identity.name]),
                channels=self._channel(identity, agreed.roster, attempt.header.session),
                policy=policy,
            )
            for identity in identities
            if identity.name in attempt.told
        }
        policy.check(agreed.parameters)
        return {SERVER: Server(agreement=agreed), **machines}

    def _channel(self, identity: Identity, roster: Roster, session: bytes) -> Channels:
        key = (identity.name, roster.digest, session)
        if key not in self._channels:
            self._channels[key] = Channels(identity, roster, session)
        return self._channels[key]


def policy_of(plan: Plan, clients: int, sends: Sequence[Sends]) -> Policy:
    """What every client of the plan insists on; shares of noise were sized for the declared cohorts."""
    return Policy(
        mode=plan.secagg,
        corrupt=plan.corrupt or 0.0,
        dropout=plan.dropout,
        least_cohort=max(2, plan.least_cohort),
        least_honest=plan.least_honest,
        least_survivors=max(2, least(plan, clients, sends)),
    )


def told_to(agreed: Any, task: bytes) -> Any:
    """The agreement of a client that was told this; usually the very one."""
    return agreed if agreed.task == task else replace(agreed, task=task)


def centred_totals(agreement: Agreement, summed: Summed) -> dict[str, NDArray[np.int64]]:
    """The totals as signed integers."""
    return {v.name: centred(summed.totals[v.name], v.bits) for v in agreement.vectors}


def totals(ask: Ask, integers: Mapping[str, NDArray[np.int64]], names: Sequence[str]) -> Answers:
    """What the server has of an aggregation; the numbers of the ask come from elsewhere."""
    survivors = tuple(k for k in ask.cohort if client_name(k) in set(names))
    found = {s.sends.name: ask.total(s, integers[s.sends.name], survivors) for s in ask.sums}
    return Answers(survivors=survivors, totals=found, each={})


def nobody(ask: Ask) -> Answers:
    """No sum was opened."""
    return Answers(survivors=(), totals={}, each={each.sends.name: {} for each in ask.each})
