"""A server that lies and clients that lie: each attack of the specification, and what becomes of it.

Machines are pure, so an honest run is recorded once and each lie is told to a recorded state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_secagg import (
    TERMS,
    Host,
    aggregate,
    agreement,
    assert_exact,
    client,
    entropy,
    header,
    identity,
    integers,
    journal,
    release,
)

from securefl.accounting.ledger import Ledger
from securefl.core.acts import Begin
from securefl.core.agreement import u32
from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.hiding import Hide
from securefl.core.keys import Commitment, PublicKey, SecretKey, Share, Signature
from securefl.core.machine import Step
from securefl.core.release import SERVER, Delivered
from securefl.messages import client_name
from securefl.secagg import Aborted, Agreement, Client, Policy, Server, Summed
from securefl.secagg.agreement import ClosedRoster, Entry, advertised
from securefl.secagg.checks import read_survivors
from securefl.secagg.client import Agreeing
from securefl.secagg.dealing import Dealing, Pair, Tree, _seal, deal, leaves, seed_mark, share_key, signed
from securefl.secagg.masks import apply
from securefl.secagg.messages import (
    Advertise,
    Complaint,
    Consistent,
    Dealt,
    MaskedInput,
    Quorum,
    RosterClosed,
    Shares,
    Survivors,
    Unmask,
)
from securefl.secagg.packing import unpack
from securefl.secagg.server import Summing
from securefl.storage.journal import Journal

CLIENTS = 10  # one corrupt: a quorum of 6


@dataclass
class Recording:
    """A machine that remembers what it was given in which state, and what it said."""

    inner: Any
    seen: list[tuple[Any, str, Any, Step[Any]]] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    lie: Callable[[Any, Step[Any]], Step[Any]] = lambda inner, step: step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def receive(self, state: Any, sender: str, message: Any) -> Any:
        step = self.lie(self.inner, self.inner.receive(state, sender, message))
        self.seen.append((state, sender, message, step))
        return self.saying(step)

    def provide(self, state: Any, answer: Any) -> Any:
        return self.saying(self.lie(self.inner, self.inner.provide(state, answer)))

    def saying(self, step: Step[Any]) -> Step[Any]:
        self.said += [envelope.message for envelope in step.out]
        return step

    def at(self, kind: type, sender: str = SERVER) -> tuple[Any, Any, Step[Any]]:
        """State, message and step where this kind of message came."""
        for state, who, message, step in self.seen:
            if isinstance(message, kind) and who == sender:
                return state, message, step
        raise AssertionError(kind)


@dataclass
class Honest:
    agreed: Agreement
    clients: dict[int, Recording]
    server: Recording
    host: Host


@lru_cache
def honest(mode: Any = "active", attempt: int = 1, clients: int = CLIENTS) -> Honest:
    agreed = agreement(clients, corrupt=0.1, dropout=0.3, mode=mode, at=header(1, attempt))
    recorded = {number: Recording(client(number, agreed)) for number in range(clients)}
    server = Recording(Server(agreement=agreed))
    machines = {client_name(number): machine for number, machine in recorded.items()}
    gone = {client_name(4): None}
    outcome = aggregate(agreed, machines={**machines, **gone, SERVER: server})
    assert_exact(agreed, outcome.server)
    return Honest(agreed, recorded, server, outcome.host)


def refused(machine: Any, state: Any, message: Any, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why) as raised:
        machine.receive(state, SERVER, message)
    assert raised.value.sender == SERVER


def opens(machine: Any, state: Any, quorum: Quorum) -> bool:
    """Whether this quorum has the client open shares."""
    return [type(envelope.message) for envelope in machine.receive(state, SERVER, quorum).out] == [Unmask]


# A server that lies about keys ------------------------------------------------------------------------


def swapped(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def without(message: Any, at: int) -> Any:
    fields = {
        name: value[:at] + value[at + 1 :]
        for name, value in vars(message).items()
        if isinstance(value, tuple)
    }
    return replace(message, **fields)


def rosters() -> dict[str, tuple[Callable[[RosterClosed], RosterClosed], str]]:
    other = honest(attempt=2).clients[0].at(RosterClosed)[1]
    return {
        "a forged key": (lambda r: replace(r, keys=swapped(r.keys, 2, PublicKey(bytes(32)))), "did not sign"),
        "a forged nonce": (
            lambda r: replace(r, nonces=swapped(r.nonces, 2, Commitment(bytes(32)))),
            "did not sign",
        ),
        "no signature": (
            lambda r: replace(r, signatures=swapped(r.signatures, 2, Signature(b""))),
            "did not sign",
        ),
        "a key of another attempt": (
            lambda r: replace(
                r,
                keys=swapped(r.keys, 2, other.keys[2]),
                nonces=swapped(r.nonces, 2, other.nonces[2]),
                signatures=swapped(r.signatures, 2, other.signatures[2]),
            ),
            "did not sign",
        ),
        "all of another attempt": (lambda r: other, "our own key"),
        "one key for two members": (
            lambda r: replace(
                r,
                keys=swapped(r.keys, 3, r.keys[2]),
                nonces=swapped(r.nonces, 3, r.nonces[2]),
                signatures=swapped(r.signatures, 3, r.signatures[2]),
            ),
            "did not sign",
        ),
        "our key replaced": (lambda r: replace(r, keys=swapped(r.keys, 0, r.keys[1])), "our own key"),
        "ourselves left out": (lambda r: without(r, 0), "our own key"),
        "too few": (lambda r: without(without(without(r, 8), 7), 6), "at least 7"),
        "a stranger": (lambda r: replace(r, members=swapped(r.members, 8, 10)), "pinned roster"),
        "a member twice": (lambda r: replace(r, members=swapped(r.members, 1, 0)), "pinned roster"),
        "a missing nonce": (lambda r: replace(r, nonces=r.nonces[1:]), "for each member"),
    }


@pytest.mark.parametrize("lie", rosters())
def test_a_roster_that_is_not_signed_and_pinned_is_refused(lie: str) -> None:
    spoil, why = rosters()[lie]
    machine = honest().clients[0]
    state, roster, _ = machine.at(RosterClosed)
    refused(machine.inner, state, spoil(roster), why)


def test_a_server_cannot_try_sessions_until_the_graph_suits_it() -> None:
    """Another session id would give another graph; what the members signed fits no other."""
    agreed = honest().agreed
    roster = honest().clients[0].at(RosterClosed)[1]
    entry = Entry(roster.keys[2], roster.nonces[2], roster.signatures[2])
    entry.check(agreed, 2)
    for number in range(256):
        moved = replace(agreed, header=replace(agreed.header, session=number.to_bytes(32, "little")))
        with pytest.raises(CryptoError):
            entry.check(moved, 2)


def test_the_graph_changes_with_one_nonce() -> None:
    """A member's fresh nonce moves everybody's neighbours, so nobody knows them before the roster closes."""
    agreed = agreement(60, corrupt=0.05, dropout=0.1)
    entries = {k: Entry(identity(k).channel.public, Commitment(bytes(32)), Signature(b"")) for k in range(60)}
    one = ClosedRoster(agreed, entries)
    two = ClosedRoster(agreed, entries | {59: replace(entries[59], nonce=Commitment(bytes(31) + b"x"))})
    assert one.graph == ClosedRoster(agreed, dict(reversed(entries.items()))).graph
    assert all(one.graph.neighbours[k] != two.graph.neighbours[k] for k in range(60))


# A server that lies about shares and graphs -----------------------------------------------------------


DEALT: dict[str, tuple[Callable[[Dealt], Dealt], str]] = {
    "altered shares": (
        lambda d: replace(d, sealed=swapped(d.sealed, 2, Share(bytes(len(d.sealed[2].raw))))),
        "did not sign these shares",
    ),
    "short shares": (lambda d: replace(d, sealed=swapped(d.sealed, 2, Share(b""))), "did not sign"),
    "altered hashes": (
        lambda d: replace(d, marks=swapped(d.marks, 2, Commitment(bytes(64)))),
        "did not sign these shares",
    ),
    "shares of another neighbour": (
        lambda d: replace(d, sealed=swapped(d.sealed, 2, d.sealed[3])),
        "did not sign",
    ),
    "altered shares with another's evidence": (
        lambda d: replace(
            d,
            sealed=swapped(d.sealed, 2, d.sealed[3]),
            marks=swapped(d.marks, 2, d.marks[3]),
            evidence=swapped(d.evidence, 2, d.evidence[3]),
        ),
        "did not sign",
    ),
    # A leaf that was the hash of both, without their lengths, would be the same leaf when cut elsewhere.
    "a byte of the box among the hashes": (
        lambda d: replace(
            d,
            marks=swapped(d.marks, 2, Commitment(d.marks[2].raw + d.sealed[2].raw[:1])),
            sealed=swapped(d.sealed, 2, Share(d.sealed[2].raw[1:])),
        ),
        "did not sign",
    ),
    "a byte of the hashes in the box": (
        lambda d: replace(
            d,
            marks=swapped(d.marks, 2, Commitment(d.marks[2].raw[:-1])),
            sealed=swapped(d.sealed, 2, Share(d.marks[2].raw[-1:] + d.sealed[2].raw)),
        ),
        "did not sign",
    ),
    "a neighbour fewer": (
        lambda d: replace(d, sealed=d.sealed[1:], marks=d.marks[1:], evidence=d.evidence[1:]),
        "neighbours",
    ),
    "too few dealers": (lambda d: replace(d, dealers=d.dealers[:6]), "Expected 7"),
    "ourselves left out": (lambda d: replace(d, dealers=d.dealers[1:]), "us among them"),
    "a dealer outside the roster": (lambda d: replace(d, dealers=(*d.dealers, 4)), "ascending"),
}


@pytest.mark.parametrize("lie", DEALT)
def test_shares_that_their_dealer_did_not_send_are_refused_without_a_word(lie: str) -> None:
    """No key is shown: a server that alters shares must not get the right ones opened."""
    spoil, why = DEALT[lie]
    machine = honest().clients[0]
    state, dealt, _ = machine.at(Dealt)
    refused(machine.inner, state, spoil(dealt), why)


@lru_cache
def sparse() -> tuple[Agreement, Recording, Recording]:
    """A run of 60 clients that are not all neighbours, and two of them."""
    agreed = agreement(60, corrupt=0.05, dropout=0.1)
    one, other = Recording(client(0, agreed)), Recording(client(1, agreed))
    assert_exact(agreed, aggregate(agreed, machines={client_name(0): one, client_name(1): other}).server)
    return agreed, one, other


def test_a_neighbourhood_that_was_not_derived_is_refused() -> None:
    agreed, machine, other = sparse()
    state, dealt, _ = machine.at(Dealt)
    theirs = other.at(Dealt)[1]
    assert len(dealt.sealed) == len(theirs.sealed) == agreed.parameters.neighbours
    refused(machine.inner, state, theirs, "did not sign these shares")
    refused(machine.inner, state, replace(dealt, dealers=dealt.dealers[:54]), "neighbours")


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


@pytest.mark.parametrize("mode", ["active", "semi-honest"])
@pytest.mark.parametrize("lie", SURVIVORS)
def test_survivors_that_do_not_add_up_are_refused(lie: str, mode: str) -> None:
    spoil, why = SURVIVORS[lie]
    machine = honest(mode).clients[0]
    state, survivors, _ = machine.at(Survivors)
    refused(machine.inner, state, spoil(survivors), why)


@lru_cache
def around_seven() -> tuple[ClosedRoster, dict[bool, tuple[int, ...]]]:
    """A closed sparse roster, and the tenth of it that drops: around member 7 (True), or anywhere (False)."""
    agreed = agreement(200, corrupt=0.1, dropout=0.1)
    entries = {
        k: Entry(identity(k).channel.public, Commitment(bytes(32)), Signature(b"")) for k in range(200)
    }
    closed = ClosedRoster(agreed, entries)
    near = closed.graph.neighbours[7]
    far = [k for k in range(200) if k not in near and k not in (0, 7)]
    return closed, {True: near[:20], False: (*near[:5], *far[-15:])}


@pytest.mark.parametrize("lonely", [True, False])
def test_the_server_opens_nobody_whose_neighbours_dropped(lonely: bool) -> None:
    closed, drops = around_seven()
    inputs = {k: Signature(b"") for k in range(200) if k not in drops[lonely]}
    state = Summing(closed=closed, dealt=dict.fromkeys(range(200)), sums=(), inputs=inputs)
    step = Server(agreement=closed.agreement, patience=0).deadline(state)
    if lonely:
        assert isinstance(step.result, Aborted)
        assert (step.result.phase, step.result.culprit) == ("mask", None)
        assert "too few surviving neighbours" in step.result.reason
    else:
        assert step.result is None


def test_a_victim_whose_neighbours_are_all_called_dropped_is_not_opened() -> None:
    """A lying server may drop a tenth of a sparse cohort: not those who stand around one client."""
    closed, drops = around_seven()
    agreed, near = closed.agreement, closed.graph.neighbours[7]
    own = next(k for k in range(200) if k not in near and k != 7)
    for lonely, dropped in drops.items():
        survivors = tuple(k for k in range(200) if k not in dropped)
        assert len(survivors) == agreed.parameters.least_survivors
        came = Survivors(survivors=survivors, dropped=tuple(sorted(dropped)))
        if lonely:
            with pytest.raises(RemoteProtocolError, match="surviving neighbours, got member 7"):
                read_survivors(closed, own, range(200), came)
        else:
            assert read_survivors(closed, own, range(200), came) == survivors


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


def quorums() -> dict[str, tuple[Callable[[Quorum], Quorum], str]]:
    strange = Signature(bytes(64))
    return {
        "one signature too few": (
            lambda q: replace(q, signers=q.signers[:5], signatures=q.signatures[:5]),
            "Expected 6",
        ),
        "a forged one": (lambda q: replace(q, signatures=swapped(q.signatures, 4, strange)), "did not sign"),
        "one signature for two": (
            lambda q: replace(q, signatures=swapped(q.signatures, 4, q.signatures[3])),
            "did not sign",
        ),
        "a signer twice": (lambda q: replace(q, signers=swapped(q.signers, 1, 0)), "distinct"),
        "a signer that dropped": (lambda q: replace(q, signers=swapped(q.signers, 3, 4)), "survivors"),
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
        "too few names": (lambda q: replace(q, signers=q.signers[1:]), "for each name"),
    }


@pytest.mark.parametrize("lie", quorums())
def test_a_quorum_that_is_none_is_refused(lie: str) -> None:
    spoil, why = quorums()[lie]
    machine = honest().clients[0]
    state, quorum, _ = machine.at(Quorum)
    refused(machine.inner, state, spoil(quorum), why)


@pytest.mark.parametrize(
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
    near = {0, *state.held.closed.graph.neighbours[0]}
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
    refused(machine.inner, state, other.at(Quorum)[1], "did not sign")


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


# A server that asks twice, too early, or again ---------------------------------------------------------


@pytest.mark.parametrize("mode", ["active", "semi-honest"])
def test_a_second_set_of_survivors_is_refused_and_a_double_is_harmless(mode: str) -> None:
    machine = honest(mode).clients[0]
    _, survivors, step = machine.at(Survivors)
    done = machine.inner.provide(step.state, True).state
    opposite = Survivors(survivors=survivors.survivors[:-1], dropped=survivors.survivors[-1:])
    for later in (step.state, done):
        refused(machine.inner, later, opposite, "other survivors before")
        again = machine.inner.receive(later, SERVER, survivors)
        assert (again.state, again.out, again.need) == (later, (), None)


def test_a_double_quorum_is_answered_once() -> None:
    machine = honest().clients[0]
    _, quorum, answered = machine.at(Quorum)
    assert isinstance(answered.out[0].message, Unmask)
    again = machine.inner.receive(answered.state, SERVER, quorum)
    assert (again.state, again.out, again.need) == (answered.state, (), None)


@pytest.mark.parametrize("mode", ["active", "semi-honest"])
def test_a_client_opens_once_whatever_its_host_answers_again(mode: str) -> None:
    machine = honest(mode).clients[0]
    _, survivors, shown = machine.at(Survivors)
    active = mode == "active"
    step = machine.at(Quorum)[2] if active else machine.inner.provide(shown.state, True)
    assert ([type(one.message) for one in step.out], step.result) == ([Unmask], "answered")
    with pytest.raises(LocalProtocolError, match="Expected an answer only to a need"):
        machine.inner.provide(step.state, True)
    assert machine.inner.receive(step.state, SERVER, survivors) == Step(step.state)


def unsigned(machine: Recording) -> Agreeing:
    """The state of a client that was shown the survivors, before its host has recorded that it signs."""
    _, _, step = machine.at(Survivors)
    assert isinstance(step.state, Agreeing)
    assert not step.state.signed
    return step.state


def test_a_quorum_opens_nothing_before_the_own_signature_is_on_record() -> None:
    """A server may have a quorum of the others: whoever has not signed may still enter another attempt."""
    machine = honest().clients[0]
    _, quorum, _ = machine.at(Quorum)
    refused(machine.inner, unsigned(machine), quorum, "not due yet")
    denied = machine.inner.provide(unsigned(machine), False)
    assert (denied.out, denied.result) == ((), "refused")
    assert machine.inner.receive(denied.state, SERVER, quorum).out == ()


# A client that is started again -----------------------------------------------------------------------


@dataclass
class Restarted:
    """A client that lost its state and begins anew; `journal` is all that is left of it."""

    machine: Client
    journal: Journal
    step: Step[Any] = field(init=False)
    said: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.step = self.machine.begin()
        self.settle()

    def receive(self, message: Any) -> None:
        self.step = self.machine.receive(self.step.state, SERVER, message)
        self.settle()

    def settle(self) -> None:
        """Have the host do what is asked of it, and keep what is said."""
        while self.step.need is not None:
            self.said += [envelope.message for envelope in self.step.out]
            order = self.step.need.order
            if isinstance(order, Hide):
                number = self.machine.channels.own
                answer: Any = tuple(
                    release(order, vector.name, integers(number, vector))
                    for vector in self.machine.agreement.vectors
                )
            else:
                [answer] = self.journal.record([order])
            self.step = self.machine.provide(self.step.state, answer)
        self.said += [envelope.message for envelope in self.step.out]


def encoded(agreed: Agreement, messages: list[Any]) -> list[bytes]:
    """The bytes on the wire, through a ledger of their own."""
    with Ledger(":memory:", TERMS) as ledger:
        for message in messages:
            for one in getattr(message, "releases", ()):
                assert not ledger.reserve([(one.key, one.charge)])
        return ledger.send([(agreed.header, message) for message in messages])


@lru_cache
def disk(mode: Any, folder: Path) -> tuple[Agreement, Recording, Path]:
    """A run whose records are on disk: what client 0 was told and said in it."""
    agreed = agreement(CLIENTS, corrupt=0.1, dropout=0.3, mode=mode)
    machine = Recording(client(0, agreed))
    with Journal(folder / "journal.sqlite") as kept:
        assert_exact(agreed, aggregate(agreed, machines={client_name(0): machine}, kept=kept).server)
    return agreed, machine, folder / "journal.sqlite"


MODES = pytest.mark.parametrize("mode", ["active", "semi-honest"])


@MODES
def test_a_client_started_again_says_the_same_bytes(mode: str, tmp_path: Path) -> None:
    """The journal alone is left, and keys, shares, masked input, signature and answer are those of before."""
    agreed, machine, path = disk(mode, tmp_path)
    with Journal(path) as kept:
        again = Restarted(client(0, agreed), kept)
        for _, _, message, _ in machine.seen:
            again.receive(message)
    assert len(again.said) == (5 if mode == "active" else 4)
    assert encoded(agreed, again.said) == encoded(agreed, machine.said)
    assert again.step.result == "answered"


@MODES
@pytest.mark.parametrize("kind", [RosterClosed, Dealt, Survivors])
def test_a_client_started_again_never_says_the_opposite(kind: type, mode: str, tmp_path: Path) -> None:
    """Another roster, other dealers or other survivors than before the restart: the record forbids it."""
    agreed, machine, path = disk(mode, tmp_path)
    with Journal(path) as kept:
        again = Restarted(client(0, agreed), kept)
        for _, _, message, _ in machine.seen:
            if isinstance(message, kind):
                again.said.clear()
                again.receive(fewer(message))
                assert (again.said, again.step.result) == ([], "refused")
                break
            again.receive(message)


def fewer(message: Any) -> Any:
    """The same message without the last client."""
    if isinstance(message, Survivors):
        return Survivors(survivors=message.survivors[:-1], dropped=message.survivors[-1:])
    if isinstance(message, Dealt):
        rest = {name: value[:-1] for name, value in vars(message).items()}
        return Dealt(**rest)
    return without(message, len(message.members) - 1)


def test_masked_inputs_under_two_sets_of_dealers_would_bare_the_input() -> None:
    """Why the record holds the dealers: a neighbour fewer changes the input by that pair's mask alone.

    With one such pair after the other, and the self-mask that unmasking opens, nothing is left before it.
    """
    run = honest()
    state, dealt, _ = run.clients[0].at(Dealt)
    machine = run.clients[0].inner
    sent = []
    for message in (dealt, fewer(dealt)):
        step = machine.provide(machine.receive(state, SERVER, message).state, True)
        assert step.need is not None
        vector = machine.agreement.vectors[0]
        packed = np.asarray(step.need.order.conceal[vector.name](integers(0, vector)).numbers)
        sent.append(unpack(packed, vector.length, vector.bits))
    last = dealt.dealers[-1]
    alone = np.zeros(len(sent[0]), np.uint32)
    apply(alone, 0, add=[state.closed.mask_seed(0, state.key, last)])
    np.testing.assert_array_equal(sent[0] - sent[1], alone)


@MODES
def test_whoever_signed_enters_no_other_attempt_of_the_question(mode: str) -> None:
    """Nobody lies: the answers are late, and the sum is tried again with one client gone."""
    run = honest(mode)
    later = replace(run.agreed, header=header(1, 2))
    smaller = agreement(9, corrupt=0.1, dropout=0.3, mode=mode, at=header(1, 2), ordered=10)
    for agreed in (later, smaller):
        order = begins(client(0, agreed))
        assert run.host.record(order) is None
        step = client(0, agreed).provide(client(0, agreed).begin().state, None)
        assert (step.out, step.result) == ((), "refused")


def begins(machine: Client) -> Begin:
    need = machine.begin().need
    assert need is not None
    assert isinstance(need.order, Begin)
    return need.order


@MODES
def test_whoever_has_not_signed_enters_the_next_attempt_and_then_signs_in_no_other(mode: str) -> None:
    """An abort before the signatures is tried again; the survivors of the first attempt come too late."""
    agreed = agreement(CLIENTS, corrupt=0.1, dropout=0.3, mode=mode)
    machine = Recording(client(0, agreed))
    assert_exact(agreed, aggregate(agreed, machines={client_name(0): machine}).server)
    # This journal draws the secret of the recorded run, so that what was sent there fits.
    first = Restarted(client(0, agreed), fresh := journal())
    for kind in (RosterClosed, Dealt):
        first.receive(machine.at(kind)[1])
    second = Restarted(client(0, replace(agreed, header=header(1, 2))), fresh)
    assert isinstance(second.said[0], Advertise)
    first.said.clear()
    first.receive(machine.at(Survivors)[1])
    assert (first.said, first.step.result) == ([], "refused")


def test_the_record_is_asked_for_before_anything_is_opened() -> None:
    machine = honest("semi-honest").clients[0]
    _, _, step = machine.at(Survivors)
    assert step.out == ()
    assert step.need is not None
    assert step.need.order.act == "sign"


def test_another_agreement_in_the_same_place_is_refused_by_the_record() -> None:
    """A server that shows a client two tasks under one place and attempt: the second is not begun."""
    run = honest()
    assert run.host.record(begins(client(0, run.agreed))) is not None
    assert run.host.record(begins(client(0, replace(run.agreed, task=bytes(32))))) is None


def test_messages_out_of_turn_are_refused() -> None:
    run = honest()
    machine = run.clients[0]
    early, roster, _ = machine.at(RosterClosed)
    for kind in (Dealt, Survivors, Quorum):
        refused(machine.inner, early, machine.at(kind)[1], "not due yet")
    waiting, _, _ = machine.at(Survivors)
    refused(machine.inner, waiting, machine.at(Quorum)[1], "not due yet")
    for old in (roster, machine.at(Dealt)[1]):
        assert machine.inner.receive(waiting, SERVER, old) == Step(waiting)


def test_the_clients_own_minimum_stands() -> None:
    """Parameters for fewer corrupt clients, another mode or too small a cohort: it never begins."""
    agreed = honest().agreed
    own = Policy(mode="active", corrupt=0.1, dropout=0.3, least_cohort=10, least_honest=5, least_survivors=7)
    client(0, agreed, own)
    for stricter in (
        {"corrupt": 0.2},
        {"dropout": 0.2},
        {"mode": "semi-honest"},
        {"least_cohort": 11},
        {"least_honest": 6},
        {"least_survivors": 8},
    ):
        with pytest.raises(ConfigError, match="protect less"):
            client(0, agreed, replace(own, **stricter))  # type: ignore[arg-type]


def test_parties_with_other_parameters_do_not_understand_each_other() -> None:
    """A server that plans for fewer corrupt clients: no signature of its clients fits."""
    agreed = agreement(10, corrupt=0.2, dropout=0.3)
    server = Server(agreement=agreement(10, corrupt=0.0, dropout=0.3))
    outcome = aggregate(agreed, machines={SERVER: server})
    assert isinstance(outcome.server, Aborted)
    assert set(outcome.traffic.blamed) == {client_name(k) for k in range(10)}


def test_a_survivor_of_one_round_that_drops_in_the_next_stays_hidden() -> None:
    """Fresh keys and seeds each attempt: what opens in the second round masks nothing of the first."""
    first, second = honest(), honest(attempt=2)
    one, two = (run.clients[0].at(RosterClosed)[1] for run in (first, second))
    assert not {key.raw for key in one.keys} & {key.raw for key in two.keys}
    assert not {nonce.raw for nonce in one.nonces} & {nonce.raw for nonce in two.nonces}
    seeds = [run.server.at(Shares, client_name(0))[1].seed for run in (first, second)]
    assert seeds[0] != seeds[1]


def test_a_client_never_gives_both_shares_of_one_dealer() -> None:
    machine = honest().clients[0]
    state, _, step = machine.at(Quorum)
    (envelope,) = step.out
    pairs = state.held.pairs
    assert len(envelope.message.shares) == len(pairs)
    for (dealer, pair), share in zip(sorted(pairs.items()), envelope.message.shares, strict=True):
        assert share.raw == (pair.seed if dealer in state.survivors else pair.key)


# A client that lies about its shares -------------------------------------------------------------------


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


def signed_anew(inner: Client, state: Any, shares: Shares) -> Shares:
    """A dealing that is false and well signed."""
    own = inner.channels.own
    holders = state.closed.graph.holders(own)
    root = Tree.of(leaves(holders, own, shares.marks, shares.sealed)).root
    signature = inner.channels.identity.signing.sign(signed(state.closed, own, shares.seed, root))
    return replace(shares, signature=signature)


def wrong_pair(inner: Client, state: Any, shares: Shares) -> Shares:
    """For holder 0 other shares are sealed than were hashed."""
    own = inner.channels.own
    pair = Pair(bytes(65), bytes(65))
    key = share_key(state.closed, inner.channels, own, 0)
    box = _seal(pair, key, state.closed, own, 0, entropy("lie"))
    return signed_anew(inner, state, replace(shares, sealed=swapped(shares.sealed, 0, box)))


def unopenable(inner: Client, state: Any, shares: Shares) -> Shares:
    """For every holder the box is rubbish, well signed."""
    boxes = tuple(Share(bytes(len(box.raw))) for box in shares.sealed)
    return signed_anew(inner, state, replace(shares, sealed=boxes))


def test_wrong_shares_at_sending_name_the_dealer() -> None:
    _, outcome = with_liars(Shares, wrong_pair, 3)
    assert isinstance(outcome.server, Aborted)
    assert (outcome.server.phase, outcome.server.culprit) == ("share", client_name(3))
    assert outcome.results[client_name(0)] == "complained"
    assert not outcome.traffic.blamed


@pytest.mark.parametrize("corrupt", [0.0, 0.1])
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
    assert "falsely" in outcome.traffic.blamed[client_name(2)]
    assert client_name(3) in outcome.server.survivors  # type: ignore[union-attr]


@pytest.mark.parametrize("corrupt", [0.0, 0.1])
def test_an_accusation_without_proof_costs_the_accuser_its_place_alone(corrupt: float) -> None:
    """Where nobody is assumed to lie, too, one word against another names nobody."""
    agreed = agreement(CLIENTS, corrupt=corrupt, dropout=0.3)
    outcome = aggregate(agreed, machines={client_name(2): complaining(agreed, 2, 3, bytes(31) + b"x")})
    assert_exact(agreed, outcome.server)
    assert set(outcome.server.survivors) == {client_name(k) for k in range(10) if k != 2}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "keys", [(), (Share(b""),), (Share(u32(77) + bytes(32)),), (Share(u32(2) + bytes(32)),)]
)
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
    return signed_anew(inner, state, as_shares(replace(dealing, seed=promised)))


def other_key(inner: Client, state: Any, shares: Shares) -> Shares:
    dealing, _ = deal(
        state.closed, inner.channels, state.seed, SecretKey(bytes(31) + b"x"), entropy("key", 1)
    )
    return as_shares(dealing)


def as_shares(dealing: Dealing) -> Shares:
    return Shares(**vars(dealing))


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
    "another share": lambda c, s, u: replace(u, shares=swapped(u.shares, 1, Share(bytes(65)))),
    "another salt": lambda c, s, u: replace(
        u, shares=swapped(u.shares, 1, Share(bytes(32) + u.shares[1].raw[32:]))
    ),
    "one fewer": lambda c, s, u: replace(u, shares=u.shares[1:]),
    "one more": lambda c, s, u: replace(u, shares=(*u.shares, u.shares[0])),
    "short": lambda c, s, u: replace(u, shares=swapped(u.shares, 1, Share(b""))),
    "exchanged": lambda c, s, u: replace(u, shares=(u.shares[1], u.shares[0], *u.shares[2:])),
    "of the key of a survivor": lambda c, s, u: replace(
        u, shares=swapped(u.shares, 1, Share(s.held.pairs[1].key))
    ),
}


@pytest.mark.parametrize("lie", UNMASKS)
def test_a_wrong_share_at_unmasking_costs_its_holder_alone(lie: str) -> None:
    agreed, outcome = with_liars(Unmask, UNMASKS[lie], 3)
    assert_exact(agreed, outcome.server)
    assert set(outcome.traffic.blamed) == {client_name(3)}
    phase = "decode" if lie == "one more" else "unmask"  # more elements than anybody may send
    assert f"phase {phase}" in outcome.traffic.blamed[client_name(3)]


def weak(inner: Client, state: Any, said: Advertise) -> Advertise:
    """A key of small order, well signed: every agreement with it would be all zeros."""
    text = advertised(inner.agreement, inner.channels.own, PublicKey(bytes(32)), said.nonce)
    return replace(said, key=PublicKey(bytes(32)), signature=inner.channels.identity.signing.sign(text))


LIES: dict[str, tuple[type, Callable[[Client, Any, Any], Any]]] = {
    "a weak key": (Advertise, weak),
    "a short key": (Advertise, lambda c, s, m: replace(m, key=PublicKey(b"x"))),
    "an unsigned key": (Advertise, lambda c, s, m: replace(m, signature=Signature(bytes(64)))),
    "too few shares": (Shares, lambda c, s, m: replace(m, sealed=m.sealed[1:])),
    "too few hashes": (Shares, lambda c, s, m: replace(m, marks=m.marks[1:])),
    "short boxes": (Shares, lambda c, s, m: replace(m, sealed=tuple(Share(b"") for _ in m.sealed))),
    "a short hash": (Shares, lambda c, s, m: replace(m, marks=swapped(m.marks, 0, Commitment(b"")))),
    "no seed": (Shares, lambda c, s, m: replace(m, seed=Commitment(b""))),
    "an unsigned dealing": (Shares, lambda c, s, m: replace(m, seed=Commitment(bytes(32)))),
    "an unsigned input": (MaskedInput, lambda c, s, m: replace(m, signature=Signature(bytes(64)))),
    "an input without vectors": (MaskedInput, lambda c, s, m: replace(m, releases=())),
    "vectors exchanged": (MaskedInput, lambda c, s, m: replace(m, releases=m.releases[::-1])),
    "another set signed": (Consistent, lambda c, s, m: replace(m, signature=Signature(bytes(64)))),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_costs_its_teller_alone(lie: str) -> None:
    kind, tell = LIES[lie]
    agreed, outcome = with_liars(kind, tell, 3)
    assert_exact(agreed, outcome.server)
    assert set(outcome.traffic.blamed) == {client_name(3)}
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
    assert set(outcome.traffic.blamed) == set(liars)
