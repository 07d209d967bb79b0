"""Parties behind envelopes: the same sums as in one process, wave by wave, and bytes that nobody sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.four_clients import CLEAR, MASKED, TWO
from support.residents import Deployment, identities

from securefl.algorithm.queries import Answers
from securefl.core.errors import LocalProtocolError, RemoteProtocolError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.deployment.messages import (
    REFUSED,
    Compute,
    Computed,
    Enter,
    Entered,
    Parcel,
    Refused,
    SignedTurn,
    Turn,
    TurnReply,
    decode_envelope,
    encode_envelope,
)
from securefl.engine.attendance import Absence, Seen

PLANS = [CLEAR, MASKED, TWO, replace(TWO, sum="ckks")]


def played(
    plan: Any, lost: Callable[[int, str, bytes], bytes | None] = lambda wave, name, replied: replied
) -> tuple[Answers, Deployment, int]:
    """The answers of one query whose replies pass through `lost`, the deployment, the number of waves."""
    keys = identities()
    if plan.sum not in ("two-server", "ckks"):
        del keys[KEY_HOLDER]
    deployment, waves = Deployment(plan, keys=keys), [0]
    deployment.enter(bytes(32))
    exchange = deployment.exchange

    def counted(requests: Mapping[str, bytes], entering: bool) -> dict[str, bytes]:
        waves[0] += 1
        return exchange(requests)

    deployment.transport._exchange = counted
    deployment.lost = lambda name, reply: lost(waves[0], name, reply)
    return deployment.query(1), deployment, waves[0]


@every(("plan", "waves"), list(zip(PLANS, (1, 6, 4, 4), strict=True)))
def test_a_sum_of_parties_apart_is_the_sum(plan: Any, waves: int) -> None:
    answers, deployment, took = played(plan)
    assert answers.survivors == (0, 1, 2, 3)
    assert deployment.server.seen.absent == {}
    np.testing.assert_array_equal(answers.totals["own"].value, [10, 10, 10])
    assert took == waves


@every(("plan", "wave"), [(CLEAR, 1), (MASKED, 2), (MASKED, 4), (TWO, 3)])
def test_who_falls_silent_is_left_out(plan: Any, wave: int) -> None:
    silent = lambda at, name, replied: None if (at, name) == (wave, "client-0002") else replied  # noqa: E731
    answers, _, _ = played(plan, silent)
    assert answers.survivors == (0, 1, 3)
    np.testing.assert_array_equal(answers.totals["own"].value, [7, 7, 7])


SIGNED = SignedTurn(visit=bytes(16), number=3, signature=bytes(64), turn=b"abc")
ENVELOPES = [
    Turn(),
    Turn(call=b"x"),
    Turn(call=b"abc", packets=(Parcel("a", b""), Parcel("b", b"xy")), deadline=1),
    SIGNED,
    TurnReply(key=b"k", packets=(Parcel(SERVER, b"one"), Parcel("client-0001", b""))),
    Entered(visit=bytes(16), number=2**40),
    Enter(plan="{}", study="s", work=bytes(32), roster=bytes(32), nonce=bytes(32), signature=bytes(64)),
    Refused(),
]
ORDER = Compute(kind="train", round=3, metrics=("a", "b"), task=b"t", broadcast=np.ones(5, np.float32))
RESULT = Computed(values=np.arange(5.0), metrics=np.ones(2), examples=7.0)


@every("body", [*ENVELOPES, ORDER, RESULT])
def test_an_envelope_comes_back_as_it_went(body: Any) -> None:
    found = decode_envelope(encode_envelope(body), type(body), sender="a")
    for name, own in vars(body).items():
        np.testing.assert_array_equal(getattr(found, name), own)


@every("body", [*ENVELOPES, ORDER, RESULT])
def test_an_envelope_that_is_cut_or_longer_or_of_another_kind_is_refused(body: Any) -> None:
    whole = encode_envelope(body)
    others = [whole[:at] for at in range(len(whole))] + [whole + b"\0"]
    others += [encode_envelope(other) for other in (*ENVELOPES, ORDER) if type(other) is not type(body)]
    for data in others:
        with pytest.raises(RemoteProtocolError):
            decode_envelope(data, type(body), sender=SERVER)


MISFITS = [
    replace(ENVELOPES[2], deadline=2),
    replace(SIGNED, visit=bytes(15)),
    replace(SIGNED, signature=bytes(63)),
    replace(SIGNED, number=-1),
    replace(ENVELOPES[5], visit=bytes(17)),
    replace(ENVELOPES[5], number=-1),
    *(replace(ENVELOPES[6], **{name: b"x"}) for name in ("work", "roster", "nonce", "signature")),
    replace(ORDER, kind="leak"),
    replace(ORDER, broadcast=np.ones((2, 2), np.float32)),
    replace(RESULT, values=np.ones((2, 2))),
    replace(RESULT, metrics=np.ones((2, 2))),
]


@every("body", MISFITS)
def test_an_envelope_whose_fields_do_not_fit_is_refused(body: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="do not fit"):
        decode_envelope(encode_envelope(body), type(body), sender="a")


def test_a_claim_of_many_messages_is_refused_before_any_is_made() -> None:
    empty = encode_envelope(Turn())  # its last 12 bytes: a count of 0, and the deadline
    claim = empty[:-12] + (2**21).to_bytes(4, "little") + empty[-8:] + bytes(2**23)
    with pytest.raises(RemoteProtocolError, match="2097152 elements"):
        decode_envelope(claim, Turn, sender="a")


def test_a_number_that_no_coding_holds_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError):
        encode_envelope(Entered(visit=bytes(16), number=2**63))


def test_messages_before_a_call_are_refused() -> None:
    deployment = Deployment(CLEAR)
    deployment.enter(bytes(32))
    request = deployment.signed("client-0000", Turn(packets=(Parcel(SERVER, b"x"),)))
    assert deployment.residents["client-0000"].answer(request) == REFUSED
    assert "call before any message" in deployment.why("client-0000")


# Who took part, as the server sees it ---------------------------------------------------------------------


def saw(plan: Any, replied: Callable[[int, bytes], bytes | None]) -> Seen:
    """What the server saw of one query in which client 1 replies what `replied` makes of its reply."""

    def lost(at: int, name: str, reply: bytes) -> bytes | None:
        return replied(at, reply) if name == "client-0001" else reply

    return played(plan, lost)[1].server.seen


@every("plan", PLANS)
@every(
    ("replied", "why"),
    [
        (lambda at, reply: None, Absence.SILENT),
        (lambda at, reply: REFUSED, Absence.REFUSED),
        (lambda at, reply: encode_envelope(TurnReply()), Absence.NO_VALUE),
        (lambda at, reply: b"x" * 99, Absence.INVALID),
        (lambda at, reply: encode_envelope(TurnReply(packets=(Parcel(SERVER, b"xx"),))), Absence.INVALID),
    ],
)
def test_the_server_says_who_is_missing_by_what_came_on_its_wire(
    plan: Any, replied: Callable[[int, bytes], bytes | None], why: Absence
) -> None:
    found = saw(plan, replied)
    holder = {KEY_HOLDER} if plan.sum in ("two-server", "ckks") else set()
    assert found.asked == {f"client-000{k}" for k in range(4)} | holder
    assert found.absent == {"client-0001": why}
    assert found.short == ""


def test_where_no_sum_opens_only_those_that_gave_nothing_are_missing() -> None:
    """Two of four leave the masked sum, which needs three: the others did all that was theirs."""
    gone = ("client-0001", "client-0002")
    _, deployment, _ = played(MASKED, lambda at, name, reply: None if name in gone and at > 1 else reply)
    seen = deployment.server.seen
    assert seen.absent == dict.fromkeys(gone, Absence.SILENT)
    assert "needs" in seen.short or "Expected" in seen.short


def test_a_key_holder_that_is_away_is_missing_and_no_client_is() -> None:
    _, deployment, _ = played(TWO, lambda at, name, reply: None if name == KEY_HOLDER else reply)
    assert deployment.server.seen.absent == {KEY_HOLDER: Absence.SILENT}
    assert "key holder" in deployment.server.seen.short
