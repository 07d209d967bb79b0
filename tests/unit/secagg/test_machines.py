"""The machines of secure aggregation: both modes, silence in each phase, and what stays harmless."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_secagg import (
    VECTORS,
    aggregate,
    agreement,
    assert_exact,
    client,
    expected,
    header,
    identity,
    integers,
    pinned,
)

from securefl.core.acts import Begin
from securefl.core.agreement import Question
from securefl.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from securefl.core.hiding import ComputeAndConceal
from securefl.core.keys import SecretKey
from securefl.core.machine import Need
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.core.wire import peek
from securefl.secagg import Aborted, Channels, Client, Identity, Policy, Roster, Server, Vector
from securefl.secagg import client_rounds as states

KINDS = {
    "advertise": b"secagg-advertise",
    "share": b"secagg-shares",
    "mask": b"secagg-masked-input",
    "consistency": b"secagg-consistent",
    "unmask": b"secagg-unmask",
}


def kind(data: bytes) -> bytes:
    return data[5 : 5 + data[4]]


def silenced(phase: str, *numbers: int) -> Any:
    """Garble what these clients say in one phase, and all they say after it, beyond reading."""
    late = list(KINDS)[list(KINDS).index(phase) :]
    names = {client_name(number) for number in numbers}
    return lambda sender, to, data: (
        data[:-1] if sender in names and kind(data) in {KINDS[p] for p in late} else data
    )


@every("mode", ["active", "semi-honest"])
@every("clients", [2, 3, 4, 5, 13])
def test_a_quiet_network_sums_everybody(clients: int, mode: Any) -> None:
    agreed = agreement(clients, corrupt=0.0, dropout=0.0, mode=mode)
    outcome = aggregate(agreed)
    assert_exact(agreed, outcome.server)
    assert outcome.server.survivors == tuple(map(client_name, range(clients)))  # type: ignore[union-attr]
    assert {outcome.results[client_name(k)] for k in range(clients)} == {"answered"}
    assert not outcome.traffic.rejected_from


@every("mode", ["active", "semi-honest"])
@every("phase", KINDS)
def test_silence_in_any_phase_is_survived(phase: str, mode: Any) -> None:
    agreed = agreement(10, corrupt=0.1, dropout=0.3, mode=mode)
    outcome = aggregate(agreed, tamper=silenced(phase, 2, 5, 9))
    assert_exact(agreed, outcome.server)
    gone = {client_name(k) for k in (2, 5, 9)}
    in_sum = set(outcome.server.survivors)  # type: ignore[union-attr]
    assert in_sum.isdisjoint(gone) if phase in ("advertise", "share", "mask") else gone <= in_sum


@every("phase", KINDS)
def test_below_the_threshold_the_round_aborts_with_its_phase(phase: str) -> None:
    agreed = agreement(10, corrupt=0.1, dropout=0.3)
    many = range(5) if phase in ("consistency", "unmask") else range(4)
    outcome = aggregate(agreed, tamper=silenced(phase, *many))
    assert isinstance(outcome.server, Aborted)
    assert (outcome.server.phase, outcome.server.culprit) == (phase, None)
    assert "Expected" in outcome.server.reason


def test_some_drop_in_every_phase_at_once() -> None:
    agreed = agreement(13, corrupt=0.0, dropout=0.4)
    drops = {phase: silenced(phase, number) for number, phase in enumerate(KINDS)}

    def tamper(sender: str, to: str, data: bytes) -> bytes:
        for spoil in drops.values():
            data = spoil(sender, to, data)
        return data

    outcome = aggregate(agreed, tamper=tamper)
    assert_exact(agreed, outcome.server)
    assert set(outcome.server.survivors) == {client_name(k) for k in range(3, 13)}  # type: ignore[union-attr]


@every("bits", [8, 13, 31, 32, 33, 64])
def test_any_width_sums_exactly(bits: int) -> None:
    bound = min((1 << (bits - 1)) // 5 - 1, 2**60)
    agreed = agreement(5, vectors=(Vector(name="v", length=37, bits=bits, bound=bound),))
    outcome = aggregate(agreed, abstaining=frozenset({client_name(1)}))
    assert_exact(agreed, outcome.server)


def test_the_upload_takes_the_declared_bits() -> None:
    vector = Vector(name="v", length=10_000, bits=32, bound=100)
    agreed = agreement(5, vectors=(vector,))
    sizes = []

    def tamper(sender: str, to: str, data: bytes) -> bytes:
        if kind(data) == KINDS["mask"]:
            sizes.append(len(data))
        return data

    aggregate(agreed, tamper=tamper)
    assert len(sizes) == 5
    assert max(sizes) < 4 * 10_000 + 300


def test_masked_vectors_hide_the_input_and_change_with_the_attempt() -> None:
    """The same input, twice: the two masked vectors share no coordinate (11 of 32 bits: chance 3e-9)."""
    seen: dict[int, list[bytes]] = {1: [], 2: []}

    for attempt in seen:
        agreed = agreement(5, at=header(1, attempt))

        def tamper(sender: str, to: str, data: bytes, attempt: int = attempt) -> bytes:
            if kind(data) == KINDS["mask"] and sender == client_name(1):
                seen[attempt].append(data)
            return data

        assert_exact(agreed, aggregate(agreed, tamper=tamper).server)
    clear = integers(1, VECTORS[0]).astype("<u4").tobytes()
    (one,), (two,) = seen.values()
    assert clear not in one
    assert clear not in two
    start = one.index(b"update") + len(b"update") + 1 + 2 + 4
    words = [np.frombuffer(data[start : start + 44], "<u4") for data in (one, two)]
    assert (words[0] != words[1]).all()


def test_the_server_holds_one_sum_and_no_vectors() -> None:
    """Its state after any number of inputs has the arrays of one."""
    from securefl.secagg.server_rounds import Summing

    agreed = agreement(10, corrupt=0.0, dropout=0.0)
    held: list[int] = []

    class Watching:
        def __init__(self) -> None:
            self.inner = Server(agreement=agreed)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def receive(self, state: Any, sender: str, message: Any) -> Any:
            step = self.inner.receive(state, sender, message)
            if isinstance(step.state, Summing):
                held.append(sum(total.nbytes for total in step.state.sums))
                assert {type(one).__name__ for one in step.state.inputs.values()} <= {"Signature"}
            return step

    assert_exact(agreed, aggregate(agreed, machines={SERVER: Watching()}).server)
    assert set(held) == {4 * 12}


def test_the_sum_differs_when_anybody_differs() -> None:
    """The oracle of these tests can fail: without one survivor the totals are others."""
    agreed = agreement(5)
    summed = aggregate(agreed).server
    fewer = expected(agreed, summed.survivors[1:])  # type: ignore[union-attr]
    assert (fewer["update"] != expected(agreed, summed.survivors)["update"]).any()  # type: ignore[union-attr]


# The client's states --------------------------------------------------------------------------------


SECRET = SecretKey(bytes(31) + b"s")


def test_a_client_begins_on_record() -> None:
    """What it puts on record is all that the rules of later attempts are checked against."""
    agreed = agreement()
    machine = client(1, agreed)
    step = machine.begin()
    assert step.out == ()
    assert isinstance(step.need, Need)
    order = step.need.order
    assert isinstance(order, Begin)
    assert (order.client, order.header, order.context) == (client_name(1), agreed.header, agreed.context)
    assert order.members == tuple(map(client_name, range(5)))
    assert (order.signers, order.once) == (agreed.parameters.quorum, frozenset())
    assert [question.name for question in order.questions] == ["update", "count"]
    refused = machine.provide(step.state, None)
    assert (refused.result, refused.out) == ("refused", ())
    assert machine.provide(step.state, SECRET).out[0].to == (SERVER,)


def test_what_a_client_draws_follows_from_its_secret_and_the_agreement() -> None:
    said = {
        (secret, task): machine.provide(machine.begin().state, SecretKey(secret)).out[0].message
        for secret in (bytes(32), bytes(31) + b"s")
        for task in (bytes(32), bytes(31) + b"t")
        for machine in (client(1, agreement(task=task)),)
    }
    assert len({message.key.raw for message in said.values()}) == 4
    assert len({message.nonce.raw for message in said.values()}) == 4
    machine = client(1, agreement(task=bytes(32)))
    again = machine.provide(machine.begin().state, SecretKey(bytes(32))).out[0].message
    assert again == said[bytes(32), bytes(32)]


def test_a_question_is_one_value_in_whatever_stage_and_attempt() -> None:
    at = header(3, 1)
    vector = VECTORS[0]
    asked = Question(at.session, 3, "update")
    assert vector.question(at) == vector.question(replace(at, stage=7, attempt=4)) == asked
    assert vector.question(header(4, 1)) != asked
    assert replace(vector, ask=2).question(at) == replace(vector, ask=2).question(header(4, 1))
    assert replace(vector, ask=2).question(at) == Question(at.session, 0, "update", 2)
    assert replace(vector, again=1).question(at) != asked


def test_the_order_names_place_and_vectors_and_hides_the_mask() -> None:
    outcome_orders: list[ComputeAndConceal] = []
    agreed = agreement()

    class Listening:
        def __init__(self, number: int) -> None:
            self.inner = client(number, agreed)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def provide(self, state: Any, answer: Any) -> Any:
            step = self.inner.provide(state, answer)
            if step.need is not None and isinstance(step.need.order, ComputeAndConceal):
                outcome_orders.append(step.need.order)
            return step

    aggregate(agreed, machines={client_name(0): Listening(0)})
    (order,) = outcome_orders
    assert (order.client, order.header) == (client_name(0), agreed.header)
    assert tuple(order.conceal) == tuple(vector.name for vector in VECTORS)
    assert "mask" not in repr(order).lower()


def test_states_never_show_secrets() -> None:
    machine = client(1, agreement())
    state = machine.provide(machine.begin().state, SECRET).state
    assert isinstance(state, states.Advertised)
    assert state.key.secret.reveal().hex() not in repr(state)
    assert repr(state.key.secret.reveal()) not in repr(state)
    assert repr(SECRET.reveal()) not in repr(state)


def test_an_abstaining_client_says_nothing() -> None:
    outcome = aggregate(agreement(5), abstaining=frozenset({client_name(3)}))
    assert outcome.results[client_name(3)] == "abstained"
    assert client_name(3) not in outcome.server.survivors  # type: ignore[union-attr]


def test_a_client_without_a_server_gives_up() -> None:
    machine = replace(client(1, agreement()), patience=3)
    state = machine.provide(machine.begin().state, SECRET).state
    for _ in range(3):
        step = machine.deadline(state)
        assert step.result is None
        state = step.state
    assert machine.deadline(state).result == "missed"


def test_only_the_server_speaks_to_clients_and_only_the_cohort_to_the_server() -> None:
    agreed = agreement()
    machine = client(1, agreed)
    with pytest.raises(RemoteProtocolError, match="messages from the server"):
        machine.receive(machine.begin().state, client_name(2), None)
    server = Server(agreement=agreed)
    with pytest.raises(RemoteProtocolError, match="pinned roster"):
        server.receive(server.begin().state, "client-0077", None)


def test_what_nobody_asked_for_is_refused_locally() -> None:
    agreed = agreement()
    machine, server = client(1, agreed), Server(agreement=agreed)
    advertised = machine.provide(machine.begin().state, SECRET).state
    with pytest.raises(LocalProtocolError, match="only to a need"):
        machine.provide(advertised, True)
    with pytest.raises(LocalProtocolError, match="only to a need"):
        server.provide(server.begin().state, Aborted(phase="x", reason="y"))


POLICY = Policy(mode="active", corrupt=0.2, dropout=0.2)


# What is agreed on ----------------------------------------------------------------------------------


def test_a_roster_is_ordered_and_every_key_stands_for_one_party() -> None:
    members = pinned(3).members
    twice = replace(members[2], identity=members[0].identity)
    server = replace(members[2], name=SERVER)
    for bad in (members[::-1], (*members, members[2]), (*members[:2], twice), (*members[:2], server)):
        with pytest.raises(ConfigError):
            Roster(tuple(bad))


def test_a_client_is_in_the_roster_with_its_own_keys() -> None:
    session = header().session
    for stranger in (identity(9), Identity.generate(client_name(1))):
        with pytest.raises(ConfigError, match="with its own keys"):
            Channels(stranger, pinned(3), session)


def test_channel_secrets_agree_and_are_made_once() -> None:
    session = header().session
    one, two = Channels(identity(0), pinned(3), session), Channels(identity(1), pinned(3), session)
    assert one.secret(1) == two.secret(0)
    assert one.secret(1) is one.secret(1)
    assert one.secret(1) != one.secret(2)
    assert Channels(identity(0), pinned(3), bytes(32)).secret(1) != one.secret(1)


def test_channels_belong_to_the_agreement() -> None:
    agreed = agreement()
    other = Channels(identity(1), agreed.roster, bytes(32))
    with pytest.raises(ConfigError, match="this session"):
        Client(agreement=agreed, channels=other, policy=POLICY)


@every("change", ["round", "attempt", "stage", "session"])
def test_every_part_of_the_place_changes_the_context(change: str) -> None:
    agreed = agreement()
    value: Any = bytes(32) if change == "session" else 9
    moved = replace(agreed, header=replace(agreed.header, **{change: value}))
    assert moved.context != agreed.context


def test_everything_that_is_acted_on_changes_the_context() -> None:
    vector = VECTORS[0]
    changed = [replace(vector, **change) for change in ({"ask": 1}, {"again": 1}, {"once": True})]  # type: ignore[arg-type]
    contexts = {
        agreement(5).context,
        agreement(6).context,
        agreement(5, dropout=0.0).context,
        agreement(5, corrupt=0.0).context,
        agreement(5, ordered=6).context,
        agreement(5, mode="semi-honest").context,
        agreement(5, vectors=VECTORS[:1]).context,
        agreement(5, vectors=VECTORS[::-1]).context,
        agreement(5, task=bytes(31) + b"x").context,
        replace(agreement(5), plan=bytes(31) + b"x").context,
        *(agreement(5, vectors=(one, VECTORS[1])).context for one in changed),
    }
    assert len(contexts) == 13


@every("bit", range(0, 256, 17))
@every("part", ["plan", "task"])
def test_a_digest_that_differs_in_one_bit_costs_its_client_the_attempt(part: str, bit: int) -> None:
    """A client that was shown another task, or has another plan, signs what fits nobody else's agreement."""
    agreed = agreement(5)
    digest = bytearray(getattr(agreed, part))
    digest[bit // 8] ^= 1 << bit % 8
    other = client(3, replace(agreed, **{part: bytes(digest)}))  # type: ignore[arg-type]
    outcome = aggregate(agreed, machines={client_name(3): other})
    assert_exact(agreed, outcome.server)
    assert client_name(3) not in outcome.server.survivors  # type: ignore[union-attr]
    assert set(outcome.traffic.rejected_from) == {client_name(3)}


def test_a_cohort_that_was_told_two_tasks_has_no_sum() -> None:
    """Two of five were shown a model whose units are dead: neither side is enough."""
    agreed, dead = agreement(5), agreement(5, task=bytes(32))
    outcome = aggregate(agreed, machines={client_name(k): client(k, dead) for k in (1, 2)})
    assert isinstance(outcome.server, Aborted)
    assert outcome.server.phase == "advertise"


def test_an_agreement_must_fit_its_cohort() -> None:
    agreed = agreement(5)
    for change in (
        {"roster": pinned(6)},
        {"vectors": ()},
        {"vectors": (VECTORS[0], VECTORS[0])},
        {"plan": b""},
        {"task": bytes(33)},
    ):
        with pytest.raises(ConfigError):
            replace(agreed, **change)  # type: ignore[arg-type]


def test_messages_carry_the_header_of_their_place() -> None:
    agreed = agreement(3, corrupt=0.0, dropout=0.0)
    seen = set()

    def tamper(sender: str, to: str, data: bytes) -> bytes:
        seen.add((kind(data), peek(data, sender)))
        return data

    aggregate(agreed, tamper=tamper)
    assert {place for _, place in seen} == {agreed.header}
    assert len(seen) == 10


def test_a_constant_value_is_one_question_for_who_opens_totals() -> None:
    """Two totals of it over two cohorts would tell the value of who is in one of them alone."""
    vectors = (replace(VECTORS[0], once=True), VECTORS[1])
    first, second = (agreement(vectors=vectors, at=header(number)).openings for number in (1, 2))
    assert first[0] == second[0]
    assert first[1] != second[1]
