"""Each condition of quorum, survivors, shares and accusations, met and missed by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from support.every import every
from support.liars import put, signed_anew, swapped
from support.recorded import Recording, honest, refused, sparse
from support.tiny_secagg import (
    Lenient,
    aggregate,
    agreement,
    client,
    entropy,
    header,
    identity,
    pinned,
)

from securefl.core.agreement import Roster, u32
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.keys import Commitment, PublicKey, Share, Signature
from securefl.core.machine import Step
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.core.signing import verify
from securefl.secagg import Aborted, Channels, Client, Server
from securefl.secagg.agreement import ClosedRoster
from securefl.secagg.checks import read_survivors
from securefl.secagg.dealing import Pair, Tree, _bound, _seal, leaves, share_key, signed
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
from securefl.secagg.server_rounds import Summing

# What belongs together, counted ------------------------------------------------------------------------


def shorter(field: str) -> Callable[[Any], Any]:
    return lambda message: replace(message, **{field: getattr(message, field)[1:]})


@every(
    ("kind", "field", "why"),
    [
        (RosterClosed, "keys", "for each member"),
        (RosterClosed, "nonces", "for each member"),
        (RosterClosed, "signatures", "for each member"),
        (Dealt, "sealed", "neighbours"),
        (Dealt, "marks", "neighbours"),
        (Dealt, "evidence", "neighbours"),
        (Quorum, "signatures", "for each member"),
    ],
)
def test_one_part_too_few_is_the_servers_fault(kind: type, field: str, why: str) -> None:
    machine = honest().clients[0]
    state, message, _ = machine.at(kind)
    refused(machine.inner, state, shorter(field)(message), why)


def test_one_input_too_few_for_those_who_did_not_sign_is_the_servers_fault() -> None:
    run = honest()
    state, quorum, _ = run.clients[0].at(Quorum)
    last = quorum.signers[-1]
    fewer = replace(
        quorum, signers=quorum.signers[:-1], signatures=quorum.signatures[:-1], others=(last,), inputs=()
    )
    refused(run.clients[0].inner, state, fewer, "for each member")


def moved(parts: tuple[bytes, bytes], by: int) -> tuple[PublicKey, Commitment]:
    """The same bytes, with the border between key and nonce elsewhere."""
    whole = b"".join(parts)
    return PublicKey(whole[: 32 + by]), Commitment(whole[32 + by :])


@every("by", [-1, 1])
def test_a_byte_of_the_key_in_the_nonce_is_refused_though_the_signature_is_good(by: int) -> None:
    """The signature is over both without their lengths, so the lengths are checked by themselves."""
    run = honest()
    machine = run.clients[0]
    state, roster, _ = machine.at(RosterClosed)
    key, nonce = moved((roster.keys[2].raw, roster.nonces[2].raw), by)
    lie = put(2, keys=key, nonces=nonce)(roster)
    refused(machine.inner, state, lie, "member 2, which did not sign")
    waiting, said, _ = run.server.at(Advertise, client_name(2))
    key, nonce = moved((said.key.raw, said.nonce.raw), by)
    with pytest.raises(RemoteProtocolError, match=client_name(2)):
        run.server.inner.receive(waiting, client_name(2), replace(said, key=key, nonce=nonce))


# Survivors and dropped ---------------------------------------------------------------------------------


@every(
    ("dropped", "survivors"),
    [((8, 7), 7), ((8, 8), 7), ((4,), 8), ((10,), 8), ((8, 10), 7)],
)
@every("mode", ["active", "semi-honest"])
def test_who_dropped_is_checked_like_who_survived(
    dropped: tuple[int, ...], survivors: int, mode: str
) -> None:
    """One who dropped twice would hide another, of whom nobody knows whether it survived."""
    machine = honest(mode).clients[0]
    state, message, _ = machine.at(Survivors)
    dealers = message.survivors
    assert len(dealers) == 9
    lie = Survivors(survivors=dealers[:survivors], dropped=dropped)
    refused(machine.inner, state, lie, "ascending dealers as survivors and as dropped")


@lru_cache
def around(victim: int) -> tuple[ClosedRoster, tuple[int, ...]]:
    """A sparse roster, and its survivors where forty neighbours of one member dropped."""
    agreed = agreement(200, corrupt=0.1, dropout=0.2)
    entries = {
        k: Advertise(identity(k).channel.public, Commitment(bytes(32)), Signature(b"")) for k in range(200)
    }
    closed = ClosedRoster(agreed, entries)
    dropped = set(closed.graph[victim][:40])
    return closed, tuple(k for k in range(200) if k not in dropped)


@every("victim", [0, 7])
def test_a_lonely_survivor_is_opened_by_nobody_whatever_its_number(victim: int) -> None:
    closed, survivors = around(victim)
    own = next(k for k in survivors if k != victim)
    dropped = tuple(k for k in range(200) if k not in survivors)
    with pytest.raises(RemoteProtocolError, match=f"got member {victim}:"):
        read_survivors(closed, own, range(200), Survivors(survivors=survivors, dropped=dropped))
    inputs = {k: Signature(b"") for k in survivors}
    state = Summing(closed=closed, dealt=dict.fromkeys(range(200)), sums=(), inputs=inputs)
    step = Server(agreement=closed.agreement, patience=0).deadline(state)
    assert isinstance(step.result, Aborted)
    assert "too few surviving neighbours" in step.result.reason


@every("mode", ["active", "semi-honest"])
@every(
    ("survivors", "dropped"),
    [(slice(0, 8), ()), (slice(None), (8,)), (slice(0, 8), (8,))],
)
def test_survivors_and_dropped_are_both_those_that_were_shown_first(
    survivors: slice, dropped: tuple[int, ...], mode: str
) -> None:
    """Either set alone would let a server turn who survived into who dropped."""
    machine = honest(mode).clients[0]
    _, first, step = machine.at(Survivors)
    assert machine.inner.receive(step.state, SERVER, first).state is step.state
    second = Survivors(survivors=first.survivors[survivors], dropped=dropped)
    refused(machine.inner, step.state, second, "other survivors before")


# Which signatures a client verifies --------------------------------------------------------------------


class Counted:
    """Verifies, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *parts: Any) -> None:
        self.count += 1
        verify(*parts)


def shown(near: int, far: int, *, own: bool = True, others: Sequence[str] = ()) -> tuple[Any, Any, Quorum]:
    """What a client of a sparse cohort is shown: so many neighbours as signers, and strangers beside them.

    others: of whom the signature on its input is shown, "near" or "far" or both. own: whether we stand among
    the signers, and not among the others.
    """
    _, machine, server = sparse()
    state, quorum, _ = machine.at(Quorum)
    neighbours = [k for k in state.held.closed.graph[0] if k in state.survivors]
    strangers = [k for k in quorum.signers if k not in neighbours and k != 0]
    signers = sorted([*neighbours[:near], *strangers[:far], *([0] if own else [])])
    rest = {"near": neighbours[near:], "far": strangers[far:][:3]}
    absent = sorted(k for where in others for k in rest[where])
    signed = dict(zip(quorum.signers, quorum.signatures, strict=True))
    inputs = {k: server.at(MaskedInput, client_name(k))[1].signature for k in absent}
    told = Quorum(
        signers=tuple(signers),
        signatures=tuple(signed[k] for k in signers),
        others=tuple(absent),
        inputs=tuple(inputs[k] for k in absent),
    )
    return machine.inner, replace(state, confirmed=frozenset()), told


def counted(machine: Any, state: Any, quorum: Quorum) -> int:
    """How many signatures the client verifies before it opens its shares."""
    count = Counted()
    agreed = machine.agreement
    closed = state.held.closed
    roster = Roster(agreed.roster.members, verify=count, agree=agreed.roster.agree)
    watched = ClosedRoster(replace(agreed, roster=roster), closed.entries)
    step = machine.receive(replace(state, held=replace(state.held, closed=watched)), SERVER, quorum)
    assert [type(envelope.message) for envelope in step.out] == [Unmask]
    return count.count


def sizes() -> tuple[int, int]:
    """The quorum, and how many neighbours of client 0 survived."""
    agreed, machine, _ = sparse()
    state, _, _ = machine.at(Quorum)
    return agreed.parameters.quorum, len(set(state.held.closed.graph[0]) & set(state.survivors))


def test_a_client_verifies_a_quorum_less_its_own_signature() -> None:
    """However many strangers signed beside."""
    quorum, near = sizes()
    assert near < quorum - 2
    for far in (quorum - near - 1, quorum - near, quorum - near + 5):
        assert counted(*shown(near, far)) == quorum - 1


def test_a_neighbour_whose_tag_holds_is_not_verified() -> None:
    """All that is left is the sample of the strangers; in so small a cohort it is as many as are needed."""
    quorum, near = sizes()
    machine, state, told = shown(near, quorum - near + 5)
    tagged = machine.receive(state, SERVER, sparse()[1].at(Confirmed)[1]).state
    assert len(tagged.confirmed) == near
    assert counted(machine, tagged, told) == quorum - near - 1
    for some in (frozenset(sorted(tagged.confirmed)[:4]), frozenset()):
        assert counted(machine, replace(tagged, confirmed=some), told) == quorum - 1 - len(some)


def test_a_client_that_is_not_among_the_signers_verifies_a_whole_quorum() -> None:
    quorum, near = sizes()
    far = quorum - near
    machine, state, told = shown(near, far, own=False)
    assert counted(machine, state, told) == quorum
    last = next(at for at in reversed(range(quorum)) if told.signers[at] not in neighbours_of(state))
    forged = put(last, signatures=Signature(bytes(64)))(told)
    refused(machine, state, forged, "did not sign")


def neighbours_of(state: Any) -> tuple[int, ...]:
    found: tuple[int, ...] = state.held.closed.graph[0]
    return found


def test_a_neighbour_that_did_not_sign_is_verified_by_its_input_and_a_stranger_is_not() -> None:
    """Nobody holds shares of a stranger, so nothing of it hangs on this client."""
    quorum, near = sizes()
    far = quorum - near + 1
    assert counted(*shown(near - 2, far, others=("near",))) == quorum - 1 + 2
    assert counted(*shown(near, far, others=("far",))) == quorum - 1


def test_a_neighbour_that_signed_is_not_verified_twice() -> None:
    quorum, near = sizes()
    machine, state, told = shown(near, quorum - near)
    twice = next(k for k in told.signers if k in neighbours_of(state))
    both = replace(told, others=(twice,), inputs=(Signature(bytes(64)),))
    assert counted(machine, state, both) == quorum - 1


@every("others", [(5, 3), (3, 3), (10,)])
def test_who_did_not_sign_is_named_once_and_among_the_survivors(others: tuple[int, ...]) -> None:
    run = honest()
    state, quorum, _ = run.clients[0].at(Quorum)
    lie = replace(quorum, others=others, inputs=(Signature(bytes(64)),) * len(others))
    refused(run.clients[0].inner, state, lie, "ascending survivors as signers")


def test_who_signed_no_set_of_survivors_opens_nothing() -> None:
    """The server goes on with the signers alone, and takes shares of nobody else."""
    server = honest().server
    signings = [one for one in server.seen if isinstance(one[2], Consistent)]
    state, last, _, _ = signings[-1]
    closing = Server(agreement=server.inner.agreement, patience=0).deadline(state)
    quorum = closing.out[-1]
    assert last not in quorum.to
    assert len(quorum.to) == len(signings) - 1
    _, shares, _ = server.at(Unmask, last)
    with pytest.raises(RemoteProtocolError, match="dropped out before"):
        server.inner.receive(closing.state, last, shares)
    _, shares, _ = server.at(Unmask, quorum.to[0])
    assert server.inner.receive(closing.state, quorum.to[0], shares).state.answers


def test_one_secret_with_too_few_shares_ends_the_sum_and_names_nobody() -> None:
    """In a sparse cohort one dealer's holders may answer while another's are silent."""
    agreed, _, server = sparse()
    answers = [one for one in server.seen if isinstance(one[2], Unmask)]
    state = answers[0][0]
    holders = set(agreed.roster.names(state.summed.closed.graph.holders(0)))
    enough = [one for one in answers if one[1] in holders][: agreed.parameters.threshold]
    for _, sender, message, _ in enough:
        state = server.inner.receive(state, sender, message).state
    assert len(state.shares()[0]) == agreed.parameters.threshold
    result = Server(agreement=agreed, patience=0).deadline(state).result
    assert isinstance(result, Aborted)
    assert (result.phase, result.culprit) == ("unmask", None)


# Accusations -------------------------------------------------------------------------------------------


def accuses(*dealers: int, key: bytes = bytes(31) + b"x") -> Complaint:
    """An accusation without a proof: the key that is shown opens nothing."""
    return Complaint(keys=tuple(Share(u32(dealer) + key) for dealer in dealers))


def summing(server: Recording, holder: int) -> Any:
    """The server's state where this holder's input would come, before any came."""
    state, _, _ = server.at(MaskedInput, client_name(holder))
    return replace(state, inputs={})


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


def test_a_holder_accuses_once() -> None:
    """With its complaint it left the attempt, and whom it names later is not looked at."""
    server = honest().server
    first = server.inner.receive(summing(server, 2), client_name(2), accuses(3)).state
    assert first.accused == {3: {2}}
    for later in (accuses(3), accuses(5), accuses(3, 5)):
        assert server.inner.receive(first, client_name(2), later).state is first


def test_as_many_accusers_as_may_lie_prove_nothing_and_one_more_proves_it() -> None:
    """One client of ten may be corrupt here, and two accusers cannot both be it."""
    server = honest().server
    assert server.inner.agreement.parameters.corrupt == 1
    one = server.inner.receive(summing(server, 2), client_name(2), accuses(3))
    assert (one.result, one.state.accused) == (None, {3: {2}})
    other = server.inner.receive(one.state, client_name(5), accuses(6))
    assert (other.result, other.state.accused) == (None, {3: {2}, 6: {5}})
    two = server.inner.receive(other.state, client_name(7), accuses(3))
    assert isinstance(two.result, Aborted)
    assert (two.result.phase, two.result.culprit) == ("share", client_name(3))


@every(("corrupt", "needed"), [(0.0, 2), (0.1, 2), (0.2, 3)])
def test_more_accusers_than_liars_are_needed(corrupt: float, needed: int) -> None:
    """A single accuser proves nothing where nobody may lie, too."""
    server = Recording(Server(agreement=agreement(10, corrupt=corrupt, dropout=0.2)))
    aggregate(server.inner.agreement, machines={SERVER: server})
    state = summing(server, 1)
    for number, holder in enumerate((1, 2, 4, 5), start=1):
        step = server.inner.receive(state, client_name(holder), accuses(3))
        assert (step.result is not None) == (number == needed)
        if step.result is not None:
            assert step.result.culprit == client_name(3)
            break
        state = step.state


def test_whoever_did_not_deal_accuses_nobody() -> None:
    """Client 4 was silent from the beginning: nothing was sealed for it."""
    server = honest().server
    with pytest.raises(RemoteProtocolError, match="dropped out before"):
        server.inner.receive(summing(server, 2), client_name(4), accuses(3))


# Dealers that sign what is wrong -----------------------------------------------------------------------

NO_ELEMENT, ZERO = bytes(32) + b"\xff" * 33, bytes(65)
"""A salt, and a share that is no field element, or one that is."""


@every("pair", [Pair(NO_ELEMENT, ZERO), Pair(ZERO, NO_ELEMENT)])
def test_a_share_that_is_no_number_of_the_field_proves_its_dealer_bad(pair: Pair) -> None:
    """Its hash is right, so it would be found out at the end alone, when somebody has signed."""
    agreed = agreement(10, corrupt=0.1, dropout=0.3)

    def tell(inner: Client, step: Step[Any]) -> Step[Any]:
        if not (step.out and isinstance(step.out[0].message, Shares)):
            return step
        [sent] = step.out
        closed, key = step.state.closed, share_key(step.state.closed, inner.channels, 3, 0)
        lie = replace(
            sent.message,
            marks=swapped(sent.message.marks, 0, pair.marks(closed, 3, 0)),
            sealed=swapped(sent.message.sealed, 0, _seal(pair, key, _bound(closed, 3, 0), entropy("lie"))),
        )
        return replace(step, out=(replace(sent, message=signed_anew(inner, step.state, lie)),))

    outcome = aggregate(agreed, machines={client_name(3): Recording(client(3, agreed), lie=tell)})
    assert isinstance(outcome.server, Aborted)
    assert (outcome.server.phase, outcome.server.culprit) == ("share", client_name(3))
    assert outcome.results[client_name(0)] == "complained"


@every("part", ["marks", "sealed"])
@every("change", [lambda raw: raw + b"x", lambda raw: raw[:-1]])
def test_what_a_dealer_signed_in_another_length_shows_no_key(
    part: str, change: Callable[[bytes], bytes]
) -> None:
    """Dealer and server collude here: such bytes prove nothing, and the server has them refused itself."""
    machine, dealer = honest().clients[0], honest().clients[3]
    state, dealt, _ = machine.at(Dealt)
    closed, holders = state.closed, state.closed.graph.holders(3)
    shares = next(message for message in dealer.said if isinstance(message, Shares))
    old = getattr(shares, part)
    parts = {"marks": shares.marks, "sealed": shares.sealed}
    parts[part] = swapped(old, 0, type(old[0])(change(old[0].raw)))
    tree = Tree.of(leaves(holders, 3, parts["marks"], parts["sealed"]))
    signature = identity(3).signing.sign(signed(closed, 3, shares.seed, tree.root))
    lie = replace(
        dealt,
        marks=swapped(dealt.marks, 2, parts["marks"][0]),
        sealed=swapped(dealt.sealed, 2, parts["sealed"][0]),
        evidence=swapped(dealt.evidence, 2, signature.raw + shares.seed.raw + tree.path(0)),
    )
    refused(machine.inner, state, lie, "member 3, which did not sign these shares")


@every("part", ["marks", "sealed", "seed"])
def test_a_dealing_of_another_length_is_refused_though_it_is_signed(part: str) -> None:
    """A holder could prove nothing with it, since evidence of another length is no evidence."""
    run = honest()
    state, shares, _ = run.server.at(Shares, client_name(3))
    old = getattr(shares, part)
    longer = (
        Commitment(old.raw + b"x") if part == "seed" else swapped(old, 0, type(old[0])(old[0].raw + b"x"))
    )
    dealer = replace(run.clients[3].at(RosterClosed)[2].state, closed=state.closed)
    lie = signed_anew(run.clients[3].inner, dealer, replace(shares, **{part: longer}))
    with pytest.raises(RemoteProtocolError, match="of one length"):
        run.server.inner.receive(state, client_name(3), lie)


@every("change", [lambda shares: shares[:-1], lambda shares: (*shares, shares[-1])])
def test_a_share_too_few_or_too_many_is_its_holders_fault(change: Callable[[Any], Any]) -> None:
    server = honest().server
    state, said, _ = server.at(Unmask, client_name(2))
    with pytest.raises(RemoteProtocolError, match="shares, got"):
        server.inner.receive(state, client_name(2), replace(said, shares=change(said.shares)))


# Before a client begins --------------------------------------------------------------------------------


@every("clients", [9, 11])
def test_channels_of_another_cohort_are_not_those_of_the_agreement(clients: int) -> None:
    agreed, session = agreement(10, corrupt=0.1, dropout=0.3), header().session
    Client(agreement=agreed, channels=Channels(identity(0), pinned(10), session), policy=Lenient())
    with pytest.raises(ConfigError, match="this roster"):
        Client(agreement=agreed, channels=Channels(identity(0), pinned(clients), session), policy=Lenient())


@every(("mode", "signers"), [("active", 6), ("semi-honest", 5)])
def test_a_client_puts_on_record_how_many_open_at_least(mode: str, signers: int) -> None:
    """In semi-honest mode nobody signs, and the fewest that open are counted from the shares."""
    machine = honest(mode).clients[0].inner
    need = machine.begin().need
    assert need is not None
    assert need.order.signers == signers
