"""A server that calls attempts as it likes and keeps all it ever received opens no sum of few honest clients.

The unknowns are pairs of a client and a question; what is opened is worked out by linear algebra over all
that the server has (`tiny_attempts.fewest`). In active mode it shows each client what it likes; in
semi-honest mode it keeps to one roster, one set of dealers and one set of survivors in an attempt. Corrupt
clients sign anything and hand over all shares. Each rule that the bound hangs on is taken away once: then the
same sequences break it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st
from support.every import every
from support.examples import examples
from support.sequences import (
    ASKED,
    DEAL,
    QUORUM,
    SURVIVE,
    Cohort,
    Course,
    Forgetful,
    Play,
    Restart,
    Setting,
    Show,
    cohorts,
    sequences,
)
from support.tiny_attempts import Clients, fewest
from support.tiny_secagg import identity

from securefl.core import agreement as agreed
from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Agreement, Question, Roster, Vector
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import Commitment
from securefl.core.messages import REFUSED, OpenReply
from securefl.core.release import SERVER
from securefl.core.wire import Header
from securefl.storage.journal import Journal
from securefl.sums.encrypted.messages import SumRequest
from securefl.sums.encrypted.scheme import OpeningPart, input_digest, signed_input
from securefl.sums.opened import OpenedKeyHolder


def played(
    cohort: Cohort, operations: Sequence[Course | Show | Restart], journal: type[Journal] = Journal
) -> tuple[int, int]:
    """In how many questions something was opened, and in how many attempts; the bound is asserted."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "acts.sqlite" if cohort.disk else ":memory:"
        clients = Clients(cohort.setting.clients, cohort.policy(), corrupt=cohort.setting.corrupt)
        clients.journal = journal(path, random=clients.random)
        play = Play(clients, journal, path)
        play.run(operations)
        questions = play.bound_holds()
        clients.journal.close()
        return questions, sum(fewest([one]) is not None for one in play.attempts)


@pytest.fixture(scope="module", autouse=True)
def signatures_are_checked_once() -> Iterator[None]:
    """The same check of the same bytes by each party of one process would be most of the time."""
    good: set[tuple[bytes, bytes, bytes]] = set()
    real = agreed.verify

    def once(key: Any, signature: Any, message: bytes) -> None:
        same = (key.raw, signature.raw, message)
        if same not in good:
            real(key, signature, message)
            good.add(same)

    with mock.patch.object(agreed, "verify", once):
        yield


def test_no_combination_of_opened_sums_has_fewer_honest_clients() -> None:
    """And there are such sums, of one question and of several: a bound on none would be none."""
    seen: Counter[int] = Counter()

    @settings(examples(100), database=None)
    @given(cohorts, sequences)
    def counted(cohort: Cohort, operations: Any) -> None:
        questions, _ = played(cohort, operations)
        seen[questions] += 1

    counted()
    assert sum(seen.values()) >= 100
    assert seen[0] <= 0.6 * sum(seen.values())
    assert sum(seen[n] for n in seen if n >= 2) >= 0.03 * sum(seen.values())


@pytest.mark.slow
@pytest.mark.timeout(1200)  # 100 s on an idle machine
@examples(6000)
@given(cohorts, sequences)
def test_no_combination_in_many_sequences(cohort: Cohort, operations: Any) -> None:
    played(cohort, operations)


# Without one of the rules -----------------------------------------------------------------------


class OtherActs(Journal):
    """In an attempt a client does what it likes, also after a restart: the digest on record is no bar."""

    acts: tuple[str, ...] = ()

    def _may_do(self, act: RecordAct, question: Question) -> Any:
        here = act.header.place()
        attempt, row = self._attempt(act.client, question, here), self._row(act.client, question)
        if act.act in self.acts and attempt is not None and row is not None and row.at == here:
            return attempt, row
        return super()._may_do(act, question)


class SignsTwoSets(OtherActs):
    acts = ("sign",)


class DealsTwice(OtherActs):
    acts = ("deal",)


class SignsInTwoAttempts(SignsTwoSets):
    """Who has signed enters another attempt, and signs in that too."""

    def _row(self, party: str, question: Question) -> Any:
        row = super()._row(party, question)
        return None if row is None else row._replace(signed=0)


class ActsInOldAttempts(Journal):
    """It is in several attempts at a time, and enters what came before its newest one."""

    def _may_enter(self, act: Begin, question: Question) -> bool:
        once = question.name in act.once
        return not (once and self._elsewhere(act.client, question, act.header.place()))

    def _may_do(self, act: RecordAct, question: Question) -> Any:
        attempt = self._attempt(act.client, question, act.header.place())
        row = self._row(act.client, question)
        return None if attempt is None or row is None else (attempt, row)


class NoSigners(Journal):
    """A later attempt may have fewer signers."""

    def _begin(self, act: Begin, known: Any) -> Any:
        return super()._begin(replace(act, signers=1), known)


class NoOnce(Journal):
    """A value that cannot change is another question in each round."""

    def _elsewhere(self, party: str, question: Question, here: tuple[int, int, int]) -> bool:
        return False


class NoSubset(Journal):
    """Cohorts of later attempts may grow."""

    def _within(self, members: Sequence[str], cohort: bytes) -> bool:
        return True


class MasksTwice(OtherActs):
    acts = ("mask",)


@pytest.mark.parametrize("rules", [Forgetful, ActsInOldAttempts])
def test_without_a_rule_the_same_sequences_open_the_sum_of_few(rules: type[Journal]) -> None:
    assert breaks(rules, 500)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rules", [NoOnce, SignsTwoSets, SignsInTwoAttempts])
def test_without_a_rule_many_sequences_open_the_sum_of_few(rules: type[Journal]) -> None:
    assert breaks(rules, 8000)


def breaks(rules: type[Journal], count: int) -> bool:
    """Whether the bound fails for one of the sequences."""

    @settings(examples(count), database=None, phases=[Phase.generate])
    @given(cohorts, sequences)
    def weaker(cohort: Cohort, operations: Any) -> None:
        played(cohort, operations, rules)

    try:
        weaker()
    except AssertionError:
        return True
    return False


# What random sequences come to seldom, or never: written down.
WHOLE: Final = Course(
    asked=0, without=0, absent=0, late=(0, 0, 0, 0), until=QUORUM, step=1, stage=0, whole=True
)
WRITTEN: Final[dict[type[Journal], list[Course | Show | Restart]]] = {
    # Everybody enters, nobody signs, and four are called anew: three of them are enough.
    NoSigners: [
        replace(WHOLE, until=DEAL),
        replace(WHOLE, without=0b1110000, late=(0b1000, 0, 0, 0), whole=False),
    ],
    # In round 2 without client 0.
    NoOnce: [replace(WHOLE, asked=4), replace(WHOLE, asked=5, without=1)],
    # Once more without client 0.
    SignsInTwoAttempts: [WHOLE, replace(WHOLE, without=1)],
    # Everybody is started again after the sum was opened, and shown all but client 0 as survivors.
    SignsTwoSets: [WHOLE, Restart(0, 127, SURVIVE, 126), Show(0, QUORUM, 127, 127)],
    # Client 0 is started again and shown all dealers but one, each in turn: the differences are its masks.
    MasksTwice: [WHOLE, *(Restart(0, 1, DEAL, 127 & ~(1 << k)) for k in range(1, 7))],
}


@every("rules", WRITTEN)
def test_without_a_rule_a_sequence_opens_the_sum_of_few(rules: type[Journal]) -> None:
    cohort = Cohort(Setting(7, 0, "active", 0.34), strict=False, disk=False)
    played(cohort, WRITTEN[rules])
    with pytest.raises(AssertionError):
        played(cohort, WRITTEN[rules], rules)


# The key holder ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Requested:
    """A request in some attempt: whose inputs, which of two ciphertexts, and which blinding of the total."""

    asked: int
    attempt: int
    stage: int
    without: int
    ciphertexts: int
    blinding: int
    again: bool
    restart: bool


requests = st.builds(
    Requested,
    asked=st.sampled_from((0, 0, 0, *range(len(ASKED)))),
    attempt=st.integers(1, 3),
    stage=st.integers(0, 1),
    without=st.sampled_from((0, 0, 1, 2, 3, 31)),
    ciphertexts=st.integers(0, 1),
    blinding=st.integers(0, 1),
    again=st.booleans(),
    restart=st.sampled_from((False,) * 9 + (True,)),
)
MEMBERS: Final = 5


@dataclass
class Holder:
    """The key holder's machines, one an attempt, and its record; `opened` are the totals of a question."""

    path: Path | str
    journal: Journal
    machines: dict[bytes, tuple[OpenedKeyHolder, Any]] = field(default_factory=dict)
    opened: dict[tuple[Any, ...], set[bytes]] = field(default_factory=dict)
    replies: dict[tuple[bytes, SumRequest], Any] = field(default_factory=dict)

    def take(self, one: Requested) -> None:
        if one.restart:
            self.journal.close()
            self.journal, self.machines = Journal(self.path), {}
        agreement, request = requested(one)
        for _ in range(1 + one.again):
            self.show(agreement, request)

    def show(self, agreement: Agreement, request: SumRequest) -> tuple[bytes, ...]:
        """What is answered; nothing if the machine refuses the message."""
        holder = OpenedKeyHolder(agreement=agreement, least=3, part=OpeningPart(()))
        holder, state = self.machines.get(agreement.context, (holder, holder.begin().state))
        try:
            step = holder.receive(state, SERVER, request)
        except RemoteProtocolError:
            return ()
        while step.need is not None:
            order = step.need.order
            answer: Any
            if isinstance(order, RecordAct):
                [answer] = self.journal.record([order])
            else:
                items = tuple(agreed.digest(b"opened", b"", item) for item in order.run.args[1].items)
                answer = OpenReply(items=items)
            step = holder.provide(step.state, answer)
        self.machines[agreement.context] = (holder, step.state)
        [envelope] = step.out
        said = envelope.message
        if REFUSED not in said.items:
            [vector] = agreement.vectors
            question = vector.question(agreement.header)
            at = ("once",) if vector.once else (question.round, question.ask)
            key = (question.name, question.again, *at)
            self.opened.setdefault(key, set()).add(agreement.context + request.items[0])
            known = self.replies.setdefault((agreement.context, request), said)
            assert known == said, "the same request gets the same bytes"
        return said.items


@lru_cache(maxsize=4096)
def requested(one: Requested) -> tuple[Agreement, SumRequest]:
    terms: dict[str, Any] = {"length": 1, "bits": 32, "bound": 100, "name": "update", **ASKED[one.asked]}
    number = terms.pop("number")
    agreement = Agreement(
        header=Header(bytes(32), number, one.attempt, one.stage),
        roster=Roster(tuple(identity(k).member() for k in range(MEMBERS))),
        vectors=(Vector(**terms),),
        plan=bytes(32),
        task=bytes(32),
    )
    members = tuple(k for k in range(MEMBERS) if not one.without >> k & 1)
    inputs = [input_digest([b"%d %d" % (k, one.ciphertexts)]) for k in members]
    signatures = tuple(
        identity(k).signing.sign(signed_input(agreement, k, digest))
        for k, digest in zip(members, inputs, strict=True)
    )
    item = b"%d %d %d" % (one.without, one.ciphertexts, one.blinding)
    request = SumRequest(
        items=(item,),
        task=agreement.task,
        members=members,
        inputs=tuple(map(Commitment, inputs)),
        signatures=signatures,
    )
    return agreement, request


def opens(asked_for: Sequence[Requested], journal: type[Journal] = Journal) -> int:
    """How many questions were opened; AssertionError where one was opened twice."""
    with TemporaryDirectory() as folder:
        on_disk = any(one.restart for one in asked_for)
        path = Path(folder) / "acts.sqlite" if on_disk else ":memory:"
        holder = Holder(path, journal(path))
        for one in asked_for:
            holder.take(one)
        holder.journal.close()
    assert all(len(found) == 1 for found in holder.opened.values()), holder.opened
    return len(holder.opened)


@examples(200)
@given(st.lists(requests, min_size=2, max_size=8))
def test_the_key_holder_opens_one_total_of_a_question(asked_for: list[Requested]) -> None:
    event(f"opened {opens(asked_for)} questions")


FIRST: Final = Requested(
    asked=0, attempt=1, stage=0, without=0, ciphertexts=0, blinding=0, again=False, restart=False
)


@every(
    ("first", "second"),
    [
        *(
            (0, {"attempt": attempt, "stage": stage, "without": 16})
            for attempt, stage in ((1, 0), (2, 0), (3, 1))
        ),
        (0, {"blinding": 1}),
        (0, {"ciphertexts": 1}),
        (4, {"asked": 5, "without": 16}),
        (4, {"asked": 6, "without": 16}),
    ],
)
@every("restart", [False, True])
def test_a_late_reply_and_a_second_total(
    first: int, second: dict[str, Any], restart: bool, tmp_path: Path
) -> None:
    """The server saw no reply and asks without client 4: the difference would be that client's input."""
    path, one = tmp_path / "acts.sqlite", replace(FIRST, asked=first)
    holder = Holder(path, Journal(path))
    told = holder.show(*requested(one))
    assert told not in ((), (REFUSED,))
    holder.take(replace(one, restart=restart, **second))
    assert sum(map(len, holder.opened.values())) == 1
    holder.machines.clear()
    if first == 0:
        assert holder.show(*requested(one)) == told, "a restart opens the same total again"
    holder.journal.close()


def test_a_forgetful_key_holder_opens_two() -> None:
    @settings(examples(500), database=None, phases=[Phase.generate])
    @given(st.lists(requests.filter(lambda one: not one.restart), min_size=2, max_size=8))
    def forgetful(asked_for: list[Requested]) -> None:
        opens(asked_for, Forgetful)

    with pytest.raises(AssertionError):
        forgetful()
