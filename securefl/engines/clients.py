"""The clients of an in-process study: what each computes, charges and protects when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.accounting.ledger import Ledger
from securefl.errors import DataError
from securefl.exchange import Contribute
from securefl.messages import client_name
from securefl.plan import Plan, charge_of, noised, protect
from securefl.release import Charge, Release, ReleaseKey
from securefl.rounds import Floats, Job, Kept, Statistic
from securefl.secagg import Masked
from securefl.wire import Header

Records = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one client is to release in one exchange; `masks` by name, where sums are masked."""

    client: int
    header: Header
    wants: tuple[str, ...]
    order: Contribute
    masks: Mapping[str, Callable[[NDArray[np.int64]], NDArray[np.uint8]]] = field(default_factory=dict)


class Clients:
    """Records, streams and kept state of all clients, and the ledger in front of them.

    `kept` is what each has on its device; `orders` the newest order of each, which an aggregation carries
    out; `seal` encrypts the hidden part of a value, once there is a key for it.
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
        self.orders: dict[int, Contribute] = {}
        self.seal: Callable[[Floats], bytes] | None = None

    def task(self, order: Any) -> Task | None:
        """What a client is asked to release now; an order is remembered for the aggregation after it."""
        match order:
            case Contribute():
                self.orders[order.client] = order
                return Task(client=order.client, header=order.header, wants=order.order.wants, order=order)
            case Masked():
                number = next((k for k in self.orders if client_name(k) == order.client), None)
                if number is None:  # the broadcast did not reach it
                    return None
                masks = {v.name: partial(order.mask, i) for i, v in enumerate(order.vectors)}
                return Task(
                    client=number,
                    header=order.header,
                    wants=tuple(masks),
                    order=self.orders[number],
                    masks=masks,
                )
        return None

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
        wanted = [self._statistics[name].sends for name in task.wants]
        # A noised sum hides whether there are records: silence would tell.
        if not len(x) and not all(noised(self._plan, sends) for sends in wanted):
            raise DataError("It has no records, so it abstains.")
        broadcast = task.order.broadcast
        releases, kept = [], self.kept.get(task.client, {})
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
            value = self._statistics[name].compute(job)
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
                    trained=bool(broadcast.model.size),
                )
            )
        self.kept[task.client] = kept
        return tuple(releases)


def _key(task: Task, name: str) -> ReleaseKey:
    header = task.header
    return ReleaseKey(
        client_name(task.client), header.session, header.round, header.stage, header.attempt, name
    )
