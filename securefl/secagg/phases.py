"""The phases of secure aggregation: two transition tables, which drive the machines of client and server.

A machine looks up an event's function for its state. If the state does not await the event, there are two
cases. An event that was due earlier is ignored: it is late or repeated. An event that is due later is
refused. An event that fails a check is refused too, and the state stays the same. A client exchanges messages
with the server only.

A row also states its condition and its effects. A test takes the machines through every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal, Protocol

from securefl.core.acts import Act, Begin
from securefl.core.errors import LocalProtocolError, RemoteProtocolError
from securefl.core.hiding import ComputeAndConceal
from securefl.core.machine import Step
from securefl.core.release import SERVER as TO_SERVER
from securefl.secagg import client_rounds as client
from securefl.secagg import server_rounds as server
from securefl.secagg.client_rounds import Advertised, Beginning, Dealing, Finished, Holding, Rounds
from securefl.secagg.messages import (
    Advertise,
    Complaint,
    Confirmed,
    Consistent,
    Dealt,
    MaskedInput,
    Quorum,
    RosterClosed,
    Shares,
    Survivors,
    Unmask,
)
from securefl.secagg.server_rounds import Advertising, Closing, Opening, Sharing, Summing, Working
from securefl.secagg.unmasking import Unmasking

BEGIN: Final = "begin"
DEADLINE: Final = "deadline"

Handler = Callable[..., Step[Any]]
"""The reaction to an event: a function of the party or its agreement, the state, and the event itself."""

WorkOrder = type[Any] | Act
"""Slow or guarded work: the class of its order, or the act of a `RecordAct`."""
Event = type[Any] | Act | Literal["begin", "deadline"]
"""A message, the host's answer to an order, the beginning, or a deadline."""


@dataclass(frozen=True)
class Row:
    """In each of these states, each of these events has this effect, under this condition.

    Attributes:
        state: one class or several; None before the beginning.
        event: one or several.
        does: the function that the machine calls, for each event; None if it only counts the deadline.
        again: whether a repeated event has this effect too.
        checked: the condition. It distinguishes rows of one state and event.
        follows: the class of the next state; None if only the count of deadlines changes.
        spec: the kind of the message and its receivers: the server, or all senders of a kind of message.
        before: a kind of which each of these receivers gets a message of its own before that.
        asks: the work that the host is ordered to do.
        result: the machine's result; of the server "summed", "aborted", or "named" if a client is proven
            guilty.
    """

    state: type[Any] | tuple[type[Any], ...] | None
    event: Event | tuple[Event, ...]
    does: Handler | tuple[Handler, ...] | None = None
    _: KW_ONLY
    again: bool = False
    checked: str
    follows: type[Any] | None = None
    spec: tuple[type[Any], type[Any] | str] | None = None
    before: type[Any] | None = None
    asks: WorkOrder | None = None
    result: str | None = None

    @property
    def states(self) -> tuple[type[Any] | None, ...]:
        return self.state if isinstance(self.state, tuple) else (self.state,)

    @property
    def events(self) -> tuple[Event, ...]:
        return self.event if isinstance(self.event, tuple) else (self.event,)

    @property
    def handlers(self) -> Iterator[tuple[type[Any] | None, Event, Handler]]:
        """Yield each state and event with its function."""
        if self.does is not None:
            does = self.does if isinstance(self.does, tuple) else (self.does,)
            for state in self.states:
                yield from ((state, event, one) for event, one in zip(self.events, does, strict=True))


class State(Protocol):
    """A state with the events that it awaits, none at the end."""

    @property
    def awaits(self) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class Table:
    """The rows of a party, in the order of its rounds. Rows of one state and event have one handler."""

    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            for state, event, does in row.handlers:
                assert self._handlers[state, event] is does, f"{state} has two handlers of {event}"

    @cached_property
    def begin(self) -> Handler:
        return self._handlers[None, BEGIN]

    def handler(self, state: State, event: type[Any], *, sender: str, phase: str) -> Handler | None:
        """Return the function of a message that came in a state, or None for a late message.

        Raises RemoteProtocolError, with sender and phase, for a message that is due later.
        """
        awaits, key = state.awaits, (type(state), event)
        if event in awaits or key in self._again:
            return self._handlers[key]
        if not awaits or self._order[event] <= (now := self._order[awaits[0]]):
            return None
        due = next(one for one in list(self._order)[now:] if isinstance(one, type) and _sent(one))
        raise RemoteProtocolError(
            f"Expected {due.__name__}, got {event.__name__}, not due yet.", sender=sender, phase=phase
        )

    def answered(self, state: State) -> Handler:
        """Return the function for the host's answer. Raises LocalProtocolError if the state awaits none."""
        asked = next((event for event in state.awaits if not _sent(event)), None)
        if asked is None:
            raise LocalProtocolError(
                f"Expected an answer only to a need, got one in {type(state).__name__}. Provide what a step "
                "asked for."
            )
        return self._handlers[type(state), asked]

    def deadline(self, party: Any, state: Any, patience: int) -> Step[Any]:
        """Process a deadline: count it, and if as many as `patience` passed in the state, go on without."""
        does = self._handlers.get((type(state), DEADLINE)) if state.awaits else None
        if does is None:
            return Step(state)
        if state.waited < patience:
            return Step(replace(state, waited=state.waited + 1))
        return does(party, state)

    @cached_property
    def _handlers(self) -> dict[tuple[type[Any] | None, Event], Handler]:
        return {(state, event): does for row in self.rows for state, event, does in row.handlers}

    @cached_property
    def _again(self) -> frozenset[tuple[type[Any] | None, Event]]:
        return frozenset((state, event) for row in self.rows if row.again for state, event, _ in row.handlers)

    @cached_property
    def _order(self) -> dict[Event, int]:
        """The position of each event in the sequence of the protocol."""
        events = dict.fromkeys(event for row in self.rows for event in row.events if event != DEADLINE)
        return {event: at for at, event in enumerate(events)}


def _sent(event: Event) -> bool:
    """Whether the event is a message. Any other awaited event is an answer of the host."""
    return hasattr(event, "__wire__")


_UNDER_WAY = (Beginning, Advertised, Dealing, Holding, client.Agreeing)

CLIENT: Final = Table((
    Row(None, BEGIN, Rounds.begin, follows=Beginning, asks=Begin,
        checked="The parameters are those of its own plan, and protect as much as the plan asks."),
    Row(Beginning, Begin, Rounds.advertise, follows=Advertised, spec=(Advertise, TO_SERVER),
        checked="The record lets it enter this attempt, and gives its secret."),
    Row(Beginning, Begin, Rounds.advertise, follows=Finished, result="refused",
        checked="The record forbids to enter."),
    Row(Advertised, RosterClosed, Rounds.shown_roster, follows=Advertised, asks="deal",
        checked="The roster has at least the least survivors, all pinned. Keys, nonces and signatures "
                "have their lengths. Its own entry is unchanged. The graph gives each member "
                "the least degree."),
    Row(Advertised, "deal", Rounds.deal, follows=Dealing, spec=(Shares, TO_SERVER),
        checked="The record holds this roster."),
    Row(Advertised, "deal", Rounds.deal, follows=Finished, result="refused",
        checked="The record holds another roster, or a newer attempt."),
    Row(Dealing, Dealt, Rounds.open, follows=Dealing, asks="mask",
        checked="There are at least the least survivors as dealers, itself among them. The box of each "
                "neighbour among them opens to shares that match their hashes."),
    Row(Dealing, Dealt, Rounds.open, follows=Finished, spec=(Complaint, TO_SERVER), result="complained",
        checked="A box does not, and its dealer signed it."),
    Row(Dealing, "mask", Rounds.hold, follows=Holding, asks=ComputeAndConceal,
        checked="The record holds these dealers."),
    Row(Dealing, "mask", Rounds.hold, follows=Finished, result="refused",
        checked="The record holds other dealers, or a newer attempt."),
    Row(Holding, ComputeAndConceal, Rounds.send, follows=Holding, spec=(MaskedInput, TO_SERVER),
        checked="There is one masked release for each vector."),
    Row(Holding, ComputeAndConceal, Rounds.send, follows=Finished, result="abstained",
        checked="The host abstains."),
    Row(Holding, Survivors, Rounds.shown, follows=client.Agreeing, asks="sign",
        checked="Its input is out. Survivors and dropped partition the dealers. At least the least "
                "survivors survive, itself among them, each with the least degree among them."),
    Row(client.Agreeing, Survivors, Rounds.shown_again, again=True,
        checked="They are the survivors that it was shown before. Any others are refused."),
    Row(client.Agreeing, "sign", Rounds.sign, follows=client.Agreeing, spec=(Consistent, TO_SERVER),
        checked="Active mode. The record holds these survivors."),
    Row(client.Agreeing, "sign", Rounds.sign,
        follows=client.Agreeing, spec=(Unmask, TO_SERVER), result="answered",
        checked="Semi-honest mode. The record holds these survivors."),
    Row(client.Agreeing, "sign", Rounds.sign, follows=Finished, result="refused",
        checked="The record holds other survivors, or a newer attempt."),
    Row(client.Agreeing, Confirmed, Rounds.confirmed, follows=client.Agreeing,
        checked="Its own signature is out. There is a tag for each surviving neighbour. Those that hold "
                "confirm these survivors."),
    Row(client.Agreeing, Quorum, Rounds.unmask,
        follows=client.Agreeing, spec=(Unmask, TO_SERVER), result="answered",
        checked="Its own signature is out. As many signed as a quorum. Each surviving neighbour's tag or "
                "signature confirms these survivors, or it signed its input under the same dealers. Of "
                "the other signers, each in a random sample signed these survivors."),
    Row(_UNDER_WAY, DEADLINE,
        checked="Fewer deadlines passed in this state than its patience."),
    Row(_UNDER_WAY, DEADLINE, Rounds.miss, follows=Finished, result="missed",
        checked="As many passed, and it has not answered."),
))  # fmt: skip

_SUMS = (server.masked, server.complained, server.close_sums)

SERVER: Final = Table((
    Row(None, BEGIN, server.begin, follows=Advertising,
        checked="Nothing is checked. Every client begins by itself."),
    Row(Advertising, Advertise, server.advertised, follows=Advertising,
        checked="The pinned member signed its key and nonce for this place. The key is not weak."),
    Row(Advertising, (Advertise, DEADLINE), (server.advertised, server.close_roster),
        follows=Sharing, spec=(RosterClosed, Advertise),
        checked="Everybody advertised; at the deadline, at least the least survivors did."),
    Row(Advertising, DEADLINE, server.close_roster, follows=Closing, result="aborted",
        checked="Fewer advertised, or the graph gives a member a lower degree than the least."),
    Row(Advertising, Advertise, server.advertised, follows=Closing, result="aborted",
        checked="Everybody advertised, and the graph gives a member a lower degree than the least."),
    Row(Sharing, Shares, server.shared, follows=Sharing,
        checked="It is in the closed roster. Hashes and boxes have their number and lengths. It signed "
                "the root of their tree."),
    Row(Sharing, (Shares, DEADLINE), (server.shared, server.close_dealing),
        follows=Summing, spec=(Dealt, Shares),
        checked="Everybody of the closed roster dealt; at the deadline, at least the least survivors "
                "did."),
    Row(Sharing, DEADLINE, server.close_dealing, follows=Closing, result="aborted",
        checked="Fewer dealt."),
    Row(Summing, MaskedInput, server.masked, follows=Summing,
        checked="It dealt, and did not complain. Its vectors have their lengths. It signed the dealers."),
    Row(Summing, Complaint, server.complained, follows=Summing,
        checked="It dealt, and its input did not come. A box that it accuses does not open under the "
                "key that it shows."),
    Row(Summing, Complaint, server.complained, follows=Closing, result="named",
        checked="A box opens to shares that do not match their hashes, or more accuse its dealer than "
                "may lie."),
    Row(Summing, (MaskedInput, Complaint, DEADLINE), _SUMS,
        follows=server.Agreeing, spec=(Survivors, MaskedInput),
        checked="Active mode. Of every dealer an input or a complaint came, or the deadline passed. At "
                "least the least survivors survive, each with the least degree among them."),
    Row(Summing, (MaskedInput, Complaint, DEADLINE), _SUMS, follows=Opening, spec=(Survivors, MaskedInput),
        checked="Semi-honest mode. The same."),
    Row(Summing, (MaskedInput, Complaint, DEADLINE), _SUMS, follows=Closing, result="aborted",
        checked="The same, but fewer survive, or one has a lower degree."),
    Row(server.Agreeing, Consistent, server.signed, follows=server.Agreeing,
        checked="A survivor signed these dealers and survivors, and sent a tag for each surviving "
                "neighbour."),
    Row(server.Agreeing, (Consistent, DEADLINE), (server.signed, server.close_signatures),
        follows=Opening, spec=(Quorum, Consistent), before=Confirmed,
        checked="Every survivor signed; at the deadline, at least a quorum did."),
    Row(server.Agreeing, DEADLINE, server.close_signatures, follows=Closing, result="aborted",
        checked="Fewer signed."),
    Row(Opening, Unmask, server.opened, follows=Opening,
        checked="It survived, and signed in active mode. Each share matches the hash that its dealer "
                "published."),
    Row(Opening, (Unmask, DEADLINE), (server.opened, server.close_shares),
        follows=Working, asks=Unmasking,
        checked="Everybody asked answered, or the deadline passed. Of every secret there are threshold "
                "shares."),
    Row(Opening, (Unmask, DEADLINE), (server.opened, server.close_shares),
        follows=Closing, result="aborted",
        checked="The same, but of one secret there are fewer."),
    Row(Working, Unmasking, server.unmasked, follows=Closing, result="summed",
        checked="Each seed matches its hash, and each key the one that was advertised."),
    Row(Working, Unmasking, server.unmasked, follows=Closing, result="named",
        checked="One of a dealer does not."),
    Row((Advertising, Sharing, Summing, server.Agreeing, Opening), DEADLINE,
        checked="Fewer deadlines passed in this phase than its patience."),
))  # fmt: skip
