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
from dp_accounting import GaussianDpEvent
from scipy import stats
from support import tiny_parties
from support.every import every
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
    integers,
    padded,
    part,
    requested,
    secret,
    server,
    signed,
    summed,
)

from securefl.algorithm.queries import CohortQuery, Sum, Value, ValueSpec
from securefl.algorithm.weighing import Weights
from securefl.core.acts import RecordAct
from securefl.core.agreement import Roster, Vector, fields, u32
from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.keys import Commitment, SecretKey, Share
from securefl.core.messages import REFUSED, client_name
from securefl.core.release import KEY_HOLDER, SERVER, ReleaseKey
from securefl.core.signing import seal, unseal
from securefl.core.wire import Header, decode, encode
from securefl.dp.noise import Source
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.protecting import protect
from securefl.secagg.packing import unpack
from securefl.storage.journal import Journal
from securefl.sums.scheme import Opened, Unopened
from securefl.sums.two_server import TwoServer
from securefl.sums.two_server.agreement import Agreement, request_digest
from securefl.sums.two_server.messages import PaddedInput, PadReply, PadRequest
from securefl.sums.two_server.pads import BOX_BYTES, box, opened, pads_of, seeds_of, total_pads
from securefl.sums.two_server.scheme import PaddingPart


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


@pytest.mark.parametrize("bits", [8, 9, 20, 27, 31, 32, 33, 63, 64])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_extremes_do_not_wrap(bits: int, sign: int, holder: Holder) -> None:
    """Everybody at the largest bound that so many bits allow."""
    bound = ((1 << bits - 1) - 1) // MEMBERS
    of = agreement(vectors=(Vector(name="update", length=9, bits=bits, bound=bound),))
    whole = {k: padded(of, k, {"update": np.full(9, sign * bound)}) for k in EVERYBODY}
    assert summed(of, whole, holder).totals["update"].tolist() == [sign * bound * MEMBERS] * 9


def test_a_sum_that_could_wrap_is_no_agreement() -> None:
    bound = (1 << 19) // MEMBERS + 1
    with pytest.raises(ConfigError, match="got the 20 bits of"):
        agreement(vectors=(Vector(name="update", length=9, bits=20, bound=bound),))


@every("key", [SERVER_KEY.public, replace(SERVER_KEY.public, raw=bytes(31))])
def test_one_key_does_not_stand_for_both_parties(key: Any) -> None:
    with pytest.raises(ConfigError, match="two different keys"):
        replace(agreement(), holder=key)


def test_a_pad_serves_once_and_no_vector_beyond_its_bound_is_padded() -> None:
    fine = integers(0, VECTORS[0])
    pad = PaddingPart().conceal(agreement(), 0, secret(0))[VECTORS[0].name]
    for bad in (fine[:-1], np.full(11, 10**6 + 1), np.full(11, -(2**63)), fine.reshape(1, 11)):
        with pytest.raises(LocalProtocolError):
            pad(bad)
    pad(fine)
    with pytest.raises(LocalProtocolError, match="mask serves once"):
        pad(fine)


# What each party sees ---------------------------------------------------------------------------


def uniform(values: Any, most: int) -> bool:
    """Chi-square over 64 bins, false alarm 1e-6."""
    counts = np.bincount(np.asarray(values, np.uint64).astype(np.int64) * 64 // most, minlength=64)
    return bool(stats.chisquare(counts).pvalue > 1e-6)


def test_a_padded_vector_is_uniform_at_the_server() -> None:
    """One that is nearly constant in the clear."""
    vector = Vector(name="update", length=20_000, bits=20, bound=100)
    of = agreement(vectors=(vector,))
    values = np.arange(20_000) % 7
    came = padded(of, 0, {"update": values}).releases[0].numbers
    assert uniform(unpack(came, 20_000, 20), 2**20)
    assert not uniform(values, 2**20)


def test_the_key_holder_sees_pads_that_no_record_moved() -> None:
    """Its boxes and what is in them are the same bytes whatever is padded; the pads are uniform."""
    vector = Vector(name="update", length=20_000, bits=20, bound=100)
    of = agreement(vectors=(vector,))
    boxes = {padded(of, 0, {"update": np.full(20_000, value)}).boxes for value in (-100, 0, 100)}
    assert len(boxes) == 1
    [seed] = opened(PART.key, of, 0, boxes.pop())
    [pads] = pads_of(of, total_pads(of, [[seed]], {}))
    assert uniform(pads, 2**20)


@every(
    "other",
    [
        agreement(2),
        agreement(number=2),
        agreement(stage=1),
        agreement(again=1),
        agreement(task="another"),
        agreement(plan="another"),
        agreement(holder=part("another")),
    ],
)
def test_another_attempt_or_agreement_has_other_seeds(other: Agreement) -> None:
    """Two values under one pad would tell their difference."""
    of, own = agreement(), secret(0)
    seeds = [seed.reveal() for agreed in (of, other) for seed in seeds_of(own, agreed, 0)]
    seeds += [seed.reveal() for seed in seeds_of(own, of, 1)]
    assert len(set(seeds)) == 6


def test_an_attempt_that_is_played_again_says_the_same_bytes() -> None:
    first, again = padded(agreement(), 3), padded(agreement(), 3)
    assert (first.boxes, first.signature) == (again.boxes, again.signature)
    for one, other in zip(first.releases, again.releases, strict=True):
        np.testing.assert_array_equal(one.numbers, other.numbers)


def test_a_box_is_eighty_bytes_and_a_value_its_bits() -> None:
    said = padded(agreement(), 0)
    assert [len(one.raw) for one in said.boxes] == [BOX_BYTES] * 2 == [80, 80]
    assert [one.numbers.nbytes for one in said.releases] == [38, 8]  # 11 of 27 bits, 3 of 20


# Boxes ------------------------------------------------------------------------------------------

OTHER_PLACES: dict[str, Callable[[Agreement], tuple[Share, ...]]] = {
    "for another attempt": lambda of: padded(agreement(2), 1).boxes,
    "for another round": lambda of: padded(agreement(number=2), 1).boxes,
    "for another question": lambda of: padded(agreement(again=1), 1).boxes,
    "for another plan": lambda of: padded(agreement(plan="another"), 1).boxes,
    "for another task": lambda of: padded(agreement(task="another"), 1).boxes,
    "for another key holder": lambda of: padded(agreement(holder=part("another")), 1).boxes,
    "of another name": lambda of: padded(of, 2).boxes,
    "for the other vector": lambda of: padded(of, 1).boxes[::-1],
    "for another key holder, in this context": lambda of: elsewhere(of),
    "of a seed that is too short": lambda of: (short(of), padded(of, 1).boxes[1]),
    "of zeros": lambda of: (Share(bytes(BOX_BYTES)),) * 2,
    "with one bit more": lambda of: (flipped(padded(of, 1).boxes[0]), padded(of, 1).boxes[1]),
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


def short(of: Agreement) -> Share:
    return box(secret(1), of, 1, 0, SecretKey(bytes(31)))


def flipped(share: Share) -> Share:
    return Share(share.raw[:-1] + bytes([share.raw[-1] ^ 1]))


@pytest.mark.parametrize("what", OTHER_PLACES)
def test_a_box_of_another_place_is_named_before_anything_is_on_record(what: str, holder: Holder) -> None:
    """Its client signed it, so its client is named; the sum goes on without it."""
    of = agreement()
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
        came[k] = signed(of, k, replace(came[k], boxes=(flipped(came[k].boxes[0]), came[k].boxes[1])))
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
    state, pads = holder.shown(machine, state, first.without(reply.bad))
    assert not refused(pads)
    # a message that was doubled on its way gets the answer it got before
    assert holder.shown(machine, state, first)[1] == reply
    assert holder.shown(machine, state, first.without(reply.bad))[1] == pads
    assert (holder.opened, holder.added) == (2, 1)


# What the server can be sent --------------------------------------------------------------------


def altered(of: Agreement) -> dict[str, tuple[PaddedInput, str]]:
    """What member 1 sends, with one defect, and what is said of it."""
    good, other = padded(of, 1), padded(of, 2)
    first, count = good.releases
    longer = replace(count, numbers=np.append(count.numbers, np.uint8(0)))
    wide = replace(count, numbers=count.numbers.astype(np.int32))
    more = replace(count, numbers=count.numbers | np.uint8([0] * 7 + [240]))
    return {
        "another's vector": (replace(good, releases=other.releases), "did not sign"),
        "one vector swapped": (replace(good, releases=(other.releases[0], count)), "did not sign"),
        "the vectors in another order": (
            replace(good, releases=good.releases[::-1]),
            "one masked vector for each",
        ),
        "another's boxes": (replace(good, boxes=other.boxes), "did not sign"),
        "the boxes in another order": (replace(good, boxes=good.boxes[::-1]), "did not sign"),
        "the boxes of another attempt": (replace(good, boxes=padded(agreement(2), 1).boxes), "did not sign"),
        "all of another attempt": (padded(agreement(2), 1), "did not sign"),
        "all of another asking": (padded(agreement(again=1), 1), "did not sign"),
        "all of another": (other, "did not sign"),
        "all under another plan": (padded(agreement(plan="another"), 1), "did not sign"),
        "all under another task": (padded(agreement(task="another"), 1), "did not sign"),
        "all for another key holder": (padded(agreement(holder=part("another")), 1), "did not sign"),
        "signed by another": (signed(of, 1, good, by=2), "did not sign"),
        "signed as another": (signed(of, 2, good, by=1), "did not sign"),
        "no boxes": (signed(of, 1, replace(good, boxes=())), "2 boxes of 80 bytes"),
        "a box too many": (
            signed(of, 1, replace(good, boxes=(*good.boxes, good.boxes[0]))),
            "2 boxes of 80 bytes",
        ),
        "a box of one byte more": (
            signed(of, 1, replace(good, boxes=(Share(good.boxes[0].raw + b"x"), good.boxes[1]))),
            "2 boxes of 80 bytes",
        ),
        "a vector of another form": (
            signed(of, 1, replace(good, releases=(first, replace(count, form="open")))),
            "one masked vector for each",
        ),
        "a vector with something sealed beside it": (
            signed(of, 1, replace(good, releases=(first, replace(count, sealed=b"x")))),
            "one masked vector for each",
        ),
        "a vector too few": (
            signed(of, 1, replace(good, releases=good.releases[:1])),
            "one masked vector for each",
        ),
        "a vector of one byte more": (
            signed(of, 1, replace(good, releases=(first, longer))),
            "Expected 8 bytes",
        ),
        "a vector of other words": (signed(of, 1, replace(good, releases=(first, wide))), "Expected 8 bytes"),
        "bits after the last value": (
            signed(of, 1, replace(good, releases=(first, more))),
            "after the last value",
        ),
    }


def test_the_server_refuses_by_name() -> None:
    """The state is as it was, so the others' sum is as it would have been."""
    of = agreement()
    machine = server(of)
    for what, (bad, said) in altered(of).items():
        with pytest.raises(RemoteProtocolError, match=said) as caught:
            pytest.fail(f"{what}: {machine.receive(machine.begin().state, client_name(1), bad)}")
        assert caught.value.sender == client_name(1), what


def test_late_twice_and_never_of_a_client(holder: Holder) -> None:
    of = agreement()
    came = inputs(of, FEWER)
    machine = server(of)
    asking = collected(machine, came)
    assert asking.out[0].message == requested(of, FEWER)
    for k in EVERYBODY:  # once more, or too late
        assert machine.receive(asking.state, client_name(k), padded(of, k)).state is asking.state
    one = machine.receive(machine.begin().state, client_name(0), came[0])
    assert machine.receive(one.state, client_name(0), came[0]).state is one.state
    closed = machine.deadline(one.state).result
    assert isinstance(closed, Unopened)
    assert not closed.final


# The key holder's reply -------------------------------------------------------------------------


def test_of_two_replies_the_first_counts(holder: Holder) -> None:
    """A key holder that answers twice with different bytes."""
    of = agreement()
    machine = server(of)
    asking = collected(machine, inputs(of))
    request = asking.out[0].message
    good = holder.asked(of, request)
    asked = request_digest(of, request)
    zeros = seal(of.server, bytes(46), asked)
    for first, second in ((good, replace(good, pads=zeros)), (replace(good, pads=zeros), good)):
        taken = machine.receive(asking.state, KEY_HOLDER, first)
        again = machine.receive(taken.state, KEY_HOLDER, second)
        assert (again.state, again.need, again.out, again.result) == (taken.state, None, (), None)
        ended = machine.provide(taken.state, taken.need.order.run())
        assert machine.receive(ended.state, KEY_HOLDER, second).state is ended.state


def test_what_is_no_reply_is_refused(holder: Holder) -> None:
    of = agreement()
    machine = server(of)
    asking = collected(machine, inputs(of))
    request = asking.out[0].message
    good, asked = holder.asked(of, request), request_digest(of, request)
    plain = unseal(SERVER_KEY, good.pads, asked)
    other = requested(agreement(2))
    bad = {
        "for another request": holder.asked(agreement(number=2), requested(agreement(number=2))),
        "for another set": replace(good, request=request_digest(of, requested(of, FEWER))),
        "sealed for another request": replace(good, pads=seal(of.server, plain, request_digest(of, other))),
        "sealed to another": replace(good, pads=seal(PART.key.public, plain, asked)),
        "of one byte less": replace(good, pads=good.pads[:-1]),
        "of one bit more": replace(good, pads=good.pads[:-1] + bytes([good.pads[-1] ^ 1])),
        "of a pad less": replace(good, pads=seal(of.server, plain[:38], asked)),
        "with bits after the last value": replace(good, pads=seal(of.server, plain[:-1] + b"\xff", asked)),
        "junk": replace(good, pads=b"junk"),
        "named twice": PadReply(request=asked, bad=(1, 1), pads=REFUSED),
        "named in another order": PadReply(request=asked, bad=(2, 1), pads=REFUSED),
        "named who is none": PadReply(request=asked, bad=(MEMBERS,), pads=REFUSED),
        "named beside pads": replace(good, bad=(1,)),
    }
    for what, reply in bad.items():
        with pytest.raises(RemoteProtocolError) as caught:
            machine.receive(asking.state, KEY_HOLDER, reply)
        assert caught.value.sender == KEY_HOLDER, what
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
    of = agreement()
    came = inputs(of)
    came[1] = signed(of, 1, replace(came[1], boxes=came[2].boxes))
    machine = server(of)
    asking = collected(machine, came)
    naming = holder.asked(of, asking.out[0].message)
    again = machine.receive(asking.state, KEY_HOLDER, naming)
    assert again.out[0].message == asking.out[0].message.without((1,))
    doubled = machine.receive(again.state, KEY_HOLDER, naming)
    assert (doubled.state, doubled.out) == (again.state, ())
    # who names members of the second request as well has opened their boxes before
    second = PadReply(request=request_digest(of, again.out[0].message), bad=(2,), pads=REFUSED)
    with pytest.raises(RemoteProtocolError, match="Expected members"):
        machine.receive(again.state, KEY_HOLDER, second)


def test_a_key_holder_that_is_silent_is_asked_three_times() -> None:
    of = agreement()
    machine = server(of)
    step = collected(machine, inputs(of))
    request = step.out
    for _ in range(2):
        step = machine.deadline(step.state)
        assert step.out == request
    step = machine.deadline(step.state)
    assert isinstance(step.result, Unopened)
    assert step.result.final, "it may have put the set on record"
    assert machine.deadline(step.state).result is None


@pytest.mark.parametrize("refuses", [True, False], ids=["refuses", "is silent"])
def test_whoever_was_named_stays_named_where_no_sum_follows(refuses: bool, holder: Holder) -> None:
    """And no other set may be asked for: the key holder may have put this one on record."""
    of = agreement()
    came = inputs(of)
    came[1] = signed(of, 1, replace(came[1], boxes=came[2].boxes))
    machine = server(of)
    asking = collected(machine, came)
    step = machine.receive(asking.state, KEY_HOLDER, holder.asked(of, asking.out[0].message))
    if refuses:
        asked = request_digest(of, step.out[0].message)
        step = machine.receive(step.state, KEY_HOLDER, PadReply(request=asked, bad=(), pads=REFUSED))
    while step.result is None:
        step = machine.deadline(step.state)
    assert isinstance(step.result, Unopened)
    assert (set(step.result.proven_cheaters), step.result.final) == (named(1), True)


def test_a_reply_that_is_late_opens_nothing(holder: Holder) -> None:
    """And a request that is late is answered: the server may still be collecting at the deadline."""
    of = agreement()
    machine = server(of)
    step = asking = collected(machine, inputs(of))
    other = holder.machine(of)
    waited = other.deadline(other.begin().state)
    assert waited.result == "unused"
    _, reply = holder.shown(other, waited.state, asking.out[0].message)
    while step.result is None:
        step = machine.deadline(step.state)
    late = machine.receive(step.state, KEY_HOLDER, reply)
    assert (late.state, late.need, late.result) == (step.state, None, None)


# What the key holder can be asked ---------------------------------------------------------------


def spoilt(of: Agreement) -> dict[str, tuple[PadRequest, str]]:
    """Requests with one defect, and what is said of it."""
    good, other = requested(of), agreement(task="another")
    boxes, (_, *rest) = good.boxes, good.signatures
    changed = bytes([good.inputs[0].raw[0] ^ 1]) + good.inputs[0].raw[1:]
    own, old = box(SecretKey(bytes(32)), of, 0, 0, SecretKey(bytes(32))), padded(agreement(2), 0)
    return {
        "fewer than the least members": (requested(of, EVERYBODY[: LEAST - 1]), "at least 4 ascending"),
        "a doubled member": (requested(of, (0, 0, 1, 2, 3)), "ascending"),
        "members out of order": (requested(of, (1, 0, 2, 3)), "ascending"),
        "a member outside the roster": (
            replace(good, members=(*FEWER, MEMBERS)),
            "members of the pinned roster",
        ),
        "a member that no four bytes hold": (
            replace(good, members=(*FEWER, 2**32)),
            "members of the pinned roster",
        ),
        "a member below the first": (
            replace(good, members=(-1, *EVERYBODY[1:])),
            "members of the pinned roster",
        ),
        "a swapped vector": (
            replace(good, inputs=(good.inputs[1], *good.inputs[1:])),
            "member 0 did not sign",
        ),
        "a vector of one bit more": (
            replace(good, inputs=(Commitment(changed), *good.inputs[1:])),
            "member 0 did not sign",
        ),
        "boxes of two members swapped": (
            replace(good, boxes=(*boxes[2:4], *boxes[:2], *boxes[4:])),
            "member 0 did not sign",
        ),
        "the boxes of one swapped": (
            replace(good, boxes=(boxes[1], boxes[0], *boxes[2:])),
            "member 0 did not sign",
        ),
        "the server's own box": (replace(good, boxes=(own, *boxes[1:])), "member 0 did not sign"),
        "a box and signature of another attempt": (
            replace(good, boxes=(*old.boxes, *boxes[2:]), signatures=(old.signature, *rest)),
            "member 0 did not sign",
        ),
        **{
            f"all told of another {what}": (requested(elsewhere), "member 0 did not sign")
            for what, elsewhere in {
                "attempt": agreement(2),
                "asking": agreement(again=1),
                "plan": agreement(plan="another"),
                "key holder": agreement(holder=part("another")),
            }.items()
        },
        "one signed another task": (requested(of, changed={0: padded(other, 0)}), "member 0 did not sign"),
        "half signed another task": (
            requested(of, changed={k: padded(other, k) for k in (0, 1, 2)}),
            "member 0 did not sign",
        ),
        "a task that nobody signed": (replace(good, task=told("another task")), "member 0 did not sign"),
        "a task that is none": (replace(good, task=good.task[:-1]), "a task of 32 bytes"),
        "signed under another plan": (
            requested(of, changed={0: padded(agreement(plan="another"), 0)}),
            "member 0 did not sign",
        ),
        "signed for another key holder": (
            requested(of, changed={0: padded(agreement(holder=part("another")), 0)}),
            "member 0 did not sign",
        ),
        "signed by another": (
            requested(of, changed={0: signed(of, 0, padded(of, 0), by=1)}),
            "member 0 did not sign",
        ),
        "the signature of another": (replace(good, signatures=(rest[0], *rest)), "member 0 did not sign"),
        "signed by a stranger": (
            requested(of, changed={0: signed(of, 0, padded(of, 0), by=77)}),
            "member 0 did not sign",
        ),
        "no signature of one": (replace(good, signatures=tuple(rest)), "a signature for each"),
        "no digest of one": (replace(good, inputs=good.inputs[1:]), "a signature for each"),
        "a box less": (replace(good, boxes=boxes[:-1]), "Expected boxes"),
        "a box too many": (replace(good, boxes=(*boxes, boxes[0])), "Expected boxes"),
        "nobody": (
            PadRequest(task=good.task, members=(), boxes=(), inputs=(), signatures=()),
            "at least 4 ascending",
        ),
    }


def test_the_key_holder_refuses_before_it_opens_a_box(holder: Holder) -> None:
    """And before its record is asked, so the honest request after it is answered."""
    of = agreement()
    for what, (bad, said) in spoilt(of).items():
        with pytest.raises(RemoteProtocolError, match=said) as caught:
            pytest.fail(f"{what}: {holder.asked(of, bad)}")
        assert (caught.value.sender, caught.value.phase) == (SERVER, "pads"), what
        assert (holder.opened, holder.added) == (0, 0), what
    assert not refused(holder.asked(of, requested(of)))


def test_only_the_server_asks(holder: Holder) -> None:
    machine = holder.machine(agreement())
    with pytest.raises(RemoteProtocolError, match="from the server"):
        machine.receive(machine.begin().state, client_name(1), requested(agreement()))


# One sum of pads for a question -----------------------------------------------------------------


@every(
    "second",
    [agreement(), agreement(2), agreement(1, stage=1), agreement(7, stage=3)],
)
@every("members", [EVERYBODY, FEWER])
@every("restarted", [False, True])
def test_a_second_request_for_a_question(
    second: Agreement, members: tuple[int, ...], restarted: bool, tmp_path: Path
) -> None:
    """The difference of two totals would be one client's vector."""
    holder = Holder(Journal(tmp_path / "acts.sqlite"))
    first = holder.asked(agreement(), requested(agreement()))
    assert not refused(first)
    if restarted:
        holder.journal.close()
        holder.journal = Journal(tmp_path / "acts.sqlite")
    reply = holder.asked(second, requested(second, members))
    if (second, members) == (agreement(), EVERYBODY):
        assert reply == first, "the same request, the same bytes"
    else:
        assert refused(reply)
        assert holder.added == 1, "no pads were drawn for it"


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


def test_one_machine_answers_one_request(holder: Holder) -> None:
    of = agreement()
    machine = holder.machine(of)
    state, first = holder.shown(machine, machine.begin().state, requested(of))
    assert holder.shown(machine, state, requested(of))[1] == first
    assert (holder.opened, holder.added) == (1, 1)
    with pytest.raises(RemoteProtocolError, match="one total of a sum"):
        machine.receive(state, SERVER, requested(of, FEWER))


def test_other_questions_are_answered_and_rounds_go_up(holder: Holder) -> None:
    for of in (agreement(), agreement(2, again=1), agreement(ask=1), agreement(number=2)):
        assert not refused(holder.asked(of, requested(of)))
    assert refused(holder.asked(agreement(3), requested(agreement(3), FEWER))), "round 1 is over"


def test_a_value_that_cannot_change_is_opened_once_in_a_session(holder: Holder) -> None:
    first = agreement(once=True)
    assert not refused(holder.asked(first, requested(first)))
    for of in (agreement(number=2, once=True), agreement(number=3, ask=1, once=True)):
        assert refused(holder.asked(of, requested(of, FEWER)))


def test_a_refused_request_leaves_its_other_questions_open(holder: Holder) -> None:
    """All vectors of a request are put on record, or none: else an answer is refused that nobody has had."""
    first, both, last = (
        agreement(attempt, vectors=vectors)
        for attempt, vectors in ((1, VECTORS[:1]), (2, VECTORS[::-1]), (3, VECTORS[1:]))
    )
    assert not refused(holder.asked(first, requested(first)))
    assert refused(holder.asked(both, requested(both)))
    assert not refused(holder.asked(last, requested(last)))


def test_no_key_ever_seals_two_replies() -> None:
    """Whatever went wrong before: another plain text, receiver or context is sealed under another key."""
    own = SecretKey(bytes(32))
    sealed = [
        seal(to, plain, context, secret=own)
        for to in (SERVER_KEY.public, PART.key.public)
        for plain in (b"pads", b"other pads")
        for context in (b"request", b"other request")
    ]
    assert len({one[:32] for one in sealed}) == len(sealed) == 8
    assert sealed[0] == seal(SERVER_KEY.public, b"pads", b"request", secret=own)
    assert unseal(SERVER_KEY, sealed[0], b"request") == b"pads"
    with pytest.raises(CryptoError):
        unseal(SERVER_KEY, sealed[0], b"other request")


# The client -------------------------------------------------------------------------------------


def test_a_client_says_nothing_without_its_record_and_its_releases() -> None:
    machine = client(agreement(), 0)
    begun = machine.begin()
    entered = machine.provide(begun.state, secret(0))
    assert "redacted" in repr(entered.state) or "secret" not in repr(entered.state)
    late = machine.deadline(entered.state)
    assert late.result == "missed"
    assert machine.provide(late.state, ()).out == ()
    with pytest.raises(LocalProtocolError, match="one masked release"):
        machine.provide(entered.state, ())
    with pytest.raises(LocalProtocolError, match="secret of this attempt"):
        machine.provide(begun.state, ())


# Whom the plan lets be summed -------------------------------------------------------------------


def called(cohort: int, **changes: Any) -> dict[str, Any]:
    """The machines of an attempt with so many of six clients."""
    plan = replace(PLAN, **changes)
    query = CohortQuery(cohort=EVERYBODY, broadcast=np.zeros(2, np.float32), sums=(Sum(SENDS[0], 4),))
    one = attempt(query, EVERYBODY[:cohort], Header(bytes(32), 1, 1, 0), told("task"))
    return tiny_parties.machines(TwoServer(plan), one, session(EVERYBODY))


@every(
    ("cohort", "changes", "said"),
    [
        (6, {}, None),
        (5, {}, "6 to 6 clients of the 6 ordered, got 5"),
        (5, {"dropout": 0.2}, None),
        (5, {"dropout": 0.2, "min_cohort_size": 6}, "6 to 6 clients"),
        (4, {"dropout": 0.34, "min_cohort_size": 4}, None),
        (3, {"dropout": 0.34, "min_cohort_size": 4}, "4 to 6 clients"),
        (6, {"dropout": 0.8}, "0 honest others surely remain with a client"),
        (6, {"min_cohort_size": 7, "max_cohort_size": 7}, "a cohort of 7 to 7 clients"),
        (6, {"corrupt": 0.5, "min_cohort_size": 6, "min_honest": 3}, None),
        (
            6,
            {"corrupt": 0.5, "min_cohort_size": 6, "min_honest": 4},
            "at least 4 honest .* got 3",
        ),
    ],
)
def test_cohorts_that_the_plan_does_not_allow(cohort: int, changes: Any, said: str | None) -> None:
    if said is None:
        machines = called(cohort, **changes)
        signers = {machines[client_name(k)].signers for k in range(cohort)}
        assert signers == {machines[KEY_HOLDER].least} == {machines[SERVER].least}
        return
    with pytest.raises(ConfigError, match=said):
        called(cohort, **changes)


# Noise of the key holder ------------------------------------------------------------------------

WIDE = Vector(name="update", length=4000, bits=32, bound=10**6)
NOISY = part("the key holder", NOISED, NOISED_SENDS[:1])
SIGMA = 3.0 * 2**6
"""In units of the grid."""


def noised_total(of: Agreement, journal: Journal | None = None, of_part: Any = NOISY) -> Any:
    """What is left of the opened total when the clear sum is taken off."""
    holder = Holder(journal or Journal(), of_part)
    return summed(of, inputs(of), holder).totals["update"] - expected(of)["update"]


def as_declared(noise: Any) -> bool:
    """Chi-square of the noise over sigma, false alarm 1e-6."""
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(noise))
    return bool(low < np.sum((noise / SIGMA) ** 2) < high)


def test_the_key_holders_noise_is_as_declared() -> None:
    noise = noised_total(agreement(vectors=(WIDE,), holder=NOISY))
    assert as_declared(noise)
    assert not as_declared(0.9 * noise)
    assert abs(noise.mean()) < 6 * SIGMA / np.sqrt(len(noise))


def test_the_noise_is_drawn_once_for_a_question(tmp_path: Path) -> None:
    """Ten pairs of draws, each of false alarm 1e-7."""

    def at(**place: Any) -> Agreement:
        return agreement(vectors=(WIDE,), holder=NOISY, **place)

    first = noised_total(at(), Journal(tmp_path / "acts.sqlite"))
    np.testing.assert_array_equal(first, noised_total(at(), Journal(tmp_path / "acts.sqlite")))
    np.testing.assert_array_equal(first, noised_total(at()), "it follows from the stored secret")
    others = [at(number=2), at(again=1), at(ask=1), at(attempt=2)]
    drawn = [first, *(noised_total(other) for other in others)]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            # the difference of two draws has sqrt(2) sigma: neither the same noise nor a part of it
            low, high = stats.chi2.ppf([5e-8, 1 - 5e-8], len(one))
            assert low < np.sum((one - other) ** 2) / (2 * SIGMA**2) < high


@every("once", [False, True])
def test_the_noise_is_the_specified_one_on_each_sum(once: bool) -> None:
    """Two sums of one ask under one draw would tell their difference bare."""
    other = replace(WIDE, name="count")
    both = part("the key holder", NOISED, NOISED_SENDS)
    of = agreement(vectors=(WIDE, other), holder=both, once=once)
    totals = summed(of, inputs(of), Holder(Journal(), both)).totals
    where = u32(0 if once else 1, 0, 0)
    for name in ("update", "count"):
        asked = request_digest(of, requested(of))
        place = fields(b"two-server noise", of.header.session, where, name.encode(), asked)
        source = Source(SecretKey(hmac.digest(both.secret.reveal(), place, "sha256")))
        drawn = np.rint(SIGMA * source.normal(WIDE.length)).astype(np.int64)
        np.testing.assert_array_equal(totals[name] - expected(of)[name], drawn)


def test_another_attempt_gets_no_second_draw() -> None:
    """Two totals of a question with two draws would be two releases."""
    holder = Holder(Journal(), NOISY)
    first, second = (agreement(attempt, vectors=(WIDE,), holder=NOISY) for attempt in (1, 2))
    assert isinstance(summed(first, inputs(first), holder), Opened)
    assert isinstance(summed(second, inputs(second), holder), Unopened)


def test_two_key_holders_draw_different_noise() -> None:
    other = part("another", NOISED, NOISED_SENDS[:1])
    one = noised_total(agreement(vectors=(WIDE,), holder=NOISY))
    assert not np.array_equal(one, noised_total(agreement(vectors=(WIDE,), holder=other), of_part=other))


def test_the_noise_has_room_beside_the_largest_sum() -> None:
    """13 sigma beside everybody at the bound, in the vectors that all agree on."""
    spec = replace(NOISED_SENDS[0], grid=replace(NOISED_SENDS[0].grid, bound=2.0))
    query = CohortQuery(cohort=EVERYBODY, broadcast=np.zeros(2, np.float32), sums=(Sum(spec, 4),))
    plan = replace(NOISED, noise_multiplier=1000.0)
    assert room(plan, spec) >= 13 * 1000 * 2**6
    one = attempt(query, EVERYBODY, Header(bytes(32), 1, 1, 0), told("task"))
    found = tiny_parties.machines(TwoServer(plan), one, session(EVERYBODY))
    [vector] = found[SERVER].agreement.vectors
    assert MEMBERS * vector.bound + room(plan, spec) < 1 << vector.bits - 1
    bare = replace(plan, noise="none", non_private=("update",))
    assert room(bare, spec) == room(plan, replace(spec, reduction="none")) == 0


def test_the_client_adds_no_noise_where_the_key_holder_does() -> None:
    given = []

    def hide(integers: Any) -> Any:
        given.append(integers)
        return padded_form

    padded_form: Any = PaddingPart().conceal(agreement(), 0, secret(0))["update"](np.zeros(11, np.int64))
    values = np.arange(-5, 6)
    key = ReleaseKey("client-0000", bytes(32), 1, 0, 1, "update")
    came = protect(
        Protection(NOISED, NOISED_SENDS[0]),
        Value(integers=values, step=NOISED_SENDS[0].grid.step),
        key=key,
        weight=1.0,
        conceal=hide,
    )
    np.testing.assert_array_equal(given[0], values)
    assert came.charge == Protection(NOISED, NOISED_SENDS[0]).charge()


def test_its_charge_is_the_noises_for_all_but_the_key_holder() -> None:
    charge = Protection(NOISED, NOISED_SENDS[0]).charge()
    assert charge.server == charge.others
    assert repr(charge.server) == "GaussianDpEvent(noise_multiplier=3.0)"
    assert repr(charge.key_holder) == "NonPrivateDpEvent()"
    with pytest.raises(ConfigError, match="for the key holder"):
        Protection(replace(NOISED, adversaries=("server", "key-holder", "others")), NOISED_SENDS[0]).charge()


@every("trained", [False, True])
def test_an_exception_by_name_costs_no_less_against_the_key_holder(trained: bool) -> None:
    """It could take its noise off all the same: epsilon 0 against it would be a promise."""
    asked = replace(NOISED, adversaries=("server", "key-holder", "others"), non_private=("update",))
    spec = replace(NOISED_SENDS[0], training=GaussianDpEvent(5.0)) if trained else NOISED_SENDS[0]
    assert {repr(event) for event in Protection(asked, spec).charge().by_party().values()} == {
        "NonPrivateDpEvent()"
    }
    bare = replace(asked, noise="none", noise_multiplier=0.0)
    assert repr(Protection(bare, NOISED_SENDS[0]).charge().key_holder) == "NoOpDpEvent()"


@every("how", ["clear", "masked", "ckks"])
def test_no_other_sum_has_a_key_holder_that_adds_noise(how: Any) -> None:
    with pytest.raises(ConfigError, match='sum = "two-server" with noise = "key-holder"'):
        Protection(replace(NOISED, sum=how), NOISED_SENDS[0]).charge()


def test_numbers_beside_the_sums_are_noised_by_their_client() -> None:
    per_client = ValueSpec(
        name="count", reduction="none", reveals="it", sensitivity=NOISED_SENDS[0].sensitivity
    )
    charge = Protection(NOISED, per_client).charge()
    assert repr(charge.key_holder) == "NoOpDpEvent()"
