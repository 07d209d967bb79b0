"""The server's machine of one exchange: it collects answers, and has the key holder open encrypted scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from securefl.algorithm.queries import Answers, ByCount, ByDraws, CohortQuery, PerClient, Sum, Value
from securefl.core.append_map import AppendMap
from securefl.core.errors import RemoteProtocolError
from securefl.core.machine import Expects, Need, Outgoing, Step, Work
from securefl.core.messages import (
    OVERHEAD,
    Broadcast,
    Cohort,
    ContributionMessage,
    OpenReply,
    OpenRequest,
    Order,
    client_name,
)
from securefl.core.release import KEY_HOLDER, Delivered
from securefl.core.sparse import most_bytes
from securefl.core.text_safety import excerpt
from securefl.core.wire import Header, Limit
from securefl.linear.scheme import Found, KeyHolderRequest, Scoring, Sent
from securefl.sums import clear


@dataclass(frozen=True)
class Collecting:
    """Running sums (grid integers), and each client's numbers: in the clear, or as it concealed them."""

    sums: clear.Totals
    numbers: AppendMap[int, Mapping[str, float | Sent]]


@dataclass(frozen=True)
class Working:
    """The server computes scores."""

    collected: Collecting


@dataclass(frozen=True)
class Asking:
    """Waiting for the key holder. `again`: how often the request is still repeated if the reply is late."""

    collected: Collecting
    asked: KeyHolderRequest
    request: OpenRequest
    again: int = 2


@dataclass(frozen=True)
class Ended:
    pass


ServerState = Collecting | Working | Asking | Ended


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server's machine of one exchange.

    Attributes:
        hidden: whether sums are hidden. Then the exchange only orders them, and a hidden sum follows.
        again: the number of retries of the sums before this one.
        scoring: scores the encrypted numbers. If it is None, no number is encrypted.
        whole: names of values whose encoded length must not depend on the value
            (`mechanisms.charges.sparse`).
    """

    query: CohortQuery
    header: Header
    most: Limit
    hidden: bool = False
    again: int = 0
    scoring: Scoring | None = None
    whole: frozenset[str] = frozenset()

    def begin(self) -> Step[ServerState]:
        state = Collecting(clear.nothing(self._sums), AppendMap())
        everyone = tuple(self._clients)
        # All clients of a hidden sum get the same bytes and sign their digest. In the clear each client gets
        # an order of its own, since it need not know the cohort.
        if self.hidden:
            orders = [Outgoing(everyone, order_of(self.query, again=self.again))]
        else:
            orders = [Outgoing((client_name(k),), own) for k, own in clear_orders_of(self.query).items()]
        step = Step[ServerState](state, out=(Outgoing(everyone, broadcast_of(self.query)), *orders))
        return step if self.query.cohort else self._collected(state)

    @cached_property
    def _clients(self) -> Mapping[str, int]:
        """The cohort by name."""
        return {client_name(k): k for k in self.query.cohort}

    @property
    def _sums(self) -> tuple[Sum, ...]:
        """The sums that this exchange itself adds up."""
        return () if self.hidden else self.query.sums

    @property
    def _wants(self) -> tuple[str, ...]:
        return (
            *(s.spec.name for s in self._sums),
            *(per_client.spec.name for per_client in self.query.per_client),
        )

    def expects(self, state: ServerState) -> Expects:
        # Both kinds are accepted in every state: a late duplicate is ignored, and no party is blamed.
        opened = Limit(OVERHEAD, 0) if self.scoring is None else self.scoring.replies
        return Expects(self.header, {ContributionMessage: self.most, OpenReply: opened})

    def receive(self, state: ServerState, sender: str, message: Any) -> Step[ServerState]:
        if isinstance(message, OpenReply):
            return self._replied(state, sender, message)
        client = self._clients.get(sender)
        if client is None:
            raise _refusal(sender, f"Expected a contribution of the cohort, got one of {sender}.")
        if not isinstance(state, Collecting) or client in state.numbers:
            return Step(state)
        state = self._add(state, client, sender, message)
        return Step(state) if len(state.numbers) < len(self.query.cohort) else self._collected(state)

    def _add(self, state: Collecting, client: int, sender: str, message: ContributionMessage) -> Collecting:
        delivered: tuple[Any, ...] = message.releases
        if (came := tuple(release.name for release in delivered)) != self._wants:
            raise _refusal(
                sender, f"Expected the values {self._wants} in this order, got {tuple(map(excerpt, came))}."
            )
        by_name: dict[str, Delivered] = {release.name: release for release in delivered}
        numbers = {
            per_client.spec.name: self._number(per_client, by_name[per_client.spec.name], client)
            for per_client in self.query.per_client
        }
        summed = {wanted.spec.name: by_name[wanted.spec.name] for wanted in self._sums}
        sums = clear.added(state.sums, self._sums, summed, sender, self.whole)
        return Collecting(sums, state.numbers.having(client, numbers))

    def _number(self, per_client: PerClient, came: Delivered, client: int) -> float | Sent:
        """A client's number, or what it sent in its place. Raises RemoteProtocolError for another form."""
        sender = client_name(client)
        scoring = self.scoring
        if scoring is not None and per_client.spec.name not in scoring.names:
            scoring = None
        sealed = scoring is not None
        hidden, open_ = per_client.lengths()
        length = open_ if sealed else hidden + open_
        fits = came.numbers.dtype == np.float64 and came.numbers.shape == (length,)
        if not fits or came.form != ("encrypted" if sealed else "open") or bool(came.sealed) != sealed:
            raise _refusal(
                sender,
                f"Expected {length} numbers{' and a ciphertext' if sealed else ''} for "
                f"{per_client.spec.name!r}, got {came.form} numbers of shape {came.numbers.shape}.",
            )
        if not np.isfinite(came.numbers).all():
            raise _refusal(sender, "Expected finite numbers, got one that is not.")
        numbers = came.numbers.astype(np.float64)
        if scoring is not None:
            return Sent(client, per_client.spec.name, scoring.admit(sender, came.sealed), numbers)
        # A peer's numbers may overflow in the product. Inf and nan are refused below.
        with np.errstate(all="ignore"):
            number = per_client.number(Value(hidden=numbers[:hidden], clear=numbers[hidden:]))
        if not per_client.allows(number):
            raise _refusal(sender, f"Expected a {per_client.spec.name} in its public range, got one outside.")
        return number

    def _collected(self, state: Collecting) -> Step[ServerState]:
        sent = tuple(
            number
            for client in sorted(state.numbers)
            for number in state.numbers[client].values()
            if isinstance(number, Sent)
        )
        if sent and self.scoring is not None:
            return Step(Working(state), need=Need(Work(partial(self.scoring.request, sent))))
        return self._closed(state, {})

    def provide(self, state: ServerState, answer: KeyHolderRequest | Found) -> Step[ServerState]:
        if not isinstance(state, Working):
            return Step(state)
        if not isinstance(answer, KeyHolderRequest):
            return self._closed(state.collected, answer)
        request = OpenRequest(items=answer.items)
        return Step(Asking(state.collected, answer, request), out=(Outgoing((KEY_HOLDER,), request),))

    def _replied(self, state: ServerState, sender: str, reply: OpenReply) -> Step[ServerState]:
        if sender != KEY_HOLDER:
            raise _refusal(
                sender, f"Expected openings from the key holder, got one from {sender}.", "opening"
            )
        if not isinstance(state, Asking):  # late, and no one's fault
            return Step(state)
        if len(reply.items) != len(state.request.items):
            raise _refusal(
                sender, f"Expected {len(state.request.items)} items, got {len(reply.items)}.", "opening"
            )
        return Step(Working(state.collected), need=Need(Work(partial(state.asked.then, reply.items))))

    def deadline(self, state: ServerState) -> Step[ServerState]:
        """End the collecting with the answers so far. Afterwards, repeat the request or end without scores.

        Repeating a request spends nothing: a key holder opens one request and keeps its reply.
        """
        match state:
            case Collecting():
                return self._collected(state)
            case Asking(again=again) if again:
                return Step(replace(state, again=again - 1), out=(Outgoing((KEY_HOLDER,), state.request),))
            case Asking() | Working():
                return self._closed(state.collected, {})
            case _:
                return Step(state)

    def _closed(self, state: Collecting, found: Found) -> Step[ServerState]:
        survivors = tuple(sorted(state.numbers))
        per_client: dict[str, dict[int, float]] = {e.spec.name: {} for e in self.query.per_client}
        for client in survivors:
            for name, number in state.numbers[client].items():
                if not isinstance(number, Sent):
                    per_client[name][client] = number
        for (client, name), number in found.items():
            per_client[name][client] = number
        totals = clear.answers(state.sums, self._sums, self.query, survivors)
        return Step(Ended(), result=Answers(survivors=survivors, totals=totals, per_client=per_client))


def limits(query: CohortQuery, sealed: int) -> tuple[Limit, Limit]:
    """Limits of broadcast or order, and of a contribution with encrypted numbers of `sealed` bytes.

    They are checked before a message is decoded. Broadcast and order share one.
    """
    asked = len(query.sums) + len(query.per_client)
    broadcast = 4 * query.broadcast.size + 8 * sum(a.size for a in query.public.values())
    numbers = 8 * sum(sum(e.lengths()) for e in query.per_client)
    contribution = sum(most_bytes(s.size) for s in query.sums) + numbers + sealed * len(query.per_client)
    return (
        Limit(broadcast + OVERHEAD, max(2 * len(query.public), asked + len(query.sums))),
        Limit(contribution + OVERHEAD, asked),
    )


def broadcast_of(query: CohortQuery) -> Broadcast:
    """The broadcast to every client of the cohort."""
    names = tuple(query.public)
    return Broadcast(model=query.broadcast, names=names, arrays=tuple(query.public[name] for name in names))


def cohort_of(query: CohortQuery) -> Cohort:
    """The cohort of a query whose sums are hidden. The server tells it in its call."""
    members = tuple(sorted(query.cohort))
    drawn = _drawn(query)
    return Cohort(members=members, draws=tuple(drawn.get(k, 1) for k in members))


def order_of(query: CohortQuery, *, again: int = 0) -> Order:
    """The order to all clients of a query whose sums are hidden."""
    per_client, sums = _names(query)
    order = _order(query, wants=per_client, sums=sums, again=again)
    return replace(order, cohort=cohort_of(query).digest)


def clear_orders_of(query: CohortQuery) -> Mapping[int, Order]:
    """The orders of a query in the clear, one for each client."""
    per_client, sums = _names(query)
    # The common part is computed once, and one order serves all clients that were drawn as often.
    shared = _order(query, wants=(*sums, *per_client), lengths=tuple(wanted.size for wanted in query.sums))
    drawn = _drawn(query)
    often = {k: drawn.get(k, 1) for k in sorted(query.cohort)}
    made = {count: replace(shared, draws=count) for count in set(often.values())}
    return {k: made[count] for k, count in often.items()}


def _names(query: CohortQuery) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the numbers of each client, and of the sums."""
    per_client = tuple(wanted.spec.name for wanted in query.per_client)
    return per_client, tuple(wanted.spec.name for wanted in query.sums)


def _drawn(query: CohortQuery) -> Mapping[int, int]:
    return query.weights.draws if isinstance(query.weights, ByDraws) else {}


def _order(
    query: CohortQuery,
    *,
    wants: tuple[str, ...],
    lengths: tuple[int, ...] = (),
    sums: tuple[str, ...] = (),
    again: int = 0,
) -> Order:
    """An order without the part that tells cohorts or clients apart."""
    drawn = _drawn(query)
    return Order(
        wants=wants,
        sums=sums,
        initial=query.initial,
        number=query.number,
        again=again,
        cohort=b"",
        draws=0,
        whole=sum(drawn.values()),
        most=max(drawn.values(), default=0),
        records=query.weights.total if isinstance(query.weights, ByCount) else 0,
        lengths=lengths,
    )


def _refusal(sender: str, reason: str, phase: str = "contribution") -> RemoteProtocolError:
    return RemoteProtocolError(reason, sender=sender, phase=phase)
