"""An order names its cohort by digest. What a server that lies about the cohort gets from whom it was told.

Each party holds the cohort from the server's call. The order has the digest alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.four_clients import ASK, CLEAR, CLIENTS, MASKED, PLACE, SESSION, SIZE, TWO, client, server
from support.ordered_clients import (
    COHORT,
    EVERYBODY,
    MODEL,
    ORDERED,
    clients,
    sum_call,
    summing,
)

from securefl.algorithm.queries import CohortQuery, Sum, ValueSpec
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.messages import Cohort, Order, client_name, task
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Limit, decode, encode
from securefl.engine.calls import MOST_CLIENTS, QueryCall, bits_of, decode_call, encode_call, members_of
from securefl.engine.exchange.server import broadcast_of, cohort_of, order_of
from securefl.engine.inprocess import InProcess
from securefl.engine.network import Network
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord

ROOM = Limit(10**6, 10**4)
OTHERS = {
    "one client fewer": Cohort(members=ORDERED[1:], draws=(2, 2, 2, 1, 1)),
    "another client": Cohort(members=(0, 1, 2, 3, 4, 6), draws=COHORT.draws),
    "other draws": Cohort(members=ORDERED, draws=(1, 1, 1, 1, 2, 2)),
}


def refused(why: str, order: Order, cohort: Cohort | None = COHORT) -> None:
    """Every client refuses this order after it was told this cohort, and nobody is charged."""
    made = clients()
    to = [client_name(k) for k in (COHORT if cohort is None else cohort).members if k in ORDERED]
    drive = made.tell(order, MODEL, to=to, cohort=cohort)
    assert drive.work() == []
    assert why in drive.traffic.rejected_from[SERVER]
    assert made.party._ledger.rows() == []
    assert not made.call(sum_call()).machines


# One client -------------------------------------------------------------------------------------------


@every("other", OTHERS)
def test_the_digest_of_another_cohort_is_refused(other: str) -> None:
    refused("for the cohort that its call told", summing(OTHERS[other]))


def test_an_order_without_a_told_cohort_is_refused() -> None:
    refused("for the cohort that its call told", summing(), cohort=None)
    refused("for the cohort that its call told", summing(cohort=COHORT, draws=2))
    refused("for the cohort that its call told", replace(summing(), cohort=b""))


def test_a_cohort_that_was_told_at_another_place_counts_no_longer() -> None:
    made = clients()
    made.tell()
    drive = made.tell(summing(), MODEL, at=replace(made.at, stage=1), cohort=None)
    assert "for the cohort that its call told" in drive.traffic.rejected_from[SERVER]
    assert drive.work() == []


def test_a_client_outside_the_cohort_refuses_and_the_others_do_not() -> None:
    without = Cohort(members=ORDERED[1:], draws=(2, 2, 2, 1, 1))
    made = clients()
    drive = made.tell(summing(without), MODEL, cohort=without)
    assert "for a cohort with us in it" in drive.traffic.rejected_from[SERVER]
    drive.work()
    assert set(made.call(sum_call(members=ORDERED[1:])).machines) == set(EVERYBODY[1:])


@every("members", [(0, 1, 2), tuple(range(7))])
def test_a_cohort_that_the_plan_does_not_allow_is_refused_under_its_own_digest(
    members: tuple[int, ...],
) -> None:
    """Three clients with all eight draws: the digest fits, and the plan says at least four."""
    draws = (3, 3, 2) if len(members) == 3 else (2, 2, 1, 1, 1, 1, 1)
    cohort = Cohort(members=members, draws=draws)
    order = summing(cohort, whole=sum(draws), most=max(draws))
    refused("Expected a cohort of 4 to 9" if len(members) == 3 else "Expected 8 draws", order, cohort)


@every("stated", [{"whole": 9}, {"most": 1}, {"most": 8}, {"whole": 0, "most": 0}])
def test_totals_of_draws_are_those_of_the_cohort(stated: dict[str, int]) -> None:
    refused("draws", summing(**stated))


def test_a_cohort_with_a_client_that_is_not_pinned_is_refused_at_the_call() -> None:
    made = clients()
    strangers = Cohort(members=(*ORDERED, 9), draws=(*COHORT.draws, 1))
    with pytest.raises(RemoteProtocolError, match="whose keys are pinned") as found:
        made.tell(summing(strangers), MODEL, cohort=strangers)
    assert found.value.sender == SERVER


@every(
    "changes",
    [
        {"members": b"\x3f\x00"},
        {"members": bytes(MOST_CLIENTS // 8) + b"\x01"},
        {"draws": (1, 2)},
        {"draws": (0, 2, 2, 2, 1, 1)},
    ],
)
def test_a_call_with_another_encoding_of_a_cohort_is_refused(changes: Any) -> None:
    made = clients()
    call = replace(QueryCall.of(ROOM, None, cohort=COHORT), **changes)
    with pytest.raises(RemoteProtocolError) as found:
        made.party.call(EVERYBODY, encode_call(made.at, call))
    assert found.value.sender == SERVER


def test_in_the_clear_an_order_names_no_cohort() -> None:
    whole = InProcess(server(CLEAR), [client(CLEAR)])
    told = []

    def named(sender: str, to: str, data: bytes) -> bytes:
        if sender != SERVER or b"order" not in data[:12]:
            return data
        order = decode(data, PLACE, {Order: ROOM}, SERVER)
        told.append(order)
        return encode(PLACE, replace(order, cohort=bytes(32)))

    answers, log = whole.query(replace(ASK, cohort=(0,)), PLACE, Network(tamper=named))
    assert [order.cohort for order in told] == [b""]
    assert answers.survivors == ()
    assert "sums in the clear" in log.traffic.rejected_from[SERVER]


# Two clients, told otherwise --------------------------------------------------------------------------


@every("plan", [MASKED, TWO])
def test_a_client_that_was_told_another_cohort_is_in_no_sum(plan: Any) -> None:
    """Each client is a party of its own. The last one is told a cohort of three, by call and order alike."""
    parties = [client(plan, (k,)) for k in range(CLIENTS)]
    holder = KeyHolderParty(plan, {"own": ASK.sums[0].spec}, OwnRecord(KEY_HOLDER, Journal()))
    whole = InProcess(server(plan), parties, holder if plan is TWO else None)
    fewer = cohort_of(replace(ASK, cohort=(1, 2, 3)))
    said = ClientParty.call

    def told_otherwise(self: ClientParty, to: Any, data: bytes) -> bytes:
        header, call = decode_call(data, SESSION, (0, 0, -1))
        if isinstance(call, QueryCall):
            call = replace(call, members=bits_of(fewer.members))
        return said(self, to, encode_call(header, call))

    parties[3].call = told_otherwise.__get__(parties[3])  # type: ignore[method-assign]
    ordered_otherwise = encode(PLACE, replace(order_of(ASK), cohort=fewer.digest))

    def lies(sender: str, to: str, data: bytes) -> bytes:
        return ordered_otherwise if to == "client-0003" and b"order" in data[:12] else data

    answers, log = whole.query(ASK, PLACE, Network(tamper=lies))
    assert 3 not in answers.survivors
    if answers.totals:
        assert answers.survivors == (0, 1, 2)
        assert answers.totals["own"].value.tolist() == [6.0] * SIZE  # the sums of 1, 2 and 3
    else:
        assert "client-0003" in {*log.traffic.rejected_from, *log.abstained} or log.abstained[SERVER]


def test_without_the_digest_in_the_signed_task_nothing_would_tell_them_apart() -> None:
    orders = [summing(cohort) for cohort in (COHORT, *OTHERS.values())]
    tasks = {task(PLACE, order, broadcast_of(ASK)) for order in orders}
    assert len(tasks) == len(orders)
    blank = {task(PLACE, replace(order, cohort=b""), broadcast_of(ASK)) for order in orders}
    assert len(blank) == 1


# Size -------------------------------------------------------------------------------------------------


def asked(clients: int) -> CohortQuery:
    spec = ValueSpec(name="own", reduction="sum", reveals="it")
    return CohortQuery(
        cohort=tuple(range(0, 2 * clients, 2)), broadcast=np.zeros(2, np.float32), sums=(Sum(spec, 3),)
    )


def test_an_order_has_one_length_and_a_call_one_bit_for_each_client() -> None:
    few, many = map(asked, (8, 8008))
    orders = [encode(PLACE, order_of(one)) for one in (few, many)]
    assert len(orders[0]) == len(orders[1]) < 200
    assert orders[0] != orders[1]
    calls = [encode_call(PLACE, QueryCall.of(ROOM, None, cohort=cohort_of(one))) for one in (few, many)]
    assert len(calls[1]) - len(calls[0]) == 2 * 8000 // 8


@every("members", [(), (0,), (7,), (8,), (0, 2, 9), tuple(range(100)), (MOST_CLIENTS - 1,)])
def test_bits_are_read_as_they_were_written(members: tuple[int, ...]) -> None:
    assert members_of(bits_of(members)) == members


@every("members", [(-1,), (MOST_CLIENTS,)])
def test_numbers_of_no_client_have_no_bit(members: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        bits_of(members)


@every(
    ("members", "draws"),
    [((), ()), ((1, 0), (1, 1)), ((1, 1), (1, 1)), ((-1, 0), (1, 1)), ((0,), (0,)), ((0, 1), (1,))],
)
def test_a_cohort_ascends_and_each_member_is_drawn(members: Any, draws: Any) -> None:
    with pytest.raises(ConfigError):
        Cohort(members=members, draws=draws)


def test_equal_lists_cut_elsewhere_have_other_digests() -> None:
    one, other = Cohort(members=(1, 2), draws=(3, 4)), Cohort(members=(1,), draws=(2,))
    assert one.digest != other.digest
    assert len(one.digest) == 32
