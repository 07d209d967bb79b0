"""Two-server sums: exact totals, and each lie of a client, the server or the key holder that is refused."""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support import tiny_parties
from support.every import every
from support.liars import copied, put
from support.noises import room
from support.tiny_parties import attempt, session
from support.tiny_secagg import identity, told
from support.tiny_two_server import (
    EVERYBODY,
    FEWER,
    LEAST,
    MEMBERS,
    NOISED,
    NOISED_SENDS,
    PART,
    PLAN,
    SENDS,
    SERVER_KEY,
    VECTORS,
    Holder,
    agreement,
    client,
    collected,
    expected,
    padded,
    part,
    requested,
    secret,
    server,
    signed,
    summed,
)

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, Sum, ValueSpec
from securefl.algorithm.weighing import Weights
from securefl.core.acts import RecordAct
from securefl.core.agreement import Roster, Vector, fields, u32
from securefl.core.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from securefl.core.keys import Commitment, SecretKey, Share
from securefl.core.machine import Step
from securefl.core.messages import REFUSED, client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.signing import seal, unseal
from securefl.core.wire import Header, decode, encode
from securefl.dp.noise import Source
from securefl.mechanisms.charges import Protection
from securefl.storage.journal import Journal
from securefl.sums.opened import OpenedServer
from securefl.sums.scheme import Opened, Unopened
from securefl.sums.two_server import TwoServer
from securefl.sums.two_server.agreement import Agreement, request_digest
from securefl.sums.two_server.messages import PaddedInput, PadReply, PadRequest
from securefl.sums.two_server.pads import box, opened, pads_of, seeds_of, total_pads


@pytest.fixture
def holder() -> Holder:
    return Holder()


def inputs(of: Agreement, members: Any = EVERYBODY) -> dict[int, Any]:
    return {k: padded(of, k) for k in members}


def refused(reply: PadReply) -> bool:
    return (reply.bad, reply.pads) == ((), REFUSED)


def named(*members: int) -> set[str]:
    return set(map(client_name, members))


# Exact ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [EVERYBODY, FEWER, (0, 2, 3, 5)])
def test_the_total_is_that_of_the_members_that_came(members: tuple[int, ...], holder: Holder) -> None:
    of = agreement()
    result = summed(of, inputs(of, members), holder)
    assert set(result.survivors) == named(*members)
    for name, total in expected(of, members).items():
        np.testing.assert_array_equal(result.totals[name], total)


def test_a_sum_that_could_wrap_is_no_agreement() -> None:
    bound = (1 << 19) // MEMBERS + 1
    with pytest.raises(ConfigError, match="got the 20 bits of"):
        agreement(vectors=(Vector(name="update", length=9, bits=20, bound=bound),))


@every("key", [SERVER_KEY.public, replace(SERVER_KEY.public, raw=bytes(31))])
def test_one_key_does_not_stand_for_both_parties(key: Any) -> None:
    with pytest.raises(ConfigError, match="two different keys"):
        replace(agreement(), holder=key)


# What each party sees ---------------------------------------------------------------------------


def test_the_key_holder_sees_pads_that_no_record_moved() -> None:
    """Its boxes and what is in them are the same bytes whatever is padded; the pads are uniform."""
    vector = Vector(name="update", length=20_000, bits=20, bound=100)
    of = agreement(vectors=(vector,))
    boxes = {padded(of, 0, {"update": np.full(20_000, value)}).boxes for value in (-100, 0, 100)}
    assert len(boxes) == 1
    [seed] = opened(PART.key, of, 0, boxes.pop())
    [pads] = pads_of(of, total_pads(of, [[seed]], {}))
    assert stats.chisquare(np.bincount(pads >> 14, minlength=64)).pvalue > 1e-6


ELSEWHERE = {
    "attempt": agreement(2),
    "round": agreement(number=2),
    "stage": agreement(stage=1),
    "asking": agreement(again=1),
    "task": agreement(task="another"),
    "plan": agreement(plan="another"),
    "key holder": agreement(holder=part("another")),
}


@every("what", ELSEWHERE)
def test_another_attempt_or_agreement_has_other_seeds(what: str) -> None:
    """Two values under one pad would tell their difference."""
    of, own = agreement(), secret(0)
    seeds = [seed.reveal() for agreed in (of, ELSEWHERE[what]) for seed in seeds_of(own, agreed, 0)]
    seeds += [seed.reveal() for seed in seeds_of(own, of, 1)]
    assert len(set(seeds)) == 6


# Boxes ------------------------------------------------------------------------------------------

OTHER_PLACES: dict[str, Callable[[Agreement], tuple[Share, ...]]] = {
    **{what: lambda of, other=other: padded(other, 1).boxes for what, other in ELSEWHERE.items()},
    "name": lambda of: padded(of, 2).boxes,
    "vector": lambda of: padded(of, 1).boxes[::-1],
    "key holder, in this context": lambda of: elsewhere(of),
    "length of a seed": lambda of: (
        box(secret(1), of, 1, 0, SecretKey(bytes(31))),
        padded(of, 1).boxes[1],
    ),
}


def elsewhere(of: Agreement) -> tuple[Share, ...]:
    """Boxes of this context that another key holder could open."""
    own, other = secret(1), part("another").key.public
    seeds = seeds_of(own, of, 1)
    shifted = Lying(**{own.name: getattr(of, own.name) for own in dataclasses.fields(of)} | {"holder": other})
    shifted.__dict__["context"] = of.context
    return tuple(box(own, shifted, 1, number, seed) for number, seed in enumerate(seeds))


class Lying(Agreement):
    """One whose context is that of another."""


@every("what", OTHER_PLACES)
def test_a_box_of_another_place_is_named_before_anything_is_on_record(what: str) -> None:
    """Its client signed it, so its client is named; the sum goes on without it."""
    of, holder = agreement(), Holder()
    bad = signed(of, 1, replace(padded(of, 1), boxes=OTHER_PLACES[what](of)))
    reply = holder.asked(of, requested(of, changed={1: bad}))
    assert (reply.bad, reply.pads, holder.added) == ((1,), REFUSED, 0)
    others = tuple(k for k in EVERYBODY if k != 1)
    assert not refused(holder.asked(of, requested(of, others))), "nothing was on record"


def test_the_sum_goes_on_without_a_bad_box(holder: Holder) -> None:
    of = agreement()
    came = inputs(of)
    came[1] = signed(of, 1, replace(came[1], boxes=padded(agreement(2), 1).boxes))
    came[4] = signed(of, 4, replace(came[4], boxes=came[3].boxes))
    result = summed(of, came, holder)
    assert isinstance(result, Opened)
    assert set(result.survivors) == named(0, 2, 3, 5)
    assert set(result.proven_cheaters) == named(1, 4)
    for name, total in expected(of, (0, 2, 3, 5)).items():
        np.testing.assert_array_equal(result.totals[name], total)
    assert (holder.opened, holder.added) == (2, 1)


def test_too_few_good_boxes_are_no_sum_and_another_attempt_may_be(holder: Holder) -> None:
    of = agreement()
    came = inputs(of)
    for k in (1, 3, 4):
        came[k] = signed(of, k, replace(came[k], boxes=came[k].boxes[::-1]))
    result = summed(of, came, holder)
    assert isinstance(result, Unopened)
    assert not result.final
    assert set(result.proven_cheaters) == named(1, 3, 4)
    assert isinstance(summed(agreement(2), inputs(agreement(2)), holder), Opened)


def test_after_members_were_named_only_the_rest_is_asked_for(holder: Holder) -> None:
    of = agreement()
    bad = signed(of, 1, replace(padded(of, 1), boxes=padded(of, 2).boxes))
    first = requested(of, changed={1: bad})
    machine = holder.machine(of)
    state, reply = holder.shown(machine, machine.begin().state, first)
    for other in (requested(of, (0, 2, 3, 4)), requested(of)):
        with pytest.raises(RemoteProtocolError, match="members that were named"):
            machine.receive(state, SERVER, other)
    assert not refused(holder.shown(machine, state, first.without(reply.bad))[1])


# What the server can be sent --------------------------------------------------------------------


def altered(of: Agreement) -> list[tuple[PaddedInput, str]]:
    """What member 1 sends, with one defect, and what is said of it."""
    good, other = padded(of, 1), padded(of, 2)
    first, count = good.releases

    def counted(**change: Any) -> dict[str, Any]:
        return {"releases": (first, replace(count, **change))}

    longer, more = np.append(count.numbers, np.uint8(0)), count.numbers | np.uint8([0] * 7 + [240])
    wrong = {
        "2 boxes of 80 bytes": [
            {"boxes": boxes}
            for boxes in (
                (),
                (*good.boxes, good.boxes[0]),
                (Share(good.boxes[0].raw + b"x"), good.boxes[1]),
            )
        ],
        "one masked vector for each": [
            {"releases": good.releases[:1]},
            {"releases": good.releases[::-1]},
            counted(form="open"),
            counted(sealed=b"x"),
        ],
        "Expected 8 bytes": [counted(numbers=longer), counted(numbers=count.numbers.astype(np.int32))],
        "after the last value": [counted(numbers=more)],
    }
    return [
        *((signed(of, 1, replace(good, **parts)), why) for why, bad in wrong.items() for parts in bad),
        *(
            (bad, "did not sign")
            for bad in (
                replace(good, releases=(other.releases[0], count)),
                replace(good, boxes=other.boxes),
                replace(good, boxes=good.boxes[::-1]),
                *(padded(elsewhere, 1) for elsewhere in ELSEWHERE.values()),
                other,
                signed(of, 1, good, by=2),
                signed(of, 2, good, by=1),
            )
        ),
    ]


def test_the_server_refuses_by_name() -> None:
    """The state is as it was, so the others' sum is as it would have been."""
    of = agreement()
    machine = server(of)
    for bad, said in altered(of):
        with pytest.raises(RemoteProtocolError, match=said) as caught:
            machine.receive(machine.begin().state, client_name(1), bad)
        assert caught.value.sender == client_name(1)


# The key holder's reply -------------------------------------------------------------------------


def asks(*bad: int) -> tuple[Agreement, OpenedServer, Any, PadRequest]:
    """A server, its step in which it asks the key holder, and its request. Some members' boxes are bad."""
    of = agreement()
    came, machine = inputs(of), server(of)
    for k in bad:
        came[k] = signed(of, k, replace(came[k], boxes=came[2].boxes))
    step = collected(machine, came)
    return of, machine, step, step.out[0].message


def test_of_two_replies_the_first_counts(holder: Holder) -> None:
    """A key holder that answers twice with different bytes."""
    of, machine, asking, request = asks()
    good = holder.asked(of, request)
    zeros = replace(good, pads=seal(of.server, bytes(46), request_digest(of, request)))
    for first, second in ((good, zeros), (zeros, good)):
        taken = machine.receive(asking.state, KEY_HOLDER, first)
        assert machine.receive(taken.state, KEY_HOLDER, second) == Step(taken.state)
        ended = machine.provide(taken.state, taken.need.order.run())
        assert machine.receive(ended.state, KEY_HOLDER, second).state is ended.state


def test_what_is_no_reply_is_refused(holder: Holder) -> None:
    of, machine, asking, request = asks()
    good, asked = holder.asked(of, request), request_digest(of, request)
    plain = unseal(SERVER_KEY, good.pads, asked)
    elsewhere = request_digest(of, requested(agreement(2)))
    bad = [
        holder.asked(agreement(number=2), requested(agreement(number=2))),
        replace(good, request=request_digest(of, requested(of, FEWER))),
        replace(good, pads=seal(of.server, plain, elsewhere)),
        replace(good, pads=seal(PART.key.public, plain, asked)),
        # a pad less, and bits after the last value
        *(replace(good, pads=seal(of.server, own, asked)) for own in (plain[:38], plain[:-1] + b"\xff")),
        replace(good, pads=good.pads[:-1]),
        replace(good, pads=good.pads[:-1] + bytes([good.pads[-1] ^ 1])),
        *(PadReply(request=asked, bad=names, pads=REFUSED) for names in ((1, 1), (2, 1), (MEMBERS,))),
        replace(good, bad=(1,)),
    ]
    for reply in bad:
        with pytest.raises(RemoteProtocolError) as caught:
            machine.receive(asking.state, KEY_HOLDER, reply)
        assert caught.value.sender == KEY_HOLDER
    with pytest.raises(RemoteProtocolError, match="of the key holder"):
        machine.receive(asking.state, client_name(0), good)
    assert machine.receive(asking.state, KEY_HOLDER, good).need is not None, "the state is as before"


@every("clients", [6, 1000])
def test_a_reply_that_names_everybody_fits(clients: int) -> None:
    """Where vectors are short, names are longer than pads."""
    small = replace(agreement(), vectors=(Vector(name="update", length=1, bits=20, bound=100),))
    roster = Roster(tuple(identity(k).member() for k in range(clients)))
    of = replace(small, roster=roster, ordered=clients, weights=Weights((1,) * clients).encoded())
    said = encode(of.header, PadReply(request=bytes(32), bad=tuple(range(clients)), pads=REFUSED))
    machine = server(of)
    decode(said, of.header, machine.expects(machine.begin().state).kinds, KEY_HOLDER)


def test_the_reply_that_named_members_may_come_twice(holder: Holder) -> None:
    of, machine, asking, request = asks(1)
    naming = holder.asked(of, request)
    again = machine.receive(asking.state, KEY_HOLDER, naming)
    assert machine.receive(again.state, KEY_HOLDER, naming) == Step(again.state)
    # who names members of the second request as well has opened their boxes before
    second = PadReply(request=request_digest(of, again.out[0].message), bad=(2,), pads=REFUSED)
    with pytest.raises(RemoteProtocolError, match="Expected members"):
        machine.receive(again.state, KEY_HOLDER, second)


def test_a_key_holder_that_is_silent_is_asked_three_times() -> None:
    _, machine, step, request = asks()
    for _ in range(2):
        step = machine.deadline(step.state)
        assert [one.message for one in step.out] == [request]
    step = machine.deadline(step.state)
    assert isinstance(step.result, Unopened)
    assert step.result.final, "it may have put the set on record"
    assert machine.deadline(step.state).result is None


@pytest.mark.parametrize("refuses", [True, False], ids=["refuses", "is silent"])
def test_whoever_was_named_stays_named_where_no_sum_follows(refuses: bool, holder: Holder) -> None:
    """And no other set may be asked for: the key holder may have put this one on record."""
    of, machine, asking, request = asks(1)
    step = machine.receive(asking.state, KEY_HOLDER, holder.asked(of, request))
    if refuses:
        asked = request_digest(of, step.out[0].message)
        step = machine.receive(step.state, KEY_HOLDER, PadReply(request=asked, bad=(), pads=REFUSED))
    while step.result is None:
        step = machine.deadline(step.state)
    assert isinstance(step.result, Unopened)
    assert (set(step.result.proven_cheaters), step.result.final) == (named(1), True)


def test_a_reply_that_is_late_opens_nothing(holder: Holder) -> None:
    """And a request that is late is answered: the server may still be collecting at the deadline."""
    of, machine, step, request = asks()
    other = holder.machine(of)
    waited = other.deadline(other.begin().state)
    assert waited.result == "unused"
    _, reply = holder.shown(other, waited.state, request)
    while step.result is None:
        step = machine.deadline(step.state)
    late = machine.receive(step.state, KEY_HOLDER, reply)
    assert (late.state, late.need, late.result) == (step.state, None, None)


# What the key holder can be asked ---------------------------------------------------------------


def spoilt(of: Agreement) -> list[tuple[PadRequest, str]]:
    """Requests with one defect, and what is said of it."""
    good, own = requested(of), SecretKey(bytes(32))
    half = {k: padded(ELSEWHERE["task"], k) for k in (0, 1, 2)}
    flipped = Commitment(bytes([good.inputs[0].raw[0] ^ 1]) + good.inputs[0].raw[1:])
    unsigned = [
        put(0, boxes=box(own, of, 0, 0, own))(good),  # the server's own
        copied(1, 0, "boxes")(good),
        put(0, inputs=flipped)(good),
        copied(1, 0, "signatures")(good),
        *(requested(of, changed={0: signed(of, 0, padded(of, 0), by=other)}) for other in (1, 77)),
        *(requested(of, changed={0: padded(other, 0)}) for other in ELSEWHERE.values()),
        *(requested(other) for other in ELSEWHERE.values() if other.task == of.task),
        requested(of, changed=half),
        replace(good, task=told("another task")),
    ]
    return [
        (requested(of, EVERYBODY[: LEAST - 1]), "at least 4 ascending"),
        (good.without(EVERYBODY), "at least 4 ascending"),
        (put(1, members=0)(good), "at least 4 ascending"),
        *((put(at, members=who)(good), "pinned roster") for at, who in ((5, MEMBERS), (5, 2**32), (0, -1))),
        (replace(good, inputs=good.inputs[1:]), "a signature for each"),
        (replace(good, signatures=good.signatures[1:]), "a signature for each"),
        (replace(good, task=good.task[:-1]), "a task of 32 bytes"),
        (replace(good, boxes=(*good.boxes, good.boxes[0])), "Expected boxes"),
        *((one, "member 0 did not sign") for one in unsigned),
    ]


def test_the_key_holder_refuses_before_it_opens_a_box(holder: Holder) -> None:
    """And before its record is asked, so the honest request after it is answered."""
    of = agreement()
    for bad, said in spoilt(of):
        with pytest.raises(RemoteProtocolError, match=said) as caught:
            holder.asked(of, bad)
        assert (caught.value.sender, caught.value.phase) == (SERVER, "pads")
        assert (holder.opened, holder.added) == (0, 0)
    assert not refused(holder.asked(of, requested(of)))


# One sum of pads for a question -----------------------------------------------------------------


@every("at", ["before the record", "after the record", "after the pads"])
def test_a_restart_between_record_and_answer(at: str, tmp_path: Path) -> None:
    """The same request gets the bytes that an undisturbed key holder says, and another one none."""
    of, path = agreement(), tmp_path / "acts.sqlite"
    whole = Holder().asked(of, requested(of))
    holder = Holder(Journal(path))
    machine = holder.machine(of)
    step = machine.receive(machine.begin().state, SERVER, requested(of))
    step = machine.provide(step.state, holder.answer(step.need.order))
    assert isinstance(step.need.order, RecordAct)
    if at != "before the record":
        step = machine.provide(step.state, holder.answer(step.need.order))
        assert step.need.order.run.func.__name__ == "open"
    if at == "after the pads":
        holder.answer(step.need.order)
    holder.journal.close()
    holder.journal = Journal(path)
    if at != "before the record":
        assert refused(holder.asked(of, requested(of, FEWER)))
    assert holder.asked(of, requested(of)) == whole
    assert refused(holder.asked(agreement(2), requested(agreement(2))))


def test_other_questions_are_answered_and_rounds_go_up(holder: Holder) -> None:
    for of in (agreement(), agreement(2, again=1), agreement(ask=1), agreement(number=2)):
        assert not refused(holder.asked(of, requested(of)))
    assert refused(holder.asked(agreement(3), requested(agreement(3), FEWER))), "round 1 is over"


def test_a_refused_request_leaves_its_other_questions_open(holder: Holder) -> None:
    """All vectors of a request are put on record, or none: else an answer is refused that nobody has had."""
    first, both, last = (
        agreement(attempt, vectors=vectors)
        for attempt, vectors in ((1, VECTORS[:1]), (2, VECTORS[::-1]), (3, VECTORS[1:]))
    )
    assert not refused(holder.asked(first, requested(first)))
    assert refused(holder.asked(both, requested(both)))
    assert not refused(holder.asked(last, requested(last)))


# The client -------------------------------------------------------------------------------------


def test_a_client_says_nothing_without_its_record_and_its_releases() -> None:
    machine = client(agreement(), 0)
    begun = machine.begin()
    entered = machine.provide(begun.state, secret(0))
    with pytest.raises(LocalProtocolError, match="one masked release"):
        machine.provide(entered.state, ())
    with pytest.raises(LocalProtocolError, match="secret of this attempt"):
        machine.provide(begun.state, ())


# The machines of an attempt ---------------------------------------------------------------------


def machines(plan: Plan, spec: ValueSpec, called: int = MEMBERS) -> dict[str, Any]:
    """Those of an attempt with so many of six clients."""
    query = CohortQuery(cohort=EVERYBODY, broadcast=np.zeros(2, np.float32), sums=(Sum(spec, 4),))
    one = attempt(query, EVERYBODY[:called], Header(bytes(32), 1, 1, 0), told("task"))
    return tiny_parties.machines(TwoServer(plan), one, session(EVERYBODY))


def test_all_parties_ask_for_as_many_as_the_plan_says() -> None:
    plan = replace(PLAN, dropout=0.34, min_cohort_size=4)
    found = machines(plan, SENDS[0], called=5)
    least = {found[client_name(k)].signers for k in range(5)}
    assert least == {found[KEY_HOLDER].least} == {found[SERVER].least} == {4}
    with pytest.raises(ConfigError, match="4 to 6 clients of the 6 ordered, got 3"):
        machines(plan, SENDS[0], called=3)


# Noise of the key holder ------------------------------------------------------------------------

WIDE = Vector(name="update", length=4000, bits=32, bound=10**6)
NOISY = part("the key holder", NOISED, NOISED_SENDS[:1])
SIGMA = 3.0 * 2**6
"""In units of the grid."""


@every(
    ("place", "where"),
    [
        ({"number": 2, "again": 3}, (2, 0, 3)),
        ({"number": 2, "ask": 4}, (0, 4, 0)),
        ({"number": 2, "once": True}, (0, 0, 0)),
    ],
)
def test_the_noise_is_the_specified_one_on_each_sum(place: dict[str, Any], where: tuple[int, ...]) -> None:
    """Once for a question. Two sums of one ask under one draw would tell their difference bare."""
    both = part("the key holder", NOISED, NOISED_SENDS)
    of = agreement(vectors=(WIDE, replace(WIDE, name="count")), holder=both, **place)
    totals = summed(of, inputs(of), Holder(Journal(), both)).totals
    for name in ("update", "count"):
        asked = request_digest(of, requested(of))
        text = fields(b"two-server noise", of.header.session, u32(*where), name.encode(), asked)
        source = Source(SecretKey(hmac.digest(both.secret.reveal(), text, "sha256")))
        drawn = np.rint(SIGMA * source.normal(WIDE.length)).astype(np.int64)
        np.testing.assert_array_equal(totals[name] - expected(of)[name], drawn)


def test_another_attempt_gets_no_second_draw() -> None:
    """Two totals of a question with two draws would be two releases."""
    holder = Holder(Journal(), NOISY)
    first, second = (agreement(attempt, vectors=(WIDE,), holder=NOISY) for attempt in (1, 2))
    assert isinstance(summed(first, inputs(first), holder), Opened)
    assert isinstance(summed(second, inputs(second), holder), Unopened)


def test_the_noise_has_room_beside_the_largest_sum() -> None:
    """13 sigma beside everybody at the bound, in the vectors that all agree on."""
    spec = replace(NOISED_SENDS[0], grid=replace(NOISED_SENDS[0].grid, bound=2.0))
    plan = replace(NOISED, noise_multiplier=1000.0)
    assert room(plan, spec) >= 13 * 1000 * 2**6
    [vector] = machines(plan, spec)[SERVER].agreement.vectors
    assert MEMBERS * vector.bound + room(plan, spec) < 1 << vector.bits - 1


def test_its_charge_is_the_noises_for_all_but_the_key_holder() -> None:
    charge = Protection(NOISED, NOISED_SENDS[0]).charge()
    assert charge.server == charge.others
    assert repr(charge.server) == "GaussianDpEvent(noise_multiplier=3.0)"
    assert repr(charge.key_holder) == "NonPrivateDpEvent()"
    with pytest.raises(ConfigError, match="for the key holder"):
        Protection(replace(NOISED, adversaries=("server", "key-holder", "others")), NOISED_SENDS[0]).charge()
