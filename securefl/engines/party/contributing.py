"""What a client computes, charges and protects when it is asked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.accounting.ledger import Ledger
from securefl.algorithm import Job, Offer
from securefl.charges import charge_of
from securefl.core.agreement import Question
from securefl.core.entropy import derived
from securefl.core.errors import BudgetExceeded, DataError, LocalProtocolError
from securefl.core.hiding import Conceal
from securefl.core.keys import SecretKey
from securefl.core.release import EXPOSED, NO_COST, UNPROTECTED, Charge, Release, ReleaseKey
from securefl.core.wire import Header
from securefl.dp.noise import Source
from securefl.engines.observer import Log
from securefl.exchange import Contribute
from securefl.messages import Order, client_name
from securefl.plan import Plan
from securefl.protect import protect
from securefl.rounds import Kept, Sends, Value, draw_weight
from securefl.storage.journal import Journal

Records = tuple[NDArray[Any], NDArray[Any]]
_OVER = "The declared schedule is over."


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one client is to release in one exchange. conceal: by name, how a value is hidden."""

    client: int
    header: Header
    wants: tuple[str, ...]
    order: Contribute
    conceal: Mapping[str, Conceal] = field(default_factory=dict)


class Contributing:
    """Records, streams and kept state of the clients at hand, and the ledger in front of them.

    `kept` is what each had on its device before the Ask at hand. What it makes in that Ask counts from
    `settle` on.
    """

    def __init__(
        self,
        plan: Plan,
        offers: Mapping[str, Offer],
        ledger: Ledger,
        journal: Journal,
        records: Mapping[int, Records],
        *,
        rng: Callable[[int, int], np.random.Generator],
        kept: Mapping[int, Kept],
        log: Log,
    ) -> None:
        self._plan = plan
        self._offers = offers
        self._ledger = ledger
        self._journal = journal
        self._records = records
        self._rng = rng
        self._log = log
        self.kept: dict[int, Kept] = dict(kept)
        self._news: dict[int, Kept] = {}
        self._values: dict[tuple[int, Question], Value] = {}
        self._seen: dict[int, bytes] = {}

    def contribute_many(self, tasks: Sequence[Task]) -> dict[int, tuple[Release, ...] | None]:
        """Each client's releases, or None; all charges are reserved first."""
        # Who is late or beyond the schedule is charged nothing. All others are charged before anything is
        # computed.
        scheduled = [task for task in tasks if self._scheduled(task)]
        secrets = self._secrets(scheduled)
        late = {client for client, secret in secrets.items() if secret is None}
        wants = {task.client: self._charges(task) for task in scheduled if task.client not in late}
        try:
            refused = self._reserved(scheduled, wants)
        except LocalProtocolError as error:
            # A server came back to a place with another order. The party forgot the first one in a restart,
            # and its ledger did not.
            for task in tasks:
                self._log.tell(client_name(task.client), str(error))
            return dict.fromkeys((task.client for task in tasks), None)
        answers: dict[int, tuple[Release, ...] | None] = {}
        for task in tasks:
            name = client_name(task.client)
            if task.client in late:
                self._log.tell(name, "Expected no round below its newest, got an older one: it abstains.")
                answers[task.client] = None
                continue
            if name in refused or task.client not in wants:
                self._log.refused[name] = refused.get(name) or BudgetExceeded(_OVER)
                self._log.tell(name, str(self._log.refused[name]))
                answers[task.client] = None
                continue
            try:
                answers[task.client] = self._contribute(task, wants[task.client], secrets.get(task.client))
            except DataError as error:
                self._log.tell(name, str(error))
                answers[task.client] = None
        return answers

    def _reserved(
        self, tasks: Sequence[Task], wants: Mapping[int, Sequence[tuple[ReleaseKey, Charge]]]
    ) -> Mapping[str, BudgetExceeded]:
        """Reserve the charges of a wave; which clients' ledgers refuse, and why."""
        return self._ledger.reserve(
            [want for own in wants.values() for want in own],
            {
                key: self._offers[key.name].sends.extra
                for task in tasks
                if task.order.order.introduction
                for key, _ in wants.get(task.client, ())
                if self._counts(key.name)
            },
        )

    def _counted(self, client: int, value: Value) -> Value:
        """The value. How much of it was moved into public bounds is counted for the observer alone.

        Of a value that is made after noise, the count is taken after noise too.
        """
        if value.clipped or value.floored:
            self._log.moved[client_name(client)] = (value.clipped, value.floored)
        if (then := value.after_noise) is None:
            return value
        return replace(value, after_noise=lambda noised: self._counted(client, then(noised)))

    def settle(self) -> None:
        """The Ask is over: clients keep what they made of it."""
        self.kept |= self._news
        self.drop()

    def drop(self) -> None:
        """The Ask came to nothing, and its session with it: clients keep nothing of it."""
        self._news = {}
        self._values = {}
        self._seen = {}

    def _scheduled(self, task: Task) -> bool:
        return task.header.round <= self._plan.schedule

    def _charges(self, task: Task) -> list[tuple[ReleaseKey, Charge]]:
        trained = not task.order.order.introduction
        return [
            (_key(task, name), charge_of(self._plan, self._offers[name].sends, trained=trained))
            for name in task.wants
        ]

    def _counts(self, name: str) -> bool:
        """Whether introductions of this value are counted: they are if they cost less than a release.

        If both cost the same, a number that was lost on its way may be asked for again.
        """
        return self._offers[name].sends.training is not None

    def _secrets(self, tasks: Sequence[Task]) -> dict[int, SecretKey | None]:
        """The secrets of noise and private training, by client. Empty if nothing is private or hidden."""
        offers = self._offers.values()
        private = self._plan.noise != "none" or any(s.sends.training is not None for s in offers)
        if not tasks or (not self._plan.hidden and not private):
            return {}
        at = tasks[0].header
        found = self._journal.secrets([client_name(t.client) for t in tasks], at.session, at.round)
        return {task.client: secret for task, secret in zip(tasks, found, strict=True)}

    def _contribute(
        self, task: Task, charges: Sequence[tuple[ReleaseKey, Charge]], secret: SecretKey | None
    ) -> tuple[Release, ...]:
        x, _ = self._unchanged(task.client)
        # What has a finite price hides whether there are records: silence would tell.
        if not len(x) and any(charge in (UNPROTECTED, EXPOSED, NO_COST) for _, charge in charges):
            raise DataError("Expected at least one record, got none: it abstains.")
        releases = []
        for name, (key, _) in zip(task.wants, charges, strict=True):
            sends = self._offers[name].sends
            release = protect(
                self._plan,
                sends,
                self._value(task, name, secret),
                key=key,
                weight=self._weight(task, sends),
                conceal=task.conceal.get(name),
                trained=not task.order.order.introduction,
                secret=secret,
            )
            # Two versions of one value tell more than the one that was charged.
            if not self._ledger.repeats(release):
                raise DataError(
                    f"Expected {name!r} as it was sent before this round was cut off, got another version: "
                    "it abstains."
                )
            releases.append(release)
        return tuple(releases)

    def _unchanged(self, client: int) -> Records:
        """A client's records. DataError if they changed while an Ask was at hand.

        An Ask with a hidden sum takes several waves. Its values must be of one set of records, since one
        charge was made for them.
        """
        x, y = self._records[client]
        if not self._plan.hidden:  # one wave, in which every value is computed
            return x, y
        found = hashlib.sha256(np.ascontiguousarray(x).data)
        found.update(np.ascontiguousarray(y).data)
        if self._seen.setdefault(client, found.digest()) != found.digest():
            raise DataError(
                "Expected one set of records in an Ask, but the records changed: it abstains. Ask in another "
                "round."
            )
        return x, y

    def _value(self, task: Task, name: str, secret: SecretKey | None) -> Value:
        """The client's value, computed once for a question, whatever stage or attempt carries it."""
        at, order, broadcast = task.header, task.order.order, task.order.broadcast
        number = 0 if order.introduction else at.round
        question = Question(at.session, number, name, order.introduction, order.again)
        if (task.client, question) in self._values:
            return self._values[task.client, question]
        x, y = self._records[task.client]
        # By the question, not by the attempt: every attempt at it draws the same batches and the same noise,
        # and so has the same value.
        training = b"training|%d|%d|" % (question.ask, question.again) + name.encode()
        value = self._offers[name].compute(
            Job(
                client=task.client,
                round=at.round,
                x=x,
                y=y,
                broadcast=broadcast.model,
                public=dict(zip(broadcast.names, broadcast.arrays, strict=True)),
                rng=self._rng(at.round, task.client),
                kept=self.kept.get(task.client, {}),
                count=self._plan.count(len(x)),
                introduction=order.introduction,
                source=None if secret is None else Source(derived(secret, training)),
            )
        )
        value = self._counted(task.client, value)
        # Not before `settle`: a value of this Ask that is computed later must start from the same state.
        if value.keep is not None:
            self._news[task.client] = value.keep
        self._values[task.client, question] = value
        return value

    def _weight(self, task: Task, sends: Sends) -> float:
        """The client's own weight in a sum: from the draws it was shown, or from its own count."""
        order: Order = task.order.order
        if sends.how == "sum" and order.records:
            count = self._plan.count(len(self._records[task.client][0]))
            # At most 1, whatever total the server states: sensitivity is sized for weights up to 1.
            return count / max(order.records, count)
        if sends.how == "sum" and order.whole:
            own = order.draws[order.members.index(task.client)]
            return draw_weight(own, order.whole, order.most, sends)
        return 1.0


def _key(task: Task, name: str) -> ReleaseKey:
    header = task.header
    return ReleaseKey(
        client_name(task.client), header.session, header.round, header.stage, header.attempt, name
    )
