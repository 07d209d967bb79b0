"""Sequences of attempts, restarts and messages by which a server tries to open sums of few honest clients.

What it opened is worked out by linear algebra over all that it has (`tiny_attempts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from securefl.core.acts import Begin, RecordAct
from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.secagg import Policy
from securefl.storage.journal import Journal
from support.tiny_attempts import Attempt, Clients, call, fewest

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


class Forgetful(Journal):
    """Nobody knows what it did before."""

    def record(self, acts: Sequence[Begin | RecordAct]) -> list[Any]:
        return [SecretKey(self._random(32)) if isinstance(act, Begin) else True for act in acts]


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
        return replace(own, min_honest=least, min_cohort_size=3 if self.strict else 2)


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
        self.attempts.append(self._called(course, members, max(1, newest + course.step)))
        at = len(self.attempts) - 1
        self._begin(at, [k for k in members if k not in self._chosen(course.absent)])
        for phase in range(course.until + 1):
            late = self._chosen(course.late[phase])
            self._phase(at, phase, [k for k in members if k not in late], members)

    def _called(self, course: Course, members: Sequence[int], attempt: int) -> Attempt:
        return call(
            self.clients,
            members,
            attempt=attempt,
            stage=course.stage,
            ordered=self.clients.count if course.whole else None,
            **ASKED[course.asked],
        )

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
        present = [k for k in only if k in attempt.backend]
        about = [k for k in about if k in attempt.members]
        if phase == CLOSE and attempt.entries:
            chosen = self._once(at, "roster", [k for k in about if k in attempt.entries])
            attempt.close(chosen or None, present)
        elif phase == DEAL and attempt.view:
            dealt = [attempt.members[number] for number in attempt.view.dealings]
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
        again = [k for k in who if k in attempt.backend]
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
            least = max(self.clients.policy.min_honest, signers - len(self.clients.corrupt))
            assert found >= least, (question, found, least)
        return opened


def asked(attempt: Attempt) -> tuple[Any, ...]:
    """What is the same in all attempts at one question."""
    question = attempt.vector.question(attempt.header)
    at = ("once",) if attempt.vector.once else (question.round, question.ask)
    return (question.name, question.again, *at)
