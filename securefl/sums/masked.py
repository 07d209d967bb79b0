"""The masked sum scheme: pairwise masks that cancel in the sum, and a quorum of clients that opens one set.

The protocol is `secagg`. This module makes a sum scheme of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.algorithm.weighing import Weights, require_allowed
from securefl.core.agreement import Directory, Identity, Roster
from securefl.core.machine import Machine
from securefl.secagg import Aborted, Agreement, Channels, Client, Policy, Server, Summed, centred
from securefl.secagg.checks import CONSISTENCY, UNMASK
from securefl.storage.own_record import PartyKeys
from securefl.sums.scheme import Attempt, Opened, Unopened, least_opened

MOST_COHORTS = 8
"""The number of cohorts whose channels a client keeps."""


class Masked:
    """`sum = "masked"`: secure aggregation among clients under one plan, without a key holder."""

    key_holder_learns = ""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def check(self, spec: ValueSpec, cohort: int) -> None:
        require_allowed(self._plan, [spec], Weights.usual(self._plan, spec, cohort))
        policy = self.policy([spec], cohort)
        policy.check(policy.parameters(cohort))

    def clients(self, directory: Directory) -> MaskedClients:
        return MaskedClients(self, directory)

    def server(self, own: PartyKeys) -> MaskedServer:
        return MaskedServer(self, own.directory)

    def key_holder(self, own: PartyKeys) -> None:
        return None

    def agreement(self, attempt: Attempt, directory: Directory) -> Agreement:
        """The agreement of an attempt, which each party computes for itself.

        Raises ConfigError if the plan refuses the attempt.
        """
        policy = self.policy(attempt.spec, attempt.ordered)
        agreed = Agreement(
            header=attempt.header,
            roster=directory.roster(attempt.cohort),
            vectors=attempt.vectors(),
            plan=self._plan.digest(),
            task=attempt.task,
            parameters=policy.parameters(len(attempt.cohort), attempt.ordered),
        )
        policy.check(agreed.parameters)
        return agreed

    def policy(self, specs: Sequence[ValueSpec], ordered: int) -> Policy:
        """The policy that every client enforces in all attempts at a sum over this many ordered clients.

        Noise shares were sized for the declared cohorts. Every colluding client of the ordered cohort may be
        among the clients that are called.
        """
        plan = self._plan
        return Policy(
            mode=plan.secagg,
            corrupt=plan.corrupt or 0.0,
            dropout=plan.dropout,
            # A plan that hides sums states both. At least two: the total of one client is its input.
            min_cohort_size=max(2, plan.min_cohort_size or 2),
            min_honest=max(1, plan.min_honest or 1),
            least_survivors=least_opened(plan, ordered, specs),
        )


@dataclass(eq=False)
class MaskedClients:
    """The clients' side. Channels are agreed once per cohort and kept over its rounds.

    A client keeps the channels of a few cohorts, since the server chooses the cohorts.
    """

    scheme: Masked
    directory: Directory
    _channels: dict[str, dict[bytes, Channels]] = field(default_factory=dict, init=False)

    def machines(
        self, attempt: Attempt, identities: Sequence[Identity], key: bytes
    ) -> Mapping[str, Machine[Any]]:
        agreed = self.scheme.agreement(attempt, self.directory)
        policy = self.scheme.policy(attempt.spec, attempt.ordered)
        return {
            own.name: Client(agreement=agreed, channels=self._channel(own, agreed.roster), policy=policy)
            for own in identities
        }

    def _channel(self, identity: Identity, roster: Roster) -> Channels:
        # Keyed by the roster: a smaller cohort of a later attempt has its own channels.
        own = self._channels.setdefault(identity.name, {})
        if roster.digest not in own:
            if len(own) >= MOST_COHORTS:
                del own[next(iter(own))]  # the oldest; a new agreement costs only time
            own[roster.digest] = Channels(identity, roster, self.directory.session)
        return own[roster.digest]


@dataclass(frozen=True)
class MaskedServer:
    """The server's side. It holds no secret."""

    scheme: Masked
    directory: Directory

    def check(self, attempt: Attempt) -> None:
        self.scheme.agreement(attempt, self.directory)

    def machine(self, attempt: Attempt, key: bytes) -> Server:
        return Server(agreement=self.scheme.agreement(attempt, self.directory))

    def outcome(self, machine: Any, result: Summed | Aborted) -> Opened | Unopened:
        if isinstance(result, Aborted):
            return Unopened(
                reason=f"No sum, in phase {result.phase}: {result.reason}",
                # From the consistency phase on, a client may have signed a set. A client that signed enters
                # no other attempt.
                final=result.phase in (CONSISTENCY, UNMASK),
                proven_cheaters={} if result.culprit is None else {result.culprit: result.reason},
            )
        vectors = machine.agreement.vectors
        return Opened(
            totals={vector.name: centred(result.totals[vector.name], vector.bits) for vector in vectors},
            survivors=result.survivors,
        )
