"""A client of one exchange: waits for order and broadcast, works, answers once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from securefl.errors import RemoteProtocolError
from securefl.exchange.sizes import OVERHEAD
from securefl.machine import Envelope, Expects, Need, Step
from securefl.messages import Broadcast, Contribution, Order
from securefl.release import SERVER, Release
from securefl.wire import Header


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
    """The slow work of a client: compute, charge and protect what was ordered."""

    client: int
    header: Header
    order: Order
    broadcast: Broadcast


ClientState = Waiting | Working | Answered


@dataclass(frozen=True, kw_only=True)
class Client:
    """A client of one exchange. `offers` are the names it is willing to be asked for."""

    number: int
    header: Header
    offers: frozenset[str]
    most_bytes: int

    def begin(self) -> Step[ClientState]:
        return Step(Waiting())

    def expects(self, state: ClientState) -> Expects:
        return Expects(self.header, {Broadcast: self.most_bytes, Order: OVERHEAD})

    def receive(self, state: ClientState, sender: str, message: Any) -> Step[ClientState]:
        if sender != SERVER:
            raise RemoteProtocolError("Only the server gives orders.", sender=sender, phase="waiting")
        if not isinstance(state, Waiting):
            return Step(state)
        if isinstance(message, Order):
            state = replace(state, order=state.order or self._checked(message))
        else:
            state = replace(state, broadcast=state.broadcast or self._whole(message))
        if state.order is None or state.broadcast is None:
            return Step(state)
        work = Contribute(
            client=self.number, header=self.header, order=state.order, broadcast=state.broadcast
        )
        return Step(Working(), need=Need(work))

    def _checked(self, order: Order) -> Order:
        unknown = set(order.wants) - self.offers
        if unknown or len(set(order.wants)) < len(order.wants) or not 0 < order.weight <= 1:
            raise RemoteProtocolError(
                f"Expected distinct wants among {sorted(self.offers)} and a weight in (0, 1], "
                f"got {order.wants} and {order.weight}.",
                sender=SERVER,
                phase="waiting",
            )
        return order

    def _whole(self, broadcast: Broadcast) -> Broadcast:
        names = broadcast.names
        if len(set(names)) < len(names) or len(names) != len(broadcast.arrays) or broadcast.model.ndim != 1:
            raise RemoteProtocolError(
                f"Expected a flat model and one array for each of {names}, all names distinct.",
                sender=SERVER,
                phase="waiting",
            )
        return broadcast

    def provide(self, state: ClientState, answer: tuple[Release, ...] | None) -> Step[ClientState]:
        """`None`: the client abstains, by silence. What is ready after the deadline is not sent."""
        if not isinstance(state, Working):
            return Step(state)
        if answer is None:
            return Step(Answered(), result="abstained")
        return Step(Answered(), out=(Envelope((SERVER,), Contribution(releases=answer)),), result="answered")

    def deadline(self, state: ClientState) -> Step[ClientState]:
        return Step(Answered(), result="missed")
