"""What the values of every registered protocol say of kept state (`ValueSpec.reads_state`) is so.

Each value is computed after the honest history and after three others: that of a client that took no part
before, that of one to which the server showed other models, and that of one which keeps other numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.arms import ARMS, hiding
from support.every import every
from support.four_clients import CLEAR, SENDS, records
from support.tiny_study import composed, text, with_privacy, world

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientContext, ClientFunction, run_round
from securefl.algorithm.queries import Answers, ByCount, CohortQuery, Sum, Total, Value
from securefl.core.errors import DataError
from securefl.core.wire import Header
from securefl.engine.inprocess import simulated
from securefl.study.composition import composition
from securefl.study.config import parse
from securefl.training import Problem

STALE = ("fedavg", 'fraction = 1.0\naggregation = "full"\nstale = true')
FULL = ("fedavg", 'fraction = 1.0\naggregation = "full"')
SENT = '["update", "map", "profile", "loss", "statistic", "direction", "consensus", "votes", "counts"]'
Outcome = Value | None
"""None: the client abstained."""


class Histories:
    """Two rounds of an arm. `seen` has the two outcomes of every value of client 0, by name."""

    def __init__(self, protocol: str, options: str, **privacy: str) -> None:
        options = options.replace("min_clients_per_entry = 6", "")
        arm = f'[[arm]]\nname = "x"\nprotocol = "{protocol}"\n{options}\n'
        written = text(arm, clients=7 if privacy else 3, non_private=SENT)
        of = parse(with_privacy(written.replace("hidden = [8]", "hidden = [8, 8]"), privacy))
        self.world = world(of)
        self.algorithm, self.plan = composition(of, of.arms[0], self.world)
        self.parts = {part.spec.name: part for part in self.algorithm.contributions}
        self.kept: dict[int, Mapping[str, Any]] = {}
        self.other: Mapping[str, Any] = {}
        self.seen: dict[str, list[tuple[Outcome, Outcome]]] = {name: [] for name in self.parts}
        self.repeated: set[str] = set()
        self.own: dict[str, list[NDArray[Any]]] = {name: [] for name in self.parts}
        state = self.algorithm.start()
        for self.number in (1, 2, 3):
            people = replace(self.world.population(), last=self.number == 3)
            rng = np.random.default_rng(self.number)
            state = run_round(self.algorithm, state, people, self.number, rng, self.answer).state

    def outcome(self, name: str, client: int, kept: Mapping[str, Any], query: CohortQuery) -> Outcome:
        x, y = (part[:24] for part in self.world.records[client])
        context = ClientContext(
            client=client,
            round=self.number,
            x=x,
            y=y,
            broadcast=query.broadcast,
            public=query.public,
            rng=np.random.default_rng([self.number, client, query.number]),
            kept=kept,
            count=24,
            initial=query.initial,
            number=query.number,
        )
        try:
            return self.parts[name].compute(context)
        except DataError:
            return None

    def answer(self, query: CohortQuery, stage: int) -> Answers:
        totals, single, news = {}, {}, dict(self.kept)
        for wanted in (*query.sums, *query.per_client):
            name = wanted.spec.name
            values = {k: self.outcome(name, k, self.kept.get(k, {}), query) for k in query.cohort}
            if 0 in values:
                if (found := values[0]) is not None and isinstance(wanted, Sum):
                    self.own[name].append(found.floats())
                honest = self.kept.get(0, {})
                scaled = {key: own * 1.5 if own.dtype.kind == "f" else own for key, own in honest.items()}
                for kept in ({}, self.other, {k: v.astype(honest[k].dtype) for k, v in scaled.items()}):
                    self.seen[name].append((values[0], self.outcome(name, 0, kept, query)))
                now = self.seen[name][-1][1]
                if values[0] is not None and now is not None and takes_off(values[0], now, honest):
                    self.repeated.add(name)
                noise = np.random.default_rng(stage).normal(scale=0.01, size=len(query.broadcast))
                shown = replace(query, broadcast=(query.broadcast + noise).astype(np.float32))
                if (came := self.outcome(name, 0, self.other, shown)) is not None:
                    self.other = came.new_state or self.other
            there = {k: value for k, value in values.items() if value is not None}
            news |= {k: value.new_state for k, value in there.items() if value.new_state is not None}
            if isinstance(wanted, Sum):
                by = query.weights
                n = {k: 24 / by.total if isinstance(by, ByCount) else 1.0 for k in there}
                total = sum(n[k] * value.floats() for k, value in there.items())
                totals[name] = Total(np.asarray(total, np.float64), float(len(there)))
            else:
                made = {
                    k: value if value.after_noise is None else value.after_noise(value.floats())
                    for k, value in there.items()
                }
                single[name] = {k: wanted.number(value) for k, value in made.items()}
        self.kept = news
        return Answers(survivors=query.cohort, totals=totals, per_client=single)


def takes_off(one: Value, other: Value, kept: Mapping[str, Any]) -> bool:
    """Whether the value falls by half of something kept if that becomes half as large again."""
    fell = one.floats() - other.floats()
    alike = [own.ravel() for own in kept.values() if own.dtype.kind == "f" and own.size == fell.size]
    return bool(fell.any()) and any(np.allclose(fell, 0.5 * own, rtol=1e-3, atol=1e-4) for own in alike)


def differ(one: Value, other: Value) -> bool:
    return not (np.array_equal(one.floats(), other.floats()) and np.array_equal(one.hidden, other.hidden))


@every(("protocol", "options"), [*ARMS, STALE, FULL])
def test_a_value_moves_with_the_history_as_it_declares(protocol: str, options: str) -> None:
    found = Histories(protocol, options)
    for name, part in found.parts.items():
        pairs = [pair for pair in found.seen[name] if pair[0] is not None]
        another = any(one is not None and other is not None and differ(one, other) for one, other in pairs)
        refused = any(other is None for _, other in pairs)
        moved = "repeated" if name in found.repeated else "unbound"
        told = moved if another else "bound" if refused else "none"
        assert pairs or part.spec.reduction == "none"
        assert part.spec.reads_state == told


@every(("protocol", "options"), [*ARMS, STALE, FULL])
def test_a_sum_for_which_code_of_a_study_s_own_runs_counts_as_reading_state(
    protocol: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Problem, "own_code", True)
    arm = f'[[arm]]\nname = "x"\nprotocol = "{protocol}"\n{options}\n'
    of = parse(text(arm, non_private=SENT).replace("hidden = [8]", "hidden = [8, 8]"))
    algorithm, _ = composed(of)
    sums = [part.spec for part in algorithm.contributions if part.spec.reduction == "sum"]
    # Counts of records are no output of a model.
    moved = {spec.reads_state for spec in sums if spec.name not in ("count", "counts")}
    assert moved <= {"unknown", "unbound", "repeated"}


@every(("protocol", "options"), [arm for arm in ARMS if arm[0] != "adds"])
def test_what_does_not_change_is_no_part_of_a_value_of_each_round(protocol: str, options: str) -> None:
    """Two honest rounds over cohorts that differ in one client would tell it exactly: its label histogram.

    Maps of ADDS are refused, and signs tell single values whatever the round (form "discrete").
    """
    followed = hiding((protocol, options)) | {"sum": '"masked"', "secagg": '"semi-honest"'}
    found = Histories(protocol, options, **followed)
    for name, part in found.parts.items():
        if part.spec.schedule.once:
            assert name not in found.own or len(found.own[name]) <= 1
        elif part.spec.form == "real" and part.spec.reduction == "sum":
            rounds = np.stack(found.own[name])
            assert len(rounds) > 1
            same = (rounds == rounds[0]).all(axis=0) & (rounds[0] != 0)
            assert not same.any(), np.flatnonzero(same)


@every("reads", ["none", "unknown"])
def test_a_value_that_reads_nothing_is_given_nothing(reads: str) -> None:
    """An undeclared read is impossible, and not only forbidden."""
    seen: list[Mapping[str, Any]] = []

    def compute(context: ClientContext) -> Value:
        seen.append(context.kept)
        return Value(clear=np.zeros(3), new_state={"own": np.ones(1)})

    spec: Any = replace(SENDS, reads_state=reads)
    own = [ClientFunction(spec, compute)]
    engine = simulated(
        CLEAR, own, Ledger(None, CLEAR.terms()), records(), rng=lambda *_: np.random.default_rng(0)
    )
    query = CohortQuery(cohort=(0,), broadcast=np.zeros(2, np.float32), sums=(Sum(spec, 3),))
    for number in (1, 2):
        engine.query(query, Header(bytes(32), number, 0, 0))
    assert [set(kept) for kept in seen] == [set(), set() if reads == "none" else {"own"}]
