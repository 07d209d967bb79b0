"""Orders with weights of the server's choice open no sum from which one client's value can be guessed well.

The sequences are those of `test_one_set_per_question`: attempts, late messages, restarts, cohorts. Each
attempt now comes with an order, whose draws the server chooses, and which every honest client holds against
its plan. What is opened is a set of combinations of values with real coefficients. Of values of equal spread
the best linear guess of one from all combinations explains the diagonal entry of the projection onto them.
That must be at most the declared share: the invariant is on the size of coefficients, and not on their rank.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import product
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.every import every
from support.examples import examples
from support.linear_guess import Unknown, opened, share
from support.sequences import QUORUM, Cohort, Course, Forgetful, Play, Setting, asked, restarts, shows
from support.sequences import cohorts as all_cohorts
from support.tiny_attempts import Attempt, Clients, View

from securefl.algorithm import weighing
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.algorithm.weighing import Weights, require_allowed
from securefl.core.errors import ConfigError
from securefl.core.grid import Grid
from securefl.storage.journal import Journal

GRID: Final = Grid(step=2.0**-20, bound=1.0)
SENDS: Final = ValueSpec(name="update", reduction="sum", reveals="it", weighs="draws", grid=GRID)
NAMES: Final = ("update", "count")
DRAWS: Final = 9
"""How many draws the plan declares, for up to seven clients."""
MOST: Final = 2**30


@lru_cache
def plan_of(setting: Setting, strict: bool) -> Plan | None:
    """A plan of these shares for the smallest cohorts, or for most honest clients; None if there is none."""
    sizes = range(2, setting.clients + 1)
    for least, honest in sorted(
        product(sizes, sizes), key=lambda pair: (-pair[1], pair[0]) if strict else (pair[0], -pair[1])
    ):
        try:
            return Plan(
                sum="masked",
                secagg=setting.mode,
                corrupt=setting.corrupt / setting.clients,
                dropout=setting.dropout,
                min_cohort_size=least,
                max_cohort_size=setting.clients,
                min_honest=honest,
                max_client_weight=0.5,
                weights=dict.fromkeys(NAMES, "draws"),
                draws=DRAWS,
                delta=1e-5,
                max_rounds=9,
            )
        except ConfigError:
            continue
    return None


# Orders -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ordered(Course):
    """A course whose order weighs `victim` by `heavy`, the `others` of a mask too, and the rest by 1.

    filled: how far the total is brought to the plan's by one client more.
    """

    victim: int = 0
    heavy: int = 1
    others: int = 0
    filled: bool = True

    def draws(self, members: Sequence[int]) -> dict[int, int]:
        found = {k: self.heavy if k == self.victim or self.others >> k & 1 else 1 for k in members}
        last = members[(self.victim + 1) % len(members)]
        if self.filled and (missing := DRAWS - sum(found.values())) > 0:
            found[last] += missing
        return found


@dataclass
class Weighed(Attempt):
    """An attempt after an order. Honest clients whose plan does not allow it take no part."""

    draws: Mapping[int, int] = field(default_factory=dict)
    plan: Plan | None = None

    def begin(self, only: Iterable[int] | None = None) -> Attempt:
        chosen = list(only if only is not None else self.members)
        return super().begin([k for k in chosen if k in self.clients.corrupt or self.allowed()])

    def allowed(self) -> bool:
        assert self.plan is not None
        weights = Weights(tuple(self.draws[k] for k in sorted(self.draws)), sum(self.draws.values()))
        try:
            require_allowed(self.plan, [SENDS], weights)
        except ConfigError:
            return False
        return True

    def _equation(
        self, view: View, own: int, dealers: tuple[int, ...], keys: set[bytes]
    ) -> dict[Unknown, int]:
        row = super()._equation(view, own, dealers, keys)
        # Of a weight that the grid rounds to nothing, nothing is in the sum.
        whole, mine = sum(self.draws.values()), self.draws[self.members[own]]
        kept = mine if mine / whole * GRID.limit >= 1 else 0
        return {name: kept if name[0] == "x" else entry for name, entry in row.items()}


@dataclass
class Weighing(Play):
    plan: Plan | None = None

    def _called(self, course: Course, members: Sequence[int], attempt: int) -> Attempt:
        found = super()._called(course, members, attempt)
        assert isinstance(course, Ordered)
        cohort = range(self.clients.count) if course.whole else sorted(members)
        draws = course.draws(list(cohort))
        # As in the product: what a client agrees to binds its order.
        task = hashlib.sha256(repr(sorted(draws.items())).encode()).digest()
        same = {one.name: getattr(found, one.name) for one in fields(Attempt)}
        same["tasks"] = dict.fromkeys(members, task)
        return Weighed(**same, draws=draws, plan=self.plan)

    def _begin(self, at: int, only: Sequence[int]) -> None:
        attempt = self.attempts[at]
        assert isinstance(attempt, Weighed)
        if attempt.allowed():  # who refuses an order is in no attempt at its sum
            super()._begin(at, only)

    def guesses(self) -> dict[tuple[Any, ...], tuple[float, int]]:
        """By question that something of was opened: the largest explained share, and honest contributors."""
        questions: dict[tuple[Any, ...], list[Attempt]] = {}
        for attempt in self.attempts:
            questions.setdefault(asked(attempt), []).append(attempt)
        found = {}
        for question, own in questions.items():
            rows = opened([row for one in own for row in one.equations()])
            if len(rows):
                found[question] = share(rows), int(rows.any(0).sum())
        return found


few = st.sampled_from((*(0,) * 14, 1, 2, 4, 8))
orders = st.builds(
    Ordered,
    asked=st.sampled_from((0, 0, 0, 0, 1, 3)),
    without=few,
    absent=few,
    late=st.tuples(few, few, few, few),
    until=st.just(QUORUM),
    step=st.sampled_from((1, 1, 1, 2, 0)),
    stage=st.sampled_from((0, 0, 1)),
    whole=st.sampled_from((True, True, True, False)),
    victim=st.integers(0, 6),
    heavy=st.sampled_from((1, 1, 1, 2, 2, 3, 4, 5, MOST)),
    others=st.sampled_from((0, 0, 0, 1, 2, 3, 6)),
    filled=st.sampled_from((False, False, True)),
)
cohorts = all_cohorts.filter(lambda cohort: plan_of(cohort.setting, cohort.strict) is not None)
sequences = st.lists(st.one_of(orders, orders, orders, shows, restarts), min_size=1, max_size=6)


def played(cohort: Cohort, operations: Sequence[Any], journal: type[Journal] = Journal) -> int:
    """In how many questions something was opened; AssertionError where a value could be guessed."""
    setting = cohort.setting
    plan = plan_of(setting, cohort.strict)
    assert plan is not None
    clients = Clients(setting.clients, cohort.policy(), corrupt=setting.corrupt)
    clients.journal = journal(random=clients.random)
    play = Weighing(clients, journal, ":memory:", plan=plan)
    try:
        play.run(operations)
        found = play.guesses()
    finally:
        clients.journal.close()
    assert plan.max_client_weight is not None
    for question, (guessed, honest) in found.items():
        assert guessed <= plan.max_client_weight + 1e-9, (question, guessed)
        assert honest >= (plan.min_honest or 0), (question, honest)
    return len(found)


@pytest.mark.slow
@examples(3000)
@given(cohorts, sequences)
def test_no_order_of_many_tells_one_clients_value(cohort: Cohort, operations: Any) -> None:
    played(cohort, operations)


def test_no_order_tells_one_clients_value() -> None:
    """A bound on sums that are never opened would be none, nor one on weights that are all equal."""
    seen: Counter[int] = Counter()
    weights: Counter[bool] = Counter()

    @settings(examples(150), database=None)
    @given(cohorts, sequences)
    def counted(cohort: Cohort, operations: Any) -> None:
        seen[played(cohort, operations) > 0] += 1
        for one in operations:
            if isinstance(one, Ordered):
                weights[len(set(one.draws(range(cohort.setting.clients)).values())) > 1] += 1

    counted()
    assert seen[True] >= 0.15 * sum(seen.values())
    assert weights[True] >= 0.4 * sum(weights.values())


# Without one of the rules -----------------------------------------------------------------------


def patched(**names: Any) -> Callable[[], Any]:
    return lambda: mock.patch.multiple(weighing, **names)


def nothing(*_: Any, **__: Any) -> None: ...


RULES: Final = {
    # One has 3 of the draws, and six others one each, of whom a guess needs to know few.
    "the share": patched(heaviest_share=lambda *_: 0),
    # Five have all the draws between them, and two of these fall silent. The rest is nothing on the grid.
    "the number of draws, and that weights are kept": patched(_require_draws=nothing, _require_kept=nothing),
}
SEVEN: Final = Cohort(Setting(7, 0, "active", 0.34), strict=True, disk=False)
ONCE: Final[dict[str, Any]] = {
    "asked": 0, "without": 0, "absent": 0, "late": (0, 0, 0, 0), "until": QUORUM, "step": 1, "stage": 0,
    "whole": True, "filled": False,
}  # fmt: skip
WRITTEN: Final = {
    "the share": Ordered(**ONCE, victim=1, heavy=3),
    "the number of draws, and that weights are kept": Ordered(
        **{**ONCE, "late": (0, 6, 6, 6)}, victim=1, heavy=MOST, others=0b0111110
    ),
}


@every("rule", RULES)
def test_without_a_rule_an_order_tells_one_clients_value(rule: str) -> None:
    played(SEVEN, [WRITTEN[rule]])
    with RULES[rule](), pytest.raises(AssertionError):
        played(SEVEN, [WRITTEN[rule]])


def test_without_the_size_of_a_cohort_few_stand_behind_a_sum() -> None:
    """Clients that hold orders against a plan of smaller cohorts sign for four, where five were promised."""
    strict, loose = plan_of(SEVEN.setting, True), plan_of(SEVEN.setting, False)
    assert strict is not None
    policy = replace(SEVEN, strict=False).policy()
    opened = []
    for plan in (strict, loose):
        play = Weighing(Clients(7, policy), Journal, ":memory:", plan=plan)
        play.run([Ordered(**{**ONCE, "whole": False, "without": 7}, victim=3)])
        opened.append(play.guesses())
    assert opened[0] == {}
    [(_, honest)] = opened[1].values()
    assert honest == 4 < (strict.min_honest or 0)


@pytest.mark.parametrize("rule", ["the share"])
def test_without_a_rule_the_same_sequences_tell_a_value(rule: str) -> None:
    with RULES[rule]():
        assert breaks()


def test_without_a_record_weights_of_two_attempts_tell_a_value() -> None:
    assert breaks(Forgetful)


def breaks(journal: type[Journal] = Journal) -> bool:
    """Whether the invariant fails for one of the sequences."""

    @settings(examples(600), database=None, phases=[Phase.generate])
    @given(cohorts, sequences)
    def weaker(cohort: Cohort, operations: Any) -> None:
        played(cohort, operations, journal)

    try:
        weaker()
    except AssertionError:
        return True
    return False
