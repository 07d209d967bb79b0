"""A server that lies: about keys, shares, graphs and survivors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from support.every import every
from support.liars import copied, put
from support.recorded import Honest, Recording, fewer, honest, refused, sparse, without
from support.tiny_secagg import aggregate, agreement, assert_exact, client, identity

from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.keys import Commitment, PublicKey, SecretKey, Share, Signature
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.core.signing import AgreementKey
from securefl.secagg import Aborted, Client, Server, Summed
from securefl.secagg.agreement import Advertise, ClosedRoster
from securefl.secagg.checks import read_survivors
from securefl.secagg.client_rounds import Agreeing
from securefl.secagg.messages import Consistent, Dealt, MaskedInput, Quorum, RosterClosed, Survivors
from securefl.secagg.policy import parameters
from securefl.secagg.server_rounds import Summing

Lie = Callable[[Any], Any]


def moved(first: str, second: str, by: int) -> Lie:
    """The same bytes of member 2's entry in two parts, with the border between them elsewhere."""

    def lie(said: Any) -> Any:
        one, two = (getattr(said, name)[2] for name in (first, second))
        whole, border = one.raw + two.raw, len(one.raw) + by
        return put(2, **{first: type(one)(whole[:border]), second: type(two)(whole[border:])})(said)

    return lie


def shorter(part: str) -> Lie:
    return lambda said: replace(said, **{part: getattr(said, part)[1:]})


def split(*dropped: int, alive: slice = slice(None)) -> Lie:
    """Some of the dealers survive, and these dropped."""
    return lambda s: Survivors(survivors=s.survivors[alive], dropped=dropped)


def signers(count: int, **parts: Any) -> Lie:
    """The first so many signatures."""
    return lambda q: replace(q, signers=q.signers[:count], signatures=q.signatures[:count], **parts)


STRANGE = Signature(bytes(64))
LIES: dict[str, tuple[type, Lie, str]] = {
    "no signature": (RosterClosed, put(2, signatures=Signature(b"")), "did not sign"),
    "a short key": (RosterClosed, put(2, keys=PublicKey(bytes(31))), "did not sign"),
    # The signature is over key and nonce without their lengths, so the lengths are checked by themselves.
    "a byte of the key in the nonce": (RosterClosed, moved("keys", "nonces", -1), "member 2, which did not"),
    "a byte of the nonce in the key": (RosterClosed, moved("keys", "nonces", 1), "member 2, which did not"),
    "another attempt": (RosterClosed, lambda r: honest(attempt=2).clients[0].at(type(r))[1], "our own key"),
    "our key replaced": (RosterClosed, copied(1, 0, "keys"), "our own key"),
    "ourselves left out": (RosterClosed, lambda r: without(r, 0), "our own key"),
    "a roster of too few": (RosterClosed, lambda r: fewer(fewer(fewer(r))), "at least 7"),
    "a stranger": (RosterClosed, put(8, members=10), "pinned roster"),
    "a member twice": (RosterClosed, put(1, members=0), "pinned roster"),
    "a key less": (RosterClosed, shorter("keys"), "for each member"),
    "a nonce less": (RosterClosed, shorter("nonces"), "for each member"),
    "a signature less": (RosterClosed, shorter("signatures"), "for each member"),
    # No key is shown for shares: a server that alters them must not get the right ones opened.
    "altered shares": (Dealt, lambda d: put(2, sealed=Share(bytes(len(d.sealed[2].raw))))(d), "these shares"),
    "short shares": (Dealt, put(2, sealed=Share(b"")), "did not sign"),
    "altered hashes": (Dealt, put(2, marks=Commitment(bytes(64))), "did not sign these shares"),
    "another's shares": (Dealt, copied(3, 2, "sealed"), "did not sign"),
    "another's evidence": (Dealt, copied(3, 2, "sealed", "marks", "evidence"), "did not sign"),
    # A leaf that was the hash of both, without their lengths, would be the same leaf when cut elsewhere.
    "a byte of the box among the hashes": (Dealt, moved("marks", "sealed", 1), "did not sign"),
    "a byte of the hashes in the box": (Dealt, moved("marks", "sealed", -1), "did not sign"),
    "a box less": (Dealt, shorter("sealed"), "neighbours"),
    "hashes less": (Dealt, shorter("marks"), "neighbours"),
    "evidence less": (Dealt, shorter("evidence"), "neighbours"),
    "too few dealers": (Dealt, lambda d: replace(d, dealers=d.dealers[:6]), "Expected 7"),
    "we no dealer": (Dealt, shorter("dealers"), "us among them"),
    "a dealer outside the roster": (Dealt, lambda d: replace(d, dealers=(*d.dealers, 4)), "ascending"),
    "overlap": (Survivors, split(3), "both survive and drop"),
    "one missing": (Survivors, split(alive=slice(8)), "missing"),
    "ourselves dropped": (Survivors, split(0, alive=slice(1, None)), "not among"),
    "too few survivors": (Survivors, split(7, 8, 9, alive=slice(6)), "at least 7"),
    "a surviving stranger": (Survivors, put(8, survivors=10), "ascending dealers"),
    "a survivor twice": (Survivors, put(1, survivors=0), "ascending dealers"),
    "survivors out of order": (Survivors, lambda s: replace(s, survivors=s.survivors[::-1]), "ascending"),
    "dropped out of order": (Survivors, split(9, 8, alive=slice(7)), "ascending dealers"),
    # It would hide another, of whom nobody knows whether it survived.
    "dropped twice": (Survivors, split(9, 9, alive=slice(7)), "ascending dealers"),
    "no dealer dropped": (Survivors, split(4, alive=slice(8)), "ascending dealers"),
    "a signature too few": (Quorum, signers(5), "Expected 6"),
    "a forged one": (Quorum, put(4, signatures=STRANGE), "did not sign"),
    "one for two": (Quorum, copied(3, 4, "signatures"), "did not sign"),
    "a signer twice": (Quorum, put(1, signers=0), "distinct"),
    "a signer that dropped": (Quorum, put(3, signers=4), "survivors"),
    "a survivor without any": (Quorum, signers(8), "every surviving neighbour"),
    "a forged input": (Quorum, signers(8, others=(9,), inputs=(STRANGE,)), "did not sign"),
    "an input too few": (Quorum, signers(8, others=(9,)), "for each member"),
    "names too few": (Quorum, shorter("signers"), "for each member"),
    "signatures too few": (Quorum, shorter("signatures"), "for each member"),
    "others out of order": (Quorum, signers(9, others=(5, 3), inputs=(STRANGE,) * 2), "ascending survivors"),
    "an other twice": (Quorum, signers(9, others=(3, 3), inputs=(STRANGE,) * 2), "ascending survivors"),
    "a strange other": (Quorum, signers(9, others=(10,), inputs=(STRANGE,)), "ascending survivors"),
    "the quorum of another attempt": (
        Quorum,
        lambda q: honest(attempt=2).clients[0].at(Quorum)[1],
        "did not sign",
    ),
}


@every("mode", ["active", "semi-honest"])
@every("lie", LIES)
def test_a_lie_of_the_server_is_refused(lie: str, mode: str) -> None:
    kind, spoil, why = LIES[lie]
    if kind is Quorum and mode == "semi-honest":
        return
    machine = honest(mode).clients[0]
    state, message, _ = machine.at(kind)
    if kind is Quorum:  # no neighbour's tag came, so that signatures decide
        state = replace(state, confirmed=frozenset())
    refused(machine.inner, state, spoil(message), why)


# A server that lies about keys ------------------------------------------------------------------------


def forged_rosters() -> dict[str, tuple[Lie, int]]:
    """Rosters whose form is right, and the member that did not sign its entry."""
    other = honest(attempt=2).clients[0].at(RosterClosed)[1]
    entry = ("keys", "nonces", "signatures")
    return {
        "a forged key": (put(2, keys=PublicKey(bytes(31) + b"x")), 2),
        "a weak key": (put(2, keys=PublicKey(bytes(32))), 2),
        "a forged nonce": (put(2, nonces=Commitment(bytes(32))), 2),
        "a forged signature": (put(2, signatures=STRANGE), 2),
        "a key of another attempt": (copied(2, 2, *entry, source=other), 2),
        "one key for two members": (copied(2, 3, *entry), 3),
    }


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


def unsigned(clients: int) -> dict[int, Advertise]:
    """Entries from which a graph follows."""
    return {k: Advertise(identity(k).channel.public, Commitment(bytes(32)), STRANGE) for k in range(clients)}


def closing(entries: dict[int, Advertise]) -> RosterClosed:
    rows = [(k, e.key, e.nonce, e.signature) for k, e in entries.items()]
    parts = ("members", "keys", "nonces", "signatures")
    return RosterClosed(**dict(zip(parts, zip(*rows, strict=True), strict=True)))


class Forging(Recording):
    """A server that puts an entry of its own into the roster, for member 4, which did not advertise."""

    def deadline(self, state: Any) -> Any:
        step = self.inner.deadline(state)
        if not (step.out and isinstance(step.out[0].message, RosterClosed)):
            return step
        key = AgreementKey(SecretKey(bytes(31) + b"x")).public
        mine = Advertise(key, Commitment(bytes(32)), STRANGE)
        entries = dict(sorted({**step.state.closed.entries, 4: mine}.items()))
        closed = ClosedRoster(self.inner.agreement, entries)
        sent = (replace(step.out[0], message=closing(entries)),)
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
    at = dealt.dealers.index(5) - 1  # client 0 has no box of its own
    doubled = {part: getattr(dealt, part) for part in ("sealed", "marks", "evidence")}
    doubled = {part: (*all_of[: at + 1], *all_of[at:]) for part, all_of in doubled.items()}
    lie = replace(dealt, dealers=tuple(sorted((*dealt.dealers, 4))), **doubled)
    refused(one.inner, state, lie, "member 4, which did not sign this key")


def test_a_server_cannot_try_sessions_until_the_graph_suits_it() -> None:
    """Another session id would give another graph; what the members signed fits no other."""
    agreed = honest().agreed
    entry = honest().clients[0].at(RosterClosed)[1].entries[2]
    entry.check(agreed, 2)
    for number in range(256):
        moved = replace(agreed, header=replace(agreed.header, session=number.to_bytes(32, "little")))
        with pytest.raises(CryptoError):
            entry.check(moved, 2)


def test_the_graph_changes_with_one_nonce() -> None:
    """A member's fresh nonce moves everybody's neighbours, so nobody knows them before the roster closes."""
    agreed = agreement(60, corrupt=0.05, dropout=0.1)
    entries = unsigned(60)
    one = ClosedRoster(agreed, entries)
    two = ClosedRoster(agreed, entries | {59: replace(entries[59], nonce=Commitment(bytes(31) + b"x"))})
    assert one.graph == ClosedRoster(agreed, dict(reversed(entries.items()))).graph
    assert all(one.graph[k] != two.graph[k] for k in range(60))


# A server that lies about shares and graphs -----------------------------------------------------------


def test_a_neighbourhood_that_was_not_derived_is_refused() -> None:
    agreed, machine, server = sparse()
    state, dealt, _ = machine.at(Dealt)
    told = [one.message for *_, step in server.seen for one in step.out if isinstance(one.message, Dealt)]
    theirs = next(one for one in told[1:] if len(one.sealed) == len(dealt.sealed))
    assert len(dealt.sealed) <= agreed.parameters.neighbours < 59
    refused(machine.inner, state, theirs, "did not sign these shares")
    refused(machine.inner, state, replace(dealt, dealers=dealt.dealers[:54]), "neighbours")


def test_a_roster_whose_graph_leaves_a_member_with_few_neighbours_is_refused_by_server_and_client() -> None:
    """A server may try rosters until one has a graph that suits it."""
    plan = parameters(12, 0.0, 0.1, "active")
    # Three rings of 12, where some member has fewer than 6 neighbours.
    chosen = replace(plan, neighbours=6, threshold=2, least_degree=6, failure=0.5)
    agreed = agreement(12, corrupt=0.0, dropout=0.1, chosen=chosen)
    outcome = aggregate(agreed)
    assert isinstance(outcome.server, Aborted)
    assert (outcome.server.phase, outcome.server.culprit) == ("advertise", None)
    assert "enough neighbours" in outcome.server.reason
    one = client(0, agreed)
    state = one.provide(one.begin().state, SecretKey(bytes(32))).state
    roster = closing({**unsigned(12), 0: state.entry})
    refused(one, state, roster, "enough neighbours for each member")


# A server that lies about survivors -------------------------------------------------------------------


@every("victim", [0, 7])
def test_a_victim_whose_neighbours_are_all_called_dropped_is_not_opened(victim: int) -> None:
    """A lying server may drop a fifth of a sparse cohort: not those who stand around one client."""
    agreed = agreement(200, corrupt=0.1, dropout=0.2)
    closed = ClosedRoster(agreed, unsigned(200))
    near = closed.graph[victim]
    far = [k for k in range(200) if k not in near and k != victim]
    for dropped in ({*near[:40]}, {*near[:5], *far[-35:]}):
        survivors = tuple(k for k in range(200) if k not in dropped)
        assert len(survivors) == agreed.parameters.least_survivors
        came = Survivors(survivors=survivors, dropped=tuple(sorted(dropped)))
        state = Summing(
            closed=closed, dealt=dict.fromkeys(range(200)), sums=(), inputs=dict.fromkeys(survivors, STRANGE)
        )
        result = Server(agreement=agreed, patience=0).deadline(state).result
        if dropped <= {*near}:
            with pytest.raises(RemoteProtocolError, match=f"got member {victim}:"):
                read_survivors(closed, far[0], range(200), came)
            assert "too few surviving neighbours" in result.reason
        else:
            assert read_survivors(closed, far[0], range(200), came) == survivors
            assert result is None


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


def test_a_client_shown_other_dealers_is_never_opened() -> None:
    """The server tells the victim alone that member 3 did not deal: its signatures say so to the holders."""
    run = honest()
    victim = 7
    state, dealt, _ = run.clients[victim].at(Dealt)
    assert dealt.dealers.index(3) == 3  # among the victim's neighbours too
    machine = run.clients[victim].inner
    held = machine.provide(machine.receive(state, SERVER, without(dealt, 3)).state, True).state
    closed, dealers = held.closed, held.dealers
    assert 3 not in dealers
    signature = identity(victim).signing.sign(closed.input_of(victim, dealers))
    holder = run.clients[0]
    waiting, quorum, _ = holder.at(Quorum)
    lie = replace(without(quorum, quorum.signers.index(victim)), others=(victim,), inputs=(signature,))
    refused(holder.inner, waiting, lie, f"Member {victim} did not sign")
