"""The machines of secure aggregation: both modes, silence in each phase, and what stays harmless."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.every import every
from support.recorded import honest
from support.tiny_secagg import (
    VECTORS,
    Lenient,
    aggregate,
    agreement,
    assert_exact,
    client,
    header,
    identity,
    pinned,
)

from securefl.core.acts import Begin
from securefl.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from securefl.core.keys import SecretKey, Signature
from securefl.core.machine import Need
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.secagg import Aborted, Channels, Client, Identity, Roster, Server
from securefl.secagg.messages import Dealt
from securefl.secagg.server_rounds import Summing

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


def test_the_server_holds_one_sum_and_no_vectors() -> None:
    """Its state after any number of inputs has the arrays of one."""
    states = [step.state for *_, step in honest().server.seen if isinstance(step.state, Summing)]
    assert {sum(total.nbytes for total in state.sums) for state in states} == {4 * 12}
    assert {type(one) for state in states for one in state.inputs.values()} == {Signature}


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
    # In semi-honest mode nobody signs, and the fewest that open are counted from the shares.
    assert honest("semi-honest").clients[0].inner.begin().need.order.signers == 5
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


def test_the_order_names_place_and_vectors_and_hides_the_mask() -> None:
    machine = honest().clients[0]
    need = machine.inner.provide(machine.at(Dealt)[2].state, True).need
    assert need is not None
    order = need.order
    assert (order.client, order.header) == (client_name(0), honest().agreed.header)
    assert tuple(order.conceal) == tuple(vector.name for vector in VECTORS)
    assert "mask" not in repr(order).lower()


def test_only_the_server_speaks_to_clients_and_only_the_cohort_to_the_server() -> None:
    agreed = agreement()
    machine = client(1, agreed)
    with pytest.raises(RemoteProtocolError, match="messages from the server"):
        machine.receive(machine.begin().state, client_name(2), None)
    server = Server(agreement=agreed)
    with pytest.raises(RemoteProtocolError, match="pinned roster"):
        server.receive(server.begin().state, "client-0077", None)


def test_what_nobody_asked_for_is_refused_locally() -> None:
    server = Server(agreement=agreement())
    with pytest.raises(LocalProtocolError, match="only to a need"):
        server.provide(server.begin().state, Aborted(phase="x", reason="y"))


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


@every(("cohort", "session"), [(5, bytes(32)), (4, header().session), (6, header().session)])
def test_channels_belong_to_the_agreement(cohort: int, session: bytes) -> None:
    other = Channels(identity(1), pinned(cohort), session)
    with pytest.raises(ConfigError, match="this session and this roster"):
        Client(agreement=agreement(), channels=other, policy=Lenient())


def test_everything_that_is_acted_on_changes_the_context() -> None:
    vector, place = VECTORS[0], header()
    places = [replace(place, **change) for change in ({"round": 9}, {"attempt": 9}, {"stage": 9})]
    changed = [
        *(replace(agreement(), header=one) for one in (*places, replace(place, session=bytes(32)))),
        *(agreement(**change) for change in ({"dropout": 0.0}, {"corrupt": 0.0}, {"mode": "semi-honest"})),
        *(agreement(vectors=vectors) for vectors in (VECTORS[:1], VECTORS[::-1])),
        *(
            agreement(vectors=(replace(vector, **change), VECTORS[1]))
            for change in ({"ask": 1}, {"again": 1}, {"once": True})
        ),
        agreement(6),
        agreement(ordered=6),
        agreement(task=bytes(31) + b"x"),
        replace(agreement(), plan=bytes(31) + b"x"),
    ]
    assert len({agreement().context, *(one.context for one in changed)}) == 1 + 16


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


def test_a_constant_value_is_one_question_for_who_opens_totals() -> None:
    """Two totals of it over two cohorts would tell the value of who is in one of them alone."""
    vectors = (replace(VECTORS[0], once=True), VECTORS[1])
    first, second = (agreement(vectors=vectors, at=header(number)).openings for number in (1, 2))
    assert first[0] == second[0]
    assert first[1] != second[1]
