"""Label histograms in hidden sums without noise: no two rounds tell one, and who is absent spoils no mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.arms import hiding
from support.tiny_problem import client_context
from support.tiny_study import text, with_privacy, world

from securefl.algorithm.clients import State, run_round
from securefl.algorithm.queries import Answers, CohortQuery, Total
from securefl.study.composition import composition
from securefl.study.config import parse

VICTIM, EVERYBODY = 2, frozenset(range(7))
PROTOCOLS = {"fedproto": "", "fedlog": 'body = "private"'}
protocols = pytest.mark.parametrize("name", PROTOCOLS)
Lost = Callable[[int, CohortQuery], set[int]]


class Rounds:
    """Rounds of a protocol. `totals` has what the server saw: round, name, survivors and total."""

    def __init__(
        self,
        name: str,
        lost: Lost = lambda number, query: set(),
        *,
        rounds: int = 2,
        only: Any = (),
        options: str = "",
        **more: str,
    ) -> None:
        arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\n{PROTOCOLS[name]}\n{options}\n'
        own = {"sum": '"masked"', **hiding((name, PROTOCOLS[name])), "secagg": '"semi-honest"'}
        sent = '["statistic"]' if more else '["statistic", "counts"]'
        of = parse(with_privacy(text(arm, clients=7, non_private=sent), more or own))
        self.world = world(of)
        self.algorithm, _ = composition(of, of.arms[0], self.world)
        self.parts = {part.spec.name: part for part in self.algorithm.contributions}
        self.kept: dict[int, Mapping[str, Any]] = {}
        self.totals: list[tuple[int, str, frozenset[int], NDArray[Any]]] = []
        self.states: list[State] = [self.algorithm.start()]
        self.lost, self.only = lost, only
        for self.number in range(1, rounds + 1):
            people, rng = self.world.population(), np.random.default_rng(self.number)
            done = run_round(self.algorithm, self.states[-1], people, self.number, rng, self.answer)
            self.states.append(done.state)

    def answer(self, query: CohortQuery, stage: int) -> Answers:
        there = sorted(set(query.cohort) - self.lost(self.number, query))
        totals = {}
        for question in query.sums:
            values = []
            for k in there:
                x, y = self.records(k)
                context = client_context(
                    x,
                    y,
                    client=k,
                    round=self.number,
                    broadcast=query.broadcast,
                    public=query.public,
                    kept=self.kept.get(k, {}),
                    count=len(y),
                    rng=np.random.default_rng([self.number, k]),
                    number=query.number,
                    initial=query.initial,
                )
                value = self.parts[question.spec.name].compute(context)
                self.kept[k] = value.new_state or self.kept.get(k, {})
                values.append(value.floats())
                assert len(values[-1]) == question.size
            if values:
                name, total = question.spec.name, np.sum(values, axis=0)
                totals[name] = Total(total, float(len(values)))
                self.totals.append((self.number, name, frozenset(there), total))
        return Answers(survivors=tuple(there) if totals else (), totals=totals, per_client={})

    def records(self, client: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """A client's first records; those of a class that one alone shall hold, it alone holds."""
        x, y = (part[: 40 + client] for part in self.world.records[client])
        keep = ~np.isin(y, [held for owner, held in dict(self.only).items() if owner != client])
        return x[keep], y[keep]

    def histogram(self, clients: Any) -> NDArray[Any]:
        labels = np.concatenate([self.records(k)[1] for k in clients])
        return np.bincount(labels, minlength=10)


def victim_later(number: int, query: CohortQuery) -> set[int]:
    return {VICTIM} if number == 2 else set()


@protocols
def test_two_cohorts_do_not_tell_the_histogram_of_the_client_between(name: str) -> None:
    seen = Rounds(name, victim_later).totals
    own = Rounds(name).histogram([VICTIM])
    tried = 0
    for _, one, there, total in seen:
        for _, other, left, less in seen:
            if one == other and there - left == {VICTIM}:
                tried += 1
                found = (total - less).reshape(10, -1)
                assert not (found == own[:, None]).all(axis=0).any()
    assert tried


@protocols
def test_with_everybody_there_rounds_are_those_in_the_open(name: str) -> None:
    apart, clear = Rounds(name, rounds=3), Rounds(name, rounds=3, sum='"clear"')
    assert set(apart.parts) - set(clear.parts) == {"counts"}
    for one, other in zip(apart.states, clear.states, strict=True):
        np.testing.assert_array_equal(one.broadcast, other.broadcast)


@protocols
def test_each_client_is_counted_once_though_it_comes_late(name: str) -> None:
    """Three clients come in round 2, and count from then on."""
    late = {4, 5, 6}
    found = Rounds(name, lambda number, query: late if number == 1 else set(), rounds=3)
    counted = [(there, total) for _, value, there, total in found.totals if value == "counts"]
    assert [there for there, _ in counted] == [EVERYBODY - late, late]
    for there, total in counted:
        np.testing.assert_array_equal(total, found.histogram(sorted(there)))
    last = [there for number, value, there, _ in found.totals if value == "statistic" and number == 3]
    assert last == [EVERYBODY]
    np.testing.assert_array_equal(found.states[-1].memory["counts"], found.histogram(EVERYBODY))


def test_an_absent_client_counts_with_the_prototypes_before() -> None:
    found = Rounds("fedproto", victim_later)
    before, after = (state.broadcast.reshape(10, -1).astype(np.float64) for state in found.states[1:])
    everybody, own = found.histogram(EVERYBODY), found.histogram([VICTIM])
    (_, _, there, told) = found.totals[-1]
    assert VICTIM not in there
    others = (everybody - own)[:, None]
    rounded = np.rint(before[:, 1:] * 2**10) / 2**10
    sums = told.reshape(10, -1) + others * rounded  # those of the clients that are there
    np.testing.assert_allclose(after[:, 1:], (sums + own[:, None] * rounded) / everybody[:, None], atol=1e-6)


@protocols
def test_a_client_that_is_counted_and_never_comes_again_stops_nothing(name: str) -> None:
    found = Rounds(name, lambda number, query: set() if query.sums[-1].spec.name == "counts" else {VICTIM})
    assert {there for _, value, there, _ in found.totals if value == "counts"} == {EVERYBODY}
    one, other = (state.broadcast for state in found.states[1:])
    assert one.any()
    assert not np.array_equal(one, other)


def test_of_a_class_that_only_the_absent_hold_nothing_is_learnt() -> None:
    """It came late, is counted, and is lost before its first statistic: no mean stands for it."""

    def late(number: int, query: CohortQuery) -> set[int]:
        return {VICTIM} if number == 1 or query.sums[0].spec.name == "statistic" else set()

    found = Rounds("fedproto", late, only={VICTIM: 7})
    assert found.states[-1].memory["counts"][7] > 0
    assert [row[0] for row in found.states[-1].broadcast.reshape(10, -1)] == [
        float(c != 7) for c in range(10)
    ]


def test_nothing_follows_from_rounds_that_nobody_answers() -> None:
    found = Rounds("fedproto", lambda number, query: set(EVERYBODY))
    assert not found.totals
    assert found.states[-1].broadcast.size == 0


@protocols
def test_a_client_that_is_not_counted_is_in_no_statistic(name: str) -> None:
    """Else its features would be divided by the counts of others."""
    found = Rounds(name, lambda number, query: {VICTIM} if query.sums[-1].spec.name == "counts" else set())
    assert {there for *_, there, _ in found.totals} == {EVERYBODY - {VICTIM}}


@protocols
def test_under_noise_counts_stay_in_the_statistic(name: str) -> None:
    noise = {"noise": '"distributed"', "epsilon": "8.0", "unit": '"client"', "adjacency": '"zero-out"'}
    own = {**hiding((name, "")), "sum": '"masked"', "delta": "1e-2", **noise}
    assert set(Rounds(name, rounds=0, options="client_bound = 20.0", **own).parts) == {"statistic"}
