"""A lying server, through Flower messages, at sums that a key holder opens: ckks and two-server.

It would gain by a second total of a question, a total of few, or one of clients who were told different
things. The key holder opens none of them, and its owner reads why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from support.grid_double import silent
from support.grid_parties import Parties
from support.hidden_studies import hidden
from support.tiny_study import with_privacy

from securefl.core.messages import Broadcast, Cohort, Order
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header, Limit, decode, encode, peek
from securefl.deployment.engine import RemoteEngine
from securefl.deployment.messages import (
    REFUSED,
    Parcel,
    SignedTurn,
    Turn,
    TurnReply,
    decode_envelope,
    encode_envelope,
)
from securefl.engine.calls import QueryCall, SumCall, bits_of
from securefl.flower.exchange import GridExchange
from securefl.flower.records import unwrapped, wrapped
from securefl.sums.encrypted.messages import SumRequest
from securefl.sums.two_server.messages import PadRequest

VICTIM, NUMBER, EVERYBODY, OTHERS = "client-0002", 2, (0, 1, 2, 3), (0, 1, 3)
ARM = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\n'
ANY = Limit(2**26, 2**22)
Request = PadRequest | SumRequest
WAYS = pytest.mark.parametrize("how", ["ckks", "two-server"])


def study(how: str, rounds: int = 1) -> str:
    three_are_enough = {"corrupt": "0.0", "dropout": "0.25", "min_cohort_size": "3"}
    return with_privacy(hidden(how, ARM, clients=4, rounds=rounds), three_are_enough)


# What a server can say ------------------------------------------------------------------------------


def said(data: bytes, kind: type[Any]) -> tuple[Header, Any] | None:
    """The message of these bytes, if it is of this kind."""
    header = peek(data, SERVER)
    try:
        return header, decode(data, header, {kind: ANY}, SERVER)
    except Exception:
        return None


def told(turn: Turn, kind: type[Any], change: Callable[[Any], Any]) -> Turn:
    """The turn with every message and every call of this kind changed."""

    def changed(data: bytes) -> bytes:
        found = said(data, kind)
        return data if found is None else encode(found[0], change(found[1]))

    packets = tuple(Parcel(own.name, changed(own.data)) for own in turn.packets)
    return replace(turn, call=turn.call and changed(turn.call), packets=packets)


def without(request: Request, *members: int) -> Request:
    """The same request for fewer members."""
    if isinstance(request, PadRequest):
        return request.without(members)
    left = [place for place, member in enumerate(request.members) if member not in members]
    cut: dict[str, Any] = {
        name: tuple(getattr(request, name)[place] for place in left)
        for name in ("members", "inputs", "signatures")
    }
    return replace(request, **cut)


@dataclass
class Server:
    """A server that does as it should, but for what `lies` says; and afterwards whatever it likes.

    Attributes:
        lies: by party, what becomes of a turn on its way.
        sent: by party, the frames that arrived there.
    """

    parties: Parties
    lies: Mapping[str, Callable[[Turn], Turn]] = field(default_factory=dict)
    sent: dict[str, list[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = {node: name for name, node in self.parties.nodes.items()}
        self.engine: RemoteEngine = self.parties.apart()

        def meddle(node: int, message: Message) -> Message:
            name, frames = names[node], self.sent.setdefault(names[node], [])
            frame = unwrapped(message.content, sender=SERVER)
            if frames and name in self.lies:  # the first is the request to enter
                frame = self.parties.turned(name, frame, self.lies[name])
            frames.append(frame)
            message.content = wrapped(frame)
            return message

        self.parties.grid.meddle = meddle

    def played(self) -> Any:
        return self.parties.played(self.engine)

    def tells(self, name: str, turn: Turn) -> bytes:
        """The party's reply to a turn, which the server signs as it should."""
        return self.says(name, self.engine._transport.signed(name, turn))

    def says(self, name: str, frame: bytes) -> bytes:
        """The party's reply to a frame."""
        grid = self.parties.grid
        exchange = GridExchange(grid, self.parties.nodes, deadline=5, clock=grid.clock, pause=grid.pause)
        return exchange({name: frame})[name]

    def last(self) -> tuple[Header, SumCall, Request]:
        """The last place to which it called the key holder, that call, and what it asked for there."""
        *_, called, asked = map(turn_in, self.sent[KEY_HOLDER][1:])
        data = asked.packets[0].data
        call, request = said(called.call, SumCall), said(data, PadRequest) or said(data, SumRequest)
        assert call is not None
        assert request is not None
        return *call, request[1]


def turn_in(frame: bytes) -> Turn:
    return decode_envelope(decode_envelope(frame, SignedTurn, sender=SERVER).turn, Turn, sender=SERVER)


def packet(header: Header, message: Any, call: bytes = b"") -> Turn:
    return Turn(call=call, packets=(Parcel(SERVER, encode(header, message)),))


NOTHING = encode_envelope(TurnReply())


def honest(how: str, rounds: int = 1) -> Server:
    """A server after rounds in which it did not lie: all sums were opened, and nobody refused anything."""
    server = Server(Parties(study(how, rounds)))
    server.played()
    assert server.parties.survivors == {number: {EVERYBODY} for number in range(1, rounds + 1)}
    assert [server.parties.why(name) for name in server.parties.others] == [""] * 5
    return server


# After a round --------------------------------------------------------------------------------------


@WAYS
def test_a_second_total_of_a_round_is_not_opened(how: str) -> None:
    """In the same attempt, in a new one, and at a later stage; whoever is in it."""
    server = honest(how)
    place, call, request = server.last()
    fewer = without(request, NUMBER)
    assert server.tells(KEY_HOLDER, packet(place, fewer)) == NOTHING
    assert "one total of a sum" in server.parties.why(KEY_HOLDER)
    for later in (replace(place, attempt=place.attempt + 1), replace(place, stage=place.stage + 1)):
        for own in (fewer, request):
            reply = server.tells(KEY_HOLDER, packet(later, own, call=encode(later, call)))
            assert decode_envelope(reply, TurnReply, sender=KEY_HOLDER).packets == ()
            assert "did not sign" in server.parties.why(KEY_HOLDER)
            later = replace(later, attempt=later.attempt + 1)


@WAYS
def test_every_frame_of_a_round_that_is_over_is_refused(how: str) -> None:
    server = honest(how, rounds=2)
    before = {name: own.ledger.rows() for name, own in server.parties.files.items()}
    for name, frames in list(server.sent.items()):
        for frame in frames[1 : len(frames) // 2]:
            turn = turn_in(frame)
            assert server.says(name, frame) == REFUSED
            assert "was replayed" in server.parties.why(name)
            anew = server.tells(name, turn)  # and signed once more
            if turn.call:
                assert anew == REFUSED
                assert "places go up" in server.parties.why(name)
            else:
                assert anew == NOTHING
    assert {name: own.ledger.rows() for name, own in server.parties.files.items()} == before


# In a round -----------------------------------------------------------------------------------------


@WAYS
def test_a_total_of_fewer_than_the_least_is_not_opened(how: str) -> None:
    kind = PadRequest if how == "two-server" else SumRequest
    lie = {KEY_HOLDER: lambda turn: told(turn, kind, lambda request: without(request, *EVERYBODY[1:]))}
    server = Server(Parties(study(how)), lies=lie)
    (state,) = server.played()
    assert np.array_equal(state.broadcast, server.parties.made.algorithm.start().broadcast)
    assert "ascending members, got (0,)" in server.parties.why(KEY_HOLDER)


FEWER = Cohort(members=(0, 1, 2), draws=(1, 1, 1))


def another_cohort(turn: Turn) -> Turn:
    bits, whole = bits_of(FEWER.members), len(FEWER.members)
    turn = told(turn, QueryCall, lambda call: replace(call, members=call.members and bits))
    turn = told(turn, Order, lambda order: replace(order, cohort=FEWER.digest, whole=order.whole and whole))
    return told(
        turn,
        SumCall,
        lambda call: replace(call, members=bits, ordered=whole, whole=call.whole and whole),
    )


def another_model(turn: Turn) -> Turn:
    return told(turn, Broadcast, lambda said: replace(said, model=said.model + np.float32(0.01)))


@cache
def of_others(how: str) -> Any:
    """The model of a round without the victim. Another way is another session, with other mini-batches."""
    parties = Parties(study(how))
    engine = parties.apart()
    parties.grid.fates = {parties.nodes[VICTIM]: silent}
    (state,) = parties.played(engine)
    return state.broadcast


@pytest.mark.parametrize("lie", [another_cohort, another_model])
@WAYS
def test_clients_that_were_told_different_things_are_in_no_total_together(how: str, lie: Any) -> None:
    """The server itself believes every signature."""
    server = Server(Parties(study(how)), lies={VICTIM: lie})
    sums = server.engine.server._sums
    assert sums is not None
    server.engine.server._sums = _Gullible(sums.machine)
    (state,) = server.played()
    start = server.parties.made.algorithm.start().broadcast
    assert any(np.array_equal(state.broadcast, own) for own in (start, of_others(how)))
    why = [entry.text for entry in server.parties.files[KEY_HOLDER].diary.refusals()]
    # Ciphertexts for three do not even go into a total for four, so the key holder is not asked for them.
    assert any("member 2 did not sign" in one for one in why) or (how, lie) == ("ckks", another_cohort)


class _Gullible:
    """The server's side of a way, whose machine takes whatever was signed."""

    def __init__(self, make: Callable[[Any, bytes], Any]) -> None:
        self._make = make

    def check(self, attempt: Any) -> None: ...

    def machine(self, attempt: Any, key: bytes) -> Any:
        machine = self._make(attempt, key)
        agreed = machine.agreement
        kind = type("Gullible", (type(agreed),), {"check": lambda self, *signed: None})
        own = kind(**{one.name: getattr(agreed, one.name) for one in fields(agreed)})
        return replace(machine, agreement=own)

    def outcome(self, machine: Any, result: Any) -> Any:
        return result
