"""Clients that lie: each attack of the specification, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.liars import put, signed_anew, swapped, wrong_pair
from support.recorded import CLIENTS, Recording, honest, refused, sparse
from support.tiny_secagg import aggregate, agreement, assert_exact, client, entropy, identity

from securefl.core.agreement import u32
from securefl.core.errors import LocalProtocolError, RemoteProtocolError
from securefl.core.keys import Commitment, PublicKey, SecretKey, Share, Signature
from securefl.core.machine import Step
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.secagg import Aborted, Agreement, Client, Server
from securefl.secagg.agreement import TAG_BYTES, advertised
from securefl.secagg.dealing import Pair, Tree, _bound, _seal, deal, leaves, seed_mark, share_key, signed
from securefl.secagg.messages import (
    Advertise,
    Complaint,
    Consistent,
    Dealt,
    MaskedInput,
    RosterClosed,
    Shares,
    Unmask,
)


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


def accuses(*dealers: int) -> Complaint:
    """An accusation without a proof: the key that is shown opens nothing."""
    return Complaint(keys=tuple(Share(u32(dealer) + bytes(31) + b"x") for dealer in dealers))


def summing(server: Recording, holder: int) -> Any:
    """The server's state where this holder's input would come, before any came."""
    state, _, _ = server.at(MaskedInput, client_name(holder))
    return replace(state, inputs={})


@every("said", [Complaint(keys=()), Complaint(keys=(Share(b""),)), accuses(77), accuses(2)])
def test_an_accusation_of_nobody_is_refused(said: Complaint) -> None:
    server = honest().server
    with pytest.raises(RemoteProtocolError, match=client_name(2)):
        server.inner.receive(summing(server, 2), client_name(2), said)


def test_who_holds_no_shares_of_a_dealer_cannot_accuse_it() -> None:
    """Else a quorum of strangers could take a dealer's place, and nobody's shares would be looked at."""
    _, _, server = sparse()
    state = summing(server, 0)
    near = state.closed.graph[0]
    far = next(k for k in state.dealers if k != 0 and k not in near)
    for wrong in ((far,), (near[0], far)):
        with pytest.raises(RemoteProtocolError, match="holds no shares"):
            server.inner.receive(state, client_name(0), accuses(*wrong))
    assert server.inner.receive(state, client_name(0), accuses(near[0])).state.gone == {0}


@every(("corrupt", "needed"), [(0.0, 2), (0.1, 2), (0.2, 3)])
def test_as_many_accusers_as_may_lie_prove_nothing_and_one_more_proves_it(
    corrupt: float, needed: int
) -> None:
    """A single accuser proves nothing where nobody may lie, too. One accuses another dealer."""
    server = Recording(Server(agreement=agreement(CLIENTS, corrupt=corrupt, dropout=0.2)))
    aggregate(server.inner.agreement, machines={SERVER: server})
    state = server.inner.receive(summing(server, 1), client_name(7), accuses(6)).state
    for holder in (1, 2, 4)[: needed - 1]:
        step = server.inner.receive(state, client_name(holder), accuses(3))
        state = step.state
        assert step.result is None
        # With its complaint a holder left the attempt, and whom it names later is not looked at.
        for later in (accuses(3), accuses(5), accuses(3, 5)):
            assert server.inner.receive(state, client_name(holder), later).state is state
    result = server.inner.receive(state, client_name(5), accuses(3)).result
    assert isinstance(result, Aborted)
    assert (result.phase, result.culprit) == ("share", client_name(3))


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
    # The signature is over both without their lengths.
    "a byte of the key in the nonce": (
        Advertise,
        lambda c, s, m: replace(
            m, key=PublicKey(m.key.raw[:-1]), nonce=Commitment(m.key.raw[-1:] + m.nonce.raw)
        ),
    ),
    "an unsigned key": (Advertise, lambda c, s, m: replace(m, signature=Signature(bytes(64)))),
    "too few shares": (Shares, lambda c, s, m: replace(m, sealed=m.sealed[1:])),
    "too few hashes": (Shares, lambda c, s, m: replace(m, marks=m.marks[1:])),
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


@every(
    "bad",
    [
        lambda numbers: {"numbers": numbers[:-1]},
        lambda numbers: {"numbers": numbers.view(np.int32)},
        lambda numbers: {"numbers": numbers.reshape(2, -1)},
        lambda numbers: {"form": "open"},
        lambda numbers: {"sealed": b"x"},
        lambda numbers: {"name": "other"},
    ],
)
def test_a_masked_input_has_the_declared_form(bad: Any) -> None:
    server = honest().server
    state, good, _ = server.at(MaskedInput, client_name(2))
    update, count = good.releases
    lie = replace(good, releases=(replace(update, **bad(update.numbers)), count))
    with pytest.raises(RemoteProtocolError, match=client_name(2)):
        server.inner.receive(state, client_name(2), lie)


@every("kind", [Consistent, MaskedInput, Unmask])
def test_whoever_dropped_does_not_come_back(kind: type) -> None:
    """Client 4 was silent from the beginning. Nothing was sealed for it, so it accuses nobody either."""
    server = honest().server
    state, message, _ = server.at(kind, client_name(2))
    for said in (message, accuses(3)) if kind is MaskedInput else (message,):
        with pytest.raises(RemoteProtocolError, match="dropped out before"):
            server.inner.receive(state, client_name(4), said)


def test_a_release_of_another_form_or_name_does_not_leave_the_client() -> None:
    machine = honest().clients[0]
    _, _, step = machine.at(Dealt)
    masking = machine.inner.provide(step.state, True)
    with pytest.raises(LocalProtocolError, match="masked release"):
        machine.inner.provide(masking.state, ())


def test_a_client_that_sends_false_tags_stops_nobody() -> None:
    """The server cannot check them. Its neighbours verify its signature, which is good."""
    agreed, outcome = with_liars(
        Consistent, lambda c, s, m: replace(m, tags=(Signature(bytes(TAG_BYTES)),) * len(m.tags)), 3
    )
    assert_exact(agreed, outcome.server)
    assert {outcome.results[client_name(k)] for k in range(CLIENTS)} == {"answered"}


NO_ELEMENT, ZERO = bytes(32) + b"\xff" * 33, bytes(65)
"""A salt, and a share that is no field element, or one that is."""


@every("pair", [Pair(NO_ELEMENT, ZERO), Pair(ZERO, NO_ELEMENT)])
def test_a_share_that_is_no_number_of_the_field_proves_its_dealer_bad(pair: Pair) -> None:
    """Its hash is right, so it would be found out at the end alone, when somebody has signed."""

    def lie(inner: Client, state: Any, shares: Shares) -> Shares:
        closed = state.closed
        box = _seal(pair, share_key(closed, inner.channels, 3, 0), _bound(closed, 3, 0), entropy("lie"))
        return signed_anew(inner, state, put(0, marks=pair.marks(closed, 3, 0), sealed=box)(shares))

    _, outcome = with_liars(Shares, lie, 3)
    assert isinstance(outcome.server, Aborted)
    assert (outcome.server.phase, outcome.server.culprit) == ("share", client_name(3))
    assert outcome.results[client_name(0)] == "complained"


def resized(part: str, by: int) -> Callable[[Any], Any]:
    """The first entry of a part in another length."""

    def lie(said: Any) -> Any:
        old = getattr(said, part)
        return put(0, **{part: type(old[0])((old[0].raw + b"x")[: len(old[0].raw) + by])})(said)

    return lie


@every("part", ["marks", "sealed"])
@every("by", [1, -1])
def test_what_a_dealer_signed_in_another_length_shows_no_key(part: str, by: int) -> None:
    """Dealer and server collude here: such bytes prove nothing, and the server has them refused itself."""
    machine, dealer = honest().clients[0], honest().clients[3]
    state, dealt, _ = machine.at(Dealt)
    shares = resized(part, by)(next(message for message in dealer.said if isinstance(message, Shares)))
    tree = Tree.of(leaves(state.closed.graph.holders(3), 3, shares.marks, shares.sealed))
    signature = identity(3).signing.sign(signed(state.closed, 3, shares.seed, tree.root))
    evidence = signature.raw + shares.seed.raw + tree.path(0)
    lie = put(2, marks=shares.marks[0], sealed=shares.sealed[0], evidence=evidence)(dealt)
    refused(machine.inner, state, lie, "member 3, which did not sign these shares")


@every(
    "longer",
    [
        resized("marks", 1),
        resized("sealed", 1),
        lambda shares: replace(shares, seed=Commitment(shares.seed.raw + b"x")),
    ],
)
def test_a_dealing_of_another_length_is_refused_though_it_is_signed(longer: Callable[[Any], Any]) -> None:
    """A holder could prove nothing with it, since evidence of another length is no evidence."""
    run = honest()
    state, shares, _ = run.server.at(Shares, client_name(3))
    dealer = replace(run.clients[3].at(RosterClosed)[2].state, closed=state.closed)
    with pytest.raises(RemoteProtocolError, match="of one length"):
        run.server.inner.receive(
            state, client_name(3), signed_anew(run.clients[3].inner, dealer, longer(shares))
        )


@every("change", [lambda shares: shares[:-1], lambda shares: (*shares, shares[-1])])
def test_a_share_too_few_or_too_many_is_its_holders_fault(change: Callable[[Any], Any]) -> None:
    server = honest().server
    state, said, _ = server.at(Unmask, client_name(2))
    with pytest.raises(RemoteProtocolError, match="shares, got"):
        server.inner.receive(state, client_name(2), replace(said, shares=change(said.shares)))
