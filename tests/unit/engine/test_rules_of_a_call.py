"""What a client takes from its order, and never from the server's call to the sum of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.ordered_clients import COHORT, EVERYBODY, MODEL, PLAN, clients, ordered, sum_call, summing
from support.tiny_orders import order

from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Value, ValueSpec
from securefl.algorithm.weighing import Weights
from securefl.core.agreement import Identity
from securefl.core.errors import RemoteProtocolError
from securefl.core.messages import Cohort, ContributionMessage
from securefl.core.release import SERVER
from securefl.core.wire import Limit, decode, encode
from securefl.engine.drive import Packet
from securefl.he.keys import KeyPair
from securefl.he.parameters import STRONG
from securefl.sums.encrypted.scheme import _PURPOSE

MASKED = replace(PLAN, sum="masked")
CKKS = replace(PLAN, sum="ckks")
WAYS = pytest.mark.parametrize("plan", [MASKED, PLAN], ids=["masked", "two-server"])


def signs(plan: Plan, call: Any, cohort: Cohort = COHORT) -> Any:
    """The agreement that the first client signs when it is called so."""
    return ordered(plan, cohort).call(call).machines[EVERYBODY[0]].agreement  # type: ignore[attr-defined]


# The order, and not the call ---------------------------------------------------------------------------

LIES: dict[str, dict[str, Any]] = {
    "more were ordered": {"draws": (2, 2, 1, 1, 1, 1, 1)},
    "fewer were ordered": {"draws": (2, 2, 1, 1, 1)},
    "other draws": {"draws": (1, 1, 1, 1, 2, 2)},
    "another number of draws": {"whole": 9},
    "weighed equally": {"draws": (1,) * 6, "whole": 0},
    "weighed by counts": {"draws": (1,) * 6, "whole": 0, "records": 40},
    "an introduction": {"initial": 1},
    "another Ask": {"number": 1},
    "put anew": {"again": 1},
    "told something else": {"task": b"x" * 32},
}


@WAYS
@pytest.mark.parametrize("lie", LIES)
def test_what_a_client_signs_does_not_change_with_what_the_call_says(lie: str, plan: Plan) -> None:
    """Weights and questions are those of the client's own order, whatever the server calls them."""
    assert signs(plan, sum_call(**LIES[lie])).context == signs(plan, sum_call()).context


def test_a_client_signs_the_weights_of_its_order() -> None:
    agreed = signs(PLAN, sum_call(draws=(1,) * 6, whole=0))
    assert (agreed.ordered, agreed.weights) == (6, Weights((2, 2, 1, 1, 1, 1), whole=8).encoded())
    assert signs(MASKED, sum_call(draws=(1,) * 9)).parameters.ordered == 6


@WAYS
def test_a_client_signs_another_agreement_when_it_was_ordered_otherwise(plan: Plan) -> None:
    other = replace(COHORT, draws=(1, 1, 1, 1, 2, 2))
    assert signs(plan, sum_call(), other).context != signs(plan, sum_call()).context
    anew = replace(plan, noise="none", max_retries=0)
    assert signs(anew, sum_call()).context != signs(plan, sum_call()).context


# Who and what is called --------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize(
    "members",
    [(0, 1, 2, 3, 4, 6), (0, 1, 2, 3, 6), (0, 1, 2, 3, 4, 5, 6)],
    ids=["in place of one", "in place of two", "beside all"],
)
def test_a_call_for_members_outside_the_order_is_refused(members: tuple[int, ...], plan: Plan) -> None:
    """Client 6 has pinned keys, and nobody was told that it takes part."""
    made = ordered(plan)
    with pytest.raises(RemoteProtocolError, match="among the 6 clients"):
        made.call(sum_call(members=members))
    assert set(made.call(sum_call(members=(0, 1, 2, 3, 4))).machines) == set(EVERYBODY[:5])


@every("wrong", [{"names": ("own", "other"), "lengths": (3, 3)}, {"names": ("other",)}])
def test_a_call_for_other_sums_than_were_ordered_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match=r"a call for \('own',\)"):
        ordered().call(sum_call(**wrong))


@every("place", [{"stage": 1, "attempt": 0}, {"round": 2}, {"round": 2, "attempt": 0}])
def test_an_order_of_another_ask_is_no_order_for_this_sum(place: dict[str, int]) -> None:
    """The stage tells the Asks of a round apart, and a round's order ends with it."""
    made = ordered()
    with pytest.raises(RemoteProtocolError, match="of the order"):
        made.call(sum_call(), at=replace(made.at, **place))


def test_a_client_without_an_order_takes_no_part() -> None:
    made = clients()
    made.tell(summing(), MODEL, to=EVERYBODY[:5]).work()
    assert set(made.call(sum_call()).machines) == set(EVERYBODY[:5])


# The first order, and the first broadcast --------------------------------------------------------------

TWO = tuple(ValueSpec(name=name, reduction="none", reveals="it") for name in ("one", "other"))
OPEN = Plan(delta=1e-5, max_rounds=3, non_private=("one", "other"))


def told_twice(*messages: Any) -> tuple[str, float]:
    """The name of what a client releases, and the first number of the model that it computed it on."""
    gives = [
        ClientFunction(spec, lambda context: Value(clear=np.float64(context.broadcast[:1]))) for spec in TWO
    ]
    made, name = clients(OPEN, gives), "client-0001"
    drive = made.tell(*messages, to=[name])
    assert drive.traffic.rejected_from == {}
    [parcel] = drive.work()
    came: Any = decode(parcel.data, made.at, {ContributionMessage: Limit(10**6, 99)}, name)
    [release] = came.releases
    return release.name, float(release.numbers[0])


def model(value: float) -> Any:
    return replace(MODEL, model=np.full(2, value, np.float32))


ONE, OTHER = order("one"), order("other")


@every(
    "messages",
    [
        (ONE, OTHER, model(7)),
        (ONE, OTHER, OTHER, model(7), OTHER),
        (model(7), model(8), ONE),
        (model(7), model(8), model(8), ONE, model(8)),
    ],
)
def test_a_second_order_or_broadcast_does_not_replace_the_first(messages: Any) -> None:
    """The first was checked, and charges were made for it."""
    assert told_twice(*messages) == ("one", 7.0)


# The key holder's key ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def public() -> bytes:
    """A good key for encrypted sums, of nobody yet."""
    return KeyPair.generate(STRONG).public.key.raw


@every(
    "who",
    ["key holder", "server", "stranger", "nobody", "another purpose", "another session", "another key"],
)
def test_clients_of_an_encrypted_sum_take_the_key_that_the_key_holder_signed_alone(
    who: str, public: bytes
) -> None:
    """A server that named a key of its own would read every client's value."""
    made = ordered(CKKS)
    holder, session = made.parties.key_holder.identity, made.at.session
    keys = {
        "key holder": holder.vouch(_PURPOSE, session, public),
        "server": made.parties.server.identity.vouch(_PURPOSE, session, public),
        "stranger": Identity.generate("key-holder").vouch(_PURPOSE, session, public),
        "nobody": public + bytes(64),
        "another purpose": holder.vouch(b"scores", session, public),
        "another session": holder.vouch(_PURPOSE, b"x" * 32, public),
        "another key": public + holder.vouch(_PURPOSE, session, bytes(len(public)))[-64:],
    }
    if who == "key holder":
        assert set(made.call(sum_call(key=keys[who])).machines) == set(EVERYBODY)
        return
    with pytest.raises(RemoteProtocolError) as refused:
        made.call(sum_call(key=keys[who]))
    assert refused.value.sender == SERVER


# One digest for those who were shown the same ----------------------------------------------------------


@every(
    "other",
    [
        replace(MODEL, model=np.array([0, -0.0], np.float32)),
        replace(MODEL, model=np.zeros(3, np.float32)),
        replace(MODEL, names=("a",), arrays=(np.zeros(1),)),
    ],
)
def test_clients_that_were_shown_other_bytes_sign_another_agreement(other: Any) -> None:
    made = clients()
    drive = made.tell(summing())
    for name in EVERYBODY:
        shown = other if name == EVERYBODY[-1] else MODEL
        drive.deliver(Packet(SERVER, name, encode(made.at, shown)))
    drive.work()
    machines: Any = made.call(sum_call()).machines
    contexts = [machines[name].agreement.context for name in EVERYBODY]
    assert len(set(contexts[:-1])) == 1
    assert contexts[-1] != contexts[0]
