"""One contract for every machine: pure, bounded, moved only by its peers, and never stuck.

A machine's class lists its reachable states by walking there, and messages good and bad; every test
tries every message in every state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from securefl.errors import RemoteProtocolError
from securefl.exchange import Client, KeyHolder, Server
from securefl.machine import Step
from securefl.messages import Broadcast, Contribution, OpenReply, OpenRequest, Order
from securefl.profiles import Query
from securefl.release import Delivered
from securefl.rounds import Ask, Each, Sends, Sum
from securefl.wire import Header

HEADER = Header(bytes(32), 1, 0, 0)
MODEL = np.zeros(2, np.float32)
STRANGERS = ("client-0009", "nobody", "")
ASK = Ask(
    cohort=(0, 1),
    model=MODEL,
    sums=(Sum(Sends(name="sum", how="sum", reveals="it"), 2),),
    each=(Each(Sends(name="profile", how="each", reveals="it"), Query(np.ones(1), np.ones(1))),),
)


def shown(value: Any) -> Any:
    """A value as nested tuples that compare bit by bit, arrays included."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, Mapping):
        return tuple((key, shown(item)) for key, item in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(shown(item) for item in value)
    if dataclasses.is_dataclass(value):
        return (
            type(value).__name__,
            *((f.name, shown(getattr(value, f.name))) for f in dataclasses.fields(value)),
        )
    return repr(value)


def outcome(call: Callable[..., Step[Any]], *args: Any) -> Any:
    """What a call returns or refuses, to compare; any other exception goes through and fails the test."""
    try:
        return shown(call(*args))
    except RemoteProtocolError as refusal:
        return (refusal.sender, refusal.phase, str(refusal))


def delivered(name: str, numbers: Any, form: Any = "open", sealed: bytes = b"") -> Delivered:
    return Delivered(name, form, numbers, sealed)


def contribution(number: int = 1, **changed: Delivered) -> Any:
    good = {
        "sum": delivered("sum", np.full(2, number, np.int32)),
        "profile": delivered("profile", np.zeros(0), "encrypted", b"ciphertext"),
    }
    return Contribution(releases=tuple({**good, **changed}.values()))  # type: ignore[arg-type]


class Contract:
    """`machine`, its `states()` by name, and `messages` as (sender, message, answer to its need)."""

    machine: Any
    peers: tuple[str, ...]
    good: tuple[tuple[str, Any], ...]
    bad: tuple[tuple[str, Any], ...]

    def states(self) -> dict[str, Any]:
        raise NotImplementedError

    def answer(self, order: Any) -> Any:
        """What the host would answer to a need."""
        raise NotImplementedError

    def messages(self) -> list[tuple[str, Any]]:
        strange = [(who, message) for who in STRANGERS for _, message in self.good]
        return [*self.good, *self.bad, *strange]

    def test_begin_gives_the_same_state_each_time(self) -> None:
        first, again = self.machine.begin(), self.machine.begin()
        assert isinstance(first, Step)
        assert shown(first) == shown(again)

    def test_states_are_frozen(self) -> None:
        for state in self.states().values():
            for name in [f.name for f in dataclasses.fields(state)] or ["anything"]:
                with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
                    setattr(state, name, None)

    def test_what_may_arrive_is_bounded_and_placed(self) -> None:
        for state in self.states().values():
            expects = self.machine.expects(state)
            assert expects.header == HEADER
            assert expects.kinds
            assert {type(message) for _, message in self.good} <= set(expects.kinds)
            assert all(hasattr(kind, "__wire__") and 0 < most < 10**6 for kind, most in expects.kinds.items())

    def test_receive_is_pure(self) -> None:
        for state in self.states().values():
            for sender, message in self.messages():
                before = shown(state), shown(message)
                first = outcome(self.machine.receive, state, sender, message)
                assert outcome(self.machine.receive, state, sender, message) == first
                assert (shown(state), shown(message)) == before

    def test_deadline_and_provide_are_pure(self) -> None:
        for state in self.states().values():
            before = shown(state)
            step = self.machine.deadline(state)
            assert shown(self.machine.deadline(state)) == shown(step)
            if step.need is not None:
                answer = self.answer(step.need.order)
                assert shown(self.machine.provide(step.state, answer)) == shown(
                    self.machine.provide(step.state, answer)
                )
            assert shown(state) == before

    def test_strangers_and_bad_messages_are_refused_by_name(self) -> None:
        start = self.machine.begin().state
        for sender, message in self.messages()[len(self.good) :]:
            with pytest.raises(RemoteProtocolError) as refused:
                self.machine.receive(start, sender, message)
            assert refused.value.sender == sender

    def test_the_deadline_always_ends_or_goes_forward(self) -> None:
        for name, state in self.states().items():
            seen, results = [shown(state)], []
            for _ in range(6):
                step = self.machine.deadline(state)
                results.append(step.result)
                while step.need is not None:
                    step = self.machine.provide(step.state, self.answer(step.need.order))
                    results.append(step.result)
                state = step.state
                seen.append(shown(state))
            assert seen[-1] == seen[-2], f"{name}: still moving after six deadlines"
            assert any(r is not None for r in results) or name == "closed", f"{name}: ends without a result"

    def test_a_message_is_worked_on_once(self) -> None:
        """The same message again asks for nothing; at most it has the answer sent once more."""
        for sender, message in self.good:
            for state in self.states().values():
                step = self.machine.receive(state, sender, message)
                after = (
                    step
                    if step.need is None
                    else self.machine.provide(step.state, self.answer(step.need.order))
                )
                for later in (step.state, after.state):
                    again = self.machine.receive(later, sender, message)
                    assert (again.need, again.result) == (None, None)
                    assert shown(again.out) in (shown(()), shown(after.out))
                    assert shown(again.state) == shown(later)


class TestClient(Contract):
    machine = Client(number=0, header=HEADER, offers=frozenset({"sum", "profile"}), most_bytes=999)
    order = Order(wants=("sum",), weight=0.5)
    broadcast = Broadcast(model=MODEL, names=("a",), arrays=(np.ones(1),))
    good = (("server", order), ("server", broadcast))
    bad = (
        *(("server", Order(wants=("sum",), weight=w)) for w in (0.0, -0.5, 2.0, float("nan"), float("inf"))),
        ("server", Order(wants=("records",), weight=1.0)),
        ("server", Order(wants=("sum", "sum"), weight=1.0)),
        ("server", Broadcast(model=MODEL, names=("a",), arrays=())),
        ("server", Broadcast(model=MODEL, names=(), arrays=(np.ones(1),))),
        ("server", Broadcast(model=MODEL, names=("a", "a"), arrays=(np.ones(1), np.ones(1)))),
        ("server", Broadcast(model=MODEL.reshape(1, 2), names=(), arrays=())),
        ("client-0001", order),
        ("key-holder", broadcast),
    )

    def states(self) -> dict[str, Any]:
        start = self.machine.begin().state
        ordered = self.machine.receive(start, "server", self.order).state
        working = self.machine.receive(ordered, "server", self.broadcast)
        assert working.need is not None
        return {
            "waiting": start,
            "ordered": ordered,
            "told": self.machine.receive(start, "server", self.broadcast).state,
            "working": working.state,
            "answered": self.machine.provide(working.state, ()).state,
            "abstained": self.machine.provide(working.state, None).state,
        }

    def answer(self, order: Any) -> Any:
        return ()

    def test_work_that_is_done_after_the_deadline_is_not_sent(self) -> None:
        late = self.machine.deadline(self.states()["working"]).state
        step = self.machine.provide(late, ())
        assert (step.out, step.result) == ((), None)

    def test_abstaining_is_silence(self) -> None:
        step = self.machine.provide(self.states()["working"], None)
        assert (step.out, step.result) == ((), "abstained")


class TestServer(Contract):
    machine = Server(
        ask=ASK,
        header=HEADER,
        most_bytes=999,
        encrypted=frozenset({"profile"}),
        gate=lambda sender, sealed: None,
    )
    good = (("client-0000", contribution()), ("client-0001", contribution(2)))
    bad = (
        ("client-0000", Contribution(releases=())),
        ("client-0000", Contribution(releases=contribution().releases[::-1])),
        ("client-0000", Contribution(releases=contribution().releases[:1])),
        ("client-0000", Contribution(releases=contribution().releases * 2)),
        ("client-0000", contribution(sum=delivered("sum", np.ones(2)))),
        ("client-0000", contribution(sum=delivered("sum", np.ones(2, np.int64)))),
        ("client-0000", contribution(sum=delivered("sum", np.ones(3, np.int32)))),
        ("client-0000", contribution(sum=delivered("sum", np.ones((2, 1), np.int32)))),
        ("client-0000", contribution(sum=delivered("sum", np.full(2, 2**30 + 1, np.int32)))),
        ("client-0000", contribution(sum=delivered("sum", np.full(2, -(2**31), np.int32)))),
        ("client-0000", contribution(sum=delivered("sum", np.ones(2, np.int32), "masked"))),
        ("client-0000", contribution(sum=delivered("sum", np.ones(2, np.int32), "open", b"x"))),
        ("client-0000", contribution(profile=delivered("profile", np.zeros(3)))),
        ("client-0000", contribution(profile=delivered("profile", np.zeros(0), "encrypted"))),
        ("client-0000", contribution(profile=delivered("profile", np.zeros(1), "encrypted", b"x"))),
        ("client-0000", OpenReply(items=(b"1", b"2"))),
        ("key-holder", contribution()),
        ("server", contribution()),
    )
    reply = OpenReply(items=(b"1", b"2"))

    def states(self) -> dict[str, Any]:
        start = self.machine.begin().state
        one = self.machine.receive(start, *self.good[0]).state
        matching = self.machine.receive(one, *self.good[1])
        assert matching.need is not None
        opening = self.machine.provide(matching.state, (("blind", "blind"), (b"a", b"b")))
        unblinding = self.machine.receive(opening.state, "key-holder", self.reply)
        assert unblinding.need is not None
        return {
            "collecting": start,
            "one came": one,
            "matching": matching.state,
            "opening": opening.state,
            "unblinding": unblinding.state,
            "closed": self.machine.provide(unblinding.state, (0.5, None)).state,
        }

    def answer(self, order: Any) -> Any:
        count = len(order.items) if hasattr(order, "items") else len(order.replies)
        return (("blind",) * count, (b"a",) * count) if hasattr(order, "items") else (0.5,) * count

    def test_a_second_reply_is_not_unblinded_again(self) -> None:
        unblinding = self.states()["unblinding"]
        step = self.machine.receive(unblinding, "key-holder", self.reply)
        assert (step.state, step.need) == (unblinding, None)

    @pytest.mark.parametrize("items", [(), (b"1",), (b"1", b"2", b"3")], ids=len)
    def test_a_reply_of_another_length_is_refused(self, items: tuple[bytes, ...]) -> None:
        with pytest.raises(RemoteProtocolError, match="one item a request"):
            self.machine.receive(self.states()["opening"], "key-holder", OpenReply(items=items))

    def test_the_key_holder_is_asked_three_times(self) -> None:
        opening = self.states()["opening"]
        first = self.machine.deadline(opening)
        second = self.machine.deadline(first.state)
        assert [e.message for e in first.out + second.out] == [opening.request] * 2
        assert first.result is second.result is None
        answered = self.machine.receive(second.state, "key-holder", self.reply)
        assert answered.need is not None

    def test_without_the_key_holder_the_sums_still_stand(self) -> None:
        for name in ("matching", "opening", "unblinding"):
            state = self.states()[name]
            while (result := self.machine.deadline(state).result) is None:
                state = self.machine.deadline(state).state
            assert result.survivors == (0, 1)
            assert (result.totals["sum"].value * 2**21).tolist() == [3, 3]
            assert result.each == {"profile": {}}

    def test_a_number_that_could_not_be_opened_is_absent_from_that_number_alone(self) -> None:
        result = self.machine.provide(self.states()["unblinding"], (0.5, None)).result
        assert result.each == {"profile": {0: 0.5}}
        assert result.survivors == (0, 1)

    def test_numbers_of_the_wrong_form_in_the_clear(self) -> None:
        """Where numbers travel open, an encrypted one is refused, and one whose score overflows."""
        open_server = dataclasses.replace(self.machine, encrypted=frozenset())
        start = open_server.begin().state
        fine = contribution(profile=delivered("profile", np.zeros(3)))
        assert 0 in open_server.receive(start, "client-0000", fine).state.numbers
        for came in (
            delivered("profile", np.ones(3), "encrypted", b"x"),
            delivered("profile", np.full(3, np.nan)),
            delivered("profile", np.array([np.inf, 0, 0])),
            delivered("profile", np.full(3, 1.7e308) * [-1, 1, -1]),
            delivered("profile", np.array([0.0, -1e9, 0.0])),
            delivered("profile", np.array([0.0, 1e30, 0.0])),
            delivered("profile", np.ones(3, np.float32)),
        ):
            with pytest.raises(RemoteProtocolError, match="client-0000"):
                open_server.receive(start, "client-0000", contribution(profile=came))


class TestServerOfClaims:
    """Numbers that clients state about themselves, with a public range."""

    size = Each(Sends(name="size", how="each", reveals="it"), least=1, most=100)
    machine = Server(ask=Ask(cohort=(0,), model=MODEL, each=(size,)), header=HEADER, most_bytes=999)

    @pytest.mark.parametrize("claim", [-1e9, 0.0, 100.5, 1.7e308, np.inf, np.nan])
    def test_a_claim_outside_the_range_costs_the_client_its_place(self, claim: float) -> None:
        message: Any = Contribution(releases=(delivered("size", np.array([claim])),))  # type: ignore[arg-type]
        with pytest.raises(RemoteProtocolError, match=r"public range|finite") as refused:
            self.machine.receive(self.machine.begin().state, "client-0000", message)
        assert refused.value.sender == "client-0000"

    def test_a_claim_inside_it_counts(self) -> None:
        message: Any = Contribution(releases=(delivered("size", np.array([100.0])),))  # type: ignore[arg-type]
        step = self.machine.receive(self.machine.begin().state, "client-0000", message)
        assert step.result.each == {"size": {0: 100.0}}

    def test_no_ciphertext_comes_in_where_there_is_no_gate(self) -> None:
        server = Server(ask=ASK, header=HEADER, most_bytes=999, encrypted=frozenset({"profile"}))
        with pytest.raises(RemoteProtocolError, match="No ciphertext"):
            server.receive(server.begin().state, "client-0000", contribution())


class TestKeyHolder(Contract):
    machine = KeyHolder(header=HEADER, most_bytes=999)
    good = (("server", OpenRequest(items=(b"a", b"b"))),)
    bad = (("client-0000", OpenRequest(items=(b"a",))), ("key-holder", OpenRequest(items=())))

    def states(self) -> dict[str, Any]:
        start = self.machine.begin().state
        return {"ready": start, "busy": self.machine.receive(start, *self.good[0]).state}

    def answer(self, order: Any) -> Any:
        return order.items

    def test_a_deadline_before_the_request_does_not_close_the_door(self) -> None:
        """The server may still be collecting when the key holder's own clock runs out."""
        waited = self.machine.deadline(self.machine.begin().state)
        assert waited.result == "unused"
        assert self.machine.receive(waited.state, *self.good[0]).need is not None
