"""What the holders of a ledger have spent, and what their budgets still bear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from dp_accounting import DpEvent

from securefl.accounting.composition import Filter, Running, compose, fits
from securefl.accounting.events import History, dump_charge, load_charge
from securefl.accounting.store import Terms
from securefl.core.errors import BudgetExceeded
from securefl.core.release import NO_COST, UNPROTECTED, Charge
from securefl.storage.database import Database

# A long run has a new history every round. A full memory is emptied, which costs time and nothing else.
_LARGEST_MEMORY = 4096
# A schedule says for how many noised releases the noise was calibrated. These two bring none.
_WITHOUT_NOISE = (dump_charge(NO_COST), dump_charge(UNPROTECTED))


class Budget:
    """Reads the releases of a ledger's file; holders in the same state share one composition."""

    def __init__(self, db: Database, terms: Terms) -> None:
        self._db = db
        self._terms = terms
        self._running = Running(terms.delta)
        self._known: dict[object, float] = {}

    def epsilon(self, holder: str, party: str) -> float:
        """Epsilon this holder has spent against `party`, at the ledger's delta."""
        return self._epsilon(self._events(holder, party))

    def worst(self, party: str) -> float:
        """The largest epsilon over all holders against `party`; 0 for an empty ledger."""
        return max((self._epsilon(events) for events in self._all_events(party).values()), default=0.0)

    def refusal(self, holder: str, wants: Sequence[tuple[str, Charge]]) -> BudgetExceeded | None:
        """Return why budget or schedule refuse these (name, charge) pairs, or None if they bear them."""
        overrun = self._overrun(holder, wants)
        if overrun is not None or self._terms.budget is None:
            return overrun
        # A charge differs by party, so the budget is held against each party by itself. The largest epsilon
        # alone would not do: a party with less spent may be asked for more.
        for party in self._terms.against:
            spent = self._events(holder, party)
            asked = Counter(charge.by_party()[party] for _, charge in wants)
            if not self._bears(spent + asked):
                before, after = self._epsilon(spent), self._epsilon(spent + asked)
                left = round(self._terms.budget - before, 6)
                return BudgetExceeded(
                    f"{holder}: expected a round of at most epsilon {left:.4g} against the {party}, which is "
                    f"left of {self._terms.budget:.4g}, got {after - before:.4g}: 0 rounds like it remain. "
                    "Raise the budget, or add noise."
                )
        return None

    def rounds_left(self, holder: str, round_: Sequence[Charge], *, most: int = 10_000) -> int:
        """How many more rounds of these charges the budget bears for this holder; at most `most`."""
        spent = {party: self._events(holder, party) for party in self._terms.against}
        asked = {party: Counter(c.by_party()[party] for c in round_) for party in self._terms.against}

        def bears(rounds: int) -> bool:
            return all(
                self._bears(spent[p] + Counter({e: n * rounds for e, n in asked[p].items()})) for p in spent
            )

        return most_rounds(bears, most)

    def _overrun(self, holder: str, wants: Sequence[tuple[str, Charge]]) -> BudgetExceeded | None:
        if self._terms.schedule is None:
            return None
        asked = Counter(name for name, charge in wants if charge not in (NO_COST, UNPROTECTED))
        query = "SELECT COUNT(*) FROM releases WHERE holder = ? AND name = ? AND charge NOT IN (?, ?)"
        for name, more in asked.items():
            ((done,),) = self._db.rows(query, (holder, name, *_WITHOUT_NOISE))
            most = self._terms.schedule.get(name, 0)
            if done + more > most:
                return BudgetExceeded(
                    f"{holder}: expected at most {most} scheduled releases of {name!r}, got {more} more "
                    f"after {done}. The noise was calibrated for the schedule: declare a longer one."
                )
        return None

    def _bears(self, events: Mapping[DpEvent, int]) -> bool:
        budget = self._terms.budget
        if budget is None:
            return True
        if self._terms.adaptive:
            return Filter(budget, self._terms.delta).allows(History.of(events))
        return fits(self._epsilon(events), budget, partial(compose, events, self._terms.delta))

    def _events(self, holder: str, party: str) -> Counter[DpEvent]:
        query = "SELECT charge, COUNT(*) FROM releases WHERE holder = ? GROUP BY charge"
        return _count(self._db.rows(query, (holder,)), party)

    def _all_events(self, party: str) -> Mapping[str, Counter[DpEvent]]:
        query = "SELECT holder, charge, COUNT(*) FROM releases GROUP BY holder, charge"
        rows: dict[str, list[tuple[str, int]]] = {}
        for holder, charge, count in self._db.rows(query):
            rows.setdefault(holder, []).append((charge, count))
        return {holder: _count(counted, party) for holder, counted in rows.items()}

    def _epsilon(self, events: Mapping[DpEvent, int]) -> float:
        history = History.of(events)
        key = history.key()
        if key not in self._known:
            if len(self._known) > _LARGEST_MEMORY:
                self._known.clear()
            self._known[key] = self._running.epsilon(history)
        return self._known[key]


def most_rounds(bears: Callable[[int], bool], most: int) -> int:
    """Return the largest number of rounds, up to `most`, that a budget bears.

    A budget that bears a number of rounds must bear every smaller number: the search is a bisection.
    """
    # `low` rounds are borne and `high` are not, or are beyond `most`
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bears(middle) else (low, middle)
    return low


def _count(rows: Iterable[tuple[str, int]], party: str) -> Counter[DpEvent]:
    events: Counter[DpEvent] = Counter()
    for charge, count in rows:
        events[load_charge(charge).by_party()[party]] += count
    return events
