"""Charges a client's ledger for its values, then computes and protects them.

Silence can reveal records (`core.abstaining`). It is named, so no sum hides it. A client speaks if its value
goes into a hidden sum, or if the plan promises a finite epsilon against any party that sees whether it
answers: a value beyond its grid is cut to it, and a client that cannot compute a value from its records sends
the value of a client without records, protected and charged as any other. If even that value cannot be
computed, the failure does not depend on records, so the client may abstain.

If the unit is a record, one bad record must not replace the client's whole value, because then its other
records too would be missing from it. The functions that compute values therefore drop only the bad record.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

import numpy as np

from securefl.accounting.ledger import DeclaredQuery, Ledger
from securefl.algorithm.clients import Contribution
from securefl.algorithm.plan import CLEAR, Plan
from securefl.algorithm.queries import Value, ValueSpec, draw_weight
from securefl.core.abstaining import Abstains, Reason, reason_of
from securefl.core.errors import BudgetExceeded, DataError, LocalProtocolError
from securefl.core.hiding import ConcealVector
from securefl.core.keys import SecretKey
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, OTHERS, SERVER, Charge, Release, ReleaseKey
from securefl.engine.exchange import Contribute
from securefl.engine.observer import Log
from securefl.engine.party.computing import Computing, of_records, require_own_bounds
from securefl.mechanisms.charges import Protection, unbounded
from securefl.mechanisms.protecting import is_cut, protect, takes_part
from securefl.storage.journal import Journal
from securefl.sums.registry import scheme_of

_OVER = (
    "The declared schedule is over: the plan has no further round (`max_rounds`). Have all parties agree on "
    "a plan with more."
)
_AT_ONCE = 100
"""The number of clients that are trained before their models are freed (one wave), by whichever `Trainer`."""


class Contributing:
    """Reserves clients' charges in the ledger before it computes and protects their values."""

    def __init__(
        self,
        plan: Plan,
        contributions: Mapping[str, Contribution],
        values: Computing,
        ledger: Ledger,
        journal: Journal,
        log: Log,
        holder_of: Callable[[int], str],
    ) -> None:
        """holder_of: the name of a client in the ledger."""
        self._plan = plan
        self._holder_of = holder_of
        self._contributions = contributions
        # Once: a contribution may make its spec anew at each look.
        self._protections = {
            name: Protection(plan, contribution.spec) for name, contribution in contributions.items()
        }
        self._ledger = ledger
        self._journal = journal
        self._log = log
        self.values = values
        scheme = scheme_of(plan)
        self._opens_sums = scheme is not None and bool(scheme.key_holder_learns)

    def contribute_many(self, tasks: Sequence[Contribute]) -> dict[int, tuple[Release, ...] | None]:
        """Each client's releases, or None if it abstains. All charges are reserved first."""
        # A client that is late, beyond the schedule or asked in other bounds is charged nothing. All others
        # are charged before any value is computed.
        astray = self._outside_bounds(tasks)
        last = self._plan.max_rounds
        scheduled = [t for t in tasks if t.header.round <= last and t.client not in astray]
        secrets = self._secrets(scheduled)
        late = {client for client, secret in secrets.items() if secret is None}
        wants = {task.client: self._charges(task) for task in scheduled if task.client not in late}
        try:
            refused = self._reserved(scheduled, wants)
        except LocalProtocolError as error:
            # The server sent another order for a place that it had used. The party forgot the first order in
            # a restart, but its ledger has it.
            for task in tasks:
                self._log.report(client_name(task.client), str(error), Reason.TWICE)
            return dict.fromkeys((task.client for task in tasks), None)
        answers: dict[int, tuple[Release, ...] | None] = {}
        # Training comes after the reservation, so that a refused client never computes. It runs in waves,
        # because the trained models of a large cohort do not fit into memory together.
        for wave in (tasks[at : at + _AT_ONCE] for at in range(0, len(tasks), _AT_ONCE)):
            charged = [t for t in wave if t.client in wants and client_name(t.client) not in refused]
            speaking = {task.client for task in charged if self._speaks(task, wants[task.client])}
            asked = ((task, secrets.get(task.client)) for task in charged)
            own = [(self._taking_part(task, secret), secret) for task, secret in asked]
            self.values.train(own, speaking)
            answers |= {task.client: None for task in wave}
            for task in charged:
                try:
                    answers[task.client] = self._contribute(
                        task, wants[task.client], secrets.get(task.client), task.client in speaking
                    )
                except DataError as error:
                    self._abstain(task.client, error, speaks=task.client in speaking)
        for task in tasks:
            if (abstained := astray.get(task.client)) is not None:
                self._abstain(task.client, abstained, speaks=False)
        self._tell_refusals([task for task in tasks if task.client not in astray], late, wants, refused)
        return answers

    def _outside_bounds(self, tasks: Sequence[Contribute]) -> dict[int, Abstains]:
        """The clients that are asked for a number in other bounds than they declare, with the reason.

        It reads the call and the broadcast, and no record. After the charge, a server that lies would have
        spent a client's budget for nothing.
        """
        found: dict[int, Abstains] = {}
        for task in tasks:
            try:
                for name in task.wants:
                    if isinstance(conceal := task.conceal.get(name), ConcealVector):
                        require_own_bounds(self._contributions[name], conceal.bounds, task.broadcast)
            except Abstains as abstains:
                found[task.client] = abstains
        return found

    def _speaks(self, task: Contribute, charges: Sequence[tuple[ReleaseKey, Charge]]) -> bool:
        """Whether the client must answer: others would learn from its silence what the plan hides."""
        # Under a model that the server crafts, silence compares a client's update with a number.
        if self._plan.hidden and any(self._protections[name].spec.reduction == "sum" for name in task.wants):
            return True
        return not unbounded([charge for _, charge in charges], self._seeing(task))

    def _seeing(self, task: Contribute) -> set[str]:
        """The parties that see whether this client answers."""
        asked = [self._protections[name].spec for name in task.wants]
        opens_scores = self._plan.scores != CLEAR
        opens = any(
            self._opens_sums if s.reduction == "sum" else opens_scores and s.reveals_encrypted for s in asked
        )
        return {SERVER, OTHERS, *([KEY_HOLDER] if opens else [])}

    def _abstain(self, client: int, error: DataError, *, speaks: bool) -> None:
        """Log why a client abstains.

        Raises LocalProtocolError if it must speak and its silence would reveal its records.
        """
        reason = reason_of(error)
        if speaks and reason.told == "records":
            raise LocalProtocolError(
                f"Expected a client that must answer to do so whatever its records are, got silence: {error}"
            ) from error
        self._log.report(client_name(client), str(error), reason)

    def _tell_refusals(
        self,
        tasks: Sequence[Contribute],
        late: Container[int],
        wants: Container[int],
        refused: Mapping[str, BudgetExceeded],
    ) -> None:
        for name, client in ((client_name(task.client), task.client) for task in tasks):
            if client in late:
                self._log.report(
                    name, "Expected no round before its newest, got an older one: it abstains.", Reason.LATE
                )
            elif name in refused or client not in wants:
                self._log.refused[name] = refused.get(name) or BudgetExceeded(_OVER)
                reason = Reason.BUDGET if name in refused else Reason.SCHEDULE
                self._log.report(name, str(self._log.refused[name]), reason)

    def _reserved(
        self, tasks: Sequence[Contribute], wants: Mapping[int, Sequence[tuple[ReleaseKey, Charge]]]
    ) -> Mapping[str, BudgetExceeded]:
        """Reserve all tasks' charges in one transaction. Returns the refused clients, with the reason."""
        refused = self._ledger.reserve(
            [want for own in wants.values() for want in own],
            {key: self._asked(task, key.name) for task in tasks for key, _ in wants.get(task.client, ())},
        )
        if not refused:
            return {}
        holders = {client_name(client): self._holder_of(client) for client in wants}
        return {name: refused[holder] for name, holder in holders.items() if holder in refused}

    def _charges(self, task: Contribute) -> list[tuple[ReleaseKey, Charge]]:
        trained = not task.order.initial
        return [
            (self._key(task, name), self._protections[name].charge(trained=trained)) for name in task.wants
        ]

    def _key(self, task: Contribute, name: str) -> ReleaseKey:
        at = task.header
        return ReleaseKey(self._holder_of(task.client), at.session, at.round, at.stage, at.attempt, name)

    def _asked(self, task: Contribute, name: str) -> DeclaredQuery:
        """Which of the declared queries this is, and how many like it the ledger allows.

        The ledger limits initial queries only if they cost less than the same query in a round, so if the
        value has a `training` cost. Otherwise the server gains nothing by an initial query, and may repeat it
        if the answer was lost.
        """
        order, own = task.order, self._protections[name]
        spec, most = own.spec, None
        # A party's ledger of all its sessions has no schedule of its own.
        lasting = self._ledger.terms.max_releases is None
        if order.number:
            most = spec.schedule.extra
        elif order.initial and spec.training is not None:
            most = spec.schedule.initial
        return DeclaredQuery(
            initial=order.initial,
            number=order.number,
            most=most,
            max_releases=spec.schedule.most_releases(self._plan.max_rounds),
            scheduled=self._plan.max_releases.get(name) if own.noised and lasting else None,
            separation=self._plan.apart(spec),
        )

    def _secrets(self, tasks: Sequence[Contribute]) -> dict[int, SecretKey | None]:
        """The secrets of noise and private training, by client. Empty if nothing is private or hidden."""
        private = self._plan.noisy or any(own.spec.training is not None for own in self._protections.values())
        if not tasks or (not self._plan.hidden and not private):
            return {}
        at = tasks[0].header
        found = self._journal.secrets([client_name(t.client) for t in tasks], at.session, at.round)
        return {task.client: secret for task, secret in zip(tasks, found, strict=True)}

    def _taking_part(self, task: Contribute, secret: SecretKey | None) -> Contribute:
        """The task without the values that its client's draws keep out, for which it does not train."""
        wants = (n for n in task.wants if takes_part(self._protections[n], self._key(task, n), secret))
        return replace(task, wants=tuple(wants))

    def _contribute(
        self,
        task: Contribute,
        charges: Sequence[tuple[ReleaseKey, Charge]],
        secret: SecretKey | None,
        speaks: bool,
    ) -> tuple[Release, ...]:
        if not self.values.has_records(task.client):
            if not speaks:
                raise DataError(
                    "Expected at least one record, got none: it abstains. Give the client records, or agree "
                    "on hidden sums or a finite epsilon, under which a client without records answers too."
                )
            if task.wants and self._plan.hidden:
                self._log.blank[client_name(task.client)] = "Expected at least one record, got none."
        if task.wants:
            self.values.require_unchanged(task.client)
        releases = []
        for name, (key, _) in zip(task.wants, charges, strict=True):
            made = self._spoken if speaks else self._protected
            release = made(task, name, key, secret)
            # Two versions of one value reveal more than the one version that was charged.
            if not self._ledger.repeats(release):
                raise Abstains(
                    Reason.ANOTHER,
                    f"Expected {name!r} as it was sent before this round was cut off, got other bytes: "
                    "it abstains.",
                )
            releases.append(release)
        return tuple(releases)

    def _spoken(self, task: Contribute, name: str, key: ReleaseKey, secret: SecretKey | None) -> Release:
        """The release of a client that must answer, even if its records cause an error."""
        try:
            return self._protected(task, name, key, secret, speaks=True)
        except Exception as error:
            told = reason_of(error).told
            paid = told != "charged" or self._protections[name].post_processed
            if not of_records(error) or (told != "records" and paid):
                raise
            why = f"{type(error).__name__}: {error}"
        try:
            drawn = self._protections[name].sampling_rate < 1
            value = self._zeros(task, name) if drawn else self.values.blank(task, name, secret)
            release = self._protected(task, name, key, secret, value, speaks=True)
        except Exception as error:
            if not of_records(error) or reason_of(error).told != "records":
                raise
            raise Abstains(Reason.ORDER, str(error)) from None
        self._log.blank[client_name(task.client)] = why
        return release

    def _protected(
        self,
        task: Contribute,
        name: str,
        key: ReleaseKey,
        secret: SecretKey | None,
        value: Value | None = None,
        *,
        speaks: bool = False,
    ) -> Release:
        protection = self._protections[name]
        weight = self._weight(task, protection.spec)
        if not takes_part(protection, key, secret):
            value = self._zeros(task, name)
        elif value is None:
            value = self.values.value(task, name, secret)
            if protection.sampling_rate < 1 and len(value.floats()) != _length(task, name):
                raise DataError(
                    f"Expected {_length(task, name)} values of {name!r}, as the order states, got "
                    f"{len(value.floats())}: zeros are sent. Have all parties agree on one model."
                )
            if is_cut(protection, value, weight, must_answer=speaks):
                self._log.cut[client_name(task.client)] = _cut(protection.spec)
        return protect(
            protection,
            value,
            key=key,
            weight=weight,
            conceal=task.conceal.get(name),
            trained=not task.order.initial,
            secret=secret,
            must_answer=speaks,
        )

    def _zeros(self, task: Contribute, name: str) -> Value:
        """The value of a client that does not take part, or is drawn and has no value of its own."""
        # No contribution is called: if it raised, the client's silence would tell its draw.
        integers = np.zeros(_length(task, name), np.int64)
        return Value(integers=integers, step=self._protections[name].spec.grid.step)

    def _weight(self, task: Contribute, spec: ValueSpec) -> float:
        """The client's weight in a sum, from the order's draws or from its own number of records."""
        order = task.order
        if spec.reduction == "sum" and order.records:
            count = self.values.count(task.client)
            # At most 1 for any total that the server states, because the sensitivity assumes weights up to 1.
            return count / max(order.records, count)
        if spec.reduction == "sum" and order.whole:
            return draw_weight(task.draws, order.whole, order.most, spec)
        return 1.0


def _length(task: Contribute, name: str) -> int:
    """The length that the order states for a value that is summed in the clear."""
    return task.order.lengths[task.order.wants.index(name)]


def _cut(spec: ValueSpec) -> str:
    """Why a value was cut, for its owner."""
    return (
        f"Expected {spec.name!r} within +-{spec.grid.bound:g}, the bound of its grid, got a larger one: it "
        "was cut to the bound, since silence would tell. Lower the learning rate, or scale the data. A "
        "larger clip or bound needs a new plan, to which all parties agree."
    )
