"""Ways of scoring by their words, and the key holder's one request."""

from __future__ import annotations

import pytest
from support.every import every

from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.messages import OpenRequest
from securefl.core.wire import Header, Limit
from securefl.linear.registry import scheme_of
from securefl.linear.scheme import OpeningMachine, Ready

SERVER = "server"
MACHINE = OpeningMachine(
    header=Header(bytes(32), 1, 0, 0),
    most=Limit(999, 9),
    open_=lambda item: item,
    report=lambda sender, why: None,
)


def test_one_request_is_opened_and_the_same_one_has_its_reply_again() -> None:
    working = MACHINE.receive(Ready(), SERVER, OpenRequest(items=(b"a",)))
    assert working.need is not None
    done = MACHINE.provide(working.state, working.need.order.run())
    for state, out in ((working.state, ()), (done.state, done.out)):
        with pytest.raises(RemoteProtocolError, match="one is opened"):
            MACHINE.receive(state, SERVER, OpenRequest(items=(b"b",)))
        again = MACHINE.receive(state, SERVER, OpenRequest(items=(b"a",)))
        assert (again.state, again.need, again.out) == (state, None, out)


def test_a_word_that_is_no_way_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="pads, got 'pad'"):
        Plan(delta=1e-5, max_rounds=1, scores="pad")  # type: ignore[arg-type]


def test_an_unknown_name_of_parameters_is_refused_with_those_that_are() -> None:
    plan = Plan(delta=1e-5, max_rounds=1, scores="ckks")
    for word in ("stronger", "strong-encrypted"):
        with pytest.raises(ConfigError, match="'strong' or 'compact'"):
            scheme_of(plan.scores, parameters=word, asks=1, clients=1)


@every("sender", ["client-0000", "key-holder"])
def test_a_client_gets_no_opening(sender: str) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        MACHINE.receive(Ready(), sender, OpenRequest(items=(b"a",)))
    assert refused.value.sender == sender
