"""What a ledger's file says of the releases of a holder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from securefl.accounting.alike import Counts, GroupedCounts
from securefl.accounting.chain import Head
from securefl.core.errors import BudgetExceeded
from securefl.core.release import ReleaseKey
from securefl.storage.database import Database

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Which of the declared asks of its value a release answers.

    initial, number: as in `algorithm.queries.CohortQuery`.
    most: how many introductions, or further asks, a holder was promised at most. None is not counted.
    max_releases: how many releases of the value a holder lets out at all, whatever they answer. None is no
    limit.
    """

    initial: int = 0
    number: int = 0
    most: int | None = None
    max_releases: int | None = None


class ReleaseTable:
    """The releases in a ledger's file.

    Counts are kept as of one head of the chain. The ledger tells what it wrote (`add`, `move`). If the head
    moved without that, another process wrote, and they are taken anew. So a round costs the same after a
    thousand others.
    """

    def __init__(self, db: Database, newest: Callable[[], Head]) -> None:
        """newest: the newest link of the chain, of a change at hand too."""
        self._db = db
        self._newest = newest
        self._counts: GroupedCounts[str] = GroupedCounts()
        self._at: int | None = None

    def counted(self, holder: str) -> Counts:
        return self._now().of(holder)

    def histories(self) -> Iterable[Counts]:
        return self._now().histories()

    def add(self, holder: str, name: str, charge: str, link: int) -> None:
        """A reservation was written at this place of the chain, which was at hand before."""
        if self._at == link - 1:
            self._counts.add(holder, (name, charge))
            self._at = link

    def move(self, link: int) -> None:
        """A commit was written at this place of the chain. It is of a release that is counted."""
        if self._at == link - 1:
            self._at = link

    def forget(self) -> None:
        """What was written is not on file: the counts are taken anew."""
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

    def misasked(self, which: Mapping[ReleaseKey, Asked]) -> BudgetExceeded | None:
        """Return why a holder is asked otherwise than was declared, or None if it is not."""
        for key, asked in which.items():
            refusal = self._misplaced(key, asked, which) or self._used_up(key, asked, which)
            if refusal is not None:
                return refusal
        return None

    def too_many(
        self, holder: str, keys: Iterable[ReleaseKey], which: Mapping[ReleaseKey, Asked]
    ) -> BudgetExceeded | None:
        """Return why a holder lets no more of these new releases out, or None if it does.

        All that is on file counts, of every session, noised or not: what was reserved may have left.
        """
        new = [key for key in keys if key in which and which[key].max_releases is not None]
        for name, more in Counter(key.name for key in new).items():
            most = min(which[key].max_releases or 0 for key in new if key.name == name)
            done = sum(count for (own, _), count in self.counted(holder) if own == name)
            if done + more > most:
                return BudgetExceeded(
                    f"{holder}: expected at most {most} releases of {name!r} on this ledger, got {more} more "
                    f"after {done}. Each tells one linear function of the same vector, and enough of them "
                    "tell all of it: declare more (`max_releases`), or ask for no further ones."
                )
        return None

    def _misplaced(
        self, key: ReleaseKey, asked: Asked, which: Mapping[ReleaseKey, Asked]
    ) -> BudgetExceeded | None:
        """A question of a round has one stage, and a stage one question of each value.

        Two stages with one number would draw one stream twice, with two models. Two numbers at one stage
        would make a retry out of another question.
        """
        query = (
            "SELECT stage, introduction, number FROM releases "
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
                    f"{key.holder}: expected one stage for each Ask of {key.name!r} in round {key.round}, "
                    f"got number {asked.number} (introduction {asked.initial}) at stage {key.stage} "
                    f"after number {number} (introduction {initial}) at stage {stage}. Ask under a "
                    "number of its own."
                )
        return None

    def _used_up(
        self, key: ReleaseKey, asked: Asked, which: Mapping[ReleaseKey, Asked]
    ) -> BudgetExceeded | None:
        """More introductions, or further asks, than were declared. A retry is the Ask that it repeats."""
        if asked.most is None:
            return None
        # Introductions are counted over all sessions, since an asker that restarts could otherwise take
        # training for an introduction again and again. Further asks cost what a round's cost: each run has
        # its own. The attempt is left out: a retry asks nothing new.
        kind = "introduction > 0" if asked.initial else "number > 0 AND session = ?"
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
            ("introductions", "Ask for it in a round, where its training is charged.")
            if asked.initial
            else ("further asks", "Ask for it once a round, or declare more (`extra_queries`).")
        )
        return BudgetExceeded(
            f"{key.holder}: expected at most {asked.most} declared {what} of {key.name!r}, got one more "
            f"after {len(done)}. {remedy}"
        )


def by_holder(of: Iterable[tuple[ReleaseKey, T]]) -> dict[str, list[tuple[ReleaseKey, T]]]:
    """What belongs to release keys, by the keys' holders."""
    grouped: dict[str, list[tuple[ReleaseKey, T]]] = {}
    for key, own in of:
        grouped.setdefault(key.holder, []).append((key, own))
    return grouped
