"""What one member of a simulation has checked for all: each of them still sees what concerns itself.

The members of one process have one agreement object and one decoded message. Attacks here show one of them
something else, or something that is wrong for all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.liars import swapped
from support.recorded import honest, refused
from support.tiny_secagg import client

from securefl.core.keys import Commitment, Signature
from securefl.secagg import checks, quorum
from securefl.secagg.messages import Confirmed, Dealt, Quorum, RosterClosed, Survivors


def twin(message: Any) -> Any:
    """An equal message that is another object."""
    return type(message)(**{name: getattr(message, name) for name, _ in message.__wire__.fields})


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
    one, other = (honest().clients[k] for k in (0, 1))
    roster, survivors = twin(one.at(RosterClosed)[1]), twin(one.at(Survivors)[1])
    for machine in (one, other):
        machine.inner.receive(machine.at(RosterClosed)[0], "server", roster)
    assert counted == ["list"]
    states = [machine.at(Survivors)[0] for machine in (one, other)]
    shared = [replace(state, closed=states[0].closed, dealers=states[0].dealers) for state in states]
    for machine, state in zip((one, other), shared, strict=True):
        machine.inner.receive(state, "server", survivors)
    assert counted == ["list"] * 3  # survivors and dropped


def test_a_roster_that_others_took_is_refused_by_the_member_whose_entry_it_lacks() -> None:
    """The same object, after another member found it good."""
    one, other = (honest().clients[k] for k in (0, 1))
    roster = one.at(RosterClosed)[1]
    lie = replace(roster, nonces=swapped(roster.nonces, other.inner.channels.own, Commitment(bytes(32))))
    assert one.inner.receive(one.at(RosterClosed)[0], "server", lie).need is not None
    refused(other.inner, other.at(RosterClosed)[0], lie, "Expected our own key, nonce and signature")


def test_a_roster_that_is_wrong_for_all_is_refused_by_each() -> None:
    """The first refusal is not taken for a check that passed."""
    one, other = (honest().clients[k] for k in (0, 1))
    roster = one.at(RosterClosed)[1]
    lie = replace(roster, signatures=swapped(roster.signatures, 3, Signature(b"")))
    for machine in (one, other, one):
        refused(machine.inner, machine.at(RosterClosed)[0], lie, "Expected a signature of member 3")


def test_survivors_that_are_wrong_for_all_are_refused_by_each() -> None:
    one, other = (honest().clients[k] for k in (0, 1))
    lie = replace(one.at(Survivors)[1], dropped=(3,))
    for machine in (one, other, one):
        refused(machine.inner, machine.at(Survivors)[0], lie, "both survive and drop")


def test_survivors_that_others_took_are_refused_by_the_member_that_is_not_among_them() -> None:
    one, other = (honest().clients[k] for k in (0, 1))
    came, number = one.at(Survivors)[1], other.inner.channels.own
    lie = Survivors(survivors=tuple(k for k in came.survivors if k != number), dropped=(number,))
    assert one.inner.receive(one.at(Survivors)[0], "server", lie).need is not None
    refused(other.inner, other.at(Survivors)[0], lie, "not among the survivors")


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


def test_a_client_of_another_agreement_checks_the_roster_itself(counted: list[str]) -> None:
    """An equal agreement that is another object, as a party on a machine of its own has it."""
    one = honest().clients[0]
    state, roster, _ = one.at(RosterClosed)
    agreed = replace(honest().agreed)
    one.inner.receive(state, "server", roster)
    before = len(counted)
    alone = client(0, agreed)
    replace(alone, channels=one.inner.channels).receive(state, "server", roster)
    assert len(counted) == before + 1
