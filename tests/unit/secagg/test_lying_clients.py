"""Clients that lie: each attack of the specification, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.liars import put, signed_anew, swapped, wrong_pair
from support.recorded import CLIENTS, Recording, honest
from support.tiny_secagg import aggregate, agreement, assert_exact, client, entropy, header

from securefl.core.agreement import u32
from securefl.core.errors import LocalProtocolError, RemoteProtocolError
from securefl.core.keys import Commitment, PublicKey, SecretKey, Share, Signature
from securefl.core.machine import Step
from securefl.core.messages import client_name
from securefl.core.release import Delivered
from securefl.secagg import Aborted, Agreement, Client, Summed
from securefl.secagg.agreement import advertised
from securefl.secagg.dealing import deal, seed_mark, share_key
from securefl.secagg.messages import Advertise, Complaint, Consistent, Dealt, MaskedInput, Shares, Unmask


def lying(agreed: Agreement, number: int, kind: type, lie: Callable[[Client, Any, Any], Any]) -> Any:
    """A client that sends another message of this kind: `lie(client, state, message)`."""

    def tell(inner: Client, step: Step[Any]) -> Step[Any]:
        out = tuple(
            replace(sent, message=lie(inner, step.state, sent.message))
            if isinstance(sent.message, kind)
            else sent
            for sent in step.out
        )
        return replace(step, out=out)

    return Recording(client(number, agreed), lie=tell)


def with_liars(
    kind: type,
    lie: Callable[[Client, Any, Any], Any],
    *numbers: int,
    agreed: Agreement | None = None,
    **more: Any,
) -> Any:
    agreed = agreed or agreement(CLIENTS, corrupt=0.1, dropout=0.3)
    liars = {client_name(number): lying(agreed, number, kind, lie) for number in numbers}
    return agreed, aggregate(agreed, machines=liars, **more)


def unopenable(inner: Client, state: Any, shares: Shares) -> Shares:
    """For every holder the box is rubbish, well signed."""
    boxes = tuple(Share(bytes(len(box.raw))) for box in shares.sealed)
    return signed_anew(inner, state, replace(shares, sealed=boxes))


def test_wrong_shares_at_sending_name_the_dealer() -> None:
    _, outcome = with_liars(Shares, wrong_pair, 3)
    assert isinstance(outcome.server, Aborted)
    assert (outcome.server.phase, outcome.server.culprit) == ("share", client_name(3))
    assert outcome.results[client_name(0)] == "complained"
    assert not outcome.traffic.rejected_from


@every("corrupt", [0.0, 0.1])
def test_shares_that_nobody_can_open_name_the_dealer_once_too_many_accuse_it(corrupt: float) -> None:
    agreed = agreement(CLIENTS, corrupt=corrupt, dropout=0.3)
    _, outcome = with_liars(Shares, unopenable, 3, agreed=agreed)
    assert isinstance(outcome.server, Aborted)
    assert (outcome.server.phase, outcome.server.culprit) == ("share", client_name(3))


def test_the_attempt_after_it_leaves_the_dealer_out() -> None:
    agreed = agreement(CLIENTS, corrupt=0.1, dropout=0.3, at=header(1, 2))
    outcome = aggregate(agreed, machines={client_name(3): None})
    assert_exact(agreed, outcome.server)
    assert client_name(3) not in outcome.server.survivors  # type: ignore[union-attr]


def complaining(agreed: Agreement, number: int, dealer: int, key: bytes | None = None) -> Any:
    """A client that accuses an honest dealer, with the right key or another."""

    def tell(inner: Client, step: Step[Any]) -> Step[Any]:
        if step.need is None or not hasattr(step.state, "pairs") or not hasattr(step.state, "sent"):
            return step
        shown = key or share_key(step.state.closed, inner.channels, dealer, number).reveal()
        complaint = Complaint(keys=(Share(u32(dealer) + shown),))
        return replace(inner._say(step.state, complaint), result="complained")

    return Recording(client(number, agreed), lie=tell)


def test_a_false_accusation_costs_the_accuser() -> None:
    agreed = agreement(CLIENTS, corrupt=0.1, dropout=0.3)
    outcome = aggregate(agreed, machines={client_name(2): complaining(agreed, 2, 3)})
    assert_exact(agreed, outcome.server)
    assert "falsely" in outcome.traffic.rejected_from[client_name(2)]
    assert client_name(3) in outcome.server.survivors  # type: ignore[union-attr]


@every("corrupt", [0.0, 0.1])
def test_an_accusation_without_proof_costs_the_accuser_its_place_alone(corrupt: float) -> None:
    """Where nobody is assumed to lie, too, one word against another names nobody."""
    agreed = agreement(CLIENTS, corrupt=corrupt, dropout=0.3)
    outcome = aggregate(agreed, machines={client_name(2): complaining(agreed, 2, 3, bytes(31) + b"x")})
    assert_exact(agreed, outcome.server)
    assert set(outcome.server.survivors) == {client_name(k) for k in range(10) if k != 2}  # type: ignore[union-attr]


@every("keys", [(), (Share(b""),), (Share(u32(77) + bytes(32)),), (Share(u32(2) + bytes(32)),)])
def test_an_accusation_of_nobody_is_refused(keys: tuple[Share, ...]) -> None:
    run = honest()
    state, _, _ = run.server.at(MaskedInput, client_name(2))
    state = replace(state, inputs={})
    with pytest.raises(RemoteProtocolError, match=client_name(2)):
        run.server.inner.receive(state, client_name(2), Complaint(keys=keys))


def other_seed(inner: Client, state: Any, shares: Shares) -> Shares:
    """The shares match their hashes and open another seed than was promised."""
    dealing, _ = deal(
        state.closed, inner.channels, SecretKey(bytes(31) + b"x"), state.key.secret, entropy("seed", 1)
    )
    own = inner.channels.own
    promised = seed_mark(state.closed.context, own, state.seed.reveal())
    return signed_anew(inner, state, replace(dealing, seed=promised))


def other_key(inner: Client, state: Any, shares: Shares) -> Shares:
    dealing, _ = deal(
        state.closed, inner.channels, state.seed, SecretKey(bytes(31) + b"x"), entropy("key", 1)
    )
    return dealing


def silent_at_the_end(number: int, kind: bytes) -> Callable[[str, str, bytes], bytes]:
    return lambda sender, to, data: data[:-1] if sender == client_name(number) and kind in data[:40] else data


def test_shares_of_a_wrong_seed_name_the_dealer_at_the_end() -> None:
    # Its own unmask answer does not fit its hashes any more; that alone is no proof of anything.
    _, outcome = with_liars(Shares, other_seed, 3, tamper=silent_at_the_end(3, b"secagg-unmask"))
    assert isinstance(outcome.server, Aborted)
    assert (outcome.server.phase, outcome.server.culprit) == ("unmask", client_name(3))


def test_shares_of_a_wrong_key_name_the_dealer_when_it_drops() -> None:
    _, outcome = with_liars(Shares, other_key, 3, tamper=silent_at_the_end(3, b"secagg-masked-input"))
    assert isinstance(outcome.server, Aborted)
    assert (outcome.server.phase, outcome.server.culprit) == ("unmask", client_name(3))


UNMASKS: dict[str, Callable[[Client, Any, Unmask], Unmask]] = {
    "another share": lambda c, s, u: put(1, shares=Share(bytes(65)))(u),
    "another salt": lambda c, s, u: replace(
        u, shares=swapped(u.shares, 1, Share(bytes(32) + u.shares[1].raw[32:]))
    ),
    "one fewer": lambda c, s, u: replace(u, shares=u.shares[1:]),
    "one more": lambda c, s, u: replace(u, shares=(*u.shares, u.shares[0])),
    "short": lambda c, s, u: put(1, shares=Share(b""))(u),
    "exchanged": lambda c, s, u: replace(u, shares=(u.shares[1], u.shares[0], *u.shares[2:])),
    "of the key of a survivor": lambda c, s, u: replace(
        u, shares=swapped(u.shares, 1, Share(s.held.pairs[1].key))
    ),
}


@every("lie", UNMASKS)
def test_a_wrong_share_at_unmasking_costs_its_holder_alone(lie: str) -> None:
    agreed, outcome = with_liars(Unmask, UNMASKS[lie], 3)
    assert_exact(agreed, outcome.server)
    assert set(outcome.traffic.rejected_from) == {client_name(3)}
    phase = "decode" if lie == "one more" else "unmask"  # more elements than anybody may send
    assert f"phase {phase}" in outcome.traffic.rejected_from[client_name(3)]


def weak(inner: Client, state: Any, said: Advertise) -> Advertise:
    """A key of small order, well signed: every agreement with it would be all zeros."""
    text = advertised(inner.agreement.context, inner.channels.own, PublicKey(bytes(32)), said.nonce)
    return replace(said, key=PublicKey(bytes(32)), signature=inner.channels.identity.signing.sign(text))


LIES: dict[str, tuple[type, Callable[[Client, Any, Any], Any]]] = {
    "a weak key": (Advertise, weak),
    "a short key": (Advertise, lambda c, s, m: replace(m, key=PublicKey(b"x"))),
    "an unsigned key": (Advertise, lambda c, s, m: replace(m, signature=Signature(bytes(64)))),
    "too few shares": (Shares, lambda c, s, m: replace(m, sealed=m.sealed[1:])),
    "too few hashes": (Shares, lambda c, s, m: replace(m, marks=m.marks[1:])),
    "short boxes": (Shares, lambda c, s, m: replace(m, sealed=tuple(Share(b"") for _ in m.sealed))),
    "a short hash": (Shares, lambda c, s, m: put(0, marks=Commitment(b""))(m)),
    "no seed": (Shares, lambda c, s, m: replace(m, seed=Commitment(b""))),
    "an unsigned dealing": (Shares, lambda c, s, m: replace(m, seed=Commitment(bytes(32)))),
    "an unsigned input": (MaskedInput, lambda c, s, m: replace(m, signature=Signature(bytes(64)))),
    "an input without vectors": (MaskedInput, lambda c, s, m: replace(m, releases=())),
    "vectors exchanged": (MaskedInput, lambda c, s, m: replace(m, releases=m.releases[::-1])),
    "another set signed": (Consistent, lambda c, s, m: replace(m, signature=Signature(bytes(64)))),
}


@every("lie", LIES)
def test_a_lie_costs_its_teller_alone(lie: str) -> None:
    kind, tell = LIES[lie]
    agreed, outcome = with_liars(kind, tell, 3)
    assert_exact(agreed, outcome.server)
    assert set(outcome.traffic.rejected_from) == {client_name(3)}
    in_sum = client_name(3) in outcome.server.survivors
    assert in_sum == (kind is Consistent)


def test_a_masked_input_has_the_declared_form() -> None:
    run = honest()
    state, good, _ = run.server.at(MaskedInput, client_name(2))
    update, count = good.releases
    assert isinstance(update, Delivered)
    for bad in (
        replace(update, numbers=update.numbers[:-1]),
        replace(update, numbers=update.numbers.view(np.int32)),
        replace(update, numbers=update.numbers.reshape(2, -1)),
        replace(update, form="open"),
        replace(update, sealed=b"x"),
        replace(update, name="other"),
    ):
        with pytest.raises(RemoteProtocolError, match=client_name(2)):
            run.server.inner.receive(state, client_name(2), replace(good, releases=(bad, count)))
    assert run.server.inner.receive(state, client_name(2), good).state.inputs


def test_the_server_takes_each_message_once_and_ignores_what_is_late() -> None:
    run = honest()
    server = run.server.inner
    for kind in (Advertise, Shares, MaskedInput, Consistent, Unmask):
        _, message, step = run.server.at(kind, client_name(2))
        assert server.receive(step.state, client_name(2), message).state is step.state
    last = run.server.seen[-1][3].state
    for _, sender, message, _ in run.server.seen:
        assert server.receive(last, sender, message).state is last


def test_a_holder_that_complained_sends_no_input_and_the_other_way_round() -> None:
    """Whoever did both would be counted twice, and the phase would close before all are in."""
    run = honest()
    server = run.server.inner
    state, good, step = run.server.at(MaskedInput, client_name(2))
    gone = replace(state, gone=frozenset({2}))
    assert server.receive(gone, client_name(2), good).state is gone
    complaint = Complaint(keys=(Share(u32(3) + bytes(32)),))
    assert server.receive(step.state, client_name(2), complaint).state is step.state
    assert server.receive(state, client_name(2), complaint).state.gone == {2}


def test_the_server_refuses_what_is_not_due() -> None:
    run = honest()
    server = run.server.inner
    first = server.begin().state
    for kind in (Shares, MaskedInput, Consistent, Unmask):
        with pytest.raises(RemoteProtocolError, match="not due yet"):
            server.receive(first, client_name(2), run.server.at(kind, client_name(2))[1])


def test_whoever_dropped_does_not_come_back() -> None:
    run = honest()
    state, message, _ = run.server.at(Consistent, client_name(2))
    with pytest.raises(RemoteProtocolError, match="dropped out before"):
        run.server.inner.receive(state, client_name(4), message)


def test_a_release_of_another_form_or_name_does_not_leave_the_client() -> None:
    machine = honest().clients[0]
    _, _, step = machine.at(Dealt)
    masking = machine.inner.provide(step.state, True)
    with pytest.raises(LocalProtocolError, match="masked release"):
        machine.inner.provide(masking.state, ())


def test_summing_survives_all_these_liars_at_once() -> None:
    agreed = agreement(13, corrupt=0.2, dropout=0.3)
    liars = {
        client_name(1): lying(agreed, 1, Advertise, weak),
        client_name(2): lying(agreed, 2, Unmask, UNMASKS["another share"]),
        client_name(5): lying(agreed, 5, MaskedInput, LIES["an unsigned input"][1]),
    }
    outcome = aggregate(agreed, machines=liars)
    assert isinstance(outcome.server, Summed)
    assert_exact(agreed, outcome.server)
    assert set(outcome.traffic.rejected_from) == set(liars)
