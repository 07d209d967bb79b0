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

import numpy as np
import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.tiny_attempts import Attempt, Clients, call, fewest
from support.tiny_secagg import identity

from securefl.core import agreement as agreed
from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Agreement, Question, Roster, Vector
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.keys import Commitment, SecretKey
from securefl.core.release import SERVER
from securefl.core.wire import Header
from securefl.messages import REFUSED
from securefl.secagg import Policy
from securefl.storage.journal import Journal
from securefl.sums.encrypted.client import input_digest, signed_input
from securefl.sums.encrypted.key_holder import SumKeyHolder
from securefl.sums.encrypted.messages import SumRequest

# The same question, one that differs in round, ask or name, one that cannot change in two rounds, one put
# anew. Most calls are about the first.
ASKED: Final = (
    {"number": 1},
    {"number": 2},
    {"number": 1, "ask": 1},
    {"number": 1, "again": 1},
    {"number": 1, "name": "count", "once": True},
    {"number": 2, "name": "count", "once": True},
    {"number": 2, "name": "count", "once": True, "ask": 1},
)
CLOSE, DEAL, SURVIVE, QUORUM = range(4)


NOBODY: Any = None
"""In place of a part that is not asked."""


@dataclass(frozen=True)
class Course:
    """An attempt, and how far the server drives it; `late` are those whom each message does not reach.

    step: by how much its number is above the newest one's. whole: whether the cohort that was ordered is
    said to be everybody.
    """

    asked: int
    without: int
    absent: int
    late: tuple[int, int, int, int]
    until: int
    step: int
    stage: int
    whole: bool


@dataclass(frozen=True)
class Show:
    """One message more, of any attempt: which one, to whom, and about whom."""

    attempt: int
    phase: int
    only: int
    about: int


@dataclass(frozen=True)
class Restart:
    """Clients that lost all but their record enter an attempt again, and are shown it anew."""

    attempt: int
    who: int
    until: int
    about: int


@dataclass(frozen=True)
class Setting:
    clients: int
    corrupt: int
    mode: Any
    dropout: float

    def policy(self) -> Policy:
        return Policy(mode=self.mode, corrupt=self.corrupt / self.clients, dropout=self.dropout)


@dataclass(frozen=True)
class Cohort:
    """Strict clients insist on as many honest signers as the whole cohort's parameters give."""

    setting: Setting
    strict: bool
    disk: bool

    def policy(self) -> Policy:
        own = self.setting.policy()
        given = own.parameters(self.setting.clients)
        least = given.signers - given.corrupt if self.strict else 1
        return replace(own, least_honest=least, least_cohort=3 if self.strict else 2)


def possible(setting: Setting) -> bool:
    try:
        setting.policy().parameters(setting.clients)
    except ConfigError:
        return False
    return True


SETTINGS: Final = [
    Setting(clients, corrupt, mode, dropout)
    for clients in (4, 5, 6, 7)
    for corrupt in (0, 1, 2)
    for mode in ("active", "semi-honest")
    for dropout in (0.2, 0.34, 0.5)
]
few = st.sampled_from((*(0,) * 14, 1, 2, 4, 8, 16, 32, 3))
some = st.sampled_from((127, 127, 126, 111, 15, 112, 1, 8, 64, 99))
courses = st.builds(
    Course,
    asked=st.sampled_from((0, 0, 0, 0, 0, 0, *range(1, len(ASKED)))),
    without=few,
    absent=few,
    late=st.tuples(few, few, few, few),
    until=st.sampled_from((*(QUORUM,) * 6, SURVIVE, DEAL, CLOSE)),
    step=st.sampled_from((*(1,) * 8, 2, 0, -1)),
    stage=st.sampled_from((0, 0, 0, 1)),
    whole=st.sampled_from((True, True, True, False)),
)
shows = st.builds(
    Show, st.integers(0, 4), st.sampled_from((CLOSE, DEAL, SURVIVE, SURVIVE, QUORUM, QUORUM)), some, some
)
restarts = st.builds(
    Restart, st.integers(0, 4), some, st.sampled_from((QUORUM, QUORUM, SURVIVE, CLOSE)), some
)
cohorts = st.builds(
    Cohort,
    st.sampled_from([setting for setting in SETTINGS if possible(setting)]),
    strict=st.booleans(),
    disk=st.sampled_from((False,) * 15 + (True,)),
)
sequences = st.lists(st.one_of(courses, courses, shows, restarts), min_size=2, max_size=8)


@dataclass
class Play:
    """A server at work on honest clients; `first` is how many signers a client first entered with."""

    clients: Clients
    journal: type[Journal]
    path: Path | str
    attempts: list[Attempt] = field(default_factory=list)
    first: dict[tuple[Any, ...], int] = field(default_factory=dict)
    pinned: dict[tuple[int, str], list[int]] = field(default_factory=dict)

    def run(self, operations: Sequence[Course | Show | Restart]) -> None:
        for operation in operations:
            match operation:
                case Course():
                    self._course(operation)
                case Show(attempt, phase, only, about) if self.attempts:
                    at = attempt % len(self.attempts)
                    self._phase(at, phase, self._chosen(only), self._chosen(about))
                case Restart(attempt, who, until, about) if self.attempts:
                    self._restart(attempt % len(self.attempts), self._chosen(who), until, about)

    def _chosen(self, bits: int) -> list[int]:
        return [k for k in range(self.clients.count) if bits >> k & 1]

    def _course(self, course: Course) -> None:
        everybody = range(self.clients.count)
        members = self._bearable([k for k in everybody if k not in self._chosen(course.without)])
        newest = max((one.header.attempt for one in self.attempts), default=0)
        attempt = call(
            self.clients,
            members,
            attempt=max(1, newest + course.step),
            stage=course.stage,
            ordered=self.clients.count if course.whole else None,
            **ASKED[course.asked],
        )
        self.attempts.append(attempt)
        at = len(self.attempts) - 1
        self._begin(at, [k for k in members if k not in self._chosen(course.absent)])
        for phase in range(course.until + 1):
            late = self._chosen(course.late[phase])
            self._phase(at, phase, [k for k in members if k not in late], members)

    def _bearable(self, members: list[int]) -> list[int]:
        """Without those corrupt clients who are more than the cohort that is ordered may have."""
        share = self.clients.policy.corrupt
        while members and sum(k in self.clients.corrupt for k in members) > np.ceil(
            round(share * len(members), 9)
        ):
            members = members[:-1]
        return members

    def _begin(self, at: int, only: Sequence[int]) -> None:
        attempt = self.attempts[at]
        if not only:
            return
        try:
            attempt.begin(only)
        except ConfigError:  # the client does not bear the cohort, or there are no such parameters
            return
        signers = attempt.agreement(attempt.members[0]).parameters.signers
        for k in attempt.entries.keys() - self.clients.corrupt:
            self.first.setdefault((k, *asked(attempt)), signers)

    def _phase(self, at: int, phase: int, only: Sequence[int], about: Sequence[int]) -> None:
        attempt = self.attempts[at]
        present = [k for k in only if k in attempt.seats]
        about = [k for k in about if k in attempt.members]
        if phase == CLOSE and attempt.entries:
            chosen = self._once(at, "roster", [k for k in about if k in attempt.entries])
            attempt.close(chosen or None, present)
        elif phase == DEAL and attempt.closed:
            dealt = [attempt.members[number] for number in attempt.dealings]
            attempt.deal(present, self._once(at, "dealers", [k for k in about if k in dealt] or dealt))
        elif phase == SURVIVE and attempt.inputs:
            chosen = [k for k in about if k in attempt.inputs] or sorted(attempt.inputs)
            attempt.survive(self._once(at, "survivors", chosen), present)
        elif phase == QUORUM:
            attempt.quorum(present)

    def _once(self, at: int, what: str, chosen: list[int]) -> list[int]:
        """In semi-honest mode a server says one thing in an attempt."""
        if self.clients.policy.mode == "active":
            return chosen
        return self.pinned.setdefault((at, what), chosen)

    def _restart(self, at: int, who: Sequence[int], until: int, about: int) -> None:
        if self.path != ":memory:":
            self.clients.journal.close()
            self.clients.journal = self.journal(self.path, random=self.clients.random)
        attempt = self.attempts[at]
        again = [k for k in who if k in attempt.seats]
        self._begin(at, again)
        for phase in range(until + 1):
            self._phase(at, phase, again, self._chosen(about if phase == until else 127))

    def bound_holds(self) -> int:
        """AssertionError where it does not; of how many questions something was opened."""
        opened = 0
        questions: dict[tuple[Any, ...], list[Attempt]] = {}
        for attempt in self.attempts:
            questions.setdefault(asked(attempt), []).append(attempt)
        for question, own in questions.items():
            found = fewest(own)
            if found is None:
                continue
            opened += 1
            signers = min(of for (_, *about), of in self.first.items() if tuple(about) == question)
            least = max(self.clients.policy.least_honest, signers - len(self.clients.corrupt))
            assert found >= least, (question, found, least)
        return opened


def asked(attempt: Attempt) -> tuple[Any, ...]:
    """What is the same in all attempts at one question."""
    question = attempt.vector.question(attempt.header)
    at = ("once",) if attempt.vector.once else (question.round, question.ask)
    return (question.name, question.again, *at)


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


def checked(cohort: Cohort, operations: Sequence[Course | Show | Restart]) -> None:
    questions, attempts = played(cohort, operations)
    event(f"opened {min(questions, 2)} questions, {min(attempts, 2)} attempts")


@examples(100)
@given(cohorts, sequences)
def test_no_combination_of_opened_sums_has_fewer_honest_clients(cohort: Cohort, operations: Any) -> None:
    checked(cohort, operations)


@pytest.mark.slow
@examples(6000)
@given(cohorts, sequences)
def test_no_combination_in_many_sequences(cohort: Cohort, operations: Any) -> None:
    checked(cohort, operations)


# Without one of the rules -----------------------------------------------------------------------


class Forgetful(Journal):
    """Nobody knows what it did before."""

    def record(self, acts: Sequence[Begin | RecordAct]) -> list[Any]:
        return [SecretKey(self._random(32)) if isinstance(act, Begin) else True for act in acts]


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

    def _begin(self, act: Begin) -> Any:
        return super()._begin(replace(act, signers=1))


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


@pytest.mark.parametrize("rules", WRITTEN)
def test_without_a_rule_a_sequence_opens_the_sum_of_few(rules: type[Journal]) -> None:
    cohort = Cohort(Setting(7, 0, "active", 0.34), strict=False, disk=False)
    played(cohort, WRITTEN[rules])
    with pytest.raises(AssertionError):
        played(cohort, WRITTEN[rules], rules)


def test_the_sequences_open_sums_of_one_question_and_of_several() -> None:
    """A bound on sums that are never opened would be none."""
    seen: Counter[int] = Counter()

    @settings(examples(100), database=None, phases=[Phase.generate])
    @given(cohorts, sequences)
    def counted(cohort: Cohort, operations: Any) -> None:
        questions, _ = played(cohort, operations)
        seen[questions] += 1

    counted()
    sequences_in_all = sum(seen.values())
    assert sequences_in_all >= 100
    assert seen[0] <= 0.6 * sequences_in_all
    assert sum(seen[n] for n in seen if n >= 2) >= 0.03 * sequences_in_all


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
    machines: dict[bytes, tuple[SumKeyHolder, Any]] = field(default_factory=dict)
    opened: dict[tuple[Any, ...], set[bytes]] = field(default_factory=dict)
    replies: dict[tuple[bytes, SumRequest], Any] = field(default_factory=dict)

    def take(self, one: Requested) -> None:
        if one.restart:
            self.journal.close()
            self.journal, self.machines = Journal(self.path), {}
        agreement, request = requested(one)
        for _ in range(1 + one.again):
            self._show(agreement, request)

    def _show(self, agreement: Agreement, request: SumRequest) -> None:
        holder = SumKeyHolder(agreement=agreement, least=3, most_bytes=2**20, part=NOBODY)
        holder, state = self.machines.get(agreement.context, (holder, holder.begin().state))
        try:
            step = holder.receive(state, SERVER, request)
        except RemoteProtocolError:
            return
        while step.need is not None:
            order = step.need.order
            answer: Any
            if isinstance(order, RecordAct):
                [answer] = self.journal.record([order])
            else:
                answer = tuple(agreed.digest(b"opened", b"", item) for item in order.items)
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


def test_a_forgetful_key_holder_opens_two() -> None:
    @settings(examples(500), database=None, phases=[Phase.generate])
    @given(st.lists(requests.filter(lambda one: not one.restart), min_size=2, max_size=8))
    def forgetful(asked_for: list[Requested]) -> None:
        opens(asked_for, Forgetful)

    with pytest.raises(AssertionError):
        forgetful()
