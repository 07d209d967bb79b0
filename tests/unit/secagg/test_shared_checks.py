"""What one member of a simulation has checked for all: each of them still sees what concerns itself.

The members of one process have one agreement object and one decoded message. Attacks here show one of them
something else, or something that is wrong for all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.every import every
from support.liars import put
from support.recorded import honest, refused
from support.tiny_secagg import aggregate, agreement, assert_exact, client, identity

from securefl.core.keys import Commitment, SecretKey, Signature
from securefl.core.messages import client_name
from securefl.engine.inprocess import SimulationCache
from securefl.secagg import Agreement, Channels, checks, dealing, quorum
from securefl.secagg.dealing import Tree
from securefl.secagg.messages import Confirmed, Dealt, Quorum, RosterClosed, Survivors


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An entry for each list of members that was looked at one by one."""
    honest()  # the run itself is not counted
    done: list[str] = []
    for module in (checks, quorum):
        own = module.ascending
        monkeypatch.setattr(
            module,
            "ascending",
            lambda numbers, allowed, own=own: done.append("list") or own(numbers, allowed),
        )
    return done


def test_the_lists_of_one_message_are_looked_at_once(counted: list[str]) -> None:
    """And a client of an equal agreement, as a party on a machine of its own has it, checks them itself."""
    one, other = (honest().clients[k] for k in (0, 1))
    roster, survivors = replace(one.at(RosterClosed)[1]), replace(one.at(Survivors)[1])
    for machine in (one, other):
        machine.inner.receive(machine.at(RosterClosed)[0], "server", roster)
    assert counted == ["list"]
    apart = replace(one.inner, agreement=replace(honest().agreed))
    apart.receive(one.at(RosterClosed)[0], "server", roster)
    assert counted == ["list"] * 2
    shown = one.at(Survivors)[0]
    for machine in (one, other):
        state = replace(machine.at(Survivors)[0], closed=shown.closed, dealers=shown.dealers)
        machine.inner.receive(state, "server", survivors)
    assert counted == ["list"] * 4  # survivors and dropped


@every(
    ("kind", "lie", "why"),
    [
        (RosterClosed, put(1, nonces=Commitment(bytes(32))), "Expected our own key, nonce and signature"),
        (
            Survivors,
            lambda s: Survivors(survivors=(0, *s.survivors[2:]), dropped=(1,)),
            "not among the survivors",
        ),
    ],
)
def test_what_others_took_is_refused_by_the_member_that_it_lacks(kind: type, lie: Any, why: str) -> None:
    """The same object, after another member found it good."""
    one, other = (honest().clients[k] for k in (0, 1))
    shown = lie(one.at(kind)[1])
    assert one.inner.receive(one.at(kind)[0], "server", shown).need is not None
    refused(other.inner, other.at(kind)[0], shown, why)


@every(
    ("kind", "lie", "why"),
    [
        (RosterClosed, put(3, signatures=Signature(b"")), "Expected a signature of member 3"),
        (Survivors, lambda s: replace(s, dropped=(3,)), "both survive and drop"),
    ],
)
def test_what_is_wrong_for_all_is_refused_by_each(kind: type, lie: Any, why: str) -> None:
    """The first refusal is not taken for a check that passed."""
    one, other = (honest().clients[k] for k in (0, 1))
    shown = lie(one.at(kind)[1])
    for machine in (one, other, one):
        refused(machine.inner, machine.at(kind)[0], shown, why)


def test_dealers_that_others_were_shown_are_refused_by_the_member_that_they_lack() -> None:
    """Equal lists of dealers are one object; whether a member is among them is its own question."""
    one, other = (honest().clients[k] for k in (0, 1))
    number = other.inner.channels.own
    dealers = tuple(k for k in one.at(Dealt)[1].dealers if k != number)
    for machine in (one, other):
        state, dealt, _ = machine.at(Dealt)
        lie = replace(dealt, dealers=dealers)
        refused(machine.inner, state, lie, "us among them" if machine is other else "neighbours")


def test_a_list_that_others_took_is_no_quorum_on_other_survivors() -> None:
    """A member that was shown other survivors checks the same list against its own."""
    one, other = (honest().clients[k] for k in (0, 1))
    state, came, _ = one.at(Quorum)
    assert one.inner.receive(state, "server", came).result == "answered"
    theirs = other.at(Quorum)[0]
    fewer = replace(theirs, survivors=theirs.survivors[:-1], confirmed=frozenset())
    refused(other.inner, fewer, came, "Expected distinct, ascending survivors as signers")


def test_a_tag_for_another_member_confirms_nothing() -> None:
    one, other = (honest().clients[k] for k in (0, 1))
    state, _, _ = one.at(Confirmed)
    theirs = other.at(Confirmed)[1]
    assert one.inner.receive(state, "server", theirs).state.confirmed == frozenset()


# Boxes, which their maker in this process has checked -------------------------------------------------


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An entry for each box that a holder opened itself."""
    done: list[str] = []
    own = dealing.unseal
    monkeypatch.setattr(dealing, "unseal", lambda *given: done.append("box") or own(*given))
    return done


def together(**terms: Any) -> Agreement:
    """An agreement whose parties are in one process."""
    agreed = agreement(5, **terms)
    return replace(agreed, roster=replace(agreed.roster, known=SimulationCache()))


def flipped(kind: bytes, back: int) -> Any:
    """Changes one byte of this kind of message of client 3, or to client 3: so far from its end."""

    def change(sender: str, to: str, data: bytes) -> bytes:
        if kind not in data[:40] or client_name(3) not in (sender, to):
            return data
        at = len(data) - 1 - back % (len(data) - 80)  # behind the header
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return change


def test_no_holder_opens_a_box_that_its_dealer_made_here(opening: list[str]) -> None:
    for agreed, boxes in ((together(), 0), (agreement(5), 20)):
        opening.clear()
        assert_exact(agreed, aggregate(agreed).server)
        assert len(opening) == boxes


@every("kind", [b"secagg-shares", b"secagg-dealt", b"secagg-consistent", b"secagg-confirmed"])
@every("back", [40, 300, 900, 1000, 1300, 1500])
def test_a_changed_byte_has_the_same_end_together_as_apart(kind: bytes, back: int) -> None:
    """In boxes, hashes, evidence and tags, on the way to the server and from it."""
    ends = []
    for agreed in (together(), agreement(5)):
        outcome = aggregate(agreed, tamper=flipped(kind, back))
        results = [outcome.results.get(client_name(k)) for k in range(5)]
        ends.append((results, type(outcome.server), getattr(outcome.server, "survivors", None)))
    assert ends[0] == ends[1]


def test_a_dealer_without_the_secret_of_the_two_cannot_speak_for_a_box() -> None:
    """It tells what it sealed under another key. The holder looks, as one apart does, and complains."""
    ends = []
    for agreed in (together(), agreement(5)):
        channels = Channels(identity(3), agreed.roster, agreed.header.session)
        channels._secrets[0] = SecretKey(bytes(32))
        liar = replace(client(3, agreed), channels=channels)
        ends.append(aggregate(agreed, machines={client_name(3): liar}).results[client_name(0)])
    assert ends == ["complained", "complained"]


def test_a_dealing_is_hashed_once_where_its_dealer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes the tree that follows from the very bytes that came. Of others it builds its own."""
    built: list[int] = []
    own = Tree.of
    monkeypatch.setattr(Tree, "of", lambda hashed: built.append(len(hashed)) or own(hashed))
    for agreed, trees in ((together(), 5), (agreement(5), 10)):
        built.clear()
        assert_exact(agreed, aggregate(agreed).server)
        assert len(built) == trees
    built.clear()
    aggregate(together(), tamper=flipped(b"secagg-shares", 300))
    assert len(built) == 6


def test_a_box_is_told_of_once_and_each_byte_counts() -> None:
    once = SimulationCache()
    once.made((b"a", b"b"), 7)
    assert [once.found(what) for what in ((b"ab", b""), (b"a", b"c"), (b"a",), (b"a", b"b"))] == [
        None
    ] * 3 + [7]
    assert once.found((b"a", b"b")) is None
    once.made((b"a", b"b"), 7)
    once.forget()
    assert (once.found((b"a", b"b")), len(once)) == (None, 0)
