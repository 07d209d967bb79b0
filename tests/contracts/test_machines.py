"""One contract for every machine: pure, bounded, moved only by its peers, and never stuck.

A machine's class lists its reachable states by walking there, and messages good and bad; every test
tries every message in every state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import tiny_two_server as two
from support.every import every
from support.hidden_plans import hidden
from support.tiny_orders import order

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, PerClient, Schedule, Sum, ValueSpec
from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Agreement, Identity, Roster, Vector
from securefl.core.errors import RemoteProtocolError
from securefl.core.hiding import ComputeAndConceal
from securefl.core.keys import Commitment, SecretKey, Signature
from securefl.core.machine import Step
from securefl.core.messages import (
    REFUSED,
    Broadcast,
    Cohort,
    ContributionMessage,
    OpenReply,
    OpenRequest,
    client_name,
)
from securefl.core.release import Delivered
from securefl.core.wire import Header, Limit
from securefl.engine.exchange import Client, Server
from securefl.linear.scheme import KeyHolderRequest, OpeningMachine
from securefl.matching.profiles import Bounds, ProfileQuery, Variant
from securefl.sums.encrypted.messages import EncryptedInput, SumRequest
from securefl.sums.encrypted.scheme import (
    AddingPart,
    EncryptingPart,
    OpeningPart,
    input_digest,
    signed_input,
)
from securefl.sums.opened import OpenedClient, OpenedKeyHolder, OpenedServer
from securefl.sums.scheme import Opened, Unopened
from securefl.sums.two_server.messages import PadReply

NOBODY: Any = None
"""In place of a part that is not asked."""
COUNTING: Any = SimpleNamespace(add=lambda total, message, sender: (total or 0) + 1, message_bytes=99)
HEADER = Header(bytes(32), 1, 0, 0)
PLACE = Header(bytes(32), 1, 1, 0)
MODEL = np.zeros(2, np.float32)
STRANGERS = ("client-0009", "nobody", "")
ASK = CohortQuery(
    cohort=(0, 1),
    broadcast=MODEL,
    sums=(Sum(ValueSpec(name="sum", reduction="sum", reveals="it", weighs="draws"), 2),),
    per_client=(
        PerClient(
            ValueSpec(name="profile", reduction="none", reveals="it", schedule=Schedule(max_releases=1)),
            ProfileQuery(np.ones(1), np.ones(1)).linear(Variant.FULL, Bounds()),
        ),
    ),
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
    return ContributionMessage(releases=tuple({**good, **changed}.values()))  # type: ignore[arg-type]


class Contract:
    """`machine`, its `states()` by name, and `messages` as (sender, message, answer to its need)."""

    machine: Any
    peers: tuple[str, ...]
    good: tuple[tuple[str, Any], ...]
    bad: tuple[tuple[str, Any], ...]
    header = HEADER

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
            assert expects.header == self.header
            assert expects.kinds
            assert {type(message) for _, message in self.good} <= set(expects.kinds)
            assert all(hasattr(kind, "__wire__") for kind in expects.kinds)
            for most in expects.kinds.values():
                assert 0 < most.bytes < 10**6
                assert 0 <= most.elements < 10**3

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


SUM, PROFILE = ASK.sums[0].spec, ASK.per_client[0].spec
OFFERS = {"sum": SUM, "profile": PROFILE}
PLAN = Plan(delta=1e-5, max_rounds=1, non_private=("sum", "profile"), weights={"sum": "draws"}, draws=5)
BROADCAST = Broadcast(model=MODEL, names=("a",), arrays=(np.ones(1),))
BROADCASTS: tuple[tuple[str, Any], ...] = (
    ("server", Broadcast(model=MODEL, names=("a",), arrays=())),
    ("server", Broadcast(model=MODEL, names=(), arrays=(np.ones(1),))),
    ("server", Broadcast(model=MODEL, names=("a", "a"), arrays=(np.ones(1), np.ones(1)))),
    ("server", Broadcast(model=MODEL.reshape(1, 2), names=(), arrays=())),
    ("key-holder", BROADCAST),
)


def bad_orders(*wants: str, good: dict[str, Any], bad: tuple[dict[str, Any], ...]) -> Any:
    """The same order with something else in it, each by itself."""
    return tuple(("server", order(*wants, **(good | change))) for change in bad)


class TestClient(Contract):
    machine = Client(number=0, header=HEADER, plan=PLAN, contributions=OFFERS, most=Limit(999, 99))
    drawn: dict[str, Any] = {"draws": 1, "whole": 2, "most": 1, "lengths": (2,)}  # noqa: RUF012
    ordered = order("sum", **drawn)
    broadcast = BROADCAST
    good = (("server", ordered), ("server", broadcast))
    bad = (
        *bad_orders(
            "sum",
            good=drawn,
            bad=(
                {"cohort": Cohort(members=(0,), draws=(1,)).digest},  # in the clear nobody is named
                {"draws": 0},
                {"draws": -1},
                {"draws": 2},  # more than the most of one client
                {"whole": 0},
                {"lengths": ()},
                {"lengths": (2, 2)},
                {"whole": 0, "most": 0, "draws": 2},  # without a whole each is drawn once
                {"whole": 1, "most": 2, "draws": 2},
                {"records": -1},
                {"initial": 1},
                {"initial": -1},
                {"number": 1},
                {"number": -1},
                {"number": 1, "initial": 1},
                {"again": 1},
                {"again": -1},
                {"sums": ("profile",)},
                {"sums": ("sum",)},
            ),
        ),
        ("server", order("records", **drawn)),
        ("server", order("sum", "sum", **drawn)),
        ("server", order(sums=("sum",), **drawn)),
        *BROADCASTS,
        ("client-0001", ordered),
    )

    def states(self) -> dict[str, Any]:
        start = self.machine.begin().state
        ordered = self.machine.receive(start, "server", self.ordered).state
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


class TestClientOfHiddenSums(TestClient):
    """Its whole cohort acts on the same order, so the draws are all there."""

    machine = Client(
        number=0,
        header=HEADER,
        plan=hidden(PLAN, 4, max_client_weight=0.9),
        contributions=OFFERS,
        most=Limit(999, 99),
        cohort=Cohort(members=(0, 1, 4), draws=(2, 2, 1)),
    )
    drawn: dict[str, Any] = {  # noqa: RUF012
        "sums": ("sum",),
        "cohort": machine.cohort.digest,  # type: ignore[union-attr]
        "draws": 0,
        "whole": 5,
        "most": 2,
    }
    ordered = order("profile", **drawn)
    good = (("server", ordered), ("server", BROADCAST))
    bad = (
        *bad_orders(
            "profile",
            good=drawn,
            bad=(
                # Cohorts that a plan or the arithmetic forbids: tests/unit/engine/test_cohort_by_digest.py.
                {"cohort": Cohort(members=(0, 1), draws=(3, 2)).digest, "most": 3},
                {"cohort": Cohort(members=(0, 1, 4), draws=(2, 1, 2)).digest},
                {"cohort": b""},
                {"cohort": bytes(31)},
                {"draws": 2},
                {"whole": 6},
                {"most": 3},
                {"whole": 0, "most": 0},  # equal weights
                {"whole": 0, "most": 0, "records": 9},  # by counts
                {"records": 9},
                {"sums": ("sum", "sum")},
                {"initial": 1},
                {"again": 1},
            ),
        ),
        ("server", order("sum", **(drawn | {"sums": ()}))),  # a hidden sum in the clear
        ("server", order(**(drawn | {"sums": ("sum", "profile")}))),  # a number as a sum
        *BROADCASTS,
    )


PLACES = ((0, "profile"), (1, "profile"))


def then(items: tuple[bytes, ...]) -> str:
    return "work"


ASKED = KeyHolderRequest((b"a", b"b"), then)
SCORING: Any = SimpleNamespace(
    names=frozenset({"profile"}),
    replies=Limit(999, 9),
    admit=lambda sender, sealed: None,
    request=lambda sent: ("score", tuple(one.place for one in sent)),
)


class TestServer(Contract):
    machine = Server(
        query=ASK,
        header=HEADER,
        most=Limit(999, 99),
        scoring=SCORING,
    )
    good = (("client-0000", contribution()), ("client-0001", contribution(2)))
    bad = (
        ("client-0000", ContributionMessage(releases=())),
        ("client-0000", ContributionMessage(releases=contribution().releases[::-1])),
        ("client-0000", ContributionMessage(releases=contribution().releases[:1])),
        ("client-0000", ContributionMessage(releases=contribution().releases * 2)),
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
        working = self.machine.receive(one, *self.good[1])
        assert working.need is not None
        assert working.need.order.run() == ("score", PLACES)
        asking = self.machine.provide(working.state, ASKED)
        again = self.machine.receive(asking.state, "key-holder", self.reply)
        assert again.need is not None
        assert again.need.order.run() == "work"
        return {
            "collecting": start,
            "one came": one,
            "working": working.state,
            "asking": asking.state,
            "working again": again.state,
            "closed": self.machine.provide(again.state, {PLACES[0]: 0.25}).state,
        }

    def answer(self, order: Any) -> Any:
        return dict.fromkeys(PLACES, 0.5) if order.run() == "work" else ASKED

    @every("name", ["working again", "closed"])
    def test_a_reply_that_comes_twice_is_late_whatever_its_bytes(self, name: str) -> None:
        """A key holder that answers twice is heard once."""
        state = self.states()[name]
        for reply in (self.reply, OpenReply(items=(b"other", b"bytes"))):
            step = self.machine.receive(state, "key-holder", reply)
            assert (step.state, step.need, step.out) == (state, None, ())

    @every("items", [(), (b"1",), (b"1", b"2", b"3")])
    def test_a_reply_of_another_length_is_refused(self, items: tuple[bytes, ...]) -> None:
        with pytest.raises(RemoteProtocolError, match="Expected 2 items"):
            self.machine.receive(self.states()["asking"], "key-holder", OpenReply(items=items))

    def test_the_key_holder_is_asked_three_times(self) -> None:
        state = self.states()["asking"]
        first = self.machine.deadline(state)
        second = self.machine.deadline(first.state)
        assert [e.message for e in first.out + second.out] == [state.request] * 2
        assert first.result is second.result is None
        assert self.machine.receive(second.state, "key-holder", self.reply).need is not None

    def test_without_the_key_holder_the_sums_still_stand(self) -> None:
        for name in ("working", "asking", "working again"):
            result, before = None, self.states()[name]
            while result is None:
                step = self.machine.deadline(before)
                before, result = step.state, step.result
            assert result.survivors == (0, 1)
            assert (result.totals["sum"].value * 2**21).tolist() == [3, 3]
            assert result.per_client == {"profile": {}}

    def test_a_number_that_could_not_be_opened_is_absent_from_that_number_alone(self) -> None:
        result = self.machine.provide(self.states()["working"], {PLACES[0]: 0.5}).result
        assert result.per_client == {"profile": {0: 0.5}}
        assert result.survivors == (0, 1)

    def test_numbers_of_the_wrong_form_in_the_clear(self) -> None:
        """Where numbers travel open, an encrypted one is refused, and one whose score overflows."""
        open_server = dataclasses.replace(self.machine, scoring=None)
        start = open_server.begin().state
        fine = contribution(profile=delivered("profile", np.zeros(3)))
        assert 0 in open_server.receive(start, "client-0000", fine).state.numbers
        for came in (
            delivered("profile", np.ones(3), "encrypted", b"x"),
            delivered("profile", np.zeros(4)),
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

    size = PerClient(ValueSpec(name="size", reduction="none", reveals="it"), least=1, most=100)
    machine = Server(
        query=CohortQuery(cohort=(0,), broadcast=MODEL, per_client=(size,)),
        header=HEADER,
        most=Limit(999, 99),
    )

    @every("claim", [-1e9, 0.0, 100.5, 1.7e308, np.inf, np.nan])
    def test_a_claim_outside_the_range_costs_the_client_its_place(self, claim: float) -> None:
        message: Any = ContributionMessage(releases=(delivered("size", np.array([claim])),))  # type: ignore[arg-type]
        with pytest.raises(RemoteProtocolError, match=r"public range|finite") as refused:
            self.machine.receive(self.machine.begin().state, "client-0000", message)
        assert refused.value.sender == "client-0000"

    def test_a_claim_inside_it_counts(self) -> None:
        message: Any = ContributionMessage(releases=(delivered("size", np.array([100.0])),))  # type: ignore[arg-type]
        step = self.machine.receive(self.machine.begin().state, "client-0000", message)
        assert step.result.per_client == {"size": {0: 100.0}}

    def test_nothing_concealed_comes_in_where_nothing_is_scored(self) -> None:
        server = Server(query=ASK, header=HEADER, most=Limit(999, 99))
        with pytest.raises(RemoteProtocolError, match="Expected 3 numbers for"):
            server.receive(server.begin().state, "client-0000", contribution())


class TestKeyHolder(Contract):
    machine = OpeningMachine(header=HEADER, most=Limit(999, 99), open_=NOBODY, report=NOBODY)
    good = (("server", OpenRequest(items=(b"a", b"b"))),)
    bad = (
        ("client-0000", OpenRequest(items=(b"a",))),
        ("key-holder", OpenRequest(items=())),
    )

    def states(self) -> dict[str, Any]:
        start = self.machine.begin().state
        busy = self.machine.receive(start, *self.good[0]).state
        done = self.machine.provide(busy, (b"1", b"2")).state
        return {"ready": start, "busy": busy, "done": done}

    def answer(self, order: Any) -> Any:
        return order.run.args[0]

    def test_a_deadline_before_the_request_does_not_close_the_door(self) -> None:
        """The server may still be collecting when the key holder's own clock runs out."""
        waited = self.machine.deadline(self.machine.begin().state)
        assert waited.result == "unused"
        assert self.machine.receive(waited.state, *self.good[0]).need is not None

    @every("name", ["busy", "done"])
    def test_another_request_is_refused(self, name: str) -> None:
        """Two sets of openings would tell their difference, and spend twice the count."""
        state = self.states()[name]
        with pytest.raises(RemoteProtocolError, match="one is opened"):
            self.machine.receive(state, "server", OpenRequest(items=(b"a", b"c")))
        assert self.machine.receive(state, *self.good[0]).need is None

    def test_the_same_request_is_answered_again_with_its_reply(self) -> None:
        again = self.machine.receive(self.states()["done"], *self.good[0])
        assert [one.message for one in again.out] == [OpenReply(items=(b"1", b"2"))]


# Encrypted sums -----------------------------------------------------------------------------------------

OWNERS = [Identity.of(client_name(k), SecretKey(bytes(31) + bytes([k]))) for k in range(3)]
AGREED = Agreement(
    header=PLACE,
    roster=Roster(tuple(owner.member() for owner in OWNERS)),
    vectors=(Vector(name="sum", length=2, bits=8, bound=9),),
    plan=bytes(32),
    task=b"t" * 32,
)


def sealed(number: int, agreed: Agreement = AGREED, box: bytes = b"ciphertext", **changed: Any) -> Any:
    """What a client sends to an encrypted sum."""
    text = signed_input(agreed, number, input_digest([box]))
    came = delivered("sum", np.zeros(0), "encrypted", box)
    said: dict[str, Any] = {"releases": (came,), "signature": OWNERS[number].signing.sign(text)}
    return EncryptedInput(**(said | changed))


def requested(*numbers: int, agreed: Agreement = AGREED, **changed: Any) -> SumRequest:
    said: dict[str, Any] = {
        "items": (b"blinded",),
        "task": agreed.task,
        "members": numbers,
        "inputs": tuple(Commitment(input_digest([b"ciphertext"])) for _ in numbers),
        "signatures": tuple(sealed(number, agreed).signature for number in numbers),
    }
    return SumRequest(**(said | changed))


ELSEWHERE = (
    dataclasses.replace(AGREED, plan=bytes(31) + b"x"),
    dataclasses.replace(AGREED, header=dataclasses.replace(PLACE, attempt=2)),
    dataclasses.replace(AGREED, vectors=(dataclasses.replace(AGREED.vectors[0], again=1),)),
)


class TestSumClient(Contract):
    header = PLACE
    machine = OpenedClient(
        identity=OWNERS[0],
        agreement=AGREED,
        signers=2,
        part=EncryptingPart({"sum": lambda integers: b"ciphertext"}),
    )
    good = ()
    bad = (("server", OpenReply(items=())), ("client-0001", OpenReply(items=())))

    def states(self) -> dict[str, Any]:
        start = self.machine.begin().state
        entered = self.machine.provide(start, SecretKey(bytes(32))).state
        return {
            "begun": start,
            "entered": entered,
            "closed": self.machine.deadline(entered).state,
        }

    def answer(self, order: Any) -> Any:
        return SecretKey(bytes(32)) if isinstance(order, Begin) else None

    def test_what_may_arrive_is_bounded_and_placed(self) -> None:
        for state in self.states().values():
            assert self.machine.expects(state).header == self.header
            assert not self.machine.expects(state).kinds

    def test_it_begins_on_record_and_then_encrypts(self) -> None:
        need = self.machine.begin().need
        assert isinstance(need.order, Begin)
        assert need.order.signers == self.machine.signers
        assert need.order.context == self.machine.agreement.context
        refused = self.machine.provide(self.machine.begin().state, None)
        assert (refused.out, refused.need, refused.result) == ((), None, "refused")
        working = self.machine.provide(self.machine.begin().state, SecretKey(bytes(32)))
        assert working.out == ()
        assert isinstance(working.need.order, ComputeAndConceal)
        assert self.machine.provide(working.state, None).result == "abstained"


class TestSumServer(Contract):
    header = PLACE
    machine = OpenedServer(agreement=AGREED, least=2, part=AddingPart({"sum": COUNTING}, NOBODY))
    good = (("client-0000", sealed(0)), ("client-0001", sealed(1)), ("client-0002", sealed(2)))
    bad = (
        ("client-0000", sealed(1)),
        ("client-0000", sealed(0, signature=Signature(bytes(64)))),
        *(("client-0000", sealed(0, agreed)) for agreed in ELSEWHERE),
        ("client-0000", sealed(0, dataclasses.replace(AGREED, task=bytes(32)))),
        ("client-0000", sealed(0, releases=())),
        ("client-0000", sealed(0, releases=sealed(0).releases * 2)),
        ("client-0000", sealed(0, releases=(delivered("sum", np.zeros(0), "masked", b"ciphertext"),))),
        ("client-0000", sealed(0, releases=(delivered("sum", np.zeros(0), "encrypted", b"other"),))),
        ("client-0000", sealed(0, releases=(delivered("sum", np.ones(1), "encrypted", b"ciphertext"),))),
        ("client-0000", OpenReply(items=(b"1",))),
        ("key-holder", sealed(0)),
        ("server", sealed(0)),
    )

    def states(self) -> dict[str, Any]:
        start = self.machine.begin().state
        two = start
        for sender, message in self.good[:2]:
            two = self.machine.receive(two, sender, message).state
        blinding = self.machine.receive(two, *self.good[2])
        asking = self.machine.provide(blinding.state, self.answer(blinding.need.order))
        taking = self.machine.receive(asking.state, "key-holder", OpenReply(items=(b"1",)))
        return {
            "adding": start,
            "two came": two,
            "blinding": blinding.state,
            "asking": asking.state,
            "taking": taking.state,
            "closed": self.machine.provide(taking.state, {"sum": np.zeros(2)}).state,
        }

    def answer(self, order: Any) -> Any:
        if order.run.func == self.machine.part.request:
            return {}, SumRequest(items=(b"item",), **order.run.args[2])
        return {"sum": np.zeros(2)}

    def test_below_the_least_nothing_is_asked_of_the_key_holder(self) -> None:
        one = self.machine.receive(self.machine.begin().state, *self.good[0]).state
        step = self.machine.deadline(one)
        assert (step.need, step.out) == (None, ())
        assert isinstance(step.result, Unopened)
        assert not step.result.final

    def test_the_request_shows_whose_inputs_are_said_to_be_in_it(self) -> None:
        request = self.states()["asking"].request
        assert request == requested(0, 1, 2, items=(b"item",))

    def test_a_refusal_is_not_asked_again(self) -> None:
        step = self.machine.receive(self.states()["asking"], "key-holder", OpenReply(items=(REFUSED,)))
        assert isinstance(step.result, Unopened)
        assert step.result.final

    def test_the_sum_is_over_those_that_came(self) -> None:
        step = self.machine.provide(self.states()["taking"], {"sum": np.zeros(2)})
        assert isinstance(step.result, Opened)
        assert step.result.survivors == tuple(map(client_name, range(3)))


class TestSumKeyHolder(Contract):
    header = PLACE
    machine = OpenedKeyHolder(agreement=AGREED, least=2, part=OpeningPart(()))
    good = (("server", requested(0, 2)),)
    bad = (
        # What else it refuses: tests/unit/sums/encrypted/test_key_holder.py.
        ("server", requested(0)),  # one below the least
        *(("server", requested(0, 2, agreed=agreed)) for agreed in ELSEWHERE),
        ("client-0000", requested(0, 2)),
        ("key-holder", requested(0, 2)),
    )

    def states(self) -> dict[str, Any]:
        start = self.machine.begin().state
        recording = self.machine.receive(start, *self.good[0])
        opening = self.machine.provide(recording.state, True)
        return {
            "ready": start,
            "recording": recording.state,
            "opening": opening.state,
            "replied": self.machine.provide(opening.state, OpenReply(items=(b"reply",))).state,
        }

    def answer(self, order: Any) -> Any:
        return True if isinstance(order, RecordAct) else OpenReply(items=order.run.args[1].items)

    def test_nothing_is_opened_before_it_is_on_record(self) -> None:
        step = self.machine.receive(self.machine.begin().state, *self.good[0])
        assert (step.out, step.need.order.act) == ((), "open")
        denied = self.machine.provide(step.state, False)
        assert (denied.need, denied.out[0].message) == (None, OpenReply(items=(REFUSED,)))

    def test_another_request_is_refused_in_every_later_state(self) -> None:
        for name, state in self.states().items():
            if name != "ready":
                with pytest.raises(RemoteProtocolError, match="one total of a sum"):
                    self.machine.receive(state, "server", requested(0, 1))

    def test_what_is_recorded_tells_requests_apart(self) -> None:
        digests = set()
        for request in (
            requested(0, 2),
            requested(0, 1),
            requested(0, 1, 2),
            requested(0, 2, items=(b"another",)),
            requested(0, 2, agreed=dataclasses.replace(AGREED, task=bytes(32))),
        ):
            digests.add(self.machine.receive(self.machine.begin().state, "server", request).need.order.digest)
        assert len(digests) == 5

    def test_a_value_that_cannot_change_is_one_question_of_the_session(self) -> None:
        """Whatever round or ask it comes in."""
        asked = set()
        for number, query in ((1, 0), (2, 0), (2, 1)):
            agreed = dataclasses.replace(
                AGREED,
                header=dataclasses.replace(PLACE, round=number),
                vectors=(dataclasses.replace(AGREED.vectors[0], once=True, ask=query),),
            )
            machine = dataclasses.replace(self.machine, agreement=agreed)
            step = machine.receive(machine.begin().state, "server", requested(0, 2, agreed=agreed))
            asked.add(step.need.order.questions)
        assert len(asked) == 1


# Two-server sums ----------------------------------------------------------------------------------------

PADDED = two.agreement()
TOLD_OTHERWISE = two.agreement(task="another")
EVERYBODYS = two.requested(PADDED)
REPLY = two.Holder().asked(PADDED, EVERYBODYS)
SPOILT = two.signed(PADDED, 1, dataclasses.replace(two.padded(PADDED, 1), boxes=two.padded(PADDED, 2).boxes))


class TestPadClient(TestSumClient):
    header = PADDED.header
    machine = two.client(PADDED, 0)
    bad = (("server", REPLY), ("client-0001", REPLY))


class TestPadServer(Contract):
    header = PADDED.header
    machine = two.server(PADDED, least=5)
    good = tuple((client_name(k), two.padded(PADDED, k)) for k in two.EVERYBODY)
    bad = (
        # What else it refuses: tests/unit/sums/two_server/test_two_server.py.
        ("client-0000", two.padded(PADDED, 1)),
        ("client-0000", two.padded(TOLD_OTHERWISE, 0)),
        ("client-0000", REPLY),
        ("key-holder", two.padded(PADDED, 0)),
        ("server", two.padded(PADDED, 0)),
    )

    def states(self) -> dict[str, Any]:
        start = self.machine.begin().state
        asking = two.collected(self.machine, {k: two.padded(PADDED, k) for k in two.EVERYBODY})
        taking = self.machine.receive(asking.state, "key-holder", REPLY)
        spoilt = two.collected(
            self.machine, {k: SPOILT if k == 1 else two.padded(PADDED, k) for k in two.EVERYBODY}
        )
        naming = two.Holder().asked(PADDED, spoilt.out[0].message)
        return {
            "adding": start,
            "one came": self.machine.receive(start, *self.good[0]).state,
            "asking": asking.state,
            "asking again": self.machine.receive(spoilt.state, "key-holder", naming).state,
            "taking": taking.state,
            "closed": self.machine.provide(taking.state, taking.need.order.run()).state,
        }

    def answer(self, order: Any) -> Any:
        return order.run()


class TestPadKeyHolder(Contract):
    header = PADDED.header
    machine = OpenedKeyHolder(agreement=PADDED, least=two.LEAST, part=two.PART)
    good = (("server", EVERYBODYS),)
    bad = (
        ("server", two.requested(PADDED, two.EVERYBODY[: two.LEAST - 1])),
        ("server", dataclasses.replace(EVERYBODYS, task=TOLD_OTHERWISE.task)),
        ("client-0000", EVERYBODYS),
        ("key-holder", EVERYBODYS),
    )

    def states(self) -> dict[str, Any]:
        start = self.machine.begin().state
        opening = self.machine.receive(start, *self.good[0])
        recording = self.machine.provide(opening.state, opening.need.order.run())
        adding = self.machine.provide(recording.state, True)
        return {
            "ready": start,
            "opening": opening.state,
            "recording": recording.state,
            "adding": adding.state,
            "replied": self.machine.provide(adding.state, adding.need.order.run()).state,
            "refused": self.machine.provide(recording.state, False).state,
        }

    def answer(self, order: Any) -> Any:
        return True if isinstance(order, RecordAct) else order.run()

    def test_nothing_is_added_before_it_is_on_record(self) -> None:
        recording = self.states()["recording"]
        denied = self.machine.provide(recording, False)
        assert denied.need is None
        assert denied.out[0].message == PadReply(request=REPLY.request, bad=(), pads=REFUSED)
        assert denied.result == "refused"

    def test_another_request_is_refused_in_every_later_state(self) -> None:
        for name, state in self.states().items():
            if name != "ready":
                with pytest.raises(RemoteProtocolError, match="one total of a sum"):
                    self.machine.receive(state, "server", two.requested(PADDED, two.FEWER))


class TestPadKeyHolderOfBadBoxes(TestPadKeyHolder):
    """Of a request in which a member's boxes do not open."""

    good = (("server", two.requested(PADDED, changed={1: SPOILT})),)

    def states(self) -> dict[str, Any]:
        start = self.machine.begin().state
        opening = self.machine.receive(start, *self.good[0])
        named = self.machine.provide(opening.state, opening.need.order.run())
        second = self.machine.receive(named.state, "server", self.good[0][1].without((1,)))
        recording = self.machine.provide(second.state, second.need.order.run())
        return {
            "ready": start,
            "opening": opening.state,
            "named": named.state,
            "opening the rest": second.state,
            "recording": recording.state,
        }

    def test_another_request_is_refused_in_every_later_state(self) -> None:
        for name, state in self.states().items():
            if name != "ready":
                with pytest.raises(RemoteProtocolError, match=r"one total|were named"):
                    self.machine.receive(state, "server", two.requested(PADDED, two.FEWER))

    def test_nothing_is_added_before_it_is_on_record(self) -> None:
        denied = self.machine.provide(self.states()["recording"], False)
        assert (denied.need, denied.out[0].message.pads, denied.result) == (None, REFUSED, "refused")
