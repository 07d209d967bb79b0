"""Queries on a ledger's table of releases: counts by data holder, and limits on queries and releases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from securefl.accounting.chain import Head
from securefl.accounting.grouped_counts import Counts, GroupedCounts
from securefl.core.errors import BudgetExceeded
from securefl.core.release import ReleaseKey
from securefl.storage.database import Database

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DeclaredQuery:
    """The declared query that a release answers.

    Attributes:
        initial, number: as in `algorithm.queries.CohortQuery`.
        most: the largest number of initial queries, or of extra queries, that the spec declares. None: the
            ledger does not limit these queries.
        max_releases: the largest number of releases of the value from one holder, for all queries together.
            None is no limit.
        scheduled: the largest number of releases of the value from one holder in a session. None: no limit.
        separation: the least number of rounds of a session between two releases of the value.
    """

    initial: int = 0
    number: int = 0
    most: int | None = None
    max_releases: int | None = None
    scheduled: int | None = None
    separation: int = 1


class ReleaseTable:
    """The releases in a ledger's file.

    The counts belong to one head of the chain. The ledger reports each write (`add`, `move`). If the head
    moved without a report, another process wrote, and the counts are read again. So the time of a round does
    not grow with the number of earlier rounds.
    """

    def __init__(self, db: Database, newest: Callable[[], Head]) -> None:
        """Start with no counts. `newest` returns the newest link, also that of an open transaction."""
        self._db = db
        self._newest = newest
        self._counts: GroupedCounts[str] = GroupedCounts()
        self._at: int | None = None

    def counted(self, holder: str) -> Counts:
        return self._now().counted(holder)

    def histories(self) -> Iterable[Counts]:
        return self._now().histories()

    def add(self, holder: str, name: str, charge: str, link: int) -> None:
        """Count a reservation that was written as this link of the chain."""
        if self._at == link - 1:
            self._counts.add(holder, (name, charge))
            self._at = link

    def move(self, link: int) -> None:
        """Follow a commit that was written as this link of the chain. Its release is counted already."""
        if self._at == link - 1:
            self._at = link

    def forget(self) -> None:
        """Drop the counts after a transaction failed. They are read again."""
        self._at = None

    def _now(self) -> GroupedCounts[str]:
        at = self._newest().count
        if at != self._at:
            query = "SELECT holder, name, charge, COUNT(*) FROM releases GROUP BY holder, name, charge"
            self._counts = GroupedCounts()
            for holder, name, charge, count in self._db.rows(query):
                self._counts.add(holder, (name, charge), count)
            self._at = at
        return self._counts

    def misasked(self, which: Mapping[ReleaseKey, DeclaredQuery]) -> BudgetExceeded | None:
        """Return why a query does not follow the declaration, or None if all queries do."""
        for key, asked in which.items():
            refusal = (
                self._misplaced(key, asked, which)
                or self._used_up(key, asked, which)
                or self._unscheduled(key, asked, which)
                or self._too_early(key, asked)
            )
            if refusal is not None:
                return refusal
        return None

    def _misplaced(
        self, key: ReleaseKey, asked: DeclaredQuery, which: Mapping[ReleaseKey, DeclaredQuery]
    ) -> BudgetExceeded | None:
        """Return a refusal unless each query of a value in a round has one stage, and each stage one query.

        Two stages with one number would use one random stream for two models. Two numbers at one stage would
        make a new query look like a retry.
        """
        query = (
            "SELECT stage, initial, number FROM releases "
            "WHERE holder = ? AND session = ? AND round = ? AND name = ?"
        )
        done = self._db.rows(query, (key.holder, key.session, key.round, key.name))
        beside = [
            (other.stage, said.initial, said.number)
            for other, said in which.items()
            if (other.session, other.round, other.name) == (key.session, key.round, key.name)
        ]
        for stage, initial, number in (*done, *beside):
            same = (initial, number) == (asked.initial, asked.number)
            if same != (stage == key.stage):
                return BudgetExceeded(
                    f"{key.holder}: expected one stage for each query of {key.name!r} in round {key.round}, "
                    f"got number {asked.number} (initial query {asked.initial}) at stage {key.stage} "
                    f"after number {number} (initial query {initial}) at stage {stage}. Give each query "
                    "of the round its own number."
                )
        return None

    def _used_up(
        self, key: ReleaseKey, asked: DeclaredQuery, which: Mapping[ReleaseKey, DeclaredQuery]
    ) -> BudgetExceeded | None:
        """Return a refusal if initial or extra queries exceed the declared number. A retry is not counted."""
        if asked.most is None:
            return None
        # Initial queries are counted over all sessions: a server that restarts could otherwise pass off
        # training as initial queries without limit. Extra queries are charged like a round's queries, so each
        # run has its own number. The attempt is not selected, because a retry is no new query.
        kind = "initial > 0" if asked.initial else "number > 0 AND session = ?"
        query = f"SELECT session, round, stage FROM releases WHERE holder = ? AND name = ? AND {kind}"
        values = (key.holder, key.name, *(() if asked.initial else (key.session,)))
        done = {(bytes(row[0]), *row[1:]) for row in self._db.rows(query, values)}
        new = {
            (other.session, other.round, other.stage)
            for other, said in which.items()
            if other.name == key.name and bool(said.initial) == bool(asked.initial)
        }
        if not new - done or len(new | done) <= asked.most:
            return None
        what, remedy = (
            ("initial queries", "Query it in a round, where its training is charged.")
            if asked.initial
            else ("extra queries", "Query it once a round, or declare more (`Schedule.extra`).")
        )
        return BudgetExceeded(
            f"{key.holder}: expected at most {asked.most} declared {what} of {key.name!r}, got one more "
            f"after {len(done)}. {remedy}"
        )

    def _unscheduled(
        self, key: ReleaseKey, asked: DeclaredQuery, which: Mapping[ReleaseKey, DeclaredQuery]
    ) -> BudgetExceeded | None:
        """Return a refusal if a session asks for more releases than its noise was calibrated for.

        Attempts count: each has noise of its own, and a server that asks again and again would average it.
        """
        if asked.scheduled is None:
            return None
        query = (
            "SELECT COUNT(*) FROM releases WHERE holder = ? AND session = ? AND name = ? "
            "AND NOT (round = ? AND stage = ? AND attempt = ?)"
        )
        at = key.round, key.stage, key.attempt
        ((done,),) = self._db.rows(query, (key.holder, key.session, key.name, *at))
        new = sum((other.session, other.name) == (key.session, key.name) for other in which)
        if done + new <= asked.scheduled:
            return None
        return BudgetExceeded(
            f"{key.holder}: expected at most {asked.scheduled} releases of {key.name!r} in a session, got "
            f"one more after {done}. The noise was calibrated for the schedule: begin a new session."
        )

    def _too_early(self, key: ReleaseKey, asked: DeclaredQuery) -> BudgetExceeded | None:
        """Return a refusal of a release fewer rounds than `separation` after, or before, another one.

        Another release in the same round is a retry: the party that draws noise opens one total of a round.
        """
        query = (
            "SELECT MAX(round) FROM releases WHERE holder = ? AND session = ? AND name = ? AND round != ? "
            "AND round > ? - ? AND round < ? + ?"
        )
        at, apart = key.round, asked.separation
        values = (key.holder, key.session, key.name, at, at, apart, at, apart)
        ((other,),) = self._db.rows(query, values) if apart > 1 else ((None,),)
        if other is None:
            return None
        return BudgetExceeded(
            f"{key.holder}: expected at least {apart} rounds between two releases of {key.name!r} "
            f"(`separation`), got round {at} after round {other}: noise and charges assume no more. Ask "
            f"again from round {other + apart} on, or not again if the plan ends before it."
        )


def by_holder(of: Iterable[tuple[ReleaseKey, T]]) -> dict[str, list[tuple[ReleaseKey, T]]]:
    """Group items of release keys by the keys' holders."""
    grouped: dict[str, list[tuple[ReleaseKey, T]]] = {}
    for key, own in of:
        grouped.setdefault(key.holder, []).append((key, own))
    return grouped
