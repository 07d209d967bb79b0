"""What a party refuses: calls that lie, other sessions, other plans, records that change under it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.any_calls import AnyBounds, AnyCall, AnyQuestions, AnyRange
from support.every import every
from support.four_clients import (
    ASK,
    CLEAR,
    CLIENTS,
    MASKED,
    PLACE,
    SENDS,
    SESSION,
    SIZE,
    TWO,
    client,
    given,
    records,
    server,
    sum_call,
)
from support.tiny_orders import order

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, PerClient, Sum, Value, ValueSpec
from securefl.core.abstaining import Reason
from securefl.core.acts import RecordAct
from securefl.core.agreement import Directory, Identity
from securefl.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from securefl.core.messages import Broadcast, ContributionMessage, client_name
from securefl.core.release import KEY_HOLDER, SERVER, Delivered
from securefl.core.wire import Header, Limit, encode
from securefl.engine.calls import MOST_CLIENTS, QueryCall, SumCall, bits_of, decode_call, encode_call
from securefl.engine.drive import Driver, Packet
from securefl.engine.exchange import Contribute, Server
from securefl.engine.exchange.server import broadcast_of, cohort_of, order_of
from securefl.engine.inprocess import InProcess, simulated
from securefl.engine.network import Network
from securefl.engine.party.clients import ClientParty, _by_order
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord


def engine(plan: Plan, own: Any = None, compute: Any = None) -> tuple[InProcess, Ledger]:
    ledger = Ledger(None, plan.terms())
    contributions = [given() if compute is None else given(compute)]
    rng = lambda number, client, query: np.random.default_rng(0)  # noqa: E731
    return simulated(plan, contributions, ledger, own or records(), rng=rng), ledger


def ordered(plan: Plan) -> tuple[ClientParty, Any]:
    """All clients as one party that was given an order for a hidden sum, and the engine of it."""
    whole, _ = engine(plan)
    whole.query(replace(ASK, sums=()), Header(SESSION, 1, 0, 0))
    (party,) = whole._clients
    place, names = Header(SESSION, 1, 0, 1), list(party.names)
    party.call(names, encode_call(place, QueryCall.of(Limit(9999, 99), None, cohort=cohort_of(ASK))))
    assert party.drive is not None
    party.drive.begin()
    order = encode(place, order_of(ASK))
    shown = encode(place, broadcast_of(ASK))
    for name in names:
        for data in (order, shown):
            party.drive.deliver(Packet(SERVER, name, data))
    party.drive.work()
    return party, whole


ATTEMPT = Header(SESSION, 1, 1, 1)

# Calls --------------------------------------------------------------------------------------------


@every(
    ("data", "why"),
    [
        (encode_call(replace(ATTEMPT, session=b"\x01" * 32), sum_call()), "another session"),
        (encode_call(Header(SESSION, 1, 0, 1), sum_call()), "places go up"),
        (encode_call(Header(SESSION, 1, 0, 0), sum_call()), "places go up"),
        (encode(ATTEMPT, broadcast_of(ASK)), "'query-call', 'sum-call'"),
        (encode_call(ATTEMPT, sum_call())[:-1], "well-formed"),
        (b"", "well-formed"),
    ],
)
def test_a_call_that_is_none_of_this_session_leaves_the_party_where_it_is(data: bytes, why: str) -> None:
    party, _ = ordered(MASKED)
    before = party.drive
    with pytest.raises(RemoteProtocolError, match=why) as refused:
        party.call(party.names, data)
    assert refused.value.sender == SERVER
    assert party.drive is before
    party.call(party.names, encode_call(ATTEMPT, sum_call()))
    assert party.drive is not None
    assert party.drive.header == ATTEMPT


@every(
    "changes",
    [
        {"members": bits_of(range(5)), "ordered": 5},
        {"names": ("other",)},
        {"names": ("own", "own"), "lengths": (SIZE, SIZE)},
        {"names": (), "lengths": ()},
        {"lengths": (0,)},
        {"lengths": (SIZE, SIZE)},
        {"task": b"short"},
        {"members": bits_of([0])},
    ],
)
def test_a_call_that_does_not_fit_the_order_has_no_machine(changes: Any) -> None:
    party, _ = ordered(MASKED)
    with pytest.raises(RemoteProtocolError) as refused:
        party.call(["client-0000"], encode_call(ATTEMPT, sum_call(**changes)))
    assert refused.value.sender == SERVER


@every(("plan", "other"), [(CLEAR, MASKED), (MASKED, CLEAR)])
def test_a_server_of_another_plan_gets_nothing(plan: Plan, other: Plan) -> None:
    """A server whose plan sums otherwise calls or orders what these clients' plan has not."""
    whole, ledger = engine(plan)
    stranger = InProcess(server(other), whole._clients)
    answers, log = stranger.query(ASK, PLACE)
    assert answers.survivors == ()
    assert ledger.rows() == []
    assert SERVER in {*log.traffic.rejected_from, *log.abstained}


def test_in_a_session_to_which_its_owner_did_not_agree_a_client_computes_and_pays_nothing() -> None:
    whole, ledger = engine(MASKED)
    (party,) = whole._clients
    party._count_session = lambda session: "Its owner agreed to no further session."
    answers, log = whole.query(ASK, PLACE)
    assert answers.survivors == ()
    assert ledger.rows() == []
    assert [*log.reasons.values()] == [Reason.SESSION] * CLIENTS


def test_a_broadcast_beyond_the_partys_own_bound_is_refused_before_it_comes() -> None:
    party = client(CLEAR)
    whole = InProcess(server(CLEAR), [party])
    whole.query(replace(ASK, cohort=(0,)), PLACE)
    huge = QueryCall(most=Limit(2**31, 9))
    with pytest.raises(RemoteProtocolError, match="at most 1073741824 bytes"):
        party.call(party.names, encode_call(Header(SESSION, 2, 0, 0), huge))


@every(
    "wrong",
    [
        {"hidden_length": 0},
        {"clear": (AnyRange(count=-(2**63)),)},
        {"weights": (AnyRange(count=3),)},
        {"spread": 0.5},
        {"spread": np.nan},
        None,
    ],
)
def test_a_call_for_scores_that_nobody_could_make_is_refused(wrong: Any) -> None:
    good, cohort = AnyCall(asked=AnyQuestions()), 3 if wrong else -1
    header, call = decode_call(encode(ATTEMPT, good), SESSION, (0, 0, 0))
    assert (header, encode(header, call)) == (ATTEMPT, encode(ATTEMPT, good))
    bad = AnyCall(asked=AnyQuestions(bounds=AnyBounds(**wrong or {}), cohort=cohort))
    with pytest.raises(RemoteProtocolError) as refused:
        decode_call(encode(ATTEMPT, bad), SESSION, (0, 0, 0))
    assert refused.value.sender == SERVER


# The key holder -----------------------------------------------------------------------------------


def holder(plan: Plan) -> KeyHolderParty:
    party = KeyHolderParty(plan, {"own": SENDS}, OwnRecord(KEY_HOLDER, Journal()))
    InProcess(server(plan), [client(plan, range(CLIENTS))], party).query(replace(ASK, sums=()), PLACE)
    return party


@every(
    "changes",
    [
        {"ordered": CLIENTS - 1},
        {"ordered": CLIENTS + 1},
        {"ordered": 0},
        {"ordered": 2**40},
        {"draws": (1,) * (CLIENTS - 1)},
        {"draws": (1,) * (CLIENTS + 1)},
        {"draws": (2, 1, 1, 1)},
        {"draws": (0, 1, 1, 1)},
        {"whole": CLIENTS},
        {"records": 9},
        {"whole": CLIENTS, "records": 9},
        {"names": ("other",)},
        {"members": bits_of((0, 1))},
        {"members": b""},
        {"members": b"\x0f\x00"},
        {"members": b"\x0f" + bytes(MOST_CLIENTS // 8) + b"\x01"},
        {"initial": -1},
    ],
)
def test_a_key_holder_opens_nothing_for_a_call_beside_its_plan(changes: Any) -> None:
    party = holder(TWO)
    with pytest.raises(RemoteProtocolError) as refused:
        party.call([KEY_HOLDER], encode_call(ATTEMPT, sum_call(**changes)))
    assert refused.value.sender == SERVER
    assert party.drive is None
    party.call([KEY_HOLDER], encode_call(ATTEMPT, sum_call()))
    assert isinstance(party.drive, Driver)


def test_another_size_of_the_order_has_no_signatures() -> None:
    """The server tells the key holder another size of the order, from which follows how many are enough."""
    whole, _ = engine(replace(TWO, max_cohort_size=CLIENTS + 1))
    (party,), own = whole._clients, whole.server
    say = KeyHolderParty.call

    def smaller(self: KeyHolderParty, to: Any, data: bytes) -> bytes:
        header, came = decode_call(data, SESSION, (0, 0, 0))
        assert isinstance(came, SumCall)
        return say(self, to, encode_call(header, replace(came, ordered=came.ordered + 1)))

    key_holder = whole._key_holder
    assert key_holder is not None
    key_holder.call = smaller.__get__(key_holder)  # type: ignore[method-assign]
    answers, log = whole.query(ASK, PLACE)
    assert answers.totals == {}
    assert party is not None
    assert own.log.abstained == {}  # taken with the rest
    assert "server" in log.traffic.rejected_from


# Who a party is -----------------------------------------------------------------------------------


def test_two_parties_of_one_number_are_refused() -> None:
    with pytest.raises(ConfigError, match="client-0001 twice"):
        InProcess(server(CLEAR), [client(CLEAR, (0, 1)), client(CLEAR, (1, 2))])


def test_a_network_refuses_two_drives_of_one_party() -> None:
    party = client(CLEAR)
    InProcess(server(CLEAR), [party]).query(replace(ASK, cohort=(0,)), PLACE)
    assert party.drive is not None
    with pytest.raises(ConfigError, match="client-0000 twice"):
        Network().run([party.drive, party.drive])


def test_a_ledger_of_another_plan_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", replace(CLEAR, delta=1e-6).terms())
    with pytest.raises(ConfigError, match="this plan's terms"):
        client(CLEAR, ledger=ledger)


def test_a_key_holder_of_another_name_in_the_directory_is_refused() -> None:
    mine, other = (KeyHolderParty(TWO, {"own": SENDS}, OwnRecord(KEY_HOLDER, Journal())) for _ in range(2))
    whole = InProcess(server(TWO), [client(TWO, range(CLIENTS))], mine)
    whole.query(replace(ASK, sums=()), PLACE)
    assert mine._directory is not None
    with pytest.raises(ConfigError, match="key-holder's own keys"):
        other.enter(mine._directory)


def test_a_server_of_other_keys_than_the_directorys_asks_nothing() -> None:
    mine = InProcess(server(CLEAR), [client(CLEAR, range(CLIENTS))])
    mine.query(ASK, PLACE)
    directory = mine._clients[0]._directory
    assert directory is not None
    with pytest.raises(ConfigError, match="this server's own keys"):
        server(CLEAR).enter(directory)


def test_a_party_that_entered_no_session_hears_no_call() -> None:
    for party in (client(CLEAR), KeyHolderParty(TWO, {}, OwnRecord(KEY_HOLDER, Journal()))):
        with pytest.raises(LocalProtocolError, match="Enter one"):
            party.call(party.names, encode_call(PLACE, sum_call()))


def test_a_client_whose_journal_was_lost_is_told_so_itself() -> None:
    """Its keys are others than those that are pinned: nobody could check what it signs."""
    party, _ = ordered(MASKED)
    assert party._directory is not None
    others = replace(
        party._directory, members=lambda names: [Identity.generate(name).member() for name in names]
    )
    party._directory = others
    with pytest.raises(ConfigError, match="restore the journals"):
        party.call(party.names, encode_call(ATTEMPT, sum_call()))


def test_what_was_made_in_a_session_that_was_left_is_not_kept() -> None:
    """Its last Ask never ended: nobody knows whether its value was used."""
    party, _ = ordered(MASKED)
    assert party.drive is not None
    party._contributing.values._news[0] = {"own": np.ones(1)}
    party.drive.results["client-0000"] = "answered"
    assert party._directory is not None
    party.enter(replace(party._directory, session=b"\x01" * 32))
    party.settle()
    assert party.kept == {}


def test_a_record_is_its_own_partys_alone() -> None:
    act = RecordAct(client=client_name(0), header=PLACE, questions=(), act="open", digest=bytes(32))
    with pytest.raises(LocalProtocolError, match="Expected acts of server"):
        OwnRecord(SERVER, Journal()).record([act])


def test_what_an_ask_that_failed_noted_is_not_told_of_the_next() -> None:
    whole, _ = engine(CLEAR)
    query = whole.server.query

    def failing(*given: Any) -> Any:
        query(*given)
        whole.server.log.report(SERVER, "It was another Ask.")
        raise LocalProtocolError("It failed.")

    whole.server.query = failing  # type: ignore[method-assign]
    with pytest.raises(LocalProtocolError):
        whole.query(ASK, PLACE)
    whole.server.query = query  # type: ignore[method-assign]
    _, log = whole.query(ASK, Header(SESSION, 2, 0, 0))
    assert log.abstained == {}


# Records that change ------------------------------------------------------------------------------


@every("what", ["x", "y"])
def test_records_that_change_between_waves_are_not_summed(what: str) -> None:
    """After its first value of the Ask was computed: the client abstains from the others."""
    own = records()

    def compute(context: Any) -> Value:
        if context.client == 0:  # another client's turn comes after it
            own[1][0 if what == "x" else 1][:] = 7.0
        return Value(clear=np.full(SIZE, float(context.x.sum())))

    two = ValueSpec(name="loss", reduction="none", reveals="it")
    ledger = Ledger(None, replace(MASKED, non_private=("own", "loss")).terms())
    plan = replace(MASKED, non_private=("own", "loss"))
    contributions = [
        ClientFunction(SENDS, compute),
        ClientFunction(two, lambda context: Value(clear=np.array([float(context.x.sum())]))),
    ]
    rng = lambda number, who, query: np.random.default_rng(0)  # noqa: E731
    whole = simulated(plan, contributions, ledger, own, rng=rng)
    answers, log = whole.query(replace(ASK, per_client=(PerClient(two),)), PLACE)
    assert answers.survivors == (0, 2, 3)
    assert "records changed" in log.abstained["client-0001"]


def test_a_length_that_the_server_made_up_costs_it_the_sum() -> None:
    whole, _ = engine(MASKED)
    answers, log = whole.query(replace(ASK, sums=(Sum(SENDS, SIZE + 1),)), PLACE)
    assert answers.totals == {}
    assert "called for 4 values of 'own' and has 3" in log.abstained["client-0000"]


# What clients of one party were shown -----------------------------------------------------------------


def shown(model: Any) -> Contribute:
    broadcast = Broadcast(model=model, names=(), arrays=())
    return Contribute(client=0, header=PLACE, order=order(), broadcast=broadcast, wants=())


def test_clients_that_were_shown_the_same_bytes_are_one_group() -> None:
    """Views of one message, or its copies: by their bytes, and not by numbers that are equal."""
    model, zero, nan = np.arange(8.0), np.array([0.0]), np.array([np.nan])
    for other in (model[:], model.copy()):
        assert len(_by_order([shown(model), shown(other)])) == 1
    assert len(_by_order([shown(nan), shown(nan.copy())])) == 1
    for one, two in (
        (zero, -zero),
        (model[:4], model[::2]),  # these begin at one place
        (model[:4], model[:5]),
        (zero, zero.view(np.int64)),
        (np.array([1, 0], np.float32), np.array([1.0])),
    ):
        assert len(_by_order([shown(one), shown(two)])) == 2


def test_a_value_of_each_client_is_in_no_sum() -> None:
    """Its spec has no grid for a sum, and no noise of one."""
    each = replace(SENDS, reduction="none")
    assert sum_call().sums({"own": SENDS})
    with pytest.raises(RemoteProtocolError):
        sum_call().sums({"own": each})


def test_a_number_that_no_honest_client_has_is_refused() -> None:
    asked = PerClient(ValueSpec(name="number", reduction="none", reveals="it"), least=0.0, most=3.0)
    query = CohortQuery(cohort=(0, 1), broadcast=np.zeros(0, np.float32), per_client=(asked,))
    machine = Server(query=query, header=PLACE, most=Limit(10_000, 99))
    state = machine.begin().state

    def number(value: float) -> ContributionMessage:
        return ContributionMessage(releases=(Delivered("number", "open", np.array([value]), b""),))

    for bad in (3.5, -0.5, np.nan):
        with pytest.raises(RemoteProtocolError):
            machine.receive(state, "client-0001", number(bad))
    state = machine.receive(state, "client-0001", number(3.0)).state
    assert machine.deadline(state).result.per_client["number"] == {1: 3.0}


def entered(plan: Plan, spec: ValueSpec) -> KeyHolderParty:
    """A key holder in a session of its own."""
    party = KeyHolderParty(plan, {"own": spec}, OwnRecord(KEY_HOLDER, Journal()))
    members = {client_name(k): Identity.generate(client_name(k)).member() for k in range(CLIENTS)}
    own = Identity.generate(SERVER).member(), party.member(SESSION)
    party.enter(Directory(SESSION, *own, lambda names: [members[name] for name in names]))
    return party


def test_a_key_holder_opens_no_sum_in_which_one_client_stands_out() -> None:
    """Each client would refuse the order too, but clients that collude sign any."""
    spec = replace(SENDS, weighs="draws")
    plan = replace(TWO, weights={"own": "draws"}, draws=8)
    party = entered(plan, spec)
    for draws in ((5, 1, 1, 1), (1, 1, 1, 5)):
        with pytest.raises(RemoteProtocolError):
            party.call([KEY_HOLDER], encode_call(ATTEMPT, sum_call(draws=draws, whole=8)))
        assert party.drive is None
    party.call([KEY_HOLDER], encode_call(ATTEMPT, sum_call(draws=(2, 2, 2, 2), whole=8)))
    assert isinstance(party.drive, Driver)


@every("how", ["two-server", "ckks"])
@every(("reads", "secagg"), [("unbound", "active"), ("repeated", "semi-honest")])
def test_a_key_holder_opens_no_sum_of_values_that_read_kept_state(reads: Any, secagg: Any, how: str) -> None:
    """In a plan that the server handed to it, and that colluding clients sign."""
    spec = replace(SENDS, reads_state=reads)
    plan = replace(TWO, sum=how, secagg=secagg)
    call = encode_call(ATTEMPT, sum_call())
    with pytest.raises(RemoteProtocolError, match="'own'"):
        entered(plan, spec).call([KEY_HOLDER], call)
    if how == "two-server":
        for taken in (
            (replace(plan, accepts_kept_state=True), spec),
            (plan, replace(spec, reads_state="bound")),
        ):
            party = entered(*taken)
            party.call([KEY_HOLDER], call)
            assert party.drive
