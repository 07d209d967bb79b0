"""Servers and key holders that lie in calls and keys: it costs them the exchange, and nobody's process."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from support.any_calls import AnyCall, AnyQuestions, any_bounds
from support.every import every
from support.four_clients import CLIENTS, PLACE, SENDS, SESSION, SIZE, records, sum_call
from support.hidden_plans import hidden
from support.tiny_orders import order

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, PerClient, Schedule, Sum, Value, ValueSpec
from securefl.core.errors import RemoteProtocolError
from securefl.core.linear import Range
from securefl.core.messages import Broadcast
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.signing import SIGNATURE_BYTES
from securefl.core.wire import Header, Limit, encode
from securefl.dp.moments import MeanVariance
from securefl.engine.calls import QueryCall, encode_call
from securefl.engine.drive import Driver, Packet
from securefl.engine.inprocess import InProcess, simulated
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.linear import scheme
from securefl.linear.registry import scheme_of
from securefl.linear.scheme import PublicQueries
from securefl.matching.profiles import Anchor, Bounds, Variant, linear_query
from securefl.storage.journal import Journal
from securefl.sums.encrypted import scheme as encrypted
from securefl.sums.two_server.messages import PadRequest

LENGTH = 4
PROFILE = ValueSpec(
    name="profile",
    reduction="none",
    reveals="it",
    reveals_encrypted="a score",
    schedule=Schedule(max_releases=9),
)
LOSS = ValueSpec(name="loss", reduction="none", reveals="it")
OPEN = Plan(delta=1e-5, max_rounds=9, non_private=("own", "profile", "loss"), corrupt=0.2, dropout=0.2)
MASKED = hidden(OPEN, CLIENTS, min_cohort_size=4)
FOR_ONE = order()
OWN_BOUNDS = Bounds().linear(LENGTH, Variant.FULL)
GIVES = [
    ClientFunction(SENDS, lambda context: Value(clear=np.full(SIZE, float(context.x.sum())))),
    ClientFunction(PROFILE, lambda context: Value(hidden=np.ones(2 * LENGTH + 1)), OWN_BOUNDS),
    ClientFunction(LOSS, lambda context: Value(clear=np.ones(1))),
]


def engine(plan: Plan, own: Any = None, gives: Any = GIVES) -> tuple[InProcess, ClientParty]:
    """All clients as one party, and their engine, in the session."""
    scores = scheme_of(plan.scores, parameters="strong", asks=9, clients=CLIENTS)
    rng = lambda number, client, query: np.random.default_rng(0)  # noqa: E731
    ledger = Ledger(None, plan.terms())
    whole = simulated(plan, gives, ledger, own or records(), rng=rng, scores=scores)
    whole._enter(SESSION)
    (party,) = whole._clients
    return whole, party


def holder(whole: InProcess) -> KeyHolderParty:
    assert whole._key_holder is not None
    return whole._key_holder


def drive(party: ClientParty | KeyHolderParty, name: str, place: Header, data: bytes) -> Driver:
    party.call([name], data)
    assert party.drive is not None
    party.drive.begin()
    return party.drive


# A server that lies to the key holder ---------------------------------------------------------------


@every(
    "wrong",
    [
        *({name: number} for name in ("again", "number") for number in (-1, 2**31, 2**62)),
        {"number": 1, "initial": 1},
    ],
)
@every("how", ["ckks", "two-server"])
def test_a_number_that_no_agreement_can_hold_is_refused(how: Any, wrong: Any) -> None:
    whole, _ = engine(replace(MASKED, sum=how))
    attempt = replace(PLACE, attempt=1)
    with pytest.raises(RemoteProtocolError, match="Expected sums"):
        holder(whole).call([KEY_HOLDER], encode_call(attempt, sum_call(**wrong)))
    good = drive(holder(whole), KEY_HOLDER, attempt, encode_call(attempt, sum_call(number=1)))
    assert good.machines
    empty = PadRequest(task=bytes(32), members=(), boxes=(), inputs=(), signatures=())
    assert good.deliver(Packet(SERVER, KEY_HOLDER, encode(attempt, empty))) == []
    assert SERVER in good.traffic.rejected_from


def test_kinds_of_profiles_without_end_do_not_fill_the_key_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheme, "MOST_KINDS", 2)
    whole, _ = engine(replace(OPEN, scores="ckks"))
    for number in (1, 2):
        at = replace(PLACE, round=number)
        holder(whole).call([KEY_HOLDER], encode_call(at, scores(length=number)))
    with pytest.raises(RemoteProtocolError, match="at most 2 sets of bounds"):
        holder(whole).call([KEY_HOLDER], encode_call(replace(PLACE, round=3), scores(length=3)))
    assert holder(whole).call([KEY_HOLDER], encode_call(replace(PLACE, round=3), scores(length=2)))


ENDS = (5e-324, 1e-100, 1.0, 1e100, 1.7e308)


@every("how", ["ckks", "pads"])
def test_sizes_at_the_ends_of_a_float_cost_the_call_and_no_process(how: Any) -> None:
    """Scales follow from logarithms and quotients of the sizes, which these make infinite or 0."""
    whole, party = engine(replace(OPEN, scores=how))
    good, refused = scores(), 0
    key = holder(whole).call([KEY_HOLDER], encode_call(PLACE, good))
    assert good.asked is not None
    declared = any_bounds(replace(good.asked.bounds, weights=()))
    for number, (norm, weight_norm, product) in enumerate(itertools.product(ENDS, repeat=3), 2):
        at = replace(PLACE, round=number)
        bounds = replace(declared, norm=norm, weight_norm=weight_norm, row_norm=1.0, product=product)
        call = AnyCall(asked=AnyQuestions(names=("profile",), bounds=bounds, weights=(bytes(32),)), key=key)
        for one, name in ((holder(whole), KEY_HOLDER), (party, "client-0000")):
            try:
                one.call([name], encode(at, call))
            except RemoteProtocolError:
                refused += 1
    assert refused > len(ENDS) ** 3


def test_a_parcel_that_comes_before_the_drive_began_is_lost() -> None:
    _, party = engine(OPEN)
    party.call(["client-0000"], encode_call(PLACE, QueryCall(most=Limit(999, 9))))
    assert party.drive is not None
    order = replace(FOR_ONE, wants=("own",))
    assert party.drive.deliver(Packet(SERVER, "client-0000", encode(PLACE, order))) == []
    assert party.drive.traffic.rejected_from == {}


# A server that comes back ----------------------------------------------------------------------------


def test_another_order_at_a_place_from_before_a_restart_is_not_answered() -> None:
    """The ledger has the place with another charge: it says so, and the party goes on."""
    trained = ValueSpec(
        name="own",
        reduction="none",
        reveals="it",
        depends_on="model",
        training=GaussianDpEvent(1.0),
        schedule=Schedule(initial=1),
    )
    plan = replace(OPEN, unit="record", adjacency="add-remove", non_private=())
    gives, journal = [ClientFunction(trained, lambda context: Value(clear=np.ones(1)))], Journal()
    ledger = Ledger(None, plan.terms())
    sent = []
    for initial in (0, 1, 0):
        whole, _ = engine(plan, gives=gives)
        directory = whole._clients[0]._directory
        assert directory is not None
        rng = lambda number, client, query: np.random.default_rng(0)  # noqa: E731
        party = ClientParty(plan, gives, ledger, journal, {0: records()[0]}, rng=rng)
        party.enter(directory)
        call = QueryCall(most=Limit(10**6, 99))
        at = drive(party, "client-0000", PLACE, encode_call(PLACE, call))
        order = replace(FOR_ONE, wants=("own",), initial=initial)
        for one in (order, Broadcast(model=np.zeros(2, np.float32), names=(), arrays=())):
            at.deliver(Packet(SERVER, "client-0000", encode(PLACE, one)))
        sent.append(len(at.work()))
    assert sent == [1, 0, 1]
    assert len(ledger.rows()) == 1


def test_no_party_is_called_in_round_0() -> None:
    """A restart forgets a round 0, so a key holder read more of one profile than its schedule allows."""
    whole, party = engine(replace(OPEN, scores="ckks"))
    call = encode_call(replace(PLACE, round=0), scores())
    for one, name in ((holder(whole), KEY_HOLDER), (party, "client-0000")):
        with pytest.raises(RemoteProtocolError, match=r"Expected a place after .*: places go up"):
            one.call([name], call)


# A server that lies to a client about scores --------------------------------------------------------


def scores(length: int = LENGTH, variant: str = "full", key: bytes = b"", **changes: Any) -> QueryCall:
    bounds = Bounds().linear(length, Variant(variant))
    kind = PublicQueries(("profile",), replace(bounds, **changes.pop("bounds", {})), CLIENTS, (bytes(32),))
    return QueryCall.of(Limit(10**6, 10**4), replace(kind, **changes), key)


def asked(
    how: Any, wants: tuple[str, ...], call: QueryCall, *, bare: bool = False
) -> tuple[list[Packet], Driver, ClientParty]:
    """What a client answers to this call, under the key that the key holder said for it."""
    whole, party = engine(replace(OPEN, scores=how))
    key = holder(whole).call([KEY_HOLDER], encode_call(PLACE, call))
    told = QueryCall(most=Limit(10**6, 10**4)) if bare else replace(call, key=key)
    at = drive(party, "client-0000", PLACE, encode_call(PLACE, told))
    order = replace(FOR_ONE, wants=wants)
    for one in (order, Broadcast(model=np.zeros(2, np.float32), names=(), arrays=())):
        at.deliver(Packet(SERVER, "client-0000", encode(PLACE, one)))
    return at.work(), at, party


@every("how", ["ckks", "pads"])
def test_a_client_that_is_called_without_a_key_does_not_tell_its_profile(how: Any) -> None:
    out, at, _ = asked(how, ("profile",), scores(), bare=True)
    assert out == []
    assert "Expected a key for ['profile']" in at.traffic.rejected_from[SERVER]


@every("how", ["ckks", "pads"])
@every(
    ("wants", "wrong"),
    [
        (("profile",), {"length": LENGTH + 1}),
        (("profile",), {"variant": "mean-only"}),
        (("loss",), {"names": ("loss",)}),
        (("profile",), {"bounds": {"weights": ()}}),
        (("profile",), {"bounds": {"weights": (Range(2 * LENGTH + 1, -1e9, 1e9),)}}),
    ],
)
def test_a_client_that_is_called_for_another_kind_abstains(how: Any, wants: Any, wrong: Any) -> None:
    out, at, party = asked(how, wants, scores(**wrong))
    assert out == []
    assert at.results == {"client-0000": "abstained"}
    assert "in the bounds that this client declares" in party.log.abstained["client-0000"]
    assert party.log.reasons["client-0000"].told == "public", "a client that must speak may be silent here"


@every("weights", [(), (bytes(32), bytes(32)), (bytes(31),), (b"",)])
@every("how", ["pads", "ckks"])
def test_a_client_takes_one_digest_for_each_query(how: Any, weights: Any) -> None:
    whole, party = engine(replace(OPEN, scores=how))
    key = holder(whole).call([KEY_HOLDER], encode_call(PLACE, scores()))
    with pytest.raises(RemoteProtocolError, match=r"digest of .* bytes for each of"):
        party.call(["client-0000"], encode_call(PLACE, scores(key=key, weights=weights)))


@every("how", ["ckks", "pads"])
def test_neither_party_takes_one_name_twice(how: Any) -> None:
    """Two queries of one name would be two requests, or two digests, of one vector."""
    whole, party = engine(replace(OPEN, scores=how))
    key = holder(whole).call([KEY_HOLDER], encode_call(PLACE, scores()))
    twice = scores(key=key, names=("profile", "profile"), weights=(bytes(32), bytes(32)))
    for one, name in ((holder(whole), KEY_HOLDER), (party, "client-0000")):
        with pytest.raises(RemoteProtocolError, match="each query once"):
            one.call([name], encode_call(replace(PLACE, round=2), twice))


@every("how", ["ckks", "pads"])
def test_a_key_holder_that_enters_again_has_another_key(how: Any) -> None:
    """It forgets what it answered, so the pads of before must be gone too."""
    whole, _ = engine(replace(OPEN, scores=how))
    keys = set()
    for _ in range(2):
        whole._enter(SESSION)
        keys.add(holder(whole).call([KEY_HOLDER], encode_call(PLACE, scores())))
    assert len(keys) == 2


def test_a_client_that_is_called_for_what_it_has_answers() -> None:
    out, _, _ = asked("ckks", ("profile", "loss"), scores())
    assert len(out) == 1


# A key holder that lies about its key ---------------------------------------------------------------


def garbage(key: bytes) -> bytes:
    return b"x"


def zeros(key: bytes) -> bytes:
    return bytes(len(key))


def weak(key: bytes) -> bytes:
    """A point of small order in front of a good key: no secret can be agreed on with it."""
    return bytes(32) + key[32:]


def signs(whole: InProcess, purpose: bytes, lie: Callable[[bytes], bytes]) -> None:
    """The key holder signs something else in the place of its key."""
    party, own = holder(whole), holder(whole).call

    def lying(to: Any, data: bytes) -> bytes:
        key = own(to, data)[:-SIGNATURE_BYTES]
        return party._record.identity(SESSION).vouch(purpose, SESSION, lie(key))

    party.call = lying  # type: ignore[method-assign]


# The key of ciphertexts alone has no point that could be weak.
@every(
    ("how", "lie"),
    [("ckks", garbage), ("ckks", zeros), ("pads", garbage), ("pads", zeros), ("pads", weak)],
)
def test_a_signed_key_that_is_none_costs_the_numbers_and_no_process(how: Any, lie: Any) -> None:
    whole, _ = engine(replace(OPEN, scores=how))
    kind = scores().asked
    assert kind is not None
    way = whole.server._scoring
    assert way is not None
    signs(whole, way.purpose(way.terms(kind.bounds, PLACE)), lie)
    baseline = linear_query(
        MeanVariance(np.zeros(LENGTH), np.ones(LENGTH), 9),
        Anchor(np.zeros(LENGTH), np.ones(LENGTH)),
        Bounds(),
    )
    answers, log = whole.query(
        CohortQuery(
            cohort=(0, 1), broadcast=np.zeros(2, np.float32), per_client=(PerClient(PROFILE, baseline),)
        ),
        PLACE,
    )
    assert answers.per_client == {"profile": {}}
    assert "no key of its own" in log.abstained[KEY_HOLDER]


@every("lie", [garbage, zeros])
def test_a_signed_key_that_is_none_costs_the_sum_and_no_process(lie: Any) -> None:
    whole, _ = engine(replace(MASKED, sum="ckks"))
    signs(whole, encrypted._PURPOSE, lie)
    query = CohortQuery(
        cohort=tuple(range(CLIENTS)), broadcast=np.zeros(2, np.float32), sums=(Sum(SENDS, SIZE),)
    )
    answers, log = whole.query(query, PLACE)
    assert answers.totals == {}
    assert "Expected a public key" in log.abstained[SERVER]


# A session, and an Ask, end when they end -----------------------------------------------------------


def test_another_session_has_other_keys() -> None:
    """The keys of a session are those that a restart has, whatever session was entered before."""
    whole, party = engine(MASKED)
    first = party.members(SESSION, ["client-0000"])
    other = bytes([1] * 32)
    assert party.members(other, ["client-0000"]) != first
    assert party.members(SESSION, ["client-0000"]) == first, "a directory may be made while one goes on"
    whole._enter(other)
    assert party.members(SESSION, ["client-0000"]) == first
    again = ClientParty(
        party._plan,
        GIVES,
        party._ledger,
        party._journal,
        {0: records()[0]},
        rng=lambda *_: np.random.default_rng(0),
    )
    assert again.members(other, ["client-0000"]) == party.members(other, ["client-0000"])


def test_a_bad_call_does_not_end_the_ask_at_hand() -> None:
    """Else a server could have a value computed a second time, from what the first computing kept."""
    _, party = engine(MASKED)
    names = list(party.names)
    party.call(names, encode_call(PLACE, QueryCall(most=Limit(9, 9))))
    party._contributing.values._news[0] = {"seen": np.ones(1)}
    huge = QueryCall(most=Limit(2**40, 9))
    with pytest.raises(RemoteProtocolError, match="at most"):
        party.call(names, encode_call(replace(PLACE, stage=1), huge))
    assert party.kept == {}
    party.drive.results[names[0]] = "answered"
    party.call(names, encode_call(replace(PLACE, stage=1), QueryCall(most=Limit(9, 9))))
    assert set(party.kept) == {0}
