"""Strangers in the server's place, and relays that were taken over: they cannot even leave a party deaf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.four_clients import ASK, CLEAR, MASKED, PLACE
from support.residents import Deployment

from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError, DataError, RemoteProtocolError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header, Limit
from securefl.deployment import party as sessions
from securefl.deployment.engine import RemoteEngine, ServerSide
from securefl.deployment.messages import (
    REFUSED,
    Entered,
    Parcel,
    SignedTurn,
    Turn,
    decode_envelope,
    encode_envelope,
)
from securefl.deployment.transport import RemoteTransport
from securefl.engine.calls import QueryCall, encode_call
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord

TODAY = bytes(32)
VICTIM, OTHER = "client-0001", "client-0002"


def begun() -> Deployment:
    """A session in which one round is over."""
    deployment = Deployment(CLEAR)
    deployment.enter(TODAY)
    assert deployment.query(1).survivors == (0, 1, 2, 3)
    return deployment


def far(deployment: Deployment) -> Turn:
    """A call to a place far ahead: after it, every honest call would come too late."""
    place = Header(deployment.session, 10**6, 0, 0)
    return Turn(call=encode_call(place, QueryCall(most=Limit(999, 9))))


def opened(data: bytes) -> SignedTurn:
    return decode_envelope(data, SignedTurn, sender=SERVER)


def changed(data: bytes, **fields: Any) -> bytes:
    """A signed turn with other fields, under its old signature."""
    return encode_envelope(replace(opened(data), **fields))


def turned(data: bytes, **fields: Any) -> bytes:
    """A signed turn whose content is another, under its old signature."""
    turn = decode_envelope(opened(data).turn, Turn, sender=SERVER)
    return changed(data, turn=encode_envelope(replace(turn, **fields)))


STRANGER = Identity.generate(SERVER)
ATTACKS: dict[str, tuple[Callable[[Deployment], bytes], str]] = {
    "unsigned": (lambda d: encode_envelope(far(d)), "signed-turn"),
    "signed with zeros": (lambda d: changed(d.signed(VICTIM, far(d)), signature=bytes(64)), "server signed"),
    "a stranger's key": (lambda d: d.signed(VICTIM, far(d), server=STRANGER), "server signed"),
    "a client's key": (lambda d: d.signed(VICTIM, far(d), server=d.keys[OTHER]), "server signed"),
    "for another party": (
        lambda d: changed(d.signed(OTHER, far(d)), visit=d.transport._visits[VICTIM][0]),
        "server signed",
    ),
    "for another party, as it is": (lambda d: d.signed(OTHER, far(d)), "this visit"),
    "of another session": (lambda d: d.signed(VICTIM, far(d), session=b"s" * 32), "server signed"),
    "of another visit": (lambda d: d.signed(VICTIM, far(d), visit=b"v" * 16), "this visit"),
    "of another visit, renamed": (
        lambda d: changed(d.signed(VICTIM, far(d), visit=b"v" * 16), visit=d.transport._visits[VICTIM][0]),
        "server signed",
    ),
    "a number of before": (lambda d: d.signed(VICTIM, far(d), number=0), "was replayed"),
    "a number of before, renamed": (
        lambda d: changed(d.signed(VICTIM, far(d), number=0), number=d.transport._visits[VICTIM][1]),
        "server signed",
    ),
    "a number far ahead": (lambda d: d.signed(VICTIM, far(d), number=2**62), "near it"),
    "the deadline flag": (lambda d: turned(d.signed(VICTIM, Turn()), deadline=1), "server signed"),
    "another call": (
        lambda d: turned(d.signed(VICTIM, Turn(call=b"x")), call=far(d).call),
        "server signed",
    ),
    "no call": (lambda d: turned(d.signed(VICTIM, far(d)), call=b""), "server signed"),
    "another sender": (
        lambda d: turned(
            d.signed(VICTIM, Turn(packets=(Parcel(SERVER, b"x"),))), packets=(Parcel(OTHER, b"x"),)
        ),
        "server signed",
    ),
}


@every("attack", ATTACKS)
def test_a_turn_that_the_server_did_not_sign_for_this_place_changes_nothing(attack: str) -> None:
    deployment = begun()
    party, ledger = deployment.residents[VICTIM], deployment.files[VICTIM].ledger
    make, why = ATTACKS[attack]
    before = ledger.head
    driver = party._visit.party.drive  # type: ignore[union-attr]
    assert party.answer(make(deployment)) == REFUSED
    assert why in deployment.why(VICTIM)
    assert ledger.head == before
    assert party._visit.party.drive is driver  # type: ignore[union-attr]
    # and the honest turns go on, under the numbers that they have anyhow
    assert deployment.query(2).survivors == (0, 1, 2, 3)


def test_every_old_turn_is_refused_and_the_next_honest_one_is_not() -> None:
    deployment = begun()
    old = [data for name, data in deployment.said if name == VICTIM]
    for data in old[1:]:
        assert deployment.residents[VICTIM].answer(data) == REFUSED
        assert "was replayed" in deployment.why(VICTIM)
    assert deployment.query(2).survivors == (0, 1, 2, 3)


def test_a_turn_of_yesterdays_visit_is_refused_after_a_restart() -> None:
    deployment = begun()
    kept_back = deployment.transport.signed(VICTIM, far(deployment))  # signed, and never delivered
    deployment.start(VICTIM)
    assert VICTIM in deployment.enter(TODAY)
    assert deployment.residents[VICTIM].answer(kept_back) == REFUSED
    assert "before a restart" in deployment.why(VICTIM)
    assert deployment.query(2).survivors == (0, 1, 2, 3)


def test_a_request_to_enter_that_is_repeated_tells_visit_and_number_again() -> None:
    deployment = begun()
    request, party = deployment.said[0][1], deployment.residents[VICTIM]
    first = decode_envelope(party.answer(request), Entered, sender=VICTIM)
    assert first == Entered(visit=deployment.transport._visits[VICTIM][0], number=1)
    assert decode_envelope(party.answer(request), Entered, sender=VICTIM) == first
    # so a coordinator that was started again goes on where the first one was
    deployment.begin()
    deployment.enter(TODAY)
    assert deployment.transport._visits[VICTIM] == (first.visit, 1)
    assert deployment.query(2).survivors == (0, 1, 2, 3)
    deployment.start(VICTIM)
    second = decode_envelope(deployment.residents[VICTIM].answer(request), Entered, sender=VICTIM)
    assert second.visit != first.visit
    assert second.number == 0


def test_a_stranger_who_repeats_the_request_to_enter_costs_one_round_at_most() -> None:
    """After a restart it may enter the party in the server's place. The server then hears the visit again."""
    deployment = begun()
    deployment.start(VICTIM)
    deployment.residents[VICTIM].answer(deployment.said[0][1])
    assert deployment.query(2).survivors == (0, 2, 3)
    assert VICTIM in deployment.enter(TODAY)
    assert deployment.query(3).survivors == (0, 1, 2, 3)


@every("lie", [Entered(visit=b"x" * 16, number=0), Entered(visit=b"", number=5)])
def test_a_relay_that_lies_about_the_visit_costs_its_own_rounds(lie: Entered) -> None:
    deployment = Deployment(CLEAR)
    true = Entered(visit=b"", number=0)

    def lies(name: str, reply: bytes) -> bytes:
        nonlocal true
        if name != VICTIM:
            return reply
        true = decode_envelope(reply, Entered, sender=name)
        return encode_envelope(replace(lie, visit=lie.visit or true.visit))

    deployment.lost = lies
    deployment.enter(TODAY)
    deployment.lost = lambda name, reply: reply
    survivors = deployment.query(1).survivors
    assert survivors == ((0, 2, 3) if lie.visit else (0, 1, 2, 3)), "a number that is near is no other visit"
    deployment.enter(TODAY)
    assert deployment.query(2).survivors == (0, 1, 2, 3)


def test_lies_about_numbers_do_not_use_them_up() -> None:
    """A relay has the server sign a large number, and gives that turn to the party."""
    deployment, victim, number = begun(), (VICTIM,), 2**62 + 1

    def lies(name: str, reply: bytes) -> bytes:
        true = decode_envelope(reply, Entered, sender=name)
        return encode_envelope(replace(true, number=number)) if name == VICTIM else reply

    deployment.lost = lies
    assert set(deployment.transport.enter(victim)) == {VICTIM}, "the server takes none that would run out"
    for number in (2**62, 1 + 1024):  # noqa: B007 -- `lies` reads it
        deployment.lost = lies
        assert deployment.transport.enter(victim) == {}
        deployment.lost = lambda name, reply: reply
        turn = deployment.transport.signed(VICTIM, far(deployment))
        assert deployment.residents[VICTIM].answer(turn) == REFUSED
        assert "near it" in deployment.why(VICTIM)
    deployment.transport.enter(victim)
    assert deployment.transport._visits[VICTIM][1] == 1
    assert deployment.query(2).survivors == (0, 1, 2, 3)


def test_a_turn_that_was_lost_costs_its_wave_alone() -> None:
    deployment = begun()
    for _ in range(5):
        deployment.transport.signed(VICTIM, Turn())
    assert deployment.query(2).survivors == (0, 1, 2, 3)


def test_a_turn_that_the_party_refuses_for_its_content_has_used_its_number() -> None:
    deployment = begun()
    turn = deployment.transport.signed(VICTIM, Turn(call=b"no call"))
    assert deployment.residents[VICTIM].answer(turn) == REFUSED
    assert deployment.residents[VICTIM].answer(turn) == REFUSED
    assert "was replayed" in deployment.why(VICTIM)
    assert deployment.query(2).survivors == (0, 1, 2, 3)


def test_a_signed_turn_of_other_bytes_is_refused() -> None:
    deployment = begun()
    visit, number = deployment.transport._visits[VICTIM]
    unsigned = SignedTurn(visit=visit, number=number, signature=bytes(64), turn=b"no turn")
    text = unsigned.text(deployment.session, VICTIM)
    own = replace(unsigned, signature=deployment.server_keys.signing.sign(text).raw)
    assert deployment.residents[VICTIM].answer(encode_envelope(own)) == REFUSED
    assert "well-formed" in deployment.why(VICTIM)


def test_the_key_holder_takes_signed_turns_alone() -> None:
    deployment = Deployment(replace(MASKED, sum="two-server"))
    deployment.enter(TODAY)
    for turn in (far(deployment), Turn(call=b"x")):
        forged = deployment.signed(KEY_HOLDER, turn, server=STRANGER)
        assert deployment.residents[KEY_HOLDER].answer(forged) == REFUSED
    np.testing.assert_array_equal(deployment.query(1).totals["own"].value, [10, 10, 10])


def test_the_text_that_is_signed_is_this() -> None:
    own = SignedTurn(visit=bytes(range(16)), number=258, signature=bytes(64), turn=b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert own.text(b"s" * 32, "client-0001") == (
        b"securefl/8|turn|"
        + b"s" * 32
        + b"\x0b\0\0\0client-0001"
        + b"\x10\0\0\0"
        + bytes(range(16))
        + b"\x08\0\0\0\x02\x01\0\0\0\0\0\0"
        + b"\x20\0\0\0"
        + bytes.fromhex(digest)
    )


def test_a_server_without_lasting_keys_cannot_begin() -> None:
    side = ServerSide(plan=CLEAR, pinned=begun().pinned, record=OwnRecord(SERVER, Journal()))
    with pytest.raises(ConfigError, match="enrolled keys"):
        RemoteEngine(side, {}, TODAY, lambda sent, entering: {})


def test_a_party_that_has_not_entered_gets_no_turn() -> None:
    deployment = begun()
    deployment.transport.leave([VICTIM])
    sent = len(deployment.said)
    assert deployment.server.query(
        ASK, replace(PLACE, session=deployment.session, round=2), deployment.transport
    ).survivors == (0, 2, 3)
    assert VICTIM not in [name for name, _ in deployment.said[sent:]]
    assert VICTIM in deployment.transport.silent


def test_a_reply_that_is_no_visit_enters_nobody() -> None:
    deployment = Deployment(CLEAR)
    replies = {OTHER: b"x", VICTIM: REFUSED}
    transport = RemoteTransport(lambda sent, entering: replies, deployment.request(TODAY), TODAY, STRANGER)
    names = [VICTIM, OTHER, "client-0003"]
    assert set(transport.enter(names)) == {VICTIM, OTHER}
    assert not any(name in transport for name in names)
    with pytest.raises(RemoteProtocolError):
        decode_envelope(REFUSED, Entered, sender=VICTIM)


def test_a_party_leaves_its_session_after_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have stopped halfway through a step, and would go on from no state of the protocol."""
    deployment = begun()
    party = deployment.residents[VICTIM]

    def broken(*_: object) -> None:
        raise DataError("The disk is full.")

    with monkeypatch.context() as at:
        at.setattr(sessions, "answer_turn", broken)
        assert party.answer(deployment.transport.signed(VICTIM, far(deployment))) == REFUSED
    ledger = deployment.files[VICTIM].ledger
    before = ledger.head
    assert party.answer(deployment.transport.signed(VICTIM, far(deployment))) == REFUSED
    assert ledger.head == before
    assert deployment.query(2).survivors == tuple(k for k in range(4) if k != int(VICTIM[-1]))


def test_a_turn_is_one_partys_though_two_have_one_visit_and_number() -> None:
    """A visit is random, but no rule of the server's depends on it."""
    deployment = begun()
    visit, number = deployment.transport._visits[VICTIM]
    assert (
        deployment.residents[VICTIM].answer(
            deployment.signed(OTHER, far(deployment), visit=visit, number=number)
        )
        == REFUSED
    )
    assert deployment.query(2).survivors == (0, 1, 2, 3)
