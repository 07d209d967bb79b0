"""What a round costs does not grow with the run, nor with clients that nobody asks; it is linear in a cohort.

Nothing is timed. Operations are counted: calls of functions, rows that SQLite gives, bytes of records.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_study import run, text

from securefl.algorithm.queries import ByDraws, CohortQuery, Sum
from securefl.core.wire import Header
from securefl.engine.exchange import Server, limits
from securefl.engine.exchange.server import Collecting
from securefl.protocols.contributions import UPDATE
from securefl.storage.database import Database
from securefl.study.config import Study, parse
from securefl.study.run import run_arm
from securefl.study.world import build

ARM = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = {}\naggregation = "partial"\n'
LOCAL = {
    'noise = "none"': 'noise = "local"\nepsilon = 8.0\nforce_delta = true',
    'non_private = ["update"]': "non_private = []",
    'unit = "record"': 'unit = "client"',
    "replace-one": "zero-out",
    "budget = inf": "budget = 8.0",
    "batch_size = 48": "batch_size = 16\nupdate_bound = 1.0",
}


def study(clients: int, cohort: int, rounds: int, *, noise: str = "none") -> Study:
    written = text(ARM.format(cohort / clients), clients=clients, rounds=rounds)
    written = written.replace("epochs = 2", "epochs = 1").replace("target = 0.2", "evaluate_every = ROUNDS")
    written = written.replace("ROUNDS", str(rounds))
    for old, new in LOCAL.items() if noise == "local" else ():
        assert old in written
        written = written.replace(old, new)
    return parse(written)


@dataclass
class Counts:
    """By round: calls, rows that SQLite gave, and bytes of the record."""

    calls: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    record: list[int] = field(default_factory=list)

    def late(self, name: str) -> int:
        """Of the last round but one: the last one is tested."""
        return getattr(self, name)[-2]  # type: ignore[no-any-return]


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts of calls and of rows, going on while this is open."""
    found, own = [0, 0], Database.rows

    def rows(self: Database, *asked: Any) -> list[tuple[Any, ...]]:
        given = own(self, *asked)
        found[1] += len(given)
        return given

    def called(_: object, event: str, __: object) -> None:
        found[0] += event in ("call", "c_call")

    with monkeypatch.context() as at:
        at.setattr(Database, "rows", rows)
        sys.setprofile(called)
        try:
            yield found
        finally:
            sys.setprofile(None)


def counted(of: Study, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counts:
    here, counts = build(of, 3), Counts()
    with watched(monkeypatch) as found:

        def tell(record: Mapping[str, Any]) -> None:
            for kept, now in zip((counts.calls, counts.rows), found, strict=True):
                kept.append(now - sum(kept))
            counts.record.append(len(json.dumps(record)))

        run_arm(of, of.arms[0], here, folder, tell)
    return counts


@every("noise", ["none", "local"])
def test_a_round_costs_the_same_after_many_others(
    noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counted(study(20, 4, 30, noise=noise), tmp_path, monkeypatch)
    # a client that took part before has a secret of an earlier round on record, which is a row
    assert found.late("rows") <= found.rows[2] + 4
    # lengths of numbers differ, and what is remembered of epsilons grows by a few histories
    assert found.late("record") <= 1.05 * found.record[2]
    assert found.late("calls") <= 1.25 * found.calls[2]


@every("noise", ["none", "local"])
def test_clients_that_nobody_asks_cost_nothing(
    noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = counted(study(20, 4, 4, noise=noise), tmp_path / "few", monkeypatch)
    many = counted(study(400, 4, 4, noise=noise), tmp_path / "many", monkeypatch)
    assert abs(many.late("rows") - few.late("rows")) <= 4
    # a number of three digits is longer than one of two
    assert many.late("record") <= few.late("record") + 60
    # fewer records a client: training makes fewer batches
    assert many.late("calls") <= 1.05 * few.late("calls")


@pytest.mark.parametrize("noise", ["none", "local"])
def test_a_round_is_linear_in_its_cohort(noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, middle, large = (
        counted(study(64, cohort, 3, noise=noise), tmp_path / str(cohort), monkeypatch)
        for cohort in (8, 16, 32)
    )
    for name in ("calls", "rows", "record"):
        first = middle.late(name) - small.late(name)
        second = large.late(name) - middle.late(name)
        # Two rows a client, and a third of one that took part before: more of a larger cohort did.
        most = 3 * (32 - 16) if name == "rows" else 2.2 * first
        assert 0 < second <= most, name


def test_a_server_keeps_what_came_without_copying_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All states of an exchange share one table: a copy for every message is quadratic in a cohort."""
    tables: dict[tuple[int, int, int], list[object]] = {}
    own = Server.receive

    def receive(self: Server, state: Any, sender: str, message: Any) -> Any:
        step = own(self, state, sender, message)
        if isinstance(step.state, Collecting):
            tables.setdefault(self.header.place(), []).append(step.state.numbers._table)
        return step

    monkeypatch.setattr(Server, "receive", receive)
    run(study(12, 6, 2), tmp_path)
    assert [len(seen) for seen in tables.values()] == [5, 5], "the last message ends the collecting"
    assert all(table is seen[0] for seen in tables.values() for table in seen)


class Watched(dict[int, int]):
    """Draws that count how often all of them are looked through."""

    looked = 0

    def values(self) -> Any:
        self.looked += 1
        return super().values()


def begun(cohort: int) -> int:
    draws = Watched(dict.fromkeys(range(cohort), 1))
    weights = ByDraws(draws)
    draws.looked = 0
    question = Sum(UPDATE, 3)
    query = CohortQuery(
        cohort=tuple(range(cohort)), broadcast=np.zeros(3, np.float32), sums=(question,), weights=weights
    )
    server = Server(query=query, header=Header(bytes(32), 1, 0, 0), most=limits(query, 0)[1])
    step = server.begin()
    assert len(step.out) == 1 + cohort
    query.total(question, np.zeros(3, np.int64), range(cohort))
    return draws.looked


def test_orders_and_totals_look_through_the_draws_once_not_once_a_client() -> None:
    assert begun(50) == begun(5)
