"""A lying server, SuperLink or relay, through Flower messages: no sum but of clients who agree on all of it.

Whatever is done to client 2, the model is that of a round with it or without it, or there is none. What its
ledger has of the round is one release of each value, or less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from support.every import every
from support.grid_double import silent
from support.grid_parties import Parties
from support.hidden_studies import hidden
from support.tiny_study import with_privacy

from securefl.core.agreement import Identity
from securefl.core.release import SERVER
from securefl.deployment.messages import REFUSED, Parcel, Turn, encode_envelope
from securefl.flower.records import unwrapped, wrapped

VICTIM, EVERYBODY, OTHERS = "client-0002", (0, 1, 2, 3), (0, 1, 3)
ARM = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\n'
Frames = Callable[[int, bytes], bytes | None]
"""From the number of a frame to the victim, and the frame, to what arrives."""


def study(rounds: int = 1) -> str:
    of_four = {"corrupt": "0.0", "dropout": "0.25", "min_cohort_size": "4"}
    return with_privacy(hidden("masked", ARM, clients=4, rounds=rounds), of_four)


def another_model(turn: Turn) -> Turn:
    """The broadcast is the longest thing that is said."""

    def changed(data: bytes) -> bytes:
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if len(data) > 1000 else data

    return replace(turn, packets=tuple(Parcel(own.name, changed(own.data)) for own in turn.packets))


TURNS: dict[str, Callable[[Turn], Turn]] = {
    "another model": another_model,
    "words under another name": lambda turn: replace(
        turn, packets=tuple(Parcel("client-0003", own.data) for own in turn.packets)
    ),
    "every word twice": lambda turn: replace(turn, packets=turn.packets * 2),
    "a word of nobody": lambda turn: replace(turn, packets=(*turn.packets, Parcel("client-0009", b"x"))),
    "a deadline in every wave": lambda turn: replace(turn, deadline=1),
    "no words": lambda turn: replace(turn, packets=()),
    "the key holder's call": lambda turn: replace(turn, call=b"x" if turn.call else b""),
}
FRAMES: dict[str, Frames] = {
    "a frame cut in the middle": lambda number, frame: frame if number == 1 else frame[: len(frame) // 2],
    "a request to enter in every wave": lambda number, frame: frame,
}
ATTACKS = [("server", name) for name in TURNS] + [("relay", name) for name in (*TURNS, *FRAMES)]


def meddling(parties: Parties, frames: Frames) -> None:
    """Have what the victim's node is sent pass through `frames`."""
    count, node = [0], parties.nodes[VICTIM]

    def meddle(to: int, message: Message) -> Message | None:
        if to != node:
            return message
        count[0] += 1
        arrives = frames(count[0], unwrapped(message.content, sender=SERVER))
        if arrives is None:
            return None
        message.content = wrapped(arrives)
        return message

    parties.grid.meddle = meddle


@cache
def model(survivors: tuple[int, ...]) -> Any:
    """The model after round 1, if these clients are in it."""
    parties = Parties(study())
    engine = parties.apart()
    if survivors == OTHERS:
        parties.grid.fates = {parties.nodes[VICTIM]: silent}
    (state,) = parties.played(engine)
    return state.broadcast


def require_one_release_each(parties: Parties) -> None:
    """A row of a ledger begins with the holder's name; a round, a stage and a name make a question."""
    said = Counter((row[2], row[3], row[5]) for row in parties.files[VICTIM].ledger.rows())
    assert not said or max(said.values()) <= 2  # one, and one more of the spare attempt


@every(("who", "attack"), ATTACKS)
def test_the_sum_is_of_clients_who_agree_or_there_is_none(who: str, attack: str) -> None:
    """A server signs what it changes. A relay cannot: the party does not even read it."""
    parties, first = Parties(study()), list[bytes]()
    engine = parties.apart()

    def frames(number: int, frame: bytes) -> bytes | None:
        first.append(frame)  # the first is the request to enter
        if attack in TURNS:
            signed = who == "server"
            return frame if number == 1 else parties.turned(VICTIM, frame, TURNS[attack], signed=signed)
        again = attack == "a request to enter in every wave" and number > 2
        return first[0] if again else FRAMES[attack](number, frame)

    meddling(parties, frames)
    (state,) = parties.played(engine)
    (survivors,) = parties.survivors[1]
    assert survivors in (EVERYBODY, OTHERS, ())
    if survivors:
        assert np.array_equal(state.broadcast, model(survivors))
    else:
        assert np.array_equal(state.broadcast, parties.made.algorithm.start().broadcast)
    if attack == "another model":
        assert survivors != EVERYBODY
    if who == "relay" and attack in TURNS:
        assert "that the server signed" in parties.why(VICTIM)
        assert survivors == OTHERS
        assert list(parties.files[VICTIM].ledger.rows()) == []
    require_one_release_each(parties)


@every("attack", TURNS)
def test_a_relay_that_meddled_leaves_no_party_deaf(attack: str) -> None:
    parties, rounds = Parties(study(rounds=2)), [0]
    engine = parties.apart()

    def frames(number: int, frame: bytes) -> bytes | None:
        here = rounds[0] == 1 and number > 1
        return parties.turned(VICTIM, frame, TURNS[attack], signed=False) if here else frame

    meddling(parties, frames)
    parties.played(engine, lambda number: rounds.__setitem__(0, number))
    assert parties.survivors[2] == {EVERYBODY}


def test_yesterdays_round_is_refused() -> None:
    parties, seen = Parties(study(rounds=2)), list[bytes]()
    engine, rounds = parties.apart(), [0]

    def frames(number: int, frame: bytes) -> bytes | None:
        if rounds[0] == 1:
            seen.append(frame)
            return frame
        return seen[1 + number - len(seen) - 1] if 1 + number - len(seen) - 1 < len(seen) else frame

    meddling(parties, frames)
    parties.played(engine, lambda number: rounds.__setitem__(0, number))
    assert parties.survivors == {1: {EVERYBODY}, 2: {OTHERS}}
    assert "was replayed" in parties.why(VICTIM)


@every("answer", [b"", b"x" * 200_000, encode_envelope(Turn()), REFUSED])
def test_other_code_on_a_node_costs_its_party_the_round(answer: bytes) -> None:
    parties = Parties(study())
    honest = parties.relay

    def relay(message: Message, name: str, query: Callable[[bytes], bytes]) -> Message:
        return honest(message, name, query if name != VICTIM else lambda request: answer)

    parties.relay = relay
    (state,) = parties.played(parties.apart())
    assert parties.survivors == {1: {OTHERS}}
    assert np.array_equal(state.broadcast, model(OTHERS))


def test_a_second_superlink_s_server_enters_nobody() -> None:
    parties = Parties(study())
    parties.grid  # noqa: B018 -- parties have pinned the right server's keys
    parties.keys[SERVER] = Identity.generate(SERVER)
    with pytest.raises(Exception, match="own keys in the directory"):
        parties.apart()
    # One that has other keys, and a roster of its own making.
    members = {**parties.pinned.members, SERVER: parties.keys[SERVER].member()}
    parties.pinned = replace(parties.pinned, members=members)
    parties.session = parties.pinned.session(parties.made.plan, bytes(32))
    parties.played(parties.apart())
    assert parties.survivors == {1: {()}}
    assert "did not sign" in parties.why(VICTIM)
    assert list(parties.files[VICTIM].ledger.rows()) == []


def test_another_plan_enters_nobody_and_is_named_to_the_owners() -> None:
    parties = Parties(study())
    parties.grid  # noqa: B018 -- parties have their own copy of the plan
    parties.made = replace(parties.made, plan=replace(parties.made.plan, max_client_weight=0.9))
    parties.files[SERVER].ledger = parties.files[VICTIM].ledger
    parties.session = parties.pinned.session(parties.made.plan, bytes(32))
    parties.played(parties.apart())
    assert parties.survivors == {1: {()}}
    assert "max_client_weight: 0.51 here, 0.9 at the server" in parties.why(VICTIM)
