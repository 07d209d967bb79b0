"""The client's machine of one exchange.

The client waits for order and broadcast, checks the order against its plan, and answers once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from securefl.algorithm.plan import CLEAR, Plan
from securefl.algorithm.queries import ValueSpec
from securefl.algorithm.weighing import Weights, require_allowed, require_batches, require_weighed
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.hiding import Conceal, ConcealVector
from securefl.core.machine import Expects, Need, Outgoing, Step
from securefl.core.messages import Broadcast, Cohort, ContributionMessage, Order
from securefl.core.newest import newest
from securefl.core.release import SERVER, Release
from securefl.core.sparse import most_bytes
from securefl.core.wire import Header, Limit
from securefl.mechanisms.agreed import require_agreed
from securefl.mechanisms.charges import Protection

MOST = Limit(2**30, 2**22)
"""The largest order or broadcast that a client takes, and the largest answer that it makes."""


@dataclass(frozen=True)
class Waiting:
    order: Order | None = None
    broadcast: Broadcast | None = None


@dataclass(frozen=True)
class Working:
    pass


@dataclass(frozen=True)
class Answered:
    pass


@dataclass(frozen=True, kw_only=True)
class Contribute:
    """The slow work of a client: charge, compute and protect the ordered values.

    header: of the exchange; of an attempt at the hidden sums, if `wants` are these.
    wants: names of the values that the client sends now.
    cohort: the clients of the ordered hidden sums; None if no sum is hidden.
    conceal: the encryption of each number that the plan hides, by name.
    """

    client: int
    header: Header
    order: Order
    broadcast: Broadcast
    wants: tuple[str, ...]
    cohort: Cohort | None = None
    conceal: Mapping[str, Conceal | ConcealVector] = field(default_factory=dict)

    @property
    def draws(self) -> int:
        """The number of this client's draws."""
        return self.order.draws if self.cohort is None else self.cohort.draws_of[self.client]


ClientPhase = Waiting | Working | Answered


@dataclass(frozen=True, kw_only=True)
class Client:
    """The client's machine of one exchange.

    contributions: the specs of the values that it may be asked for, by name. An order has names only, and no
    specs.
    cohort: as the call told it; None if it told none.
    conceal: the encryption of each number that its plan hides, by name.
    """

    number: int
    header: Header
    plan: Plan
    contributions: Mapping[str, ValueSpec]
    most: Limit
    cohort: Cohort | None = None
    conceal: Mapping[str, ConcealVector] = field(default_factory=dict)

    def begin(self) -> Step[ClientPhase]:
        return Step(Waiting())

    def expects(self, state: ClientPhase) -> Expects:
        return Expects(self.header, {Broadcast: self.most, Order: self.most})

    def receive(self, state: ClientPhase, sender: str, message: Any) -> Step[ClientPhase]:
        if sender != SERVER:
            raise RemoteProtocolError(
                f"Expected orders from the server, got one from {sender}.", sender=sender, phase="waiting"
            )
        if not isinstance(state, Waiting):
            return Step(state)
        # The first order and the first broadcast count: the server must not replace one after its check.
        if isinstance(message, Order):
            state = Waiting(state.order or self._checked(message), state.broadcast)
        else:
            state = Waiting(state.order, state.broadcast or self._whole(message))
        if state.order is None or state.broadcast is None:
            return Step(state)
        work = Contribute(
            client=self.number,
            header=self.header,
            order=state.order,
            broadcast=state.broadcast,
            wants=state.order.wants,
            cohort=self.cohort if state.order.sums else None,
            conceal=self.conceal,
        )
        return Step(Working(), need=Need(work))

    def _checked(self, order: Order) -> Order:
        names = (*order.wants, *order.sums)
        if set(names) - self.contributions.keys() or len(set(names)) < len(names):
            raise _refusal(f"Expected distinct wants among {sorted(self.contributions)}, got {names}.")
        asked = [self.contributions[name] for name in names]
        hidden = self.plan.hidden
        if any((s.reduction == "sum" and hidden) != (s.name in order.sums) for s in asked):
            raise _refusal(f"Expected sums to be {'hidden' if hidden else 'clear'}, as the plan says.")
        hides = self.plan.scores != CLEAR
        if bare := [s.name for s in asked if hides and s.reveals_encrypted and s.name not in self.conceal]:
            raise _refusal(f"Expected a key for {bare}, as the plan hides them, got none in the call.")
        for spec in asked:
            self._check_declared(order, spec)
        if order.sums:
            cohort = self._named_cohort(order)
            _check_draws(order, cohort)
            _check_weights(self.plan, self.contributions, order, cohort)
        elif any(spec.reduction == "sum" for spec in asked):
            self._check_own_draws(order)
        return order

    def _check_declared(self, order: Order, spec: ValueSpec) -> None:
        """Refuse a query that the value's spec does not declare: a regular, an initial or an extra one.

        The ledger counts how often each was asked.
        """
        initial, number = order.initial, order.number
        if initial:
            due = number == 0 and 0 < initial <= spec.schedule.initial
        elif number:
            due = 0 < number <= spec.schedule.extra
        else:
            due = spec.schedule.due(self.header.round)
        if not due:
            raise _refusal(
                f"Expected {spec.name!r} to be asked for as declared, got initial {initial}, "
                f"number {number} in round {self.header.round}."
            )
        if not 0 <= order.again <= self.plan.max_retries or (
            order.again and not Protection(self.plan, spec).noised
        ):
            raise _refusal(
                f"Expected at most {self.plan.max_retries} retries of {spec.name!r}, and only with noise: "
                "another sum of the same values would reveal one of them."
            )

    def _named_cohort(self, order: Order) -> Cohort:
        """The cohort that the order names. Refuse any but that of the call, and one without this client.

        The signed agreement holds the name. So clients that were told different cohorts sign different texts.
        """
        if self.cohort is None or order.cohort != self.cohort.digest or order.draws:
            raise _refusal("Expected an order for the cohort that its call told, got one for another cohort.")
        if self.number not in self.cohort.draws_of:
            raise _refusal("Expected an order for a cohort with us in it, got one for a cohort without us.")
        return self.cohort

    def _check_own_draws(self, order: Order) -> None:
        """Refuse draws that contradict each other. In the clear a client sees its own draws alone."""
        own = order.draws
        if order.cohort or own < 1:
            raise _refusal(
                f"Expected an order for sums in the clear, with our draws, got {own} draws and "
                f"{len(order.cohort)} bytes of a "
                "cohort."
            )
        fits = own == 1 and order.most == 0 if not order.whole else own <= order.most <= order.whole
        _require_fitting(order, fits, (own,))
        summed = [name for name in order.wants if self.contributions[name].reduction == "sum"]
        try:
            weights = Weights((own,), order.whole, order.records)
            require_weighed(self.plan, [self.contributions[name] for name in summed], weights)
        except ConfigError as error:
            raise _refusal(str(error)) from None
        if order.wants[: len(summed)] != tuple(summed) or len(order.lengths) != len(summed):
            raise _refusal(
                f"Expected sums first, each with its length, got {order.wants} and {order.lengths}."
            )
        # A client that does not take part makes as many zeros. The order costs the server nothing.
        if min(order.lengths) < 0 or sum(map(most_bytes, order.lengths)) > MOST.bytes:
            raise _refusal(f"Expected sums of at most {MOST.bytes} bytes, got the lengths {order.lengths}.")

    def _whole(self, broadcast: Broadcast) -> Broadcast:
        names = broadcast.names
        if len(set(names)) < len(names) or len(names) != len(broadcast.arrays) or broadcast.model.ndim != 1:
            raise _refusal(f"Expected a flat model and one array for each of {names}, all names distinct.")
        return broadcast

    def provide(self, state: ClientPhase, answer: tuple[Release, ...] | None) -> Step[ClientPhase]:
        """Send the answer. With `None` the client abstains by silence. After the deadline none is sent."""
        if not isinstance(state, Working):
            return Step(state)
        if answer is None:
            return Step(Answered(), result="abstained")
        return Step(
            Answered(), out=(Outgoing((SERVER,), ContributionMessage(releases=answer)),), result="answered"
        )

    def deadline(self, state: ClientPhase) -> Step[ClientPhase]:
        return Step(Answered(), result="missed")


# In a simulation the first client checks for those that have the very same plan, order and cohort.
@newest
def _check_draws(order: Order, cohort: Cohort) -> None:
    """Refuse draws that contradict those of the cohort."""
    whole, most = sum(cohort.draws), max(cohort.draws)
    once = most == 1 and order.most == 0  # each value weighs 1, or its client's own count
    fits = (whole, most) == (order.whole, order.most) if order.whole else once
    _require_fitting(order, fits, cohort.draws)


@newest
def _check_weights(plan: Plan, specs: Mapping[str, ValueSpec], order: Order, cohort: Cohort) -> None:
    """Refuse a cohort, weights, an n or a read of kept state that the plan does not allow in hidden sums.

    Every client of the cohort checks all four. If the server could choose weights freely, a sum would
    reveal one client's value.
    """
    try:
        require_agreed(plan, [specs[name] for name in order.sums])
        require_allowed(plan, [specs[name] for name in order.sums], Weights.of(order, cohort))
        require_batches(plan, cohort.members, cohort.draws)
    except ConfigError as error:
        raise _refusal(str(error)) from None


def _require_fitting(order: Order, fits: bool, draws: Sequence[int]) -> None:
    if not fits or order.records < 0 or (order.whole and order.records):
        raise _refusal(f"Expected {order.whole} draws, {order.most} of one client at most, got {draws}.")


def _refusal(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(reason, sender=SERVER, phase="waiting")
