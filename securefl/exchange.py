"""One Ask as three machines: the server collects, a client answers, the key holder opens blindly.

    server      --Broadcast, Order-->  client
    client      --Contribution------>  server         (only Releases)
    server      --OpenRequest------->  key holder     (only where numbers travel encrypted)
    key holder  --OpenReply--------->  server

Who could lie: a client can send any value within the grid, or a false number of its own (it costs
others nothing: sums are bounded, numbers are opened one ciphertext a client). Twice: the first
counts. Late: another stage's header, refused. Never: the deadline goes on without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.errors import RemoteProtocolError
from securefl.machine import Envelope, Expects, Need, Step
from securefl.release import KEY_HOLDER, SERVER, Delivered, Release
from securefl.rounds import Answers, Ask, Each, Sum, Total, Value
from securefl.wire import Header, message

_OVERHEAD = 4096  # bytes of headers, names and lengths of one message, generously


def client_name(number: int) -> str:
    """The party name of a client."""
    return f"client-{number:04d}"


# Messages ---------------------------------------------------------------------------------------


@message("broadcast", version=1, sender="server")
@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """The model and public arrays, one encoding for the whole cohort."""

    model: NDArray[np.float32]
    names: tuple[str, ...]
    arrays: tuple[NDArray[np.float64], ...]


@message("order", version=1, sender="server")
@dataclass(frozen=True, kw_only=True)
class Order:
    """What this client is to send, and its public weight in the sums."""

    wants: tuple[str, ...]
    weight: float


@message("contribution", version=1, sender="client")
@dataclass(frozen=True, kw_only=True)
class Contribution:
    """A client's releases, in the order of `Order.wants`."""

    releases: tuple[Release, ...]


@message("open-request", version=1, sender="server")
@dataclass(frozen=True, kw_only=True)
class OpenRequest:
    """Blinded ciphertexts, one per number."""

    items: tuple[bytes, ...]


@message("open-reply", version=1, sender="key-holder")
@dataclass(frozen=True, kw_only=True)
class OpenReply:
    """One flooded, still blinded integer per item of the request."""

    items: tuple[bytes, ...]


# A client ---------------------------------------------------------------------------------------


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
        return Expects(self.header, {Broadcast: self.most_bytes, Order: _OVERHEAD})

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


# The server -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Collecting:
    """Running sums (grid integers) and each client's delivered numbers so far."""

    sums: Mapping[str, NDArray[np.int64]]
    numbers: Mapping[int, Mapping[str, Delivered]]


@dataclass(frozen=True)
class Matching:
    collected: Collecting


@dataclass(frozen=True)
class Opening:
    collected: Collecting
    blinded: Any
    requests: int


@dataclass(frozen=True)
class Unblinding:
    collected: Collecting


@dataclass(frozen=True)
class Closed:
    pass


@dataclass(frozen=True)
class Match:
    """Slow work: evaluate each encrypted functional and blind the result, in this order."""

    items: tuple[tuple[int, Each, Delivered], ...]


@dataclass(frozen=True)
class Unblind:
    """Slow work: take the blinding off the key holder's reply."""

    blinded: Any
    replies: tuple[bytes, ...]


ServerState = Collecting | Matching | Opening | Unblinding | Closed


@dataclass(frozen=True, kw_only=True)
class Server:
    """The server of one exchange.

    `encrypted` names the numbers that travel encrypted, `gate` checks one such ciphertext
    (sender, name, bytes) before any native library sees it.
    """

    ask: Ask
    header: Header
    most_bytes: int
    encrypted: frozenset[str] = frozenset()
    gate: Callable[[str, bytes], None] = lambda sender, sealed: None

    def begin(self) -> Step[ServerState]:
        names = tuple(self.ask.public)
        broadcast = Broadcast(
            model=self.ask.model, names=names, arrays=tuple(self.ask.public[name] for name in names)
        )
        wants = tuple(sends.name for sends in self.ask.wants())
        orders = tuple(
            Envelope((client_name(k),), Order(wants=wants, weight=self.ask.weights.get(k, 1.0)))
            for k in self.ask.cohort
        )
        state = Collecting({s.sends.name: np.zeros(s.size, np.int64) for s in self.ask.sums}, {})
        everyone = tuple(client_name(k) for k in self.ask.cohort)
        step = Step[ServerState](state, out=(Envelope(everyone, broadcast), *orders))
        return step if self.ask.cohort else self._collected(state)

    def expects(self, state: ServerState) -> Expects:
        reply = state.requests if isinstance(state, Opening) else 0
        return Expects(self.header, {Contribution: self.most_bytes, OpenReply: _OVERHEAD + 64 * reply})

    def receive(self, state: ServerState, sender: str, message: Any) -> Step[ServerState]:
        if isinstance(message, OpenReply):
            return self._opened(state, sender, message)
        clients = {client_name(k): k for k in self.ask.cohort}
        if sender not in clients:
            raise RemoteProtocolError("It is not in the cohort.", sender=sender, phase="contribution")
        if not isinstance(state, Collecting) or clients[sender] in state.numbers:
            return Step(state)
        state = self._add(state, clients[sender], sender, message)
        return Step(state) if len(state.numbers) < len(self.ask.cohort) else self._collected(state)

    def _add(self, state: Collecting, client: int, sender: str, message: Contribution) -> Collecting:
        delivered: tuple[Any, ...] = message.releases
        wants = tuple(sends.name for sends in self.ask.wants())
        if tuple(release.name for release in delivered) != wants:
            raise RemoteProtocolError(f"Expected {wants}.", sender=sender, phase="contribution")
        by_name: dict[str, Delivered] = {release.name: release for release in delivered}
        for each in self.ask.each:
            self._check_number(each, by_name[each.sends.name], sender)
        sums = {
            s.sends.name: state.sums[s.sends.name] + self._check_sum(s, by_name[s.sends.name], sender)
            for s in self.ask.sums
        }
        numbers = {each.sends.name: by_name[each.sends.name] for each in self.ask.each}
        return Collecting(sums, {**state.numbers, client: numbers})

    def _check_sum(self, question: Sum, came: Delivered, sender: str) -> NDArray[np.int64]:
        if came.form != "open" or came.sealed:
            raise RemoteProtocolError("Expected an open sum.", sender=sender, phase="contribution")
        return question.sends.grid.check(came.numbers, question.size, sender)

    def _check_number(self, each: Each, came: Delivered, sender: str) -> None:
        sealed = each.sends.name in self.encrypted
        hidden, clear = each.lengths()
        length = clear if sealed else hidden + clear
        fits = came.numbers.dtype == np.float64 and came.numbers.shape == (length,)
        if not fits or came.form != ("encrypted" if sealed else "open") or bool(came.sealed) != sealed:
            raise RemoteProtocolError(
                f"Expected {length} numbers{' and a ciphertext' if sealed else ''} for {each.sends.name!r}.",
                sender=sender,
                phase="contribution",
            )
        if not np.isfinite(came.numbers).all():
            raise RemoteProtocolError("Expected finite numbers.", sender=sender, phase="contribution")
        if sealed:
            self.gate(sender, came.sealed)
            return
        with np.errstate(all="ignore"):
            number = _in_the_clear(each, came)
        if not np.isfinite(number):
            raise RemoteProtocolError(
                "Expected a number that is finite.", sender=sender, phase="contribution"
            )

    def _encrypted_items(self, state: Collecting) -> tuple[tuple[int, Each, Delivered], ...]:
        return tuple(
            (client, each, state.numbers[client][each.sends.name])
            for client in sorted(state.numbers)
            for each in self.ask.each
            if each.sends.name in self.encrypted
        )

    def _collected(self, state: Collecting) -> Step[ServerState]:
        items = self._encrypted_items(state)
        if items:
            return Step(Matching(state), need=Need(Match(items)))
        return Step(Closed(), result=self._answers(state, ()))

    def provide(self, state: ServerState, answer: Any) -> Step[ServerState]:
        if isinstance(state, Matching):
            blinded, requests = answer
            return Step(
                Opening(state.collected, blinded, len(requests)),
                out=(Envelope((KEY_HOLDER,), OpenRequest(items=requests)),),
            )
        if isinstance(state, Unblinding):
            return Step(Closed(), result=self._answers(state.collected, answer))
        return Step(state)

    def _opened(self, state: ServerState, sender: str, reply: OpenReply) -> Step[ServerState]:
        if sender != KEY_HOLDER:
            raise RemoteProtocolError("Only the key holder opens.", sender=sender, phase="opening")
        if not isinstance(state, Opening):
            return Step(state)
        if len(reply.items) != state.requests:
            raise RemoteProtocolError("Expected one item a request.", sender=sender, phase="opening")
        return Step(Unblinding(state.collected), need=Need(Unblind(state.blinded, reply.items)))

    def deadline(self, state: ServerState) -> Step[ServerState]:
        """Go on with what came; after the collecting, end without the numbers that are not open yet."""
        match state:
            case Collecting():
                return self._collected(state)
            case Closed():
                return Step(state)
            case _:
                return Step(Closed(), result=self._answers(state.collected, ()))

    def _answers(self, state: Collecting, opened: tuple[float | None, ...]) -> Answers:
        survivors = tuple(sorted(state.numbers))
        each: dict[str, dict[int, float]] = {e.sends.name: {} for e in self.ask.each}
        for (client, question, _), number in zip(self._encrypted_items(state), opened, strict=False):
            if number is not None:
                each[question.sends.name][client] = number
        for question in self.ask.each:
            if question.sends.name not in self.encrypted:
                each[question.sends.name] = {
                    client: _in_the_clear(question, state.numbers[client][question.sends.name])
                    for client in survivors
                }
        weight = sum(self.ask.weights.get(k, 1.0) for k in survivors)
        totals = {
            s.sends.name: Total(state.sums[s.sends.name].astype(np.float64) * s.sends.grid.step, weight)
            for s in self.ask.sums
        }
        return Answers(survivors=survivors, totals=totals, each=each)


def _in_the_clear(question: Each, came: Delivered) -> float:
    hidden, _ = question.lengths()
    numbers = came.numbers.astype(np.float64)
    return question.number(Value(hidden=numbers[:hidden], clear=numbers[hidden:]))


# The key holder ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Open:
    """Slow work of the key holder: decrypt the constant coefficient, flood, reply."""

    items: tuple[bytes, ...]


@dataclass(frozen=True)
class Ready:
    busy: bool = False


@dataclass(frozen=True, kw_only=True)
class KeyHolder:
    """The key holder of one exchange: one request from the server, one reply."""

    header: Header
    most_bytes: int

    def begin(self) -> Step[Ready]:
        return Step(Ready())

    def expects(self, state: Ready) -> Expects:
        return Expects(self.header, {OpenRequest: self.most_bytes})

    def receive(self, state: Ready, sender: str, message: OpenRequest) -> Step[Ready]:
        if sender != SERVER:
            raise RemoteProtocolError("Only the server asks to open.", sender=sender, phase="opening")
        return Step(state) if state.busy else Step(Ready(busy=True), need=Need(Open(message.items)))

    def provide(self, state: Ready, answer: tuple[bytes, ...]) -> Step[Ready]:
        return Step(state, out=(Envelope((SERVER,), OpenReply(items=answer)),), result="opened")

    def deadline(self, state: Ready) -> Step[Ready]:
        return Step(state, result="unused")


# Sizes ------------------------------------------------------------------------------------------


def most_bytes(ask: Ask, sealed: int) -> tuple[int, int, int]:
    """Byte bounds for this ask: broadcast, contribution, open request, with `sealed`-byte ciphertexts."""
    broadcast = 4 * ask.model.size + 8 * sum(a.size for a in ask.public.values()) + _OVERHEAD
    numbers = 8 * sum(sum(e.lengths()) for e in ask.each)
    contribution = 4 * sum(s.size for s in ask.sums) + numbers + sealed * len(ask.each) + _OVERHEAD
    return broadcast, contribution, (sealed + 64) * len(ask.cohort) * len(ask.each) + _OVERHEAD
