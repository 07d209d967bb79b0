"""The clients of an in-process study: what each computes, charges and protects when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.accounting.ledger import Ledger
from securefl.errors import BudgetExceeded, DataError
from securefl.exchange import Contribute
from securefl.exchange.encrypted import Encrypt
from securefl.messages import client_name
from securefl.plan import Plan, charge_of
from securefl.protect import protect
from securefl.release import NO_COST, UNPROTECTED, Charge, Release, ReleaseKey
from securefl.rounds import Floats, Job, Kept, Statistic, Value
from securefl.secagg import Masked
from securefl.wire import Header

Records = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one client is to release in one exchange; `masks` or `encryptors` by name, for hidden sums."""

    client: int
    header: Header
    wants: tuple[str, ...]
    order: Contribute
    masks: Mapping[str, Callable[[NDArray[np.int64]], NDArray[np.uint8]]] = field(default_factory=dict)
    encryptors: Mapping[str, Callable[[NDArray[np.int64]], bytes]] = field(default_factory=dict)


class Clients:
    """Records, streams and kept state of all clients, and the ledger in front of them.

    `kept` is what each had on its device before the Ask at hand: what it makes of that one counts once all
    is over (`settle`), so that an aggregation which is tried again computes the same value again. `orders` is
    the newest order of each, which an aggregation carries out; `seal` encrypts the hidden part of a value,
    once there is a key for it, and `encryptors` the vectors of the sum at hand.
    """

    def __init__(
        self,
        plan: Plan,
        statistics: Mapping[str, Statistic],
        ledger: Ledger,
        records: Sequence[Records],
        *,
        rng: Callable[[int, int], np.random.Generator],
        kept: Mapping[int, Kept],
    ) -> None:
        self._plan = plan
        self._statistics = statistics
        self._ledger = ledger
        self._records = records
        self._rng = rng
        self.kept: dict[int, Kept] = dict(kept)
        self._news: dict[int, Kept] = {}
        self.moved: dict[str, tuple[int, int]] = {}
        self.orders: dict[int, Contribute] = {}
        self.seal: Callable[[Floats], bytes] | None = None
        self.encryptors: Mapping[str, Callable[[NDArray[np.int64]], bytes]] = {}

    def retired(self, number: int) -> dict[int, BudgetExceeded]:
        """The clients whose ledger does not bear all that one takes part with in round `number`, and why."""
        sent = [statistic.sends for statistic in self._statistics.values()]
        wants = [(sends.name, charge_of(self._plan, sends)) for sends in sent if sends.due(number)]
        refusals = {k: self._ledger.refusal(client_name(k), wants) for k in range(len(self._records))}
        return {k: refusal for k, refusal in refusals.items() if refusal is not None}

    def task(self, order: Any) -> Task | None:
        """What a client is asked to release now; an order is remembered for the aggregation after it."""
        match order:
            case Contribute():
                self.orders[order.client] = order
                return Task(client=order.client, header=order.header, wants=order.order.wants, order=order)
            case Masked():
                masks = {v.name: partial(order.mask, i) for i, v in enumerate(order.vectors)}
                return self._second(order.client, order.header, masks=masks)
            case Encrypt():
                return self._second(order.client, order.header, encryptors=self.encryptors)
        return None

    def _second(self, name: str, header: Header, **hiding: Mapping[str, Any]) -> Task | None:
        """The sums of an order that came before; None where the broadcast did not reach the client."""
        number = next((k for k in self.orders if client_name(k) == name), None)
        if number is None:
            return None
        (hidden,) = hiding.values()
        order = self.orders[number]
        return Task(client=number, header=header, wants=tuple(hidden), order=order, **hiding)

    def contribute_many(
        self, tasks: Sequence[Task]
    ) -> tuple[dict[int, tuple[Release, ...] | None], dict[str, str]]:
        """Each client's releases, or None, and why those who abstain do; all charges are reserved first."""
        wants = {task.client: self._charges(task) for task in tasks if self._scheduled(task)}
        refused = self._ledger.reserve([want for own in wants.values() for want in own])
        answers: dict[int, tuple[Release, ...] | None] = {}
        abstained: dict[str, str] = {}
        for task in tasks:
            name = client_name(task.client)
            if name in refused or task.client not in wants:
                abstained[name] = str(refused.get(name, "The declared schedule is over."))
                answers[task.client] = None
                continue
            try:
                answers[task.client] = self._contribute(task, wants[task.client])
            except DataError as error:
                abstained[name] = str(error)
                answers[task.client] = None
        return answers, abstained

    def _counted(self, client: int, value: Value) -> Value:
        """The value; what was moved into public bounds is counted for the observer alone.

        Where a value follows from noised sums, so does the count.
        """
        if value.clipped or value.floored:
            self.moved[client_name(client)] = (value.clipped, value.floored)
        if (then := value.then) is None:
            return value
        return replace(value, then=lambda noised: self._counted(client, then(noised)))

    def settle(self) -> None:
        """The Ask is over: clients keep what they made of it."""
        self.kept |= self._news
        self._news = {}

    def _scheduled(self, task: Task) -> bool:
        return task.header.round <= self._plan.schedule

    def _charges(self, task: Task) -> list[tuple[ReleaseKey, Charge]]:
        trained = bool(task.order.broadcast.model.size)
        return [
            (_key(task, name), charge_of(self._plan, self._statistics[name].sends, trained=trained))
            for name in task.wants
        ]

    def _contribute(self, task: Task, charges: Sequence[tuple[ReleaseKey, Charge]]) -> tuple[Release, ...]:
        x, y = self._records[task.client]
        # What has a finite price hides whether there are records: silence would tell.
        if not len(x) and any(charge in (UNPROTECTED, NO_COST) for _, charge in charges):
            raise DataError("It has no records, so it abstains.")
        broadcast = task.order.broadcast
        releases, kept = [], self._news.get(task.client)
        for name, (key, _) in zip(task.wants, charges, strict=True):
            job = Job(
                client=task.client,
                round=task.header.round,
                x=x,
                y=y,
                model=broadcast.model,
                public=dict(zip(broadcast.names, broadcast.arrays, strict=True)),
                rng=self._rng(task.header.round, task.client),
                kept=self.kept.get(task.client, {}),
            )
            value = self._counted(task.client, self._statistics[name].compute(job))
            kept = kept if value.keep is None else value.keep
            releases.append(
                protect(
                    self._plan,
                    self._statistics[name].sends,
                    value,
                    key=key,
                    weight=task.order.order.weight,
                    seal=self.seal,
                    mask=task.masks.get(name),
                    encrypt=task.encryptors.get(name),
                    trained=bool(broadcast.model.size),
                )
            )
        if kept is not None:
            self._news[task.client] = kept
        return tuple(releases)


def _key(task: Task, name: str) -> ReleaseKey:
    header = task.header
    return ReleaseKey(
        client_name(task.client), header.session, header.round, header.stage, header.attempt, name
    )
