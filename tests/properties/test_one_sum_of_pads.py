"""Whatever the server asks for, in any order and over restarts, one sum of pads is told of a question.

Attempts, stages, sets, boxes of a client that colludes, boxes that do not open, doubled requests: the same
request gets the same bytes, and what the server can take off is the sum over one set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import Phase, event, example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.tiny_two_server import (
    EVERYBODY,
    LEAST,
    PART,
    SERVER_KEY,
    Holder,
    agreement,
    padded,
    requested,
    signed,
)

from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Vector
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import SecretKey, Share
from securefl.core.signing import unseal
from securefl.storage.journal import Journal
from securefl.sums.two_server.agreement import Agreement, request_digest
from securefl.sums.two_server.messages import PadRequest
from securefl.sums.two_server.pads import box, seeds_of

VECTOR: Final = Vector(name="update", length=2, bits=32, bound=100)
ASKED: Final = (
    {"number": 1},
    {"number": 2},
    {"number": 1, "ask": 1},
    {"number": 1, "again": 1},
    {"number": 1, "once": True, "name": "count"},
    {"number": 2, "once": True, "name": "count", "ask": 1},
)


@dataclass(frozen=True)
class Requested:
    """boxes of member 1: 0 honest, 1 of another seed, 2 that do not open. rest: asks once more without it."""

    asked: int
    attempt: int
    stage: int
    without: int
    boxes: int
    rest: bool
    again: bool
    restart: bool


requests = st.builds(
    Requested,
    asked=st.sampled_from((0, 0, 0, *range(len(ASKED)))),
    attempt=st.integers(1, 3),
    stage=st.integers(0, 1),
    without=st.sampled_from((0, 0, 1, 4, 5, 15)),
    boxes=st.sampled_from((0, 0, 0, 1, 2)),
    rest=st.booleans(),
    again=st.booleans(),
    restart=st.sampled_from((False,) * 9 + (True,)),
)


@cache
def agreed(asked: int, attempt: int, stage: int) -> Agreement:
    terms: dict[str, Any] = dict(ASKED[asked])
    number, name = terms.pop("number"), terms.pop("name", "update")
    vector = replace(VECTOR, name=name)
    return agreement(attempt, number=number, stage=stage, vectors=(vector,), **terms)


@cache
def honest(asked: int, attempt: int, stage: int, member: int) -> Any:
    return padded(agreed(asked, attempt, stage), member)


@cache
def request(one: Requested) -> PadRequest:
    of = agreed(one.asked, one.attempt, one.stage)
    members = tuple(k for k in EVERYBODY if not one.without >> k & 1)
    said = {k: honest(one.asked, one.attempt, one.stage, k) for k in members}
    if one.boxes and 1 in said:
        own = SecretKey(bytes(31) + b"1")
        [seed] = seeds_of(own, of, 1)
        other = box(own, of, 1, 0, seed)
        spoilt = Share(other.raw[:-1] + bytes([other.raw[-1] ^ 1]))
        said[1] = signed(of, 1, replace(said[1], boxes=(other if one.boxes == 1 else spoilt,)))
    return requested(of, members, said)


@dataclass
class Play:
    """The key holder's machines, one an attempt, and its record; `told` are the requests of a question."""

    path: Path | str
    holder: Holder
    machines: dict[bytes, tuple[Any, Any]] = field(default_factory=dict)
    told: dict[Any, set[bytes]] = field(default_factory=dict)
    replies: dict[bytes, Any] = field(default_factory=dict)

    def take(self, one: Requested) -> None:
        if one.restart:
            self.holder.journal.close()
            self.holder = Holder(type(self.holder.journal)(self.path))
            self.machines = {}
        of, what = agreed(one.asked, one.attempt, one.stage), request(one)
        for _ in range(1 + one.again):
            self._show(of, what)
        if one.rest and one.boxes == 2 and 1 in what.members:
            self._show(of, what.without((1,)))

    def _show(self, of: Agreement, what: PadRequest) -> None:
        machine, state = self.machines.get(of.context, (self.holder.machine(of), None))
        try:
            state, reply = self.holder.shown(machine, state or machine.begin().state, what)
        except RemoteProtocolError:
            return
        self.machines[of.context] = machine, state
        if reply.bad or not reply.pads:
            assert reply.bad in ((), (1,))
            return
        asked = request_digest(of, what)
        assert reply.request == asked
        assert len(unseal(SERVER_KEY, reply.pads, asked)) == 8
        assert self.replies.setdefault(asked, reply) == reply, "the same request gets the same bytes"
        assert len(what.members) >= LEAST
        [vector], [question] = of.vectors, of.openings
        key = ("once", vector.name) if vector.once else question
        self.told.setdefault(key, set()).add(asked)


def told(asked_for: Sequence[Requested], journal: type[Journal] = Journal) -> int:
    """Of how many questions a sum was told; AssertionError where two were told of one."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "acts.sqlite" if any(one.restart for one in asked_for) else ":memory:"
        play = Play(path, Holder(journal(path), PART))
        for one in asked_for:
            play.take(one)
        play.holder.journal.close()
    assert all(len(found) == 1 for found in play.told.values()), play.told
    return len(play.told)


FIRST: Final = Requested(
    asked=0, attempt=1, stage=0, without=0, boxes=0, rest=False, again=False, restart=False
)


@examples(100)
@example(
    [FIRST, replace(FIRST, boxes=1, restart=True)]
)  # one that colludes signs a second box for its vector
@given(st.lists(requests, min_size=2, max_size=8))
def test_one_sum_of_pads_is_told_of_a_question(asked_for: list[Requested]) -> None:
    event(f"told {told(asked_for)} questions")


@pytest.mark.slow
@examples(3000)
@given(st.lists(requests, min_size=2, max_size=12))
def test_one_sum_in_many_sequences(asked_for: list[Requested]) -> None:
    told(asked_for)


class Forgetful(Journal):
    """Nobody knows what it did before."""

    def record(self, acts: Sequence[Begin | RecordAct]) -> list[Any]:
        return [True for _ in acts]


def test_a_forgetful_key_holder_tells_two() -> None:
    @settings(examples(200), database=None, phases=[Phase.generate])
    @given(st.lists(requests.filter(lambda one: not one.restart), min_size=2, max_size=8))
    def forgetful(asked_for: list[Requested]) -> None:
        told(asked_for, Forgetful)

    with pytest.raises(AssertionError):
        forgetful()
