"""Ways of scoring by their words, and the key holder's turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.machine import Outgoing
from securefl.core.messages import OpenRequest
from securefl.core.wire import Header, Limit
from securefl.linear.opener import KeyHolder, OpenItems, Ready
from securefl.linear.registry import scheme_of
from securefl.mechanisms.charges import charge_of

SERVER = "server"


class Echo:
    def open(self, turn: int, items: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return items


def machine(turns: int = 2) -> KeyHolder:
    return KeyHolder(header=Header(bytes(32), 1, 0, 0), most=Limit(999, 9), turns=turns, part=Echo())


def asked(state: Ready, turn: int, item: bytes = b"a") -> Ready:
    """The state after this turn was asked for and answered."""
    holder = machine()
    step = holder.receive(state, SERVER, OpenRequest(turn=turn, items=(item,)))
    assert step.need is not None
    order: OpenItems = step.need.order
    done = holder.provide(step.state, order.run())
    assert [envelope.to for envelope in done.out if isinstance(envelope, Outgoing)] == [(SERVER,)]
    return done.state


@pytest.mark.parametrize(
    ("turns_done", "turn", "said"),
    [
        (0, 1, "Expected turn 0, got turn 1; there are 2, from 0."),
        (0, -1, "Expected turn 0, got turn -1; there are 2, from 0."),
        (1, 2, "Expected turn 1, got turn 2; there are 2, from 0."),
        (2, 2, "Expected no further turn, got turn 2; there are 2, from 0."),
    ],
)
def test_a_turn_that_is_not_due_is_refused_in_words(turns_done: int, turn: int, said: str) -> None:
    state = Ready()
    for done in range(turns_done):
        state = asked(state, done)
    with pytest.raises(RemoteProtocolError) as refused:
        machine().receive(state, SERVER, OpenRequest(turn=turn, items=(b"a",)))
    assert (refused.value.sender, said in str(refused.value)) == (SERVER, True)


def test_a_turn_is_opened_after_the_one_before_it_was_answered() -> None:
    holder = machine()
    working = holder.receive(Ready(), SERVER, OpenRequest(turn=0, items=(b"a",))).state
    with pytest.raises(RemoteProtocolError, match="turn 0, got turn 1"):
        holder.receive(working, SERVER, OpenRequest(turn=1, items=(b"b",)))
    again = holder.receive(working, SERVER, OpenRequest(turn=0, items=(b"a",)))
    assert (again.need, again.out) == (None, ())


def test_a_profile_costs_the_same_whatever_hides_its_score() -> None:
    spec = ValueSpec(
        name="profile",
        reduction="none",
        reveals="it",
        sensitivity={("record", "replace-one"): 2.0},
        initial_queries=1,
    )
    for noise, multiplier in (("none", 0.0), ("local", 3.0)):
        plan = Plan(
            delta=1e-5,
            max_rounds=1,
            noise=noise,  # type: ignore[arg-type]
            noise_multiplier=multiplier,
            non_private=() if multiplier else ("profile",),
        )
        words = ("clear", "ckks", "pads", "dealt-pads")
        charges = [charge_of(replace(plan, scores=word), spec) for word in words]  # type: ignore[arg-type]
        assert charges == charges[:1] * len(words)


def test_a_word_that_is_no_way_is_refused_with_those_that_are() -> None:
    plan = Plan(delta=1e-5, max_rounds=1, scores="pad")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="dealt-pads, got 'pad'"):
        scheme_of(plan.scores, parameters="strong", asks=1, clients=1)


def test_an_unknown_name_of_parameters_is_refused_with_those_that_are() -> None:
    plan = Plan(delta=1e-5, max_rounds=1, scores="ckks")
    with pytest.raises(ConfigError, match="or 'strong-encrypted'"):
        scheme_of(plan.scores, parameters="stronger", asks=1, clients=1)


@pytest.mark.parametrize("sender", ["client-0000", "key-holder"])
def test_a_client_gets_no_opening(sender: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        machine().receive(Ready(), sender, OpenRequest(turn=0, items=(b"a",)))
    assert refused.value.sender == sender
