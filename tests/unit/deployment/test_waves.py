"""Parties behind frames: the same sums as in one process, wave by wave, and frames that nobody sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.four_clients import ASK, CLEAR, CLIENTS, MASKED, PLACE, SENDS, SESSION, TWO, client, server

from securefl.core.agreement import Directory
from securefl.core.errors import RemoteProtocolError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.deployment.frames import REFUSED
from securefl.deployment.host import Host
from securefl.deployment.transport import RemoteTransport
from securefl.deployment.turns import Turn, TurnReply, pack, pack_sent, unpack, unpack_sent
from securefl.engine.attendance import Absence, Seen
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.engine.server import ServerParty
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord

PLANS = [CLEAR, MASKED, TWO, replace(TWO, sum="ckks")]


def asked(
    plan: Any,
    lost: Callable[[int, str, bytes], bytes | None] = lambda wave, name, replied: replied,
    here: ServerParty | None = None,
) -> Any:
    """The answers and the transport of one Ask, whose replies pass through `lost`."""
    here, clients = here or server(plan), [client(plan, (k,)) for k in range(CLIENTS)]
    holders = [KeyHolderParty(plan, {"own": SENDS}, OwnRecord(KEY_HOLDER, Journal()))]
    holders = holders if plan.sum in ("two-server", "ckks") else []
    members = {one.name: one for party in clients for one in party.members(SESSION, party.names)}
    holder = holders[0].member(SESSION) if holders else None
    directory = Directory(
        SESSION, here.member(SESSION), holder, lambda some: [members[name] for name in some]
    )
    hosts = {party.names[0]: Host(party) for party in (*clients, *holders)}
    for party in (here, *clients, *holders):
        party.enter(directory)
    waves = [0]

    def exchange(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        waves[0] += 1
        replied = {name: lost(waves[0], name, hosts[name].answer(data)) for name, data in requests.items()}
        return {name: reply for name, reply in replied.items() if reply is not None}

    transport = RemoteTransport(exchange)
    return here.query(ASK, PLACE, transport), transport, waves[0]


@pytest.mark.parametrize(("plan", "waves"), list(zip(PLANS, (1, 6, 4, 4), strict=True)))
def test_a_sum_of_parties_apart_is_the_sum(plan: Any, waves: int) -> None:
    answers, _, took = asked(plan)
    assert answers.survivors == (0, 1, 2, 3)
    np.testing.assert_array_equal(answers.totals["own"].value, [10, 10, 10])
    assert took == waves


@pytest.mark.parametrize(("plan", "wave"), [(CLEAR, 1), (MASKED, 2), (MASKED, 4), (TWO, 3)])
def test_who_falls_silent_is_left_out(plan: Any, wave: int) -> None:
    silent = lambda at, name, replied: None if (at, name) == (wave, "client-0002") else replied  # noqa: E731
    answers, _, _ = asked(plan, silent)
    assert answers.survivors == (0, 1, 3)
    np.testing.assert_array_equal(answers.totals["own"].value, [7, 7, 7])


@pytest.mark.parametrize("replied", [b"", b"x" * 99, pack(Turn())])
def test_who_says_what_is_no_reply_is_left_out_and_named(replied: bytes) -> None:
    answers, transport, _ = asked(CLEAR, lambda at, name, reply: replied if name == "client-0001" else reply)
    assert answers.survivors == (0, 2, 3)
    assert set(transport.traffic.rejected_from) == {"client-0001"}


TURNS = [Turn(), Turn(call=b""), Turn(call=b"abc", parcels=(("a", b""), ("b", b"xy")), deadline=True)]


@pytest.mark.parametrize("turn", TURNS)
def test_a_turn_comes_back_as_it_went(turn: Turn) -> None:
    assert unpack(pack(turn), sender=SERVER) == turn


def test_a_reply_comes_back_as_it_went() -> None:
    sent = TurnReply(key=b"k", parcels=((SERVER, b"one"), ("client-0001", b"")))
    assert unpack_sent(pack_sent(sent), sender="a") == sent


def test_a_frame_that_is_cut_changed_or_longer_is_refused() -> None:
    whole = pack(TURNS[2])
    others = [whole[:at] for at in range(len(whole))] + [whole + b"\0", pack_sent(TurnReply())]
    # a length of 2^63, where the first part's length stands
    others.append(whole[:10] + (2**63).to_bytes(8, "little") + whole[18:])
    for data in others:
        with pytest.raises(RemoteProtocolError, match="whole"):
            unpack(data, sender=SERVER)


def test_messages_before_a_call_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="call before any message"):
        Host(client(CLEAR)).answer(pack(Turn(parcels=((SERVER, b"x"),))))


# Who took part, as the server sees it ---------------------------------------------------------------------


def saw(plan: Any, replied: Callable[[int, bytes], bytes | None]) -> Seen:
    """What the server saw of one Ask in which client 1 replies what `replied` makes of its reply."""
    here = server(plan)
    asked(plan, lambda at, name, reply: replied(at, reply) if name == "client-0001" else reply, here)
    return here.seen


@pytest.mark.parametrize("plan", PLANS, ids=["clear", "masked", "two-server", "ckks"])
@pytest.mark.parametrize(
    ("replied", "why"),
    [
        (lambda at, reply: None, Absence.SILENT),
        (lambda at, reply: REFUSED, Absence.REFUSED),
        (lambda at, reply: pack_sent(TurnReply()), Absence.NO_VALUE),
        (lambda at, reply: b"x" * 99, Absence.INVALID),
        (lambda at, reply: pack_sent(TurnReply(parcels=((SERVER, b"xx"),))), Absence.INVALID),
    ],
    ids=["silent", "refuses", "sends nothing", "other bytes", "an invalid message"],
)
def test_the_server_says_who_is_missing_by_what_came_on_its_wire(
    plan: Any, replied: Callable[[int, bytes], bytes | None], why: Absence
) -> None:
    found = saw(plan, replied)
    holder = {KEY_HOLDER} if plan.sum in ("two-server", "ckks") else set()
    assert found.asked == {f"client-000{k}" for k in range(CLIENTS)} | holder
    assert found.absent == {"client-0001": why}
    assert found.short == ""


@pytest.mark.parametrize("plan", PLANS, ids=["clear", "masked", "two-server", "ckks"])
def test_nobody_is_missing_where_all_answer(plan: Any) -> None:
    assert saw(plan, lambda at, reply: reply).absent == {}


def test_where_no_sum_opens_only_those_that_gave_nothing_are_missing() -> None:
    """Two of four leave the masked sum, which needs three: the others did all that was theirs."""
    here = server(MASKED)
    gone = ("client-0001", "client-0002")
    asked(MASKED, lambda at, name, reply: None if name in gone and at > 1 else reply, here)
    assert here.seen.absent == dict.fromkeys(gone, Absence.SILENT)
    assert "needs" in here.seen.short or "Expected" in here.seen.short


def test_a_key_holder_that_is_away_is_missing_and_no_client_is() -> None:
    here = server(TWO)
    asked(TWO, lambda at, name, reply: None if name == KEY_HOLDER else reply, here)
    assert here.seen.absent == {KEY_HOLDER: Absence.SILENT}
    assert "key holder" in here.seen.short
