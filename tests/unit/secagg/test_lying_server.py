"""A server that lies: about keys, shares, graphs and survivors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.liars import copied, put
from support.recorded import Honest, Recording, honest, refused, without
from support.tiny_secagg import aggregate, agreement, assert_exact, client, identity

from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.keys import Commitment, PublicKey, SecretKey, Share, Signature
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.core.signing import AgreementKey
from securefl.secagg import Aborted, Agreement, Client, Server, Summed
from securefl.secagg.agreement import Advertise, ClosedRoster
from securefl.secagg.checks import read_survivors
from securefl.secagg.client_rounds import Agreeing
from securefl.secagg.messages import (
    Confirmed,
    Consistent,
    Dealt,
    MaskedInput,
    Quorum,
    RosterClosed,
    Survivors,
    Unmask,
)
from securefl.secagg.policy import parameters


def opens(machine: Any, state: Any, quorum: Quorum) -> bool:
    """Whether this quorum has the client open shares."""
    return [type(envelope.message) for envelope in machine.receive(state, SERVER, quorum).out] == [Unmask]


# A server that lies about keys ------------------------------------------------------------------------


Spoil = Callable[[RosterClosed], RosterClosed]


def forged_rosters() -> dict[str, tuple[Spoil, int]]:
    """Rosters whose form is right, and the member that did not sign its entry."""
    other = honest(attempt=2).clients[0].at(RosterClosed)[1]
    entry = ("keys", "nonces", "signatures")
    return {
        "a forged key": (put(2, keys=PublicKey(bytes(31) + b"x")), 2),
        "a weak key": (put(2, keys=PublicKey(bytes(32))), 2),
        "a forged nonce": (put(2, nonces=Commitment(bytes(32))), 2),
        "a forged signature": (put(2, signatures=Signature(bytes(64))), 2),
        "a key of another attempt": (copied(2, 2, *entry, source=other), 2),
        "one key for two members": (copied(2, 3, *entry), 3),
    }


def rosters() -> dict[str, tuple[Spoil, str]]:
    other = honest(attempt=2).clients[0].at(RosterClosed)[1]
    return {
        "no signature": (put(2, signatures=Signature(b"")), "did not sign"),
        "a short key": (put(2, keys=PublicKey(bytes(31))), "did not sign"),
        "all of another attempt": (lambda r: other, "our own key"),
        "our key replaced": (copied(1, 0, "keys"), "our own key"),
        "ourselves left out": (lambda r: without(r, 0), "our own key"),
        "too few": (lambda r: without(without(without(r, 8), 7), 6), "at least 7"),
        "a stranger": (put(8, members=10), "pinned roster"),
        "a member twice": (put(1, members=0), "pinned roster"),
        "a missing nonce": (lambda r: replace(r, nonces=r.nonces[1:]), "for each member"),
    }


@every("lie", rosters())
def test_a_roster_without_its_form_or_ourselves_is_refused(lie: str) -> None:
    spoil, why = rosters()[lie]
    machine = honest().clients[0]
    state, roster, _ = machine.at(RosterClosed)
    refused(machine.inner, state, spoil(roster), why)


@every("mode", ["active", "semi-honest"])
@every("lie", forged_rosters())
def test_under_a_forged_roster_no_box_opens_and_the_forged_entry_is_named(lie: str, mode: str) -> None:
    """The other members dealt under the roster that they signed, or under a third one."""
    spoil, forged = forged_rosters()[lie]
    machine = honest(mode).clients[0]
    state, roster, _ = machine.at(RosterClosed)
    dealing = machine.inner.provide(machine.inner.receive(state, SERVER, spoil(roster)).state, True).state
    why = f"Expected a signature of member {forged}, which did not sign this key for this place"
    refused(machine.inner, dealing, machine.at(Dealt)[1], why)


def test_a_forged_entry_of_a_stranger_is_named_too() -> None:
    """Its graph differs, and so the boxes that come do not open, whoever was forged."""
    _, machine, _ = sparse()
    state, roster, _ = machine.at(RosterClosed)
    far = next(k for k in range(60) if k and k not in machine.at(Dealt)[0].closed.graph[0])
    due = len(machine.at(Dealt)[0].closed.graph[0])

    def lied(number: int) -> RosterClosed:
        return put(far, nonces=Commitment(number.to_bytes(32, "little")))(roster)

    def neighbours(of: RosterClosed) -> int:
        return len(ClosedRoster(machine.inner.agreement, of.entries).graph[0])

    # with another number of neighbours the number of boxes would be wrong before any of them is opened
    lie = next(one for one in map(lied, range(99)) if neighbours(one) == due)
    dealing = machine.inner.provide(machine.inner.receive(state, SERVER, lie).state, True).state
    refused(machine.inner, dealing, machine.at(Dealt)[1], f"member {far}, which did not sign this key")


class Forging(Recording):
    """A server that puts an entry of its own into the roster, for member 4, which did not advertise."""

    def deadline(self, state: Any) -> Any:
        step = self.inner.deadline(state)
        if not (step.out and isinstance(step.out[0].message, RosterClosed)):
            return step
        key = AgreementKey(SecretKey(bytes(31) + b"x")).public
        mine = {4: Advertise(key, Commitment(bytes(32)), Signature(bytes(64)))}
        entries = dict(sorted({**step.state.closed.entries, **mine}.items()))
        closed = ClosedRoster(self.inner.agreement, entries)
        rows = [(k, e.key, e.nonce, e.signature) for k, e in entries.items()]
        members, keys, nonces, signatures = zip(*rows, strict=True)
        said = RosterClosed(members=members, keys=keys, nonces=nonces, signatures=signatures)
        sent = (replace(step.out[0], message=said),)
        return replace(step, state=replace(step.state, closed=closed), out=sent)


@lru_cache
def forged_run() -> tuple[Recording, Any]:
    """Client 4 is away, and all others are shown an entry for it whose secret the server knows."""
    agreed = agreement(10, corrupt=0.1, dropout=0.3)
    server = Forging(Server(agreement=agreed))
    one = Recording(client(0, agreed))
    machines = {client_name(0): one, client_name(4): None, SERVER: server}
    return one, aggregate(agreed, machines=machines)


def test_nobody_masks_with_a_member_whose_entry_was_forged() -> None:
    """All are shown the same forgery, so their boxes open. The forged member dealt nothing."""
    one, outcome = forged_run()
    assert isinstance(outcome.server, Summed)
    assert client_name(4) not in outcome.server.survivors
    assert_exact(one.inner.agreement, outcome.server)
    assert 4 in one.at(Dealt)[0].closed.members
    assert 4 not in one.at(Survivors)[0].pairs


def test_a_forged_member_cannot_be_made_a_dealer() -> None:
    """The server knows its mask key, and not the channel secret under which its box would be sealed."""
    one, _ = forged_run()
    state, dealt, _ = one.at(Dealt)
    at = [k for k in dealt.dealers if k != 0].index(5)
    lie = replace(
        dealt,
        dealers=tuple(sorted((*dealt.dealers, 4))),
        sealed=(*dealt.sealed[:at], dealt.sealed[at], *dealt.sealed[at:]),
        marks=(*dealt.marks[:at], dealt.marks[at], *dealt.marks[at:]),
        evidence=(*dealt.evidence[:at], dealt.evidence[at], *dealt.evidence[at:]),
    )
    refused(one.inner, state, lie, "member 4, which did not sign this key")


def test_a_server_cannot_try_sessions_until_the_graph_suits_it() -> None:
    """Another session id would give another graph; what the members signed fits no other."""
    agreed = honest().agreed
    roster = honest().clients[0].at(RosterClosed)[1]
    entry = Advertise(roster.keys[2], roster.nonces[2], roster.signatures[2])
    entry.check(agreed, 2)
    for number in range(256):
        moved = replace(agreed, header=replace(agreed.header, session=number.to_bytes(32, "little")))
        with pytest.raises(CryptoError):
            entry.check(moved, 2)


def test_the_graph_changes_with_one_nonce() -> None:
    """A member's fresh nonce moves everybody's neighbours, so nobody knows them before the roster closes."""
    agreed = agreement(60, corrupt=0.05, dropout=0.1)
    entries = {
        k: Advertise(identity(k).channel.public, Commitment(bytes(32)), Signature(b"")) for k in range(60)
    }
    one = ClosedRoster(agreed, entries)
    two = ClosedRoster(agreed, entries | {59: replace(entries[59], nonce=Commitment(bytes(31) + b"x"))})
    assert one.graph == ClosedRoster(agreed, dict(reversed(entries.items()))).graph
    assert all(one.graph[k] != two.graph[k] for k in range(60))


# A server that lies about shares and graphs -----------------------------------------------------------


def cut_at(dealt: Dealt, by: int) -> Dealt:
    """The same bytes of hashes and box, cut in two so much later."""
    at = len(dealt.marks[2].raw) + by
    joined = dealt.marks[2].raw + dealt.sealed[2].raw
    return put(2, marks=Commitment(joined[:at]), sealed=Share(joined[at:]))(dealt)


DEALT: dict[str, tuple[Callable[[Dealt], Dealt], str]] = {
    "altered shares": (
        lambda d: put(2, sealed=Share(bytes(len(d.sealed[2].raw))))(d),
        "did not sign these shares",
    ),
    "short shares": (put(2, sealed=Share(b"")), "did not sign"),
    "altered hashes": (put(2, marks=Commitment(bytes(64))), "did not sign these shares"),
    "shares of another neighbour": (copied(3, 2, "sealed"), "did not sign"),
    "altered shares with another's evidence": (copied(3, 2, "sealed", "marks", "evidence"), "did not sign"),
    # A leaf that was the hash of both, without their lengths, would be the same leaf when cut elsewhere.
    "a byte of the box among the hashes": (lambda d: cut_at(d, 1), "did not sign"),
    "a byte of the hashes in the box": (lambda d: cut_at(d, -1), "did not sign"),
    "a neighbour fewer": (
        lambda d: replace(d, sealed=d.sealed[1:], marks=d.marks[1:], evidence=d.evidence[1:]),
        "neighbours",
    ),
    "too few dealers": (lambda d: replace(d, dealers=d.dealers[:6]), "Expected 7"),
    "ourselves left out": (lambda d: replace(d, dealers=d.dealers[1:]), "us among them"),
    "a dealer outside the roster": (lambda d: replace(d, dealers=(*d.dealers, 4)), "ascending"),
}


@every("lie", DEALT)
def test_shares_that_their_dealer_did_not_send_are_refused_without_a_word(lie: str) -> None:
    """No key is shown: a server that alters shares must not get the right ones opened."""
    spoil, why = DEALT[lie]
    machine = honest().clients[0]
    state, dealt, _ = machine.at(Dealt)
    refused(machine.inner, state, spoil(dealt), why)


@lru_cache
def sparse() -> tuple[Agreement, Recording, Recording]:
    """A run of 60 clients that are not all neighbours, and two of them with as many neighbours."""
    agreed = agreement(60, corrupt=0.05, dropout=0.1)
    every = [Recording(client(k, agreed)) for k in range(60)]
    machines = {client_name(k): one for k, one in enumerate(every)}
    assert_exact(agreed, aggregate(agreed, machines=machines).server)
    count = [len(one.at(Dealt)[1].sealed) for one in every]
    return agreed, every[0], every[count.index(count[0], 1)]


def test_a_neighbourhood_that_was_not_derived_is_refused() -> None:
    agreed, machine, other = sparse()
    state, dealt, _ = machine.at(Dealt)
    theirs = other.at(Dealt)[1]
    assert len(dealt.sealed) == len(theirs.sealed) <= agreed.parameters.neighbours < 59
    refused(machine.inner, state, theirs, "did not sign these shares")
    refused(machine.inner, state, replace(dealt, dealers=dealt.dealers[:54]), "neighbours")


def around_few() -> Agreement:
    """Three rings of 12, where some member has fewer than 6 neighbours, and a plan that asks for 6."""
    chosen = replace(
        parameters(12, 0.0, 0.1, "active"), neighbours=6, threshold=2, least_degree=6, failure=0.5
    )
    return agreement(12, corrupt=0.0, dropout=0.1, chosen=chosen)


def test_a_roster_whose_graph_leaves_a_member_with_few_neighbours_is_refused_by_server_and_client() -> None:
    """A server may try rosters until one has a graph that suits it."""
    agreed = around_few()
    outcome = aggregate(agreed)
    assert isinstance(outcome.server, Aborted)
    assert (outcome.server.phase, outcome.server.culprit) == ("advertise", None)
    assert "enough neighbours" in outcome.server.reason
    one = client(0, agreed)
    state = one.provide(one.begin().state, SecretKey(bytes(32))).state
    keys = [AgreementKey(SecretKey(bytes(31) + bytes([k + 1]))).public for k in range(12)]
    entries = {k: Advertise(keys[k], Commitment(bytes([k] * 32)), Signature(bytes(64))) for k in range(12)}
    entries[0] = state.entry
    roster = RosterClosed(
        members=tuple(entries),
        keys=tuple(entry.key for entry in entries.values()),
        nonces=tuple(entry.nonce for entry in entries.values()),
        signatures=tuple(entry.signature for entry in entries.values()),
    )
    refused(one, state, roster, "enough neighbours for each member")


# A server that lies about survivors -------------------------------------------------------------------


SURVIVORS: dict[str, tuple[Callable[[Survivors], Survivors], str]] = {
    "overlap": (lambda s: replace(s, dropped=(3,)), "both survive and drop"),
    "one missing": (lambda s: replace(s, survivors=tuple(k for k in s.survivors if k != 3)), "missing"),
    "ourselves dropped": (lambda s: Survivors(survivors=s.survivors[1:], dropped=(0,)), "not among"),
    "too few": (lambda s: Survivors(survivors=s.survivors[:6], dropped=s.survivors[6:]), "at least 7"),
    "a stranger": (lambda s: replace(s, survivors=(*s.survivors, 10)), "dealers"),
    "not a dealer": (lambda s: replace(s, dropped=(4,)), "dealers"),
    "one twice": (lambda s: replace(s, survivors=(0, *s.survivors)), "distinct"),
    "out of order": (lambda s: replace(s, survivors=s.survivors[::-1]), "ascending"),
}


@every("mode", ["active", "semi-honest"])
@every("lie", SURVIVORS)
def test_survivors_that_do_not_add_up_are_refused(lie: str, mode: str) -> None:
    spoil, why = SURVIVORS[lie]
    machine = honest(mode).clients[0]
    state, survivors, _ = machine.at(Survivors)
    refused(machine.inner, state, spoil(survivors), why)


@lru_cache
def around_seven() -> tuple[ClosedRoster, dict[bool, tuple[int, ...]]]:
    """A closed sparse roster, and the fifth of it that drops: around member 7 (True), or anywhere (False)."""
    agreed = agreement(200, corrupt=0.1, dropout=0.2)
    entries = {
        k: Advertise(identity(k).channel.public, Commitment(bytes(32)), Signature(b"")) for k in range(200)
    }
    closed = ClosedRoster(agreed, entries)
    near = closed.graph[7]
    far = [k for k in range(200) if k not in near and k not in (0, 7)]
    return closed, {True: near[:40], False: (*near[:5], *far[-35:])}


def test_a_victim_whose_neighbours_are_all_called_dropped_is_not_opened() -> None:
    """A lying server may drop a fifth of a sparse cohort: not those who stand around one client."""
    closed, drops = around_seven()
    agreed, near = closed.agreement, closed.graph[7]
    own = next(k for k in range(200) if k not in near and k != 7)
    for lonely, dropped in drops.items():
        survivors = tuple(k for k in range(200) if k not in dropped)
        assert len(survivors) == agreed.parameters.least_survivors
        came = Survivors(survivors=survivors, dropped=tuple(sorted(dropped)))
        if lonely:
            with pytest.raises(RemoteProtocolError, match="got member 7"):
                read_survivors(closed, own, range(200), came)
        else:
            assert read_survivors(closed, own, range(200), came) == survivors


def test_who_is_lonely_is_who_has_too_few_neighbours_left() -> None:
    """Counted from who dropped, it is the same as counted from who is left, for any set of survivors."""
    closed, _ = around_seven()
    least, rng = closed.agreement.parameters.least_degree, np.random.default_rng(1)
    seen = set()
    for share in np.linspace(0, 0.7, 60):
        survivors = tuple(np.flatnonzero(rng.random(200) >= share).tolist())
        left = {k: len({*closed.graph[k]} & {*survivors}) for k in survivors}
        expected = next((k for k in survivors if left[k] < least), None)
        assert closed.lonely(survivors) == expected
        seen.add(expected is None)
    assert seen == {True, False}


def test_nobody_changes_the_roster_that_others_read() -> None:
    entries = honest().clients[0].at(RosterClosed)[1].entries
    with pytest.raises(TypeError):
        entries[0] = entries[1]  # type: ignore[index]


def shown(run: Honest, number: int, survivors: tuple[int, ...]) -> tuple[Client, Agreeing, Signature]:
    """A client that was shown these survivors, and its signature on them."""
    machine = run.clients[number]
    state, first, _ = machine.at(Survivors)
    everybody = {*first.survivors, *first.dropped}
    said = Survivors(survivors=survivors, dropped=tuple(sorted(everybody - set(survivors))))
    step = machine.inner.receive(state, SERVER, said)
    step = machine.inner.provide(step.state, True)
    (envelope,) = step.out
    assert isinstance(envelope.message, Consistent)
    return machine.inner, step.state, envelope.message.signature


def test_split_views_open_nothing() -> None:
    """Half sees everybody, half everybody but the victim: no set has a quorum, and none can be mixed."""
    run = honest()
    everybody = run.clients[0].at(Survivors)[1].survivors
    victim = everybody[-1]
    views = [tuple(k for k in everybody if k != victim), everybody]
    told = {number: views[number % 2] for number in everybody if number != victim} | {victim: everybody}
    states = {number: shown(run, number, view) for number, view in told.items()}
    for number, (machine, state, _) in states.items():
        same = tuple(k for k in told if told[k] == told[number])
        assert len(same) < run.agreed.parameters.quorum
        for signers in (same, everybody):
            signers = tuple(k for k in signers if k in state.survivors)
            inputs = {k: run.server.at(MaskedInput, client_name(k))[1].signature for k in everybody}
            others = tuple(k for k in state.survivors if k not in signers)
            quorum = Quorum(
                signers=signers,
                signatures=tuple(states[k][2] for k in signers),
                others=others,
                inputs=tuple(inputs[k] for k in others),
            )
            refused(machine, state, quorum, "Expected 6 signatures|did not sign")


def untagged(state: Agreeing) -> Agreeing:
    """The state of a client for which no neighbour's tag came, so that signatures decide."""
    return replace(state, confirmed=frozenset())


def quorums() -> dict[str, tuple[Callable[[Quorum], Quorum], str]]:
    strange = Signature(bytes(64))
    return {
        "one signature too few": (
            lambda q: replace(q, signers=q.signers[:5], signatures=q.signatures[:5]),
            "Expected 6",
        ),
        "a forged one": (put(4, signatures=strange), "did not sign"),
        "one signature for two": (
            copied(3, 4, "signatures"),
            "did not sign",
        ),
        "a signer twice": (put(1, signers=0), "distinct"),
        "a signer that dropped": (put(3, signers=4), "survivors"),
        "a survivor without any": (
            lambda q: replace(q, signers=q.signers[:8], signatures=q.signatures[:8]),
            "every surviving neighbour",
        ),
        "a survivor with a forged input": (
            lambda q: replace(
                q, signers=q.signers[:8], signatures=q.signatures[:8], others=q.signers[8:], inputs=(strange,)
            ),
            "did not sign",
        ),
        "too few names": (lambda q: replace(q, signers=q.signers[1:]), "for each member"),
    }


@every("lie", quorums())
def test_a_quorum_that_is_none_is_refused(lie: str) -> None:
    spoil, why = quorums()[lie]
    machine = honest().clients[0]
    state, quorum, _ = machine.at(Quorum)
    refused(machine.inner, untagged(state), spoil(quorum), why)


@every(
    ("strangers", "forged", "why"),
    [
        ("all", "all", "did not sign"),
        ("as many as needed", "the last", "did not sign"),
        ("as many as needed", "none", None),
        ("one too few", "none", "Expected 32 signatures on one set, got 31"),
    ],
)
def test_where_neighbours_are_too_few_for_a_quorum_strangers_must_have_signed(
    strangers: str, forged: str, why: str | None
) -> None:
    agreed, machine, _ = sparse()
    state, quorum, _ = machine.at(Quorum)
    near = {0, *state.held.closed.graph[0]}
    far = [k for k in quorum.signers if k not in near]
    needed = agreed.parameters.quorum - len(near)
    assert (agreed.parameters.quorum, needed > 1) == (32, True)
    shown = far[: {"all": len(far), "as many as needed": needed, "one too few": needed - 1}[strangers]]
    bad = {"all": shown, "the last": shown[-1:], "none": []}[forged]
    signers = tuple(sorted(near | set(shown)))
    signed = dict(zip(quorum.signers, quorum.signatures, strict=True)) | dict.fromkeys(
        bad, Signature(bytes(64))
    )
    told = replace(quorum, signers=signers, signatures=tuple(signed[k] for k in signers))
    if why is None:
        assert opens(machine.inner, state, told)
    else:
        refused(machine.inner, state, told, why)


def test_a_survivor_that_did_not_sign_is_opened_on_its_input_alone() -> None:
    run = honest()
    state, quorum, _ = run.clients[0].at(Quorum)
    last = quorum.signers[-1]
    signature = run.server.at(MaskedInput, client_name(last))[1].signature
    fewer = replace(
        quorum,
        signers=quorum.signers[:-1],
        signatures=quorum.signatures[:-1],
        others=(last,),
        inputs=(signature,),
    )
    assert opens(run.clients[0].inner, state, fewer)


def test_a_quorum_of_another_attempt_is_refused() -> None:
    machine, other = honest().clients[0], honest(attempt=2).clients[0]
    state, _, _ = machine.at(Quorum)
    refused(machine.inner, untagged(state), other.at(Quorum)[1], "did not sign")
    tagged = machine.inner.receive(untagged(state), SERVER, other.at(Confirmed)[1]).state
    assert tagged.confirmed == frozenset()
    refused(machine.inner, tagged, other.at(Quorum)[1], "did not sign")


def test_a_client_shown_other_dealers_is_never_opened() -> None:
    """The server tells the victim alone that member 3 did not deal: its signatures say so to the holders."""
    run = honest()
    victim = 7
    state, dealt, _ = run.clients[victim].at(Dealt)
    near = [k for k in dealt.dealers if k != victim]
    at = near.index(3)
    fewer = replace(
        dealt,
        dealers=tuple(k for k in dealt.dealers if k != 3),
        sealed=dealt.sealed[:at] + dealt.sealed[at + 1 :],
        marks=dealt.marks[:at] + dealt.marks[at + 1 :],
        evidence=dealt.evidence[:at] + dealt.evidence[at + 1 :],
    )
    machine = run.clients[victim].inner
    held = machine.provide(machine.receive(state, SERVER, fewer).state, True).state
    closed, dealers = held.closed, held.dealers
    assert 3 not in dealers
    signature = identity(victim).signing.sign(closed.input_of(victim, dealers))
    holder = run.clients[0]
    waiting, quorum, _ = holder.at(Quorum)
    place = quorum.signers.index(victim)
    lie = replace(
        quorum,
        signers=quorum.signers[:place] + quorum.signers[place + 1 :],
        signatures=quorum.signatures[:place] + quorum.signatures[place + 1 :],
        others=(victim,),
        inputs=(signature,),
    )
    refused(holder.inner, waiting, lie, f"Member {victim} did not sign")
