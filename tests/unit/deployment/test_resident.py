"""A party that outlives its sessions, and servers that try to have it do more than it agreed to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.every import every
from support.four_clients import CLEAR, MASKED, TWO
from support.residents import NAMES, Deployment, identities, turn_in

from securefl.algorithm.queries import Value
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.deployment.messages import (
    REFUSED,
    Enter,
    Entered,
    Turn,
    TurnReply,
    decode_envelope,
    encode_envelope,
)
from securefl.deployment.party import PartySession
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.session_store import SessionStore

TODAY, TOMORROW = bytes(32), bytes(31) + b"\1"
EVERYONE = (*NAMES, KEY_HOLDER)


def has_entered(reply: bytes) -> bool:
    try:
        decode_envelope(reply, Entered, sender="it")
    except RemoteProtocolError:
        return False
    return True


@every("plan", [CLEAR, MASKED, TWO, replace(TWO, sum="ckks")])
def test_sums_of_two_sessions_under_the_same_keys(plan: object) -> None:
    deployment = Deployment(plan)  # type: ignore[arg-type]
    for nonce in (TODAY, TOMORROW):
        deployment.begin()
        assert deployment.enter(nonce) == EVERYONE
        for number in (1, 2):
            answers = deployment.query(number)
            np.testing.assert_array_equal(answers.totals["own"].value, [10, 10, 10])
    # one ledger for both sessions, two rounds each
    assert len(deployment.files["client-0000"].ledger.rows()) == 4


def test_another_plan_is_refused_and_each_difference_named() -> None:
    deployment = Deployment(MASKED)
    other = replace(MASKED, max_retries=3, secagg="semi-honest", delta=1e-3)
    reply = deployment.residents["client-0001"].answer(encode_envelope(deployment.request(TODAY, other)))
    assert reply == REFUSED
    why = deployment.why("client-0001")
    assert 'secagg: "active" here, "semi-honest" at the server' in why
    assert "max_retries: 0 here, 3 at the server" in why
    assert "delta: 1e-05 here, 0.001 at the server" in why
    assert "corrupt" not in why


def test_another_roster_and_other_work_are_refused() -> None:
    deployment = Deployment(CLEAR)
    others = PinnedRoster(
        {name: own.member() for name, own in identities(*NAMES).items()}
        | {SERVER: deployment.server_keys.member()}
    )
    for request, named in (
        (Enter.of(CLEAR, "x", bytes(32), others, TODAY, deployment.server_keys), "roster"),
        (Enter.of(CLEAR, "x", b"w" * 32, deployment.pinned, TODAY, deployment.server_keys), "study"),
    ):
        assert deployment.residents["client-0001"].answer(encode_envelope(request)) == REFUSED
        assert f" {named}" in deployment.why("client-0001")


def test_a_second_server_is_refused_and_the_first_goes_on() -> None:
    deployment = Deployment(CLEAR)
    deployment.enter(TODAY)
    second = Deployment(CLEAR, keys={**deployment.keys, **identities(SERVER)})
    request = replace(second.request(TOMORROW), roster=deployment.pinned.digest)
    assert deployment.residents["client-0001"].answer(encode_envelope(request)) == REFUSED
    assert "another server's" in deployment.why("client-0001")
    assert deployment.query(1).survivors == (0, 1, 2, 3)


def test_yesterdays_session_is_refused_when_it_is_sent_again() -> None:
    deployment = Deployment(CLEAR)
    for nonce in (TODAY, TOMORROW):
        deployment.enter(nonce)
    assert deployment.enter(TODAY) == ()
    assert "was replayed" in deployment.why("client-0002")
    # after a restart too
    deployment.start("client-0002")
    assert deployment.residents["client-0002"].answer(encode_envelope(deployment.request(TODAY))) == REFUSED


def test_yesterdays_messages_are_refused_today() -> None:
    deployment = Deployment(MASKED)
    deployment.enter(TODAY)
    deployment.query(1)
    old = [data for name, data in deployment.said if name == "client-0000"][1:]
    deployment.enter(TOMORROW)
    resident = deployment.residents["client-0000"]
    assert {resident.answer(data) for data in old} == {REFUSED}
    assert "of another session" in deployment.why("client-0000")
    deployment.query(1)
    before = deployment.files["client-0000"].ledger.head
    assert {resident.answer(data) for data in old} == {REFUSED}
    assert deployment.files["client-0000"].ledger.head == before
    assert deployment.query(2).survivors == (0, 1, 2, 3)


def test_a_server_that_signs_yesterdays_messages_anew_gets_nothing_for_them() -> None:
    """Its own signature gives them a number that is due. The machines refuse them."""
    deployment = Deployment(MASKED)
    deployment.enter(TODAY)
    deployment.query(1)
    old = [turn_in(data) for name, data in deployment.said if name == "client-0000"][1:]
    deployment.enter(TOMORROW)
    resident = deployment.residents["client-0000"]

    def told(turn: Turn) -> bytes:
        return resident.answer(deployment.transport.signed("client-0000", turn))

    assert {told(turn) for turn in old} == {REFUSED}
    assert "call before any message" in deployment.why("client-0000")
    deployment.query(1)
    before = deployment.files["client-0000"].ledger.head
    # some of them go to the machines at hand, which say nothing to them
    nothing = encode_envelope(TurnReply())
    assert {told(turn) for turn in old} <= {REFUSED, nothing}
    assert deployment.files["client-0000"].ledger.head == before


def entering_midway(deployment: Deployment, nonce: bytes) -> None:
    """In the middle of the next round client 1 is asked to enter, and does."""
    request, waves = encode_envelope(deployment.request(nonce)), []

    def enters(name: str, said: bytes) -> bytes:
        waves.append(name)
        if len(waves) == 9:
            assert has_entered(deployment.residents["client-0001"].answer(request))
        return said

    deployment.lost = enters


def test_the_same_enter_again_changes_nothing_in_the_middle_of_a_round() -> None:
    deployment = Deployment(MASKED)
    deployment.enter(TODAY)
    entering_midway(deployment, TODAY)
    assert deployment.query(1).survivors == (0, 1, 2, 3)


def test_a_new_session_in_the_middle_of_a_round_ends_the_old_one() -> None:
    deployment = Deployment(MASKED)
    deployment.enter(TODAY)
    entering_midway(deployment, TOMORROW)
    assert deployment.query(1).survivors == (0, 2, 3)
    assert deployment.enter(TODAY) == ("client-0000", "client-0002", "client-0003", KEY_HOLDER)


@every("plan", [CLEAR, MASKED, TWO])
def test_who_restarts_drops_out_of_the_round_and_takes_part_in_the_next(plan: object) -> None:
    deployment = Deployment(plan)  # type: ignore[arg-type]
    deployment.enter(TODAY)
    assert deployment.query(1).survivors == (0, 1, 2, 3)
    waves: list[str] = []

    def restarts(name: str, said: bytes) -> bytes:
        waves.append(name)
        if name == "client-0002" and waves.count(name) == (1 if plan == CLEAR else 2):
            deployment.start(name)
            return REFUSED
        return said

    deployment.lost = restarts
    assert deployment.query(2).survivors == (0, 1, 3)
    deployment.lost = lambda name, said: said
    # it has no session before it is asked to enter again, with the same request
    turn = deployment.signed("client-0002", Turn())
    assert deployment.residents["client-0002"].answer(turn) == REFUSED
    assert deployment.enter(TODAY) == EVERYONE
    assert deployment.query(3).survivors == (0, 1, 2, 3)


def test_a_restarted_party_does_not_come_back_into_its_round() -> None:
    deployment = Deployment(CLEAR)
    deployment.enter(TODAY)
    deployment.query(1)
    deployment.start("client-0002")
    assert deployment.enter(TODAY) == EVERYONE
    call = next(data for name, data in deployment.said[5:] if name == "client-0002")
    # as a stranger sends it again, and as the server signs it for the new visit
    assert deployment.residents["client-0002"].answer(call) == REFUSED
    assert "before a restart" in deployment.why("client-0002")
    anew = deployment.signed("client-0002", turn_in(call))
    assert deployment.residents["client-0002"].answer(anew) == REFUSED
    assert "places go up" in deployment.why("client-0002")
    assert len(deployment.files["client-0002"].ledger.rows()) == 1


def test_a_call_before_any_session_is_refused() -> None:
    deployment = Deployment(CLEAR)
    other = Deployment(CLEAR, keys=deployment.keys)
    other.enter(TODAY)
    turn = other.signed("client-0000", Turn(call=b"x"))
    assert deployment.residents["client-0000"].answer(turn) == REFUSED
    assert "before any" in deployment.why("client-0000")
    for data in (b"", b"x" * 99, REFUSED):
        assert deployment.residents["client-0000"].answer(data) == REFUSED


def test_a_party_that_is_not_enrolled_is_refused() -> None:
    deployment = Deployment(CLEAR)
    with pytest.raises(ConfigError, match="not enrolled"):
        PartySession(
            "client-0009",
            CLEAR,
            bytes(32),
            deployment.pinned,
            SessionStore(),
            None,
            newest=None,  # type: ignore[arg-type]
        )


def test_an_enter_that_is_cut_or_changed_is_refused() -> None:
    deployment = Deployment(CLEAR)
    request = deployment.request(TODAY)
    whole, resident = encode_envelope(request), deployment.residents["client-0000"]
    assert decode_envelope(whole, Enter, sender=SERVER) == request
    for at in range(0, len(whole), 97):
        assert resident.answer(whole[:at]) == REFUSED
        flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        assert resident.answer(flipped) == REFUSED
    assert has_entered(resident.answer(whole))


def test_what_a_client_keeps_survives_a_restart() -> None:
    seen = []

    def compute(context: object) -> object:
        seen.append(dict(context.kept))  # type: ignore[attr-defined]
        return Value(clear=np.ones(3), new_state={"own": np.full(2, float(context.round))})  # type: ignore[attr-defined]

    deployment = Deployment(CLEAR, compute=compute)
    deployment.enter(TODAY)
    for number in (1, 2):
        deployment.query(number)
    deployment.start("client-0003")
    deployment.enter(TODAY)
    deployment.query(3)
    # what it made in round 2 would have counted from round 3 on, and went with the process
    np.testing.assert_array_equal(seen[-1]["own"], [1, 1])
    np.testing.assert_array_equal(seen[-2]["own"], [2, 2])
    deployment.enter(TOMORROW)
    deployment.query(1)
    assert seen[-1] == {}


@every("plan", [MASKED, TWO, replace(TWO, sum="ckks")])
@every("under", ["its own session", "today's session"])
def test_what_a_client_said_yesterday_under_the_same_keys_is_not_in_todays_sum(
    plan: object, under: str
) -> None:
    deployment = Deployment(plan)  # type: ignore[arg-type]
    said: list[bytes] = []

    def recording(name: str, reply: bytes) -> bytes:
        if name == "client-0001":
            said.append(reply)
        return reply

    deployment.lost = recording
    deployment.enter(TODAY)
    yesterday = deployment.session
    deployment.query(1)
    old = iter(said[1:])

    def replaying(name: str, reply: bytes) -> bytes:
        if name != "client-0001" or has_entered(reply):
            return reply
        # whoever carries the frames can write another session into the header, which is open
        past = next(old, REFUSED)
        return past if under == "its own session" else past.replace(yesterday, deployment.session)

    deployment.begin()
    deployment.enter(TOMORROW)
    deployment.lost = replaying
    answers = deployment.query(1)
    assert 1 not in answers.survivors
    assert "client-0001" in {
        *deployment.transport.traffic.rejected_from,
        *deployment.server.log.traffic.rejected_from,
    }


@every("plan", [MASKED, TWO])
def test_the_same_value_under_the_same_keys_looks_different_in_another_session(plan: object) -> None:
    """Masks and pads follow from the session, not from the lasting keys alone."""
    deployment, said = Deployment(plan), bytearray()  # type: ignore[arg-type]

    def listening(name: str, reply: bytes) -> bytes:
        said.extend(reply)
        return reply

    deployment.lost, blocks = listening, []
    for nonce in (TODAY, TOMORROW):
        deployment.begin()
        deployment.enter(nonce)
        said.clear()
        deployment.query(1)
        blocks.append({bytes(said[at : at + 32]) for at in range(len(said) - 31)})
    # Names, kinds and lengths are the same. 32 bytes of masks, boxes, keys or signatures are not.
    assert [block for block in blocks[0] & blocks[1] if len(set(block)) > 24] == []
